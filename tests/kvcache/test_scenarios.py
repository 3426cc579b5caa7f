"""Faults that users of KV caches have reported, each as the smallest case that would show it. Numbers are R1, R3, ...

Where the reported engine evicts leaves only and TensorRT-LLM does not, the test asserts TensorRT-LLM's outcome.
"""

import json
from typing import Any

import numpy as np
import pytest

from kvcache import sequences
from kvcache.blockhash import block_hash
from kvcache.cache_request import CacheRequest, OutOfBlocksError
from kvcache.inspection import check, describe, queue_order
from kvcache.line import PAUSES, Limits
from kvcache.manager import KVCacheManager
from kvcache.retention import KvCacheRetentionConfig, TokenRangeRetentionConfig
from kvcache.router_index import RouterIndex
from kvcache.single_blocks import detach_block, truncate
from kvcache.tables import KEY, NODE, PARENT, Pool, Settings
from tests.kvcache.workloads import Bench, assert_conserved, workload


def new(gpu: int, host: int = 0, disk: int | None = None, *, tpb: int = 4, **settings: Any) -> KVCacheManager:
    blocks = (gpu, host) if disk is None else (gpu, host, disk)
    return KVCacheManager(
        [Pool(1 << 20, blocks)], Settings(tokens_per_block=tpb, **settings), event_buffer_max_size=1000
    )


def full_blocks(*letters: int) -> list[int]:
    """Whole blocks of 4 equal tokens and the one token behind them that is always computed."""
    return [letter for letter in letters for _ in range(4)] + [0]


def run(manager: KVCacheManager, name: int, tokens: list[int], **more: Any) -> int:
    """One request alone from its prompt to its end; the tokens it reused."""
    request = CacheRequest(name, tokens, **more)
    (reused,) = manager.add_sequence_batch([request])
    request.position = len(tokens)
    manager.store_context_blocks(name)
    manager.release(name)
    check(manager)
    return reused


def cached(manager: KVCacheManager, *letters: int) -> int:
    """How many tokens a prompt of these blocks would reuse; nothing changes but the order of free blocks."""
    (reused,) = manager.add_sequence_batch([CacheRequest(9_999, full_blocks(*letters))])
    manager.release(9_999, store=False)
    return reused


def level_of(manager: KVCacheManager, *letters: int) -> int | None:
    block = manager.find_block(full_blocks(*letters)[:-1])
    return None if block is None else int(describe(manager, block)["level"])


def per_block(*priorities: int) -> KvCacheRetentionConfig:
    return KvCacheRetentionConfig([TokenRangeRetentionConfig(4 * i, 4 * i + 4, p) for i, p in enumerate(priorities)])


def kinds(manager: KVCacheManager) -> list[str]:
    return [event["data"]["type"] for event in manager.flush_events()]


class TestR1PrefixOfLowerPriorityThanItsSuffix:
    """A1 and A2 have priority 10, below the threshold of 30; A3 has 50. GPU of 4: one block is the last token's."""

    def evict(self, taken: int, **settings: Any) -> KVCacheManager:
        manager = new(4, 2, **settings)
        run(manager, 0, full_blocks(1, 2, 3), retention=per_block(10, 10, 50))
        manager.flush_events()
        manager.add_sequence_batch([CacheRequest(1, [9] * 4 * taken)])
        check(manager)
        return manager

    def test_2026_the_prefix_is_dropped_first_and_its_suffix_stays_attached(self) -> None:
        # The report wants A3 (the leaf) on the host. TensorRT-LLM takes the lowest priority, leaf or not: A2, then A1.
        manager = self.evict(1)
        assert [level_of(manager, *range(1, n + 1)) for n in (1, 2, 3)] == [0, None, 0]
        assert kinds(manager) == ["removed"]
        assert manager.num_free(0, 1) == 2

    def test_2026_a_prefix_that_is_stored_again_makes_its_suffix_match_again(self) -> None:
        manager = self.evict(1)
        manager.release(1, store=False)
        assert run(manager, 2, full_blocks(1, 2)) == 4
        assert cached(manager, 1, 2, 3) == 12

    def test_2025_the_suffix_is_detached_with_its_prefix(self) -> None:
        manager = self.evict(1, evict_descendants=True)
        assert [level_of(manager, *range(1, n + 1)) for n in (1, 2, 3)] == [0, None, None]
        assert kinds(manager) == ["removed"]  # of A2 alone: descendants leave without an event


class TestR3Threshold:
    @pytest.mark.parametrize(
        ("threshold", "priority", "level"),
        [(0, 0, 1), (30, 0, None), (0, 35, 1), (30, 35, 1), (30, 30, 1), (30, 29, None)],
    )
    def test_a_block_is_offloaded_from_the_threshold_on(self, threshold: int, priority: int, level: int | None) -> None:
        manager = new(2, 2, secondary_offload_min_priority=threshold)
        run(manager, 0, full_blocks(1), retention=per_block(priority, priority))
        run(manager, 1, full_blocks(2))
        assert level_of(manager, 1) == level

    def test_the_default_is_30(self) -> None:
        assert Settings().secondary_offload_min_priority == 30


class TestR4ABlockTwiceInOneSequence:
    def test_the_chain_has_no_cycle_and_no_block_two_places(self) -> None:
        manager = new(6)
        request = CacheRequest(0, full_blocks(1, 2, 3))
        manager.add_sequence_batch([request])
        row = manager._sequences.blocks[0, request.slot]
        row[2] = row[1]  # what the report saw: [b1, b2, b2]
        keys = np.array(manager.nodes_of(request, 12), np.int32)
        sequences.store(manager.state, manager._sequences, 0, request.slot, keys, 3, -1)
        attached = [int(block) for block in np.flatnonzero(manager.state.blocks[:6, NODE] != -1)]
        assert attached == [0, 1]
        node = int(manager.state.blocks[1, NODE])
        assert node == manager.state.blocks[1, KEY]
        steps = 0
        while node != 0:
            node, steps = int(manager.state.nodes[node, PARENT]), steps + 1
        assert steps == 3


class TestR5CancelledBeforeItsBlocksAreStored:
    def test_all_blocks_are_free_and_the_same_prompt_hits_nothing(self) -> None:
        manager = new(4)
        manager.add_sequence_batch([CacheRequest(0, full_blocks(1, 2))])
        manager.release(0, store=False)
        assert manager.num_free(0) == 4
        assert run(manager, 1, full_blocks(1, 2)) == 0
        assert run(manager, 2, full_blocks(1, 2)) == 8


class TestR9HostBlocksAreNotGpuBlocks:
    def test_free_gpu_blocks_never_count_the_host(self) -> None:
        manager = new(10, 20)
        manager.add_sequence_batch([CacheRequest(0, full_blocks(1, 2, 3))])
        assert (manager.num_free(0, 0), manager.num_free(0, 1)) == (6, 20)


class TestR10AWindowThatLostItsTail:
    def test_a_prefix_needs_its_whole_trailing_window(self) -> None:
        # full attention and a window of 8 = two blocks; A1..A4 are cached in full, the window holds A3 and A4
        manager = KVCacheManager([Pool(64, (12, 0)), Pool(8, (12, 0), sliding=True)], Settings(tokens_per_block=4))
        run(manager, 0, full_blocks(1, 2, 3, 4))
        assert [manager.find_block(full_blocks(*range(1, n + 1))[:-1], 1) is None for n in (1, 2, 3, 4)] == [
            True,
            True,
            False,
            False,
        ]
        assert cached(manager, 1, 2, 3, 4) == 16
        last = manager.find_block(full_blocks(1, 2, 3, 4)[:-1], 1)
        assert last is not None
        detach_block(manager, last)
        assert cached(manager, 1, 2, 3, 4) == 0


class TestR11MatchedBlocksAreNotVictims:
    def test_a_full_pool_serves_a_request_from_its_own_cached_prefix(self) -> None:
        # GPU of 5: A1 A2 (older), B1 B2 and one block without content; a request for A1 A2 and two blocks more
        manager = new(5)
        run(manager, 0, full_blocks(1, 2))
        run(manager, 1, full_blocks(3, 4)[:-1])  # 8 tokens: B2 is stored short
        assert manager.add_sequence_batch([CacheRequest(2, full_blocks(1, 2, 5))]) == [8]
        assert level_of(manager, 3) == 0  # the younger request's first block survives; its tail was taken
        assert manager.find_block([3] * 4 + [4] * 3) is None

    def test_a_batch_protects_what_its_later_requests_match(self) -> None:
        manager = new(6)
        run(manager, 0, full_blocks(1, 2))
        batch = [CacheRequest(1, full_blocks(7, 8)), CacheRequest(2, full_blocks(1, 2))]
        assert manager.add_sequence_batch(batch) == [0, 8]


class TestR12TailsBeforeHeads:
    def test_of_two_windows_freed_together_each_loses_its_tail_first(self) -> None:
        manager = KVCacheManager([Pool(64, (4, 0)), Pool(32, (4, 0), sliding=True)], Settings(tokens_per_block=4))
        run(manager, 0, full_blocks(1, 2, 3))
        assert [queue_order(manager, w, 0) for w in (0, 1)] == [[3, 2, 1, 0], [3, 2, 1, 0]]


class TestR13ATailYoungerThanItsHead:
    def test_the_tail_goes_first_because_it_was_released_first(self) -> None:
        # Not because it is a leaf: TensorRT-LLM has no leaf rule since 2025. Release is last block first.
        manager = new(3)
        run(manager, 0, full_blocks(1, 2))
        manager.add_sequence_batch([CacheRequest(1, full_blocks(3))])
        assert [level_of(manager, *x) for x in ((1,), (1, 2))] == [0, None]


class TestR14BlocksWithoutContentGoFirst:
    def two_full_and_a_partial(self, **settings: Any) -> KVCacheManager:
        manager = new(5, **settings)
        run(manager, 0, [*full_blocks(1, 2), 5, 5])
        return manager

    def test_unused_blocks_and_the_partial_tail_are_taken_before_full_ones(self) -> None:
        manager = self.two_full_and_a_partial()
        manager.add_sequence_batch([CacheRequest(1, [9] * 12)])
        assert [level_of(manager, *x) for x in ((1,), (1, 2))] == [0, 0]

    def test_with_the_july_rule_an_unstored_tail_is_taken_even_before_unused_blocks(self) -> None:
        manager = new(5, detached_first=True)
        run(manager, 0, full_blocks(1, 2))  # block 2 holds no key
        assert queue_order(manager, 0, 0) == [2, 3, 4, 1, 0]


class TestR15TheSecondTurn:
    """Turn 1: 100 tokens in, 50 out. Turn 2 sends all 150 and 50 more."""

    @pytest.mark.parametrize(
        # The last generated token was sampled but never run through the model: 149 tokens are in memory, not 150.
        ("tpb", "partial", "reused"),
        [(1, True, 149), (16, True, 149), (16, False, 144), (1, False, 149)],
    )
    def test_generated_tokens_are_reused_too(self, tpb: int, partial: bool, reused: int) -> None:
        manager = new(400, tpb=tpb, enable_partial_reuse=partial)
        tokens = [*range(200)]
        request = CacheRequest(0, tokens[:100])
        manager.add_sequence_batch([request])
        request.position = 100
        manager.store_context_blocks(0)
        manager.add_tokens(0, tokens[100:150])
        manager.release(0)
        assert manager.add_sequence_batch([CacheRequest(1, tokens)]) == [reused]


class TestR16ALookupWithoutAHit:
    def test_nothing_is_evicted_from_the_host_for_a_prefix_nobody_has(self) -> None:
        manager = new(4, 4, 4)
        run(manager, 0, full_blocks(1, 2, 3))
        run(manager, 1, full_blocks(4, 5, 6))
        before = [queue_order(manager, 0, level) for level in range(3)]
        manager.analyze_prefix_reuse(CacheRequest(2, full_blocks(7, 8, 9, 10)))
        assert [queue_order(manager, 0, level) for level in range(3)] == before
        assert manager.add_sequence_batch([CacheRequest(2, [7])]) == [0]
        assert level_of(manager, 1) == 1


class TestR18PinsOfTwoTiers:
    def test_after_the_pin_is_gone_the_block_can_leave_the_host_again(self) -> None:
        manager = new(2, 2)
        manager.add_sequence_batch([CacheRequest(0, full_blocks(1))])
        manager.requests[0].position = 5
        pinned = manager.store_blocks_for_reuse(0, pin=True)
        manager.release(0)
        with pytest.raises(OutOfBlocksError):
            manager.add_sequence_batch([CacheRequest(1, full_blocks(2))])
        assert level_of(manager, 1) == 0
        manager.unpin_blocks(pinned)
        levels = []
        for name in range(2, 6):
            run(manager, name, full_blocks(name))
            levels.append(level_of(manager, 1))
        assert levels == [1, 1, None, None]


class TestR22LocksAndUnlocks:
    def test_any_number_of_pins_and_as_many_unpins_leave_every_block_free(self) -> None:
        manager = new(6, 2)
        manager.add_sequence_batch([CacheRequest(0, full_blocks(1, 2))])
        manager.requests[0].position = 9
        held = [manager.store_blocks_for_reuse(0, pin=True) for _ in range(19)]
        manager.release(0)
        for ids in held:
            assert manager.num_free(0) == 4
            manager.unpin_blocks(ids)
            check(manager)
        assert manager.num_free(0) == 6
        with pytest.raises(ValueError, match="no reference to give back"):
            manager.unpin_blocks(held[0])


class TestR23ASaltedBranchIsRemoved:
    def test_truncation_of_an_empty_or_salted_tree_returns(self) -> None:
        manager = new(4)
        truncate(manager, [1] * 8, 0)
        manager.add_sequence_batch([CacheRequest(0, [1] * 9, cache_salt=5)])
        manager.requests[0].position = 9
        namespace = manager.requests[0].namespace
        manager.release(0)
        truncate(manager, [1] * 8, 0)  # another namespace: nothing happens
        assert int((manager.state.blocks[:4, NODE] != -1).sum()) == 2
        truncate(manager, [1] * 8, 0, namespace)
        assert int((manager.state.blocks[:4, NODE] != -1).sum()) == 1  # the block at the border stays


class TestR24OneSlotTwoContentsInOneIteration:
    def test_the_old_content_s_removal_is_told_before_the_new_content_s_store_window_by_window(self) -> None:
        manager = KVCacheManager(
            [Pool(64, (3, 0)), Pool(32, (3, 0), sliding=True)],
            Settings(tokens_per_block=4),
            event_buffer_max_size=100,
        )
        run(manager, 0, full_blocks(1, 2))
        manager.flush_events()
        run(manager, 1, full_blocks(3, 4))
        told = [(event["window_size"], event["data"]["type"]) for event in manager.flush_events()]
        assert told == [(64, "removed"), (64, "stored"), (32, "removed"), (32, "stored")]


class TestR25NoChildBeforeItsParent:
    @pytest.mark.parametrize("seed", range(4))
    def test_every_stored_event_hangs_below_the_root_or_a_block_told_before(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        manager, told, stored = new(9, 4), set[int](), 0
        for name in range(150):
            high = per_block(*rng.integers(0, 101, 6)) if rng.random() < 0.3 else None
            run(manager, name, [int(t) for t in rng.integers(0, 2, rng.integers(1, 26))], retention=high)
            for event in manager.flush_events():
                if event["data"]["type"] != "stored":
                    continue
                stored += 1
                assert event["data"]["parent_hash"] is None or event["data"]["parent_hash"] in told
                told |= {block["block_hash"] for block in event["data"]["blocks"]}
        assert stored > 50


class TestR27ThereAndBack:
    def test_blocks_pushed_to_the_host_all_come_back(self) -> None:
        manager = new(4, 8)
        run(manager, 0, full_blocks(1, 2, 3))
        run(manager, 1, full_blocks(4, 5, 6))
        assert [level_of(manager, *range(1, n + 1)) for n in (1, 2, 3)] == [1, 1, 1]
        assert run(manager, 2, full_blocks(1, 2, 3)) == 12


class TestR28ARequestLargerThanThePool:
    """Whether it is rejected or waits is the engine's affair; the cache says how much it needs and fails cleanly."""

    def test_its_need_is_known_before_it_starts_and_its_failure_leaves_the_pool_empty(self) -> None:
        manager = new(4, tpb=16)
        request = CacheRequest(0, [*range(100)])
        assert manager.remaining_blocks(request) == 7
        with pytest.raises(OutOfBlocksError, match="4 blocks"):
            manager.add_sequence_batch([request])
        assert (manager.num_free(0), manager.requests) == (4, {})

    def test_of_two_that_both_grow_to_the_whole_pool_one_is_paused_once_and_both_finish(self) -> None:
        # 4 blocks of 16; each has 32 prompt tokens (2 blocks) and grows to 64 slots. Step 1 needs a third block each: B is
        # paused, A goes on alone to its 33rd token in step 32. B, whose blocks A has taken, computes its 33 tokens anew.
        prompts = [[100 * name + i for i in range(32)] for name in (1, 2)]
        limits = Limits(capacity_scheduler_policy="MAX_UTILIZATION")
        bench = Bench(workload(prompts, [33, 33]), [Pool(1 << 20, (4, 0))], Settings(tokens_per_block=16), limits)
        bench.arrive(0, 1)
        assert bench.step(0) == {0: (0, 32), 1: (0, 32)}
        assert bench.step(1) == {0: (-1, 1)}
        bench.run(2)
        assert bench.engine.line.meter[PAUSES] == 1
        assert bench.engine.outcome.finish_s.tolist() == [32.5, 64.5]
        assert_conserved(bench.engine.state, all_free=True)


class TestR30AnUpdateThatChangesOneThing:
    def test_an_event_with_an_empty_half_can_be_written_as_json(self) -> None:
        manager = new(4)
        run(manager, 0, full_blocks(1), retention=per_block(35))
        manager.flush_events()
        manager.add_sequence_batch([CacheRequest(1, full_blocks(1), retention=per_block(90))])
        (event,) = manager.flush_events()
        assert json.loads(json.dumps(event))["data"] == {
            "type": "updated",
            "block_hash": block_hash([1] * 4),
            "cache_level": None,
            "priority": {"type": "event_diff", "old_value": 35, "new_value": 90},
        }


class TestR32Salts:
    def test_only_the_same_salt_hits(self) -> None:
        manager = new(12)
        assert [run(manager, i, full_blocks(1, 2), cache_salt=salt) for i, salt in enumerate((1, 2, 1))] == [0, 0, 8]

    def test_no_salt_and_salt_0_are_different(self) -> None:
        manager = new(12)
        run(manager, 0, full_blocks(1, 2))
        assert run(manager, 1, full_blocks(1, 2), cache_salt=0) == 0

    def test_another_salt_gives_no_part_of_a_block_either(self) -> None:
        manager = new(12)
        run(manager, 0, full_blocks(1), cache_salt=1)
        assert run(manager, 1, [1, 1, 1, 5, 5], cache_salt=2) == 0
        assert run(manager, 2, [1, 1, 1, 5, 5], cache_salt=1) == 3

    def test_a_router_that_restarted_hits_nothing_below_a_block_it_never_heard_of(self) -> None:
        manager, first, restarted = new(12), RouterIndex(), RouterIndex()
        run(manager, 0, full_blocks(1), cache_salt=1)
        first.apply(manager.flush_events())
        run(manager, 1, full_blocks(1, 2), cache_salt=1)  # stores block 2 below block 1
        child = manager.flush_events()
        for index in (first, restarted):
            index.apply(child)
        names = [key := block_hash([1] * 4, cache_salt=1), block_hash([2] * 4, parent=key)]
        assert first.matched_blocks(names, 1 << 20) == 2
        assert restarted.matched_blocks(names, 1 << 20) == 0
        other = [key := block_hash([1] * 4, cache_salt=2), block_hash([2] * 4, parent=key)]
        assert first.matched_blocks(other, 1 << 20) == 0


class TestR33AnAdapterLoadedAgainWithOtherWeights:
    def test_a_new_task_id_hits_nothing(self) -> None:
        manager = new(12)
        run(manager, 0, full_blocks(1, 2), lora_id=1)
        assert [run(manager, 1 + i, full_blocks(1, 2), lora_id=lora) for i, lora in enumerate((2, None, 1))] == [
            0,
            0,
            8,
        ]


class TestR35TheColdTier:
    def test_a_disk_full_of_data_still_answers_when_the_host_does_not(self) -> None:
        manager = new(2, 1, 4)
        for name in range(4):
            run(manager, name, full_blocks(10 + name))
        assert [level_of(manager, 10 + name) for name in range(4)] == [2, 2, 1, 0]
        assert run(manager, 9, full_blocks(10)) == 4
        assert level_of(manager, 10) == 0
