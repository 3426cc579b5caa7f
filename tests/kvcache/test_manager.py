"""The manager's own part: refusals, room, failed calls, single blocks, several windows. 4 tokens a block."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvcache.cache_request import CacheRequest, OutOfBlocksError
from kvcache.content import MultimodalItem, Namespace
from kvcache.inspection import check, describe, queue_order
from kvcache.manager import KVCacheManager
from kvcache.retention import KvCacheRetentionConfig, TokenRangeRetentionConfig
from kvcache.single_blocks import offload_block, onboard_block, set_block_priority, truncate
from kvcache.tables import (
    CAUSE_0,
    CAUSES,
    KEY,
    LEVEL,
    MISSED,
    QUEUE_LEVEL,
    REFS,
    SLOT,
    T_FREE,
    Pool,
    Settings,
)


def new(gpu: int = 8, host: int = 0, **settings: Any) -> KVCacheManager:
    return KVCacheManager(
        [Pool(1 << 20, (gpu, host))], Settings(tokens_per_block=4, **settings), event_buffer_max_size=1000
    )


def two_windows(full: int = 8, small: int = 8, **settings: Any) -> KVCacheManager:
    """Window 0 sees everything, window 1 the last 8 tokens."""
    return KVCacheManager(
        [Pool(64, (full, 0)), Pool(8, (small, 0), sliding=True)], Settings(tokens_per_block=4, **settings)
    )


def run(manager: KVCacheManager, name: int, tokens: list[int], **more: Any) -> None:
    """One request alone from its prompt to its end, nothing generated."""
    request = CacheRequest(name, tokens, **more)
    manager.add_sequence_batch([request])
    request.position = len(tokens)
    manager.store_context_blocks(name)
    manager.release(name)
    check(manager)


class TestRefusals:
    def test_a_request_without_tokens(self) -> None:
        with pytest.raises(ValueError, match="request 3 has no tokens; a prompt needs at least one"):
            CacheRequest(3, [])

    def test_extra_ids_that_do_not_fit_the_tokens(self) -> None:
        with pytest.raises(ValueError, match="request 3 has 1 extra ids for 2 tokens"):
            CacheRequest(3, [1, 2], extra_ids=[1])

    def test_a_second_sequence_under_the_same_id(self) -> None:
        manager = new()
        manager.add_sequence_batch([CacheRequest(3, [1])])
        with pytest.raises(ValueError, match="request 3 has a sequence already"):
            manager.add_sequence_batch([CacheRequest(3, [1])])
        with pytest.raises(ValueError, match="request 4 has a sequence already"):
            manager.add_sequence_batch([CacheRequest(4, [1]), CacheRequest(4, [2])])
        assert (list(manager.requests), manager.num_free(0)) == ([3], 7)

    def test_an_unknown_sequence(self) -> None:
        manager = new()
        calls: list[Callable[[], Any]] = [
            lambda: manager.add_slots(5),
            lambda: manager.release(5),
            lambda: manager.block_ids(5),
            lambda: manager.store_context_blocks(5),
        ]
        for call in calls:
            with pytest.raises(ValueError, match="request 5 has no sequence"):
                call()

    def test_a_reference_nobody_holds_cannot_be_given_back(self) -> None:
        manager = new()
        with pytest.raises(ValueError, match="block 2 has no reference to give back"):
            manager.unpin_blocks([2])


class TestRoom:
    def test_more_and_longer_sequences_than_the_first_tables_hold(self) -> None:
        manager = new(400)
        manager.add_sequence_batch([CacheRequest(i, [i] * 5) for i in range(9)])
        manager.add_sequence_batch([CacheRequest(50, [*range(200)])])
        ids = manager.block_ids(50)
        assert (len(ids), ids[0], len({b for i in [*range(9), 50] for b in manager.block_ids(i)})) == (50, 18, 68)
        assert [manager.block_ids(i) for i in range(9)] == [[2 * i, 2 * i + 1] for i in range(9)]
        check(manager)

    def test_a_sequence_may_grow_past_its_announced_length(self) -> None:
        manager = new(400)
        manager.add_sequence_batch([CacheRequest(0, [1, 2, 3])])
        manager.add_slots(0, 150)
        assert (len(manager.block_ids(0)), manager.sequence_slots(0)) == (39, 153)

    def test_slots_of_ended_sequences_are_used_again(self) -> None:
        manager = new()
        for name in range(40):
            run(manager, name, [name, 1, 2])
        assert manager._sequences.blocks.shape[1] == 4  # four rows from the start, one used at a time

    def test_copies_that_nobody_reads_do_not_pile_up(self) -> None:
        manager = new(2, 2)
        for name in range(200):
            run(manager, name, [name] * 5)
        assert 0 < len(manager.take_copies()) <= len(manager.state.copies) // 2 + 6


class TestFailedCalls:
    def test_a_batch_that_does_not_fit_leaves_no_sequence_and_all_blocks_free(self) -> None:
        manager = new(4)
        with pytest.raises(OutOfBlocksError, match=r"pool of 4 blocks.*requests \[0, 1\].*free_gpu_memory_fraction"):
            manager.add_sequence_batch([CacheRequest(0, [1] * 9), CacheRequest(1, [2] * 9)])
        assert (manager.requests, manager.num_free(0)) == ({}, 4)
        check(manager)
        assert manager.add_sequence_batch([CacheRequest(0, [1] * 9)]) == [0]

    def test_what_others_would_have_matched_is_free_again(self) -> None:
        manager = new(4)
        run(manager, 0, [1] * 9)
        with pytest.raises(OutOfBlocksError):
            manager.add_sequence_batch([CacheRequest(1, [2] * 13), CacheRequest(2, [1] * 9)])
        assert manager.num_free(0) == 4
        check(manager)
        assert manager.add_sequence_batch([CacheRequest(2, [1] * 9)]) == [8]

    def test_what_a_later_request_matched_in_use_stays_in_use(self) -> None:
        manager = new(4)
        manager.add_sequence_batch([CacheRequest(0, [1] * 5)])
        manager.store_context_blocks(0)
        with pytest.raises(OutOfBlocksError):
            manager.add_sequence_batch([CacheRequest(1, [2] * 13), CacheRequest(2, [1] * 5)])
        check(manager)
        assert describe(manager, 0)["references"] == 1
        assert manager.num_free(0) == 2

    def test_2025_a_batch_that_does_not_fit_ends_the_requests_before_the_one_that_failed(self) -> None:
        manager = new(4, sequential_claim=True)
        with pytest.raises(OutOfBlocksError, match=r"requests \[1\]"):
            manager.add_sequence_batch([CacheRequest(0, [1] * 9), CacheRequest(1, [2] * 9)])
        assert (manager.requests, manager.num_free(0)) == ({}, 4)

    def test_a_partial_copy_without_a_block_to_copy_to(self) -> None:
        manager = new(2)
        manager.add_sequence_batch([CacheRequest(0, [1, 2, 3, 4, 5])])
        manager.store_context_blocks(0)
        with pytest.raises(OutOfBlocksError):
            manager.add_sequence_batch([CacheRequest(1, [1, 2, 9])])
        check(manager)
        assert manager.num_free(0) == 0

    def test_an_onboarding_without_a_gpu_block(self) -> None:
        manager = new(2, 2)
        run(manager, 0, [1] * 5)
        manager.add_sequence_batch([CacheRequest(1, [2] * 5)])  # pushes block 0 to the host
        assert describe(manager, 0)["level"] == 1
        with pytest.raises(OutOfBlocksError):
            manager.add_sequence_batch([CacheRequest(2, [1] * 5)])
        check(manager)
        manager.release(1)
        assert manager.add_sequence_batch([CacheRequest(2, [1] * 5)]) == [4]

    def test_a_batch_that_fits_one_window_only_leaves_the_other_as_it_was(self) -> None:
        manager = two_windows(full=8, small=1)
        with pytest.raises(OutOfBlocksError, match=r"pool of 1 blocks \(window 8\)"):
            manager.add_sequence_batch([CacheRequest(0, [1] * 12)])
        assert (manager.num_free(0), manager.num_free(1)) == (8, 1)
        check(manager)

    def test_a_token_that_finds_no_block_is_not_added(self) -> None:
        manager = new(2)
        request = CacheRequest(0, [1] * 8)
        manager.add_sequence_batch([request])
        with pytest.raises(OutOfBlocksError, match=r"next token of request 0 \(2 blocks in all\)"):
            manager.add_tokens(0, [9])
        assert (request.tokens, manager.sequence_slots(0)) == ([1] * 8, 8)

    def test_a_token_that_fits_one_window_only_takes_no_block_there(self) -> None:
        manager = KVCacheManager([Pool(64, (8, 0)), Pool(32, (2, 0), sliding=True)], Settings(tokens_per_block=4))
        manager.add_sequence_batch([CacheRequest(0, [1] * 8)])
        for _ in range(2):
            with pytest.raises(OutOfBlocksError):
                manager.add_slots(0)
        assert (manager.num_free(0), manager.sequence_slots(0)) == (6, 8)
        manager.release(0)
        assert (manager.num_free(0), manager.num_free(1)) == (8, 2)
        check(manager)

    def test_a_token_inside_a_block_needs_no_window_to_give_anything_back(self) -> None:
        # window 0 is full at a boundary that window 1 passes first: nothing was taken before the failure
        manager = two_windows(full=2, small=8)
        manager.add_sequence_batch([CacheRequest(0, [1] * 8)])
        with pytest.raises(OutOfBlocksError):
            manager.add_slots(0)
        assert (manager.num_free(1), manager.sequence_slots(0)) == (6, 8)


class TestCounters:
    def test_a_request_learns_its_own_share(self) -> None:
        manager = new()
        run(manager, 0, [1] * 9)
        request = CacheRequest(1, [1] * 13)
        manager.add_sequence_batch([request])
        counters = (request.reused, request.missed, request.alloc_total, request.alloc_new)
        assert counters == (2, 2, 2, 2)
        assert (request.prepopulated, request.position) == (8, 8)

    def test_a_second_read_counts_from_the_first(self) -> None:
        manager = new()
        run(manager, 0, [1] * 9)
        assert manager.iteration_stats()[0, MISSED] == 3
        assert manager.iteration_stats()[0, MISSED] == 0

    def test_a_connector_adds_its_tokens_to_every_match(self) -> None:
        manager = KVCacheManager([Pool(64, (8, 0))], Settings(tokens_per_block=4), connector_matched_tokens=3)
        assert manager.add_sequence_batch([CacheRequest(0, [1] * 9)]) == [3]

    def test_every_missed_block_has_one_cause(self) -> None:
        manager = new(3)
        low = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 10)])

        def causes(tokens: list[int], **more: Any) -> dict[str, int]:
            before = manager.state.stats[0, CAUSE_0:].copy()
            run(manager, len(tokens) * 100 + tokens[0], tokens, **more)
            delta = manager.state.stats[0, CAUSE_0:] - before
            return {name: int(n) for name, n in zip(CAUSES, delta, strict=True) if n}

        assert causes([1] * 6, retention=low) == {"never_seen": 1, "shorter_than_a_block": 1}
        assert causes([2] * 12) == {"never_seen": 3}
        assert causes([1] * 5) == {"dropped_below_threshold": 1, "shorter_than_a_block": 1}
        assert causes([1] * 4) == {}  # its three usable tokens match the stored block's first three
        assert int(manager.state.stats[0, CAUSE_0:].sum()) == int(manager.state.stats[0, MISSED])

    def test_a_block_whose_priority_had_expired_is_missed_for_that_reason(self) -> None:
        manager = new(2)
        run(manager, 0, [1] * 5, retention=KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 90, 10)]))
        manager.refresh(1.0)
        run(manager, 1, [2] * 8)
        run(manager, 2, [1] * 5)
        causes = manager.state.stats[0, CAUSE_0:]
        assert int(causes[CAUSES.index("expired")]) == 1

    def test_content_known_under_another_salt_is_missed_for_that_reason(self) -> None:
        manager = new()
        tokens, salted = [1] * 5, Namespace(cache_salt=1)
        names = [manager.find_node(tokens, 4, space)[0] for space in (Namespace(), salted, Namespace(lora_id=99))]
        twin = np.zeros(len(manager.state.nodes), np.int32)
        twin[names[:2]] = names[2]  # what both are called without a namespace
        manager.state = manager.state._replace(twin=twin)
        run(manager, 0, tokens)
        run(manager, 1, tokens, cache_salt=1)
        causes = manager.state.stats[0, CAUSE_0:]
        assert {name: int(n) for name, n in zip(CAUSES, causes, strict=True) if n} == {
            "never_seen": 1,
            "other_salt_or_lora": 1,
            "shorter_than_a_block": 2,
        }

    def test_a_prompt_of_whole_blocks_with_items_is_looked_up_with_its_items(self) -> None:
        manager = new()
        item = MultimodalItem((1, 2, 3, 4, 5, 6, 7, 8), 0, 8)
        run(manager, 0, [1] * 9, items=(item,))
        before = manager.state.stats[0, CAUSE_0:].copy()
        run(manager, 1, [1] * 8, items=(item,))
        delta = manager.state.stats[0, CAUSE_0:] - before
        assert [name for name, n in zip(CAUSES, delta, strict=True) if n] == ["last_prompt_token"]


class TestStoring:
    def test_generated_blocks_are_stored_at_their_boundary(self) -> None:
        manager = new()
        manager.add_sequence_batch([CacheRequest(0, [1] * 7)])
        manager.add_tokens(0, [2])
        manager.store_new_block(0)  # 8 tokens: 7 usable, no boundary
        assert manager.find_block([1] * 4) is None
        manager.add_tokens(0, [2])
        manager.store_new_block(0)
        assert (manager.find_block([1] * 4), manager.find_block([1] * 7 + [2])) == (0, 1)

    def test_other_tokens_may_be_stored_in_their_place(self) -> None:
        manager = new()
        manager.add_sequence_batch([CacheRequest(0, [1] * 9)])
        manager.release(0, stored_tokens=[7] * 5)
        assert (manager.find_block([7] * 4), manager.find_block([1] * 4)) == (0, None)

    def test_a_release_without_store_leaves_nothing(self) -> None:
        manager = new()
        manager.add_sequence_batch([CacheRequest(0, [1] * 9)])
        manager.release(0, store=False)
        assert manager.find_block([1] * 4) is None

    def test_extra_ids_of_generated_tokens_are_0(self) -> None:
        manager = new()
        request = CacheRequest(0, [1, 2, 3], extra_ids=[5, 5, 5])
        manager.add_sequence_batch([request])
        manager.add_tokens(0, [4, 4])
        assert request.extra_ids == [5, 5, 5, 0, 0]
        manager.release(0)
        again = CacheRequest(1, [1, 2, 3, 4, 4], extra_ids=[5, 5, 5, 0, 0])
        assert manager.add_sequence_batch([again]) == [4]

    def test_a_block_can_be_found_whole_or_short(self) -> None:
        manager = new()
        run(manager, 0, [1] * 7)
        assert manager.find_block([1] * 6) == 1
        assert manager.find_block([1] * 6, allow_partial=False) == 0
        assert manager.find_block([2] * 6) is None

    def test_a_block_stored_short_moves_to_its_full_key_when_it_has_grown(self) -> None:
        manager = new()
        manager.add_sequence_batch([CacheRequest(0, [1] * 7)])
        assert manager.store_blocks_for_reuse(0) == []
        assert manager.find_block([1] * 6) == 1
        manager.add_tokens(0, [1, 1])
        manager.release(0)
        assert (manager.find_block([1] * 6), manager.find_block([1] * 8)) == (None, 1)


class TestPins:
    def test_each_block_of_a_sequence_can_be_held(self) -> None:
        manager = new()
        manager.add_sequence_batch([CacheRequest(0, [1] * 9)])
        assert manager.pin_sequence(0) == [0, 1, 2]
        manager.release(0)
        assert manager.num_free(0) == 5
        manager.unpin_blocks([0, 1, 2])
        assert queue_order(manager, 0, 0) == [3, 4, 5, 6, 7, 0, 1, 2]

    def test_pinning_holds_the_stored_block_even_if_it_is_another_sequence_s_free_one(self) -> None:
        manager = new()
        manager.add_sequence_batch([CacheRequest(0, [1] * 5), CacheRequest(1, [1] * 5)])
        manager.store_context_blocks(0)
        manager.release(0)
        assert manager.store_blocks_for_reuse(1, pin=True) == [0]
        assert describe(manager, 0)["references"] == 1
        assert 0 not in queue_order(manager, 0, 0)

    def test_without_reuse_nothing_is_pinned(self) -> None:
        manager = new(enable_block_reuse=False)
        manager.add_sequence_batch([CacheRequest(0, [1] * 5)])
        assert manager.store_blocks_for_reuse(0, pin=True) == []


class TestSingleBlocks:
    def test_a_free_block_moves_to_the_back_of_its_new_queue_and_one_in_use_only_changes(self) -> None:
        manager = new(4)
        manager.add_sequence_batch([CacheRequest(0, [1] * 4)])
        set_block_priority(manager, 2, 10)
        set_block_priority(manager, 0, 90)
        assert queue_order(manager, 0, 0) == [2, 1, 3]
        assert describe(manager, 0)["priority"] == 90

    def test_an_offloaded_block_takes_the_place_of_the_next_host_victim_whose_content_is_gone(self) -> None:
        manager = new(4, 1)
        run(manager, 0, [1] * 5)
        run(manager, 1, [2] * 5)
        offload_block(manager, int(manager.find_block([1] * 4) or 0))
        one = manager.find_block([1] * 4)
        assert one is not None
        assert describe(manager, one)["level"] == 1
        offload_block(manager, int(manager.find_block([2] * 4) or 0))
        check(manager)
        assert manager.find_block([1] * 4) is None
        two = manager.find_block([2] * 4)
        assert two is not None
        assert describe(manager, two)["level"] == 1
        assert [row[0] for row in manager.take_copies().tolist()] == [0, 0]

    def test_a_block_in_use_can_be_offloaded_and_onboarded(self) -> None:
        manager = new(4, 2)
        manager.add_sequence_batch([CacheRequest(0, [1] * 5)])
        manager.store_context_blocks(0)
        manager.flush_events()
        offload_block(manager, 0)
        assert (describe(manager, 0)["level"], describe(manager, 0)["references"]) == (1, 1)
        onboard_block(manager, 0)
        assert describe(manager, 0)["level"] == 0
        levels = [e["data"]["cache_level"] for e in manager.flush_events()]
        assert [(x["old_value"], x["new_value"]) for x in levels] == [(0, 1), (1, 0)]
        check(manager)

    def test_a_block_without_content_moves_without_an_event(self) -> None:
        manager = new(4, 1)
        manager.flush_events()
        offload_block(manager, 0)
        assert manager.flush_events() == []
        assert queue_order(manager, 0, 1) == [0]
        assert queue_order(manager, 0, 0) == [1, 2, 3, 4]

    def test_offloading_needs_a_gpu_block_and_a_free_host_block(self) -> None:
        manager = new(4, 0)
        run(manager, 0, [1] * 5)
        offload_block(manager, 0)
        assert describe(manager, 0)["level"] == 0
        manager = new(4, 2)
        offload_block(manager, 4)
        assert len(manager.take_copies()) == 0

    def test_a_free_host_block_is_not_the_victim_of_its_own_onboarding(self) -> None:
        manager = new(2, 1)
        run(manager, 0, [1] * 5)
        run(manager, 1, [2] * 8)
        one = manager.find_block([1] * 4)
        assert one is not None
        assert describe(manager, one)["level"] == 1
        onboard_block(manager, one)
        check(manager)
        assert describe(manager, one) | {"level": 0, "attached": True} == describe(manager, one)
        assert queue_order(manager, 0, 0)[-1] == one

    def test_onboarding_without_a_free_gpu_block_fails_and_keeps_the_block(self) -> None:
        manager = new(2, 1)
        run(manager, 0, [1] * 5)
        manager.add_sequence_batch([CacheRequest(1, [2] * 8)])
        one = manager.find_block([1] * 4)
        assert one is not None
        with pytest.raises(OutOfBlocksError, match=f"onboard block {one}"):
            onboard_block(manager, one)
        check(manager)
        assert manager.find_block([1] * 4) == one

    def test_onboarding_a_gpu_block_changes_nothing(self) -> None:
        manager = new(2, 1)
        onboard_block(manager, 1)
        assert (queue_order(manager, 0, 0), len(manager.take_copies())) == ([0, 1], 0)


class TestTruncation:
    """The block that holds token number `keep` stays; TensorRT-LLM saves it for prompts that share its beginning."""

    def test_free_tails_go_to_the_front_and_shared_prefixes_stay(self) -> None:
        manager = new()
        run(manager, 0, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 0])
        run(manager, 1, [1, 1, 1, 1, 4, 4, 4, 4, 0])
        truncate(manager, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3], 0)
        assert manager.find_block([1] * 4) == 0
        assert manager.find_block([1, 1, 1, 1, 4, 4, 4, 4]) is not None
        assert manager.find_block([1, 1, 1, 1, 2, 2, 2, 2]) is None
        assert queue_order(manager, 0, 0)[:2] == [1, 2]

    @pytest.mark.parametrize(("keep", "left"), [(0, [0, None, None]), (4, [0, 1, None]), (7, [0, 1, None])])
    def test_the_block_at_the_border_stays(self, keep: int, left: list[int | None]) -> None:
        manager = new()
        run(manager, 0, [1] * 13)
        truncate(manager, [1] * 12, keep)
        assert [manager.find_block([1] * n) for n in (4, 8, 12)] == left

    def test_a_short_block_that_begins_the_truncated_one_goes_too_and_is_told(self) -> None:
        manager = new()
        run(manager, 0, [1, 1, 1, 1, 2, 2, 0])  # stored short: 2, 2
        manager.flush_events()
        truncate(manager, [1, 1, 1, 1, 2, 2, 2, 2], 0)
        assert manager.find_block([1, 1, 1, 1, 2, 2]) is None
        assert [e["data"]["type"] for e in manager.flush_events()] == ["removed"]

    def test_a_tail_that_another_prompt_continues_and_a_sibling_that_differs_stay(self) -> None:
        manager = new(12)
        run(manager, 0, [1] * 13)
        run(manager, 1, [1, 1, 1, 1, 1, 2, 2, 2, 0])
        truncate(manager, [1] * 8, 0)
        assert manager.find_block([1] * 8) == 1
        assert manager.find_block([1, 1, 1, 1, 1, 2, 2, 2]) is not None

    def test_a_block_in_use_leaves_the_tree_only(self) -> None:
        manager = new()
        manager.add_sequence_batch([CacheRequest(0, [1] * 9)])
        manager.store_context_blocks(0)
        truncate(manager, [1] * 8, 0)
        assert (describe(manager, 1)["attached"], describe(manager, 1)["references"]) == (False, 1)

    def test_both_windows_forget(self) -> None:
        manager = two_windows()
        run(manager, 0, [1] * 8)
        truncate(manager, [1] * 7, 0)
        assert [manager.find_block([1] * 7, w) for w in (0, 1)] == [None, None]


class TestClock:
    def test_a_release_reads_the_time_that_was_set(self) -> None:
        manager = new()
        retention = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 90, 100)])
        manager.add_sequence_batch([CacheRequest(0, [1] * 5, retention=retention)])
        manager.set_time(1.0)
        manager.release(0)
        manager.refresh(1.099)
        assert describe(manager, 0)["priority"] == 90
        manager.refresh(1.1)
        assert describe(manager, 0)["priority"] == 35


class TestWindows:
    def test_each_window_has_ids_of_its_own_from_0(self) -> None:
        manager = two_windows(full=8, small=4)
        manager.add_sequence_batch([CacheRequest(0, [1] * 9)])
        assert (manager.block_ids(0, 0), manager.block_ids(0, 1)) == ([0, 1, 2], [0, 1, 2])
        assert describe(manager, 1, 1)["references"] == 1
        assert (manager.num_free(0), manager.num_free(1)) == (5, 1)

    def test_a_window_keeps_what_it_left_behind_in_the_tree(self) -> None:
        manager = two_windows()
        manager.add_sequence_batch([CacheRequest(0, [1] * 8)])
        manager.store_context_blocks(0)
        manager.add_tokens(0, [2] * 4)
        assert manager.front_blocks_removed(0, 1) == 1
        assert manager.block_ids(0, 1) == [0, 1, 2]
        assert manager.find_block([1] * 4, 1) == 8
        assert queue_order(manager, 1, 0)[-1] == 0

    def test_a_placeholder_is_passed_over_when_the_window_slides(self) -> None:
        manager = two_windows()
        manager.add_sequence_batch([CacheRequest(0, [*range(17)])])  # positions 0 and 1 of window 1 hold nothing
        assert manager.block_ids(0, 1) == [None, None, 0, 1, 2]
        free = manager.num_free(1)
        manager.add_tokens(0, [99] * 3)
        assert manager.front_blocks_removed(0, 1) == 3
        assert manager.num_free(1) == free + 1
        manager.release(0)
        assert (manager.num_free(0), manager.num_free(1)) == (8, 8)

    def test_rewinding_over_a_position_the_window_has_left_gives_nothing_back_there(self) -> None:
        manager = two_windows()
        manager.add_sequence_batch([CacheRequest(0, [1] * 8)])
        manager.add_slots(0, 4)
        assert manager.front_blocks_removed(0, 1) == 1
        manager.remove_slots(0, 12)
        assert (manager.num_free(0), manager.num_free(1)) == (8, 8)
        check(manager)

    def test_rewinding_gives_back_the_blocks_of_both_windows(self) -> None:
        manager = two_windows()
        manager.add_sequence_batch([CacheRequest(0, [1] * 4)])
        manager.add_slots(0, 1)
        manager.remove_slots(0, 1)
        assert (manager.num_free(0), manager.num_free(1)) == (7, 7)


class TestCheck:
    """Each invariant is noticed when it is broken."""

    @pytest.mark.parametrize(
        ("row", "column", "value", "complaint"),
        [
            (5, REFS, 1, "a queued block has references"),
            (5, QUEUE_LEVEL, 1, "a queued block moved to another tier"),
            (5, SLOT, 0, "slots are no permutation"),
            (0, KEY, 0, "an attached block's key differs from its node"),
        ],
    )
    def test_a_broken_row_is_noticed(self, row: int, column: int, value: int, complaint: str) -> None:
        manager = new()
        run(manager, 0, [1] * 5)
        check(manager)
        manager.state.blocks[row, column] = value
        with pytest.raises(AssertionError, match=complaint):
            check(manager)

    def test_a_wrong_free_count_is_noticed(self) -> None:
        manager = new()
        manager.state.tier[0, 0, T_FREE] = 3
        with pytest.raises(AssertionError, match="free count differs from the queues"):
            check(manager)

    def test_a_description_names_the_predecessor_in_the_tree(self) -> None:
        manager = new()
        run(manager, 0, [1] * 9)
        assert [describe(manager, b)["prev_block"] for b in (0, 1, 2)] == [None, 0, None]
        assert describe(manager, 1) | {"primary": True, "key_tokens": 4} == describe(manager, 1)
        assert np.array_equal(manager.state.blocks[:2, LEVEL], [0, 0])
