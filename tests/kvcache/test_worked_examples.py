"""Examples to follow with a pencil: 4 tokens a block, threshold 30, ids and slots as TensorRT-LLM numbers them.

`gpu` and `host` list the free blocks, next victim first. P blocks are born on the GPU (ids 0..P-1), S on the host.
"""

from typing import Any

import pytest

from kvcache.blockhash import MultimodalEntry, block_hash
from kvcache.cache_request import CacheRequest
from kvcache.inspection import check, describe, queue_order
from kvcache.manager import KVCacheManager
from kvcache.retention import KvCacheRetentionConfig, TokenRangeRetentionConfig
from kvcache.single_blocks import detach_block, onboard_block
from kvcache.tables import ALLOC_NEW, ALLOC_TOTAL, FULL_REUSED, MISSED, PARTIAL_REUSED, REUSED, Pool, Settings


def new(gpu: int, host: int = 0, disk: int | None = None, **settings: Any) -> KVCacheManager:
    blocks = (gpu, host) if disk is None else (gpu, host, disk)
    return KVCacheManager([Pool(1 << 20, blocks)], Settings(tokens_per_block=4, **settings), event_buffer_max_size=1000)


def add(manager: KVCacheManager, name: int, tokens: list[int], **more: Any) -> list[int | None]:
    manager.add_sequence_batch([CacheRequest(name, tokens, **more)])
    return manager.block_ids(name)


def run(manager: KVCacheManager, name: int, tokens: list[int], **more: Any) -> list[int | None]:
    """One request alone from its prompt to its end, nothing generated."""
    ids = add(manager, name, tokens, **more)
    manager.requests[name].position = len(tokens)
    manager.store_context_blocks(name)
    manager.release(name)
    check(manager)
    return ids


def gpu(manager: KVCacheManager) -> list[int]:
    return queue_order(manager, 0, 0)


def host(manager: KVCacheManager) -> list[int]:
    return queue_order(manager, 0, 1)


def said(manager: KVCacheManager) -> list[tuple[str, int]]:
    """Removed and updated events: (kind, last four digits of the hash are enough to tell them apart)."""
    out = []
    for event in manager.flush_events():
        data = event["data"]
        if data["type"] == "removed":
            out += [("removed", block % 10_000) for block in data["block_hashes"]]
        if data["type"] == "updated":
            out.append(("updated", data["block_hash"] % 10_000))
    return out


def copies(manager: KVCacheManager) -> list[tuple[str, int, int, int]]:
    kinds = ("offload", "onboard", "disk write", "disk read", "copy")
    return [
        (kinds[kind], source, target, tokens) for kind, _, source, target, tokens, _ in manager.take_copies().tolist()
    ]


class TestReleaseOrder:
    def test_a_fourth_block_is_taken_at_token_13_and_blocks_are_freed_last_first(self) -> None:
        manager = new(6)
        prompt = list(range(100, 110))
        assert add(manager, 0, prompt) == [0, 1, 2]
        assert [describe(manager, b)["key_tokens"] for b in (0, 1, 2)] == [4, 4, 1]
        manager.store_context_blocks(0)
        assert [describe(manager, b)["attached"] for b in (0, 1, 2)] == [True, True, False]
        manager.add_tokens(0, [1, 2])
        assert manager.block_ids(0) == [0, 1, 2]
        manager.add_tokens(0, [3])
        assert manager.block_ids(0) == [0, 1, 2, 3]
        manager.release(0)
        assert describe(manager, 2) | {"key_tokens": 4, "attached": True} == describe(manager, 2)
        assert not describe(manager, 3)["attached"]
        assert gpu(manager) == [4, 5, 3, 2, 1, 0]


class TestDuplicates:
    """A and B compute the same 9 tokens at the same time; only A's blocks enter the tree."""

    def twins(self, *, detached_first: bool) -> KVCacheManager:
        manager = new(6, 2, detached_first=detached_first)
        manager.add_sequence_batch([CacheRequest(0, list(range(9))), CacheRequest(1, list(range(9)))])
        assert (manager.block_ids(0), manager.block_ids(1)) == ([0, 1, 2], [3, 4, 5])
        for name in (0, 1):
            manager.store_context_blocks(name)
        for name in (0, 1):
            manager.release(name)
        manager.take_copies()
        return manager

    def test_without_the_july_rule_the_useful_blocks_go_to_the_host_first(self) -> None:
        manager = self.twins(detached_first=False)
        assert gpu(manager) == [2, 1, 0, 5, 4, 3]
        assert add(manager, 2, [50] * 13) == [2, 6, 7, 5]
        assert copies(manager) == [("offload", 1, 0, 0), ("offload", 0, 1, 0)]
        assert [describe(manager, b)["level"] for b in (0, 1)] == [1, 1]

    def test_with_the_july_rule_the_duplicates_go_to_the_host_and_the_prefix_stays(self) -> None:
        manager = self.twins(detached_first=True)
        assert gpu(manager) == [3, 4, 5, 2, 1, 0]
        assert add(manager, 2, [50] * 13) == [6, 7, 5, 2]
        assert copies(manager) == [("offload", 3, 0, 0), ("offload", 4, 1, 0)]
        assert [describe(manager, b)["level"] for b in (0, 1)] == [0, 0]

    @pytest.mark.parametrize("detached_first", [False, True])
    def test_a_block_with_an_empty_key_counts_as_new_and_is_not_offloaded(self, detached_first: bool) -> None:
        manager = self.twins(detached_first=detached_first)
        add(manager, 2, [50] * 13)
        stats = manager.state.stats[0]
        assert (stats[ALLOC_TOTAL], stats[ALLOC_NEW], stats[MISSED]) == (10, 8, 10)


class TestEmptiedHostSlot:
    """A, B and C push each other to the host; then B's prompt comes back and its two blocks are onboarded."""

    def until_b_returns(self, *, emptied_host_slot_front: bool) -> KVCacheManager:
        manager = new(4, 3, emptied_host_slot_front=emptied_host_slot_front)
        run(manager, 0, list(range(100, 109)))
        run(manager, 1, list(range(200, 209)))
        assert (gpu(manager), host(manager)) == ([0, 4, 2, 3], [5, 6, 1])
        assert copies(manager) == [("offload", 1, 0, 0)]
        said(manager)
        run(manager, 2, list(range(300, 313)))
        assert (gpu(manager), host(manager)) == ([1, 6, 4, 5], [0, 2, 3])
        assert [c[0] for c in copies(manager)] == ["offload", "offload", "offload"]
        one = [100, 101, 102, 103]
        second_of_a = block_hash([104, 105, 106, 107], parent=block_hash(one)) % 10_000
        assert ("removed", second_of_a) in said(manager)
        return manager

    def test_a_slot_returned_to_the_back_leaves_an_older_block_to_be_overwritten(self) -> None:
        manager = self.until_b_returns(emptied_host_slot_front=False)
        assert manager.add_sequence_batch([CacheRequest(3, list(range(200, 209)))]) == [8]
        assert manager.block_ids(3)[:2] == [3, 2]
        assert (gpu(manager), host(manager)) == ([5], [6, 0, 4])
        assert not describe(manager, 0)["attached"]
        assert ("removed", block_hash([100, 101, 102, 103]) % 10_000) in said(manager)

    def test_a_slot_returned_to_the_front_is_used_again_and_the_older_block_survives(self) -> None:
        manager = self.until_b_returns(emptied_host_slot_front=True)
        assert manager.add_sequence_batch([CacheRequest(3, list(range(200, 209)))]) == [8]
        assert manager.block_ids(3)[:2] == [3, 2]
        assert (gpu(manager), host(manager)) == ([5], [0, 6, 4])
        assert describe(manager, 0)["attached"]

    @pytest.mark.parametrize(("front", "priority"), [(False, 35), (True, 0)])
    def test_the_emptied_slot_gets_the_lowest_priority_only_with_the_front_rule(
        self, front: bool, priority: int
    ) -> None:
        manager = new(3, 2, emptied_host_slot_front=front)
        run(manager, 0, [1] * 4)
        run(manager, 1, [2] * 12)  # pushes block 0 to the host
        assert describe(manager, 0)["level"] == 1
        onboard_block(manager, 0)
        emptied = [block for block in host(manager) if not describe(manager, block)["attached"]]
        assert [describe(manager, block)["priority"] for block in emptied] == [priority]


class TestThreePartialMatches:
    def test_the_last_claimant_takes_the_block_in_place_and_the_others_copy(self) -> None:
        manager = new(10)
        manager.add_sequence_batch([CacheRequest(0, [1, 2, 3, 4, 5, 6, 7])])
        manager.release(0)
        assert describe(manager, 1)["key_tokens"] == 2
        batch = [[1, 2, 3, 4, 5, 6, 9, 9], [1, 2, 3, 4, 5, 6, 8, 8], [1, 2, 3, 4, 5, 9, 9, 9]]
        assert manager.add_sequence_batch([CacheRequest(i + 1, tokens) for i, tokens in enumerate(batch)]) == [6, 6, 5]
        assert [manager.block_ids(name) for name in (1, 2, 3)] == [[0, 2], [0, 3], [0, 1]]
        assert copies(manager) == [("copy", 1, 2, 2), ("copy", 1, 3, 2)]
        assert not describe(manager, 1)["attached"]
        stats = manager.state.stats[0]
        assert (stats[REUSED], stats[FULL_REUSED], stats[PARTIAL_REUSED], stats[MISSED]) == (6, 3, 3, 2)

    def test_2025_the_first_request_takes_the_block_in_place_and_the_next_finds_no_partial_match(self) -> None:
        manager = new(10, sequential_claim=True)
        manager.add_sequence_batch([CacheRequest(0, [1, 2, 3, 4, 5, 6, 7])])
        manager.release(0)
        batch = [[1, 2, 3, 4, 5, 6, 9, 9], [1, 2, 3, 4, 5, 6, 8, 8]]
        assert manager.add_sequence_batch([CacheRequest(i + 1, tokens) for i, tokens in enumerate(batch)]) == [6, 4]
        assert [manager.block_ids(name) for name in (1, 2)] == [[0, 1], [0, 2]]
        assert copies(manager) == []

    @pytest.mark.parametrize(("sequential", "reused"), [(False, [0, 7]), (True, [0, 0])])
    def test_2025_an_early_request_may_evict_what_a_later_one_would_have_matched(
        self, sequential: bool, reused: list[int]
    ) -> None:
        manager = new(6, sequential_claim=sequential)
        run(manager, 0, [1, 2, 3, 4, 5, 6, 7, 8, 9])
        run(manager, 1, [50] * 9)
        assert gpu(manager) == [2, 1, 0, 5, 4, 3]
        batch = [CacheRequest(2, [60] * 12), CacheRequest(3, [1, 2, 3, 4, 5, 6, 7, 8])]
        assert manager.add_sequence_batch(batch) == reused

    def test_a_full_match_of_the_block_turns_the_in_place_claimant_into_a_copier(self) -> None:
        # 8 stored tokens: block 0 = 1..4, block 1 = 5..8. X wants two tokens of block 1, Y all of it.
        manager = new(10)
        run(manager, 0, [1, 2, 3, 4, 5, 6, 7, 8, 9])
        manager.add_sequence_batch([
            CacheRequest(1, [1, 2, 3, 4, 5, 6, 0, 0]),
            CacheRequest(2, [1, 2, 3, 4, 5, 6, 7, 8, 0]),
        ])
        assert (manager.block_ids(1), manager.block_ids(2)) == ([0, 3], [0, 1, 4])
        assert copies(manager) == [("copy", 1, 3, 2)]
        assert describe(manager, 1)["attached"]

    def test_after_a_full_match_a_partial_one_in_the_same_batch_copies(self) -> None:
        manager = new(10)
        run(manager, 0, [1, 2, 3, 4, 5, 6, 7, 8, 9])
        manager.add_sequence_batch([
            CacheRequest(1, [1, 2, 3, 4, 5, 6, 7, 8, 0]),
            CacheRequest(2, [1, 2, 3, 4, 5, 6, 0, 0]),
        ])
        assert (manager.block_ids(1), manager.block_ids(2)) == ([0, 1, 3], [0, 4])
        assert copies(manager) == [("copy", 1, 4, 2)]


class TestExpiry:
    def test_both_a_raised_and_a_lowered_block_return_to_35_at_the_back(self) -> None:
        manager = new(4)
        ranges = [TokenRangeRetentionConfig(0, 4, 10, 100), TokenRangeRetentionConfig(4, None, 90, 50)]
        run(manager, 0, [1, 2, 3, 4, 5], retention=KvCacheRetentionConfig(ranges))
        assert gpu(manager) == [0, 2, 3, 1]
        manager.refresh(0.049)
        assert [describe(manager, b)["priority"] for b in range(4)] == [10, 90, 35, 35]
        manager.refresh(0.060)
        assert gpu(manager) == [0, 2, 3, 1]
        assert [describe(manager, b)["priority"] for b in range(4)] == [10, 35, 35, 35]
        manager.refresh(0.100)
        assert gpu(manager) == [2, 3, 1, 0]
        assert [describe(manager, b)["priority"] for b in range(4)] == [35, 35, 35, 35]

    def test_two_blocks_due_at_the_same_time_go_back_by_id(self) -> None:
        manager = new(4)
        retention = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 90, 50)])
        run(manager, 0, list(range(9)), retention=retention)  # freed 2, 1, 0
        assert gpu(manager) == [3, 2, 1, 0]
        manager.refresh(0.05)
        assert gpu(manager) == [3, 0, 1, 2]

    def test_the_clock_starts_at_the_release_and_starts_again_at_the_next(self) -> None:
        manager = new(2)
        retention = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 90, 50)])
        add(manager, 0, [1, 2, 3, 4, 5], retention=retention)
        manager.refresh(1.0)
        manager.release(0)
        manager.refresh(1.049)
        assert describe(manager, 0)["priority"] == 90
        add(manager, 1, [1, 2, 3, 4, 5], retention=retention)
        manager.refresh(2.0)
        assert describe(manager, 0)["priority"] == 90
        manager.release(1)
        manager.refresh(2.05)
        assert describe(manager, 0)["priority"] == 35


class TestHashes:
    def test_vectors_of_a_second_implementation(self) -> None:
        first = block_hash([1, 2, 3, 4])
        assert first == 0x35B4D38096B5F
        assert block_hash([5, 6, 7, 8], parent=first) == 0x1AE72DC69E6E4D5E
        assert block_hash([1, 2, 3, 4], lora_id=7) == 0x1386810851A5E03B
        assert block_hash([1, 2, 3, 4], cache_salt=42) == 0x3A3B3D7615C7808C
        assert block_hash(list(range(32))) == 0xDCE8BBA2464AA4E2
        assert block_hash([]) == 0

    def test_values_asserted_by_tensorrt_llm_itself(self) -> None:
        # its tests/unittest/kv_cache_manager_v2_tests/test_kv_cache_events.py
        assert block_hash([1, 2, 3, 4]) == 944812140882783
        assert block_hash([5, 6], parent=944812140882783) == 12460730416951841444

    def test_salt_enters_the_first_block_only(self) -> None:
        assert block_hash([1], parent=5, cache_salt=1) == block_hash([1], parent=5)
        assert block_hash([1], cache_salt=1) != block_hash([1])
        assert block_hash([1], cache_salt=0) != block_hash([1])

    def test_extra_ids_items_and_offsets_change_the_hash(self) -> None:
        item = MultimodalEntry((1, 2, 3, 4, 5, 6, 7, 8), 0)
        hashes = {
            block_hash([1, 2]),
            block_hash([1, 2], extra_ids=[0, 0]),
            block_hash([1, 2], extra_ids=[0, 1]),
            block_hash([1, 2], multimodal=[item]),
            block_hash([1, 2], multimodal=[MultimodalEntry(item.item_hash, 4)]),
            block_hash([1, 2], multimodal=[MultimodalEntry((2, *item.item_hash[1:]), 0)]),
            block_hash([2, 1]),
        }
        assert len(hashes) == 7

    def test_negative_words_of_an_item_hash_are_read_as_32_bits(self) -> None:
        a = block_hash([1], multimodal=[MultimodalEntry((-1,) * 8, 0)])
        b = block_hash([1], multimodal=[MultimodalEntry((0xFFFFFFFF,) * 8, 0)])
        assert a == b


class TestWhatIsEligible:
    """The last prompt token is always computed; the rest is cut into blocks of 4."""

    @pytest.mark.parametrize(
        ("length", "matched"),
        # 13 tokens are stored of a 14-token prompt: blocks of 4, 4, 4 and 1
        [(1, 0), (2, 1), (4, 3), (5, 4), (8, 7), (9, 8), (12, 11), (13, 12), (14, 13)],
    )
    def test_all_but_the_last_token_of_a_stored_prompt_match(self, length: int, matched: int) -> None:
        manager = new(12)
        run(manager, 0, list(range(14)))
        assert manager.add_sequence_batch([CacheRequest(1, list(range(length)))]) == [matched]

    @pytest.mark.parametrize(("length", "matched"), [(4, 0), (5, 4), (8, 4), (9, 8), (13, 12), (14, 13)])
    def test_without_partial_reuse_only_whole_keys_match(self, length: int, matched: int) -> None:
        manager = new(12, enable_partial_reuse=False)
        run(manager, 0, list(range(14)))
        assert manager.add_sequence_batch([CacheRequest(1, list(range(length)))]) == [matched]

    def test_without_reuse_nothing_is_stored_and_nothing_matches(self) -> None:
        manager = new(12, enable_block_reuse=False)
        run(manager, 0, list(range(14)))
        assert manager.add_sequence_batch([CacheRequest(1, list(range(14)))]) == [0]
        assert [e["data"]["type"] for e in manager.flush_events()] == ["created"]


class TestPartialMatches:
    def test_a_block_in_use_is_copied(self) -> None:
        manager = new(8)
        add(manager, 0, [1, 2, 3, 4, 5])
        manager.store_context_blocks(0)
        assert add(manager, 1, [1, 2, 9, 9, 9]) == [2, 3]
        assert copies(manager) == [("copy", 0, 2, 2)]

    def test_a_block_in_use_is_no_candidate_without_copies(self) -> None:
        manager = new(8, copy_on_partial_reuse=False)
        add(manager, 0, [1, 2, 3, 4, 5])
        manager.store_context_blocks(0)
        assert manager.add_sequence_batch([CacheRequest(1, [1, 2, 9, 9, 9])]) == [0]
        assert copies(manager) == []

    def test_without_copies_a_shorter_match_with_a_free_leaf_is_taken_instead(self) -> None:
        manager = new(8, copy_on_partial_reuse=False)
        run(manager, 0, [1, 2, 9, 9, 9])  # block 0, two tokens in common
        add(manager, 1, [1, 2, 3, 4, 5])  # takes block 0 in place
        manager.store_context_blocks(1)
        run(manager, 2, [1, 7, 7, 7, 7])  # a leaf with one token in common
        leaf = manager.find_block([1, 7, 7, 7])
        assert manager.add_sequence_batch([CacheRequest(3, [1, 2, 3, 0, 0])]) == [1]
        assert manager.block_ids(3)[0] == leaf

    def test_a_free_inner_block_is_copied_and_returns_to_the_back_of_the_queue(self) -> None:
        manager = new(6)
        run(manager, 0, list(range(9)))
        assert gpu(manager) == [3, 4, 5, 2, 1, 0]
        assert add(manager, 1, [0, 1, 9, 9]) == [3]
        assert copies(manager) == [("copy", 0, 3, 2)]
        assert gpu(manager) == [4, 5, 2, 1, 0]

    def test_a_copied_inner_block_that_a_later_request_matches_whole_is_not_freed(self) -> None:
        manager = new(8)
        run(manager, 0, list(range(9)))
        manager.add_sequence_batch([CacheRequest(1, [0, 1, 9, 9]), CacheRequest(2, list(range(9)))])
        check(manager)
        assert (manager.block_ids(1), manager.block_ids(2)) == ([3], [0, 1, 4])
        assert gpu(manager) == [5, 6, 7, 2]

    def test_of_equal_matches_the_child_that_entered_the_tree_last_is_taken(self) -> None:
        manager = new(8)
        manager.add_sequence_batch([CacheRequest(0, [1, 2, 3, 3, 0]), CacheRequest(1, [1, 2, 4, 4, 0])])
        for name in (0, 1):
            manager.store_context_blocks(name)
        for name in (1, 0):
            manager.release(name)
        assert add(manager, 2, [1, 2, 5, 5, 0])[0] == 2  # block 2 holds request 1's first block

    def test_the_longest_match_is_taken_whatever_came_last(self) -> None:
        manager = new(8)
        manager.add_sequence_batch([CacheRequest(0, [1, 2, 3, 4, 0]), CacheRequest(1, [1, 7, 7, 7, 0])])
        for name in (0, 1):
            manager.store_context_blocks(name)
        for name in (0, 1):
            manager.release(name)
        assert manager.add_sequence_batch([CacheRequest(2, [1, 2, 3, 9, 9])]) == [3]

    def test_a_stored_short_block_that_equals_the_key_counts_as_partial(self) -> None:
        manager = new(8)
        run(manager, 0, [1, 2, 3, 4, 5, 6, 7])
        assert manager.add_sequence_batch([CacheRequest(1, [1, 2, 3, 4, 5, 6, 7])]) == [6]
        stats = manager.state.stats[0]
        assert (stats[FULL_REUSED], stats[PARTIAL_REUSED]) == (1, 1)


class TestOffload:
    @pytest.mark.parametrize(("priority", "kept"), [(29, False), (30, True), (35, True)])
    def test_a_block_at_the_threshold_is_kept_and_one_below_is_dropped(self, priority: int, kept: bool) -> None:
        manager = new(2, 2)
        retention = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, priority)])
        run(manager, 0, [1, 2, 3, 4, 5], retention=retention)
        run(manager, 1, [9, 9, 9, 9, 9])
        block = manager.find_block([1, 2, 3, 4])
        assert (block is not None) == kept
        if block is not None:
            assert describe(manager, block)["level"] == 1

    def test_the_host_victim_is_chosen_by_its_own_priority_only(self) -> None:
        # a host block of priority 90 is dropped for a GPU block of priority 35 if nothing lower is on the host
        manager = new(2, 1)
        run(manager, 0, [1, 2, 3, 4, 5], retention=KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 90)]))
        run(manager, 1, [5] * 8)
        assert describe(manager, 0) | {"level": 1, "priority": 90} == describe(manager, 0)
        run(manager, 2, [6] * 8)
        assert manager.find_block([1, 2, 3, 4]) is None

    def test_an_offloaded_block_never_expires(self) -> None:
        manager = new(2, 2)
        retention = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 30, 50)])
        run(manager, 0, [1, 2, 3, 4, 5], retention=retention)
        run(manager, 1, [9, 9, 9, 9, 9])
        assert describe(manager, 0)["level"] == 1
        manager.refresh(10.0)
        assert describe(manager, 0)["priority"] == 30

    def test_without_onboarding_nothing_is_offloaded(self) -> None:
        manager = new(2, 2, onboard_blocks=False)
        run(manager, 0, [1, 2, 3, 4, 5])
        run(manager, 1, [9, 9, 9, 9, 9])
        assert copies(manager) == []
        assert manager.find_block([1, 2, 3, 4]) is None


class TestDiskTier:
    def test_a_host_victim_moves_on_to_disk_before_its_place_is_overwritten(self) -> None:
        manager = new(1, 1, 2)
        for name in range(3):
            manager.add_sequence_batch([CacheRequest(name, [name] * 4)])
            manager.release(name)
        assert copies(manager) == [("offload", 0, 0, 0), ("disk write", 0, 0, 0), ("offload", 0, 0, 0)]
        assert [describe(manager, int(manager.find_block([n] * 3) or 0))["level"] for n in range(3)] == [2, 1, 0]

    @pytest.mark.parametrize(("threshold", "level"), [(35, 2), (36, None)])
    def test_a_host_victim_below_the_cold_threshold_is_dropped(self, threshold: int, level: int | None) -> None:
        manager = new(1, 1, 2, cold_tier_offload_min_priority=threshold)
        for name in range(3):
            manager.add_sequence_batch([CacheRequest(name, [name] * 4)])
            manager.release(name)
        block = manager.find_block([0] * 3)
        assert (None if block is None else describe(manager, block)["level"]) == level
        assert [c[0] for c in copies(manager)].count("disk write") == (level is not None)

    def test_a_block_on_disk_is_read_straight_to_the_gpu(self) -> None:
        manager = new(2, 1, 2)
        for name in range(4):
            manager.add_sequence_batch([CacheRequest(name, [name] * 4)])
            manager.release(name)
        manager.take_copies()
        assert describe(manager, int(manager.find_block([0] * 3) or 0))["level"] == 2
        assert manager.add_sequence_batch([CacheRequest(9, [0] * 4)]) == [3]
        assert copies(manager)[-1][0] == "disk read"


class TestEvictingAPrefix:
    """A chain of three blocks whose first one has the lowest priority, so that it is evicted before its descendants."""

    def chain(self, **settings: Any) -> KVCacheManager:
        manager = new(4, **settings)
        low = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, 4, 10)])
        run(manager, 0, list(range(13)), retention=low)
        add(manager, 1, [77, 78])  # one block: the first of the chain goes
        manager.store_context_blocks(1)
        said(manager)
        return manager

    def test_2026_the_descendants_stay_and_match_again_once_the_hole_is_filled(self) -> None:
        manager = self.chain()
        assert [describe(manager, b)["attached"] for b in (1, 2)] == [True, True]
        manager.release(1)
        assert manager.add_sequence_batch([CacheRequest(2, list(range(5)))]) == [0]
        manager.store_context_blocks(2)
        manager.release(2)
        assert manager.add_sequence_batch([CacheRequest(3, list(range(13)))])[0] >= 4

    def test_2025_the_descendants_are_detached_without_events(self) -> None:
        manager = self.chain(evict_descendants=True)
        assert [describe(manager, b)["attached"] for b in (1, 2)] == [False, False]

    def test_a_child_of_an_evicted_block_leaves_without_an_event(self) -> None:
        manager = self.chain()
        manager.release(1)
        said(manager)
        add(manager, 2, [88] * 12)  # takes 3, 2, 1 or so: the orphans go
        assert manager.find_block(list(range(8))) is None
        orphan = block_hash([4, 5, 6, 7], parent=block_hash([0, 1, 2, 3])) % 10_000
        assert ("removed", orphan) not in said(manager)


class TestRetention:
    def test_a_match_keeps_its_priority_without_a_configuration_but_loses_its_duration(self) -> None:
        manager = new(4)
        retention = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 90, 50)])
        run(manager, 0, [1, 2, 3, 4, 5], retention=retention)
        run(manager, 1, [1, 2, 3, 4, 5])
        manager.refresh(9.0)
        assert describe(manager, 0)["priority"] == 90

    def test_the_newest_request_wins_downwards_too_and_says_so(self) -> None:
        manager = new(4)
        run(manager, 0, [1, 2, 3, 4, 5], retention=KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 90)]))
        manager.flush_events()
        add(manager, 1, [1, 2, 3, 4, 5], retention=KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 5)]))
        assert describe(manager, 0)["priority"] == 5
        (event,) = [e["data"] for e in manager.flush_events()]
        assert event["priority"] == {"type": "event_diff", "old_value": 90, "new_value": 5}
        assert (event["block_hash"], event["cache_level"]) == (block_hash([1, 2, 3, 4]), None)

    def test_generated_blocks_take_the_decode_priority(self) -> None:
        manager = new(4)
        retention = KvCacheRetentionConfig([], decode_retention_priority=7, decode_duration_ms=10)
        add(manager, 0, [1, 2, 3, 4], retention=retention)
        manager.add_tokens(0, [5])
        assert [describe(manager, b)["priority"] for b in (0, 1)] == [35, 7]
        manager.release(0)
        manager.refresh(0.01)
        assert describe(manager, 1)["priority"] == 35

    def test_a_copy_of_a_block_in_use_inherits_its_priority(self) -> None:
        manager = new(6)
        add(manager, 0, [1, 2, 3, 4, 5], retention=KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 80)]))
        manager.store_context_blocks(0)
        copy = add(manager, 1, [1, 2, 9, 9], retention=KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 5)]))
        assert describe(manager, int(copy[0] or 0))["priority"] == 80
        assert describe(manager, 0)["priority"] == 80

    def test_a_copy_of_a_free_inner_block_takes_the_new_priority_and_so_does_the_source(self) -> None:
        manager = new(6)
        retention = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 80)])
        run(manager, 0, list(range(9)), retention=retention)
        copy = add(manager, 1, [0, 1, 9, 9], retention=KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 5)]))
        assert describe(manager, int(copy[0] or 0))["priority"] == 5
        assert describe(manager, 0)["priority"] == 5


class TestStoring:
    def test_a_chunk_that_ends_on_a_block_boundary_stores_its_last_block_one_chunk_later(self) -> None:
        manager = new(6)
        add(manager, 0, list(range(12)))
        request = manager.requests[0]
        request.position = 8
        manager.store_context_blocks(0)
        assert [describe(manager, b)["attached"] for b in range(3)] == [True, False, False]
        request.position = 12
        manager.store_context_blocks(0)
        assert [describe(manager, b)["attached"] for b in range(3)] == [True, True, False]

    def test_an_occupied_position_stays_and_the_blocks_behind_it_are_stored(self) -> None:
        manager = new(8)
        manager.add_sequence_batch([CacheRequest(0, list(range(5))), CacheRequest(1, list(range(9)))])
        manager.store_context_blocks(0)
        manager.store_context_blocks(1)
        assert [describe(manager, b)["attached"] for b in (0, 2, 3)] == [True, False, True]
        assert describe(manager, 3)["prev_block"] == 0

    def test_the_store_of_a_cancelled_prefill_stops_at_what_was_computed(self) -> None:
        manager = new(6)
        add(manager, 0, list(range(12)))
        manager.requests[0].position = 6
        manager.release(0)
        assert [describe(manager, b)["key_tokens"] for b in range(2)] == [4, 1]
        assert [describe(manager, b)["attached"] for b in range(3)] == [True, True, False]

    def test_pinned_blocks_survive_the_release_and_a_full_pool(self) -> None:
        manager = new(4)
        add(manager, 0, list(range(9)))
        assert manager.store_blocks_for_reuse(0, pin=True) == [0, 1]
        manager.release(0)
        assert gpu(manager) == [3, 2]
        run(manager, 1, [7] * 8)
        assert manager.add_sequence_batch([CacheRequest(2, list(range(9)))]) == [8]
        manager.release(2)
        manager.unpin_blocks([1, 0])
        assert gpu(manager)[-2:] == [1, 0]


class TestRewind:
    def test_a_block_emptied_by_rejected_drafts_goes_to_the_front(self) -> None:
        manager = new(6)
        add(manager, 0, [1, 2, 3, 4])
        manager.add_slots(0, 3)
        assert manager.block_ids(0) == [0, 1]
        manager.remove_slots(0, 2)
        assert (manager.block_ids(0), gpu(manager)) == ([0, 1], [2, 3, 4, 5])
        manager.remove_slots(0, 1)
        assert (manager.block_ids(0), gpu(manager)) == ([0], [1, 2, 3, 4, 5])


class TestSlidingWindow:
    """Window of 8 tokens, 4 a block."""

    def sliding(self, gpu_blocks: int = 8, chunk: int = 0) -> KVCacheManager:
        return KVCacheManager(
            [Pool(8, (gpu_blocks, 0), sliding=True, chunk_tokens=chunk)], Settings(tokens_per_block=4)
        )

    def test_the_front_block_leaves_when_a_whole_block_lies_behind_the_window(self) -> None:
        manager = self.sliding()
        add(manager, 0, list(range(8)))
        manager.add_tokens(0, [8, 9, 10])  # 11 tokens: 0..3 still needed in part
        assert manager.front_blocks_removed(0) == 0
        manager.add_tokens(0, [11])  # 12 = window + 4
        assert manager.front_blocks_removed(0) == 1
        assert gpu(manager)[-1] == 0
        assert manager.block_ids(0) == [0, 1, 2]

    def test_a_long_prompt_takes_blocks_for_the_window_only(self) -> None:
        manager = self.sliding()
        assert add(manager, 0, list(range(17))) == [None, None, 0, 1, 2]

    def test_a_prefix_behind_a_gap_counts_only_if_the_whole_window_follows_the_gap(self) -> None:
        manager = self.sliding(12, chunk=8)
        run(manager, 0, [*range(12), 99])
        first = manager.find_block([0, 1, 2, 3])
        assert first is not None
        detach_block(manager, first)
        # gap at 0..3: 8 tokens matched are not gap end + 8 = 12 yet, 12 are
        assert manager.add_sequence_batch([CacheRequest(1, list(range(9)))]) == [0]
        manager.release(1, store=False)
        assert manager.add_sequence_batch([CacheRequest(2, [*range(12), 99])]) == [12]

    def test_both_windows_must_hold_the_prefix(self) -> None:
        manager = KVCacheManager([Pool(64, (12, 0)), Pool(8, (12, 0), sliding=True)], Settings(tokens_per_block=4))
        run(manager, 0, list(range(17)))
        assert manager.add_sequence_batch([CacheRequest(1, list(range(17)))]) == [16]
        manager.release(1, store=False)
        last = manager.find_block(list(range(16)), 1)
        assert last is not None
        detach_block(manager, last)
        assert manager.add_sequence_batch([CacheRequest(2, list(range(17)))]) == [0]

    def test_the_sliding_window_does_not_match_further_than_full_attention_did(self) -> None:
        manager = KVCacheManager([Pool(64, (12, 0)), Pool(16, (12, 0), sliding=True)], Settings(tokens_per_block=4))
        run(manager, 0, list(range(13)))
        second = manager.find_block(list(range(8)), 0)
        assert second is not None
        detach_block(manager, second)
        assert manager.add_sequence_batch([CacheRequest(1, list(range(13)))]) == [4]
        assert manager.state.stats[1, FULL_REUSED] == 1
