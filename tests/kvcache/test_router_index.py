"""The router's index against the cache it stands for: equal where every change is told, never short of a block."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kvcache.cache_request import CacheRequest
from kvcache.manager import KVCacheManager
from kvcache.retention import KvCacheRetentionConfig, TokenRangeRetentionConfig
from kvcache.router_index import RouterIndex
from kvcache.tables import LEVEL, NODE, PRIORITY, Pool, Settings


def attached(manager: KVCacheManager) -> dict[int, tuple[int, int]]:
    """Hash of every stored block, with level and priority."""
    rows = manager.state.blocks[: sum(manager.pools[0].blocks)]
    return {manager.node_hash(int(r[NODE])): (int(r[LEVEL]), int(r[PRIORITY])) for r in rows if r[NODE] != -1}


def believed(index: RouterIndex) -> dict[int, tuple[int, int]]:
    return {block_hash: (block.level, block.priority) for block_hash, block in index.blocks[64].items()}


def requests(rng: np.random.Generator, n: int) -> Iterator[CacheRequest]:
    """Prompts that share beginnings."""
    for i in range(n):
        prefix = [int(rng.integers(3))] * 8
        yield CacheRequest(i, [*prefix, *(int(t) for t in rng.integers(0, 4, int(rng.integers(1, 24))))])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("gpu", "host"), [(64, 0), (9, 0), (9, 6)])
def test_serial_requests_without_partial_reuse_leave_equal_indexes(seed: int, gpu: int, host: int) -> None:
    """One request at a time and one priority: parents go after their children, so every removal is told."""
    manager = KVCacheManager(
        [Pool(64, (gpu, host))], Settings(4, enable_partial_reuse=False), event_buffer_max_size=1000
    )
    index = RouterIndex()
    for request in requests(np.random.default_rng(seed), 60):
        manager.add_sequence_batch([request])
        request.position = request.prompt_tokens
        manager.store_context_blocks(request.request_id)
        manager.release(request.request_id)
        index.apply(manager.flush_events())
        if host == 0:
            assert believed(index) == attached(manager)
        else:
            assert set(attached(manager)) <= set(believed(index))
    assert index.lost == 0


@pytest.mark.parametrize("seed", range(8))
def test_the_router_never_knows_too_little(seed: int) -> None:
    manager = KVCacheManager([Pool(64, (18, 5))], Settings(4), event_buffer_max_size=1000)
    index, rng, live = RouterIndex(), np.random.default_rng(seed), list[CacheRequest]()
    for request in requests(rng, 60):
        manager.add_sequence_batch([request])
        request.position = request.prompt_tokens
        manager.store_context_blocks(request.request_id)
        live.append(request)
        if len(live) == 2:
            manager.release(live.pop(int(rng.integers(2))).request_id)
        index.apply(manager.flush_events())
        assert set(attached(manager)) <= set(believed(index))


def test_in_place_reuse_leaves_a_block_at_the_router() -> None:
    manager = KVCacheManager([Pool(64, (8, 0))], Settings(4), event_buffer_max_size=100)
    index = RouterIndex()
    for i, tokens in enumerate(([0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 9, 9])):
        request = CacheRequest(i, list(tokens))
        manager.add_sequence_batch([request])
        manager.release(i)
        index.apply(manager.flush_events())
    gone = set(believed(index)) - set(attached(manager))
    assert len(gone) == 1


def test_matched_blocks_counts_from_the_first() -> None:
    manager = KVCacheManager([Pool(64, (8, 0))], Settings(4), event_buffer_max_size=100)
    index = RouterIndex()
    request = CacheRequest(0, list(range(13)))
    hashes = [manager.node_hash(node) for node in manager.nodes_of(request, 12)]
    assert index.matched_blocks(hashes, 64) == 0
    manager.add_sequence_batch([request])
    manager.release(0)
    index.apply(manager.flush_events())
    assert index.matched_blocks(hashes, 64) == 3
    assert index.matched_blocks([1, *hashes], 64) == 0
    assert index.matched_blocks(hashes, 32) == 0
    assert [index.blocks[64][h].parent for h in hashes] == [None, *hashes[:2]]
    assert [index.blocks[64][h].tokens for h in hashes] == [4, 4, 4]


def test_lost_events_are_counted() -> None:
    manager = KVCacheManager([Pool(64, (8, 0))], Settings(4), event_buffer_max_size=1)
    index = RouterIndex()
    index.apply(manager.flush_events())
    for i in range(2):
        request = CacheRequest(i, [100 * i + t for t in range(5)])
        manager.add_sequence_batch([request])
        manager.release(i)
    index.apply(manager.flush_events())
    assert index.lost == 1


def stored(event_id: int, *hashes: int) -> dict[str, Any]:
    """Blocks of four tokens on the GPU, one below the other from the root."""
    blocks = [{"block_hash": h, "tokens": [0] * 4, "cache_level": 0, "priority": 35} for h in hashes]
    return {
        "event_id": event_id,
        "window_size": 64,
        "data": {"type": "stored", "parent_hash": None, "blocks": blocks},
    }


def updated(event_id: int, block_hash: int, level: int | None, priority: int | None) -> dict[str, Any]:
    """A move from the GPU to `level`, a change of priority from 35; None: that did not change."""
    return {
        "event_id": event_id,
        "window_size": 64,
        "data": {
            "type": "updated",
            "block_hash": block_hash,
            "cache_level": None if level is None else {"old_value": 0, "new_value": level},
            "priority": None if priority is None else {"old_value": 35, "new_value": priority},
        },
    }


@pytest.mark.parametrize(
    ("level", "priority", "expected"),
    [(1, None, (1, 35)), (None, 80, (0, 80)), (1, 80, (1, 80)), (0, 0, (0, 0))],
)
def test_an_update_changes_what_it_names_of_the_one_block_it_names(
    level: int | None, priority: int | None, expected: tuple[int, int]
) -> None:
    index = RouterIndex()
    index.apply([stored(0, 11, 12), updated(1, 12, level, priority)])
    assert believed(index) == {11: (0, 35), 12: expected}


def test_an_update_of_an_unknown_block_adds_none() -> None:
    index = RouterIndex()
    index.apply([stored(0, 11), updated(1, 99, 1, 80)])
    assert believed(index) == {11: (0, 35)}
    assert index.lost == 0


def test_a_priority_that_a_later_request_gives_a_cached_block_reaches_the_router() -> None:
    """Two blocks of 4 in 9 tokens; the second request keeps the first one at 80, no longer the default 35."""
    manager = KVCacheManager([Pool(64, (8, 0))], Settings(4), event_buffer_max_size=100)
    index = RouterIndex()
    keep = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, 4, 80)])
    both = CacheRequest(0, list(range(9))), CacheRequest(1, list(range(9)), retention=keep)
    first, second = (manager.node_hash(node) for node in manager.nodes_of(both[0], 8))
    told = []
    for request in both:
        manager.add_sequence_batch([request])
        request.position = request.prompt_tokens
        manager.release(request.request_id)
        index.apply(manager.flush_events())
        told.append(believed(index))
    assert told == [{first: (0, 35), second: (0, 35)}, {first: (0, 80), second: (0, 35)}]
