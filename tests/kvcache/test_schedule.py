"""Estimates that admission rests on. 4 tokens a block."""

from typing import Any

import pytest

from kvcache.cache_request import CacheRequest
from kvcache.manager import KVCacheManager
from kvcache.schedule import remaining_blocks, same_key, window_reach
from kvcache.single_blocks import detach_block
from kvcache.tables import Pool, Settings


def new(gpu: int = 16, **settings: Any) -> KVCacheManager:
    return KVCacheManager([Pool(1 << 20, (gpu, 0))], Settings(tokens_per_block=4, **settings))


def sliding(window: int = 8, chunk: int = 0) -> KVCacheManager:
    return KVCacheManager([Pool(window, (16, 0), sliding=True, chunk_tokens=chunk)], Settings(tokens_per_block=4))


def cached(manager: KVCacheManager, tokens: list[int]) -> None:
    manager.add_sequence_batch([CacheRequest(1000, tokens)])
    manager.release(1000)


class TestPrefixReuse:
    def test_cached_blocks_and_those_somebody_uses_are_counted_apart(self) -> None:
        manager = new()
        cached(manager, list(range(13)))
        manager.add_sequence_batch([CacheRequest(0, list(range(9)))])  # uses the first two
        request = CacheRequest(1, list(range(16)))
        reuse = manager.analyze_prefix_reuse(request)
        assert (reuse.reusable_all, reuse.reusable_allocated) == (3, 2)
        assert reuse.first_new == manager.nodes_of(request, 16)[3]

    def test_a_fully_cached_prompt_has_no_new_block(self) -> None:
        manager = new()
        cached(manager, list(range(17)))
        assert manager.analyze_prefix_reuse(CacheRequest(1, list(range(16)))) == (4, 0, -1)

    def test_without_reuse_nothing_is_reusable(self) -> None:
        manager = new(enable_block_reuse=False)
        cached(manager, list(range(13)))
        assert manager.analyze_prefix_reuse(CacheRequest(1, list(range(13)))) == (0, 0, -1)

    def test_a_gap_ends_the_walk_in_full_attention(self) -> None:
        manager = new()
        cached(manager, list(range(13)))
        detach_block(manager, int(manager.find_block(list(range(8))) or 0))
        assert manager.analyze_prefix_reuse(CacheRequest(1, list(range(13)))).reusable_all == 1

    def test_a_gap_in_a_sliding_window_is_passed_once_a_whole_window_follows(self) -> None:
        manager = sliding(chunk=64)
        cached(manager, list(range(17)))
        detach_block(manager, int(manager.find_block(list(range(4))) or 0))
        counts = [manager.analyze_prefix_reuse(CacheRequest(1, list(range(n)))).reusable_all for n in (4, 8, 12, 16)]
        assert counts == [0, 0, 2, 3]


class TestSameKey:
    def test_own_tokens_and_namespace_count_and_what_stands_before_does_not(self) -> None:
        manager = new()
        a = manager.find_node([1, 2, 3, 4, 5, 6, 7, 8], 8)
        b = manager.find_node([9, 9, 9, 9, 5, 6, 7, 8], 8)
        c = manager.find_node([9, 9, 9, 9, 5, 6, 7], 7)
        d = manager.nodes_of(CacheRequest(0, [9, 9, 9, 9, 5, 6, 7, 8], lora_id=1), 8)
        e = manager.find_node([9, 9, 9, 9, 5, 6, 7, 0], 8)
        assert same_key(manager.state, a[1], a[1])
        assert same_key(manager.state, a[1], b[1])
        assert [bool(same_key(manager.state, a[1], x[1])) for x in (c, d, e)] == [False, False, False]


class TestNeeds:
    @pytest.mark.parametrize(
        ("prompt", "new_tokens", "blocks"), [(8, 0, 2), (9, 0, 3), (9, 3, 3), (9, 4, 4), (1, 0, 1)]
    )
    def test_until_the_end_a_request_needs_its_tokens_in_whole_blocks(
        self, prompt: int, new_tokens: int, blocks: int
    ) -> None:
        request = CacheRequest(0, list(range(prompt)), max_new_tokens=new_tokens)
        assert new().remaining_blocks(request) == blocks

    def test_a_cached_block_somebody_uses_is_not_needed_again_but_a_free_one_is(self) -> None:
        manager = new()
        cached(manager, list(range(9)))
        request = CacheRequest(1, list(range(13)), max_new_tokens=4)
        assert (manager.remaining_blocks(request), request.estimated_reusable_tokens) == (5, 8)
        manager.add_sequence_batch([CacheRequest(0, list(range(9)))])
        assert manager.remaining_blocks(request) == 3

    def test_a_started_request_needs_what_it_does_not_hold_yet(self) -> None:
        manager = new()
        request = CacheRequest(0, list(range(9)), max_new_tokens=8)
        manager.add_sequence_batch([request])
        assert manager.remaining_blocks(request) == 2
        manager.add_tokens(0, [1, 2, 3, 4])
        assert manager.remaining_blocks(request) == 1

    def test_the_first_step_needs_prompt_and_drafts(self) -> None:
        manager = new()
        assert manager.needed_blocks_one_step(CacheRequest(0, list(range(8)))) == 2
        assert manager.needed_blocks_one_step(CacheRequest(0, list(range(8)), draft_tokens=1)) == 3
        request = CacheRequest(1, list(range(8)))
        manager.add_sequence_batch([request])
        assert manager.needed_blocks_one_step(request) == 0

    def test_a_generating_request_needs_a_block_at_each_boundary(self) -> None:
        manager = new()
        request = CacheRequest(0, list(range(8)), max_new_tokens=9)
        manager.add_sequence_batch([request])
        request.generating = True
        assert manager.needed_blocks_one_step(request) == 1
        manager.add_tokens(0, [1])
        assert manager.needed_blocks_one_step(request) == 0
        request.draft_tokens = 3
        assert [manager.needed_blocks_one_step(request, two_steps=two) for two in (False, True)] == [1, 2]

    def test_a_step_past_the_longest_sequence_needs_nothing_because_it_cannot_run(self) -> None:
        manager = KVCacheManager([Pool(12, (16, 0))], Settings(tokens_per_block=4), max_sequence_tokens=12)
        request = CacheRequest(0, list(range(8)), max_new_tokens=20, draft_tokens=3, generating=True)
        manager.add_sequence_batch([request])
        assert manager.needed_blocks_one_step(request) == 1
        request.draft_tokens = 4
        assert manager.needed_blocks_one_step(request) == 0

    def test_a_sliding_window_needs_one_block_more_than_it_holds_at_most(self) -> None:
        manager = sliding()
        request = CacheRequest(0, list(range(6)), max_new_tokens=20)
        assert manager.remaining_blocks(request) == 3
        assert window_reach(manager.state, 0) == 8
        assert remaining_blocks(manager.state, 0, 4, 2, 0, 0) == 2


class TestSnapshot:
    def test_a_sequence_removed_in_the_snapshot_frees_what_only_it_uses(self) -> None:
        manager = new(8)
        manager.add_sequence_batch([CacheRequest(0, list(range(9)))])
        manager.store_context_blocks(0)
        manager.add_sequence_batch([CacheRequest(1, list(range(13)))])  # shares two blocks, adds two
        manager.start_scheduling()
        assert manager.scheduling_free_blocks() == 3
        manager.scheduling_remove_sequence(0)
        assert manager.scheduling_free_blocks() == 4
        manager.scheduling_remove_sequence(1)
        assert manager.scheduling_free_blocks() == 8
        assert manager.num_free(0) == 3

    def test_positions_a_window_has_left_free_nothing(self) -> None:
        manager = sliding()
        manager.add_sequence_batch([CacheRequest(0, list(range(17)))])
        manager.start_scheduling()
        manager.scheduling_remove_sequence(0)
        assert manager.scheduling_free_blocks() == 16
