"""Decides the hits of LRU at every cache size at once: Mattson's stack distances, exact, in one pass over the trace.

The distance of a block is how many distinct blocks, itself included, have been used since its last use; LRU hits it in every
cache of at least so many blocks. In the tree view a request looks up all its blocks before it touches any, then touches
them deepest first, as `kvcache.curve` defines it: a parent is then never farther than its child. Only LRU has distances;
the other policies are replayed at each size (`kvcache.curve`), or on a sample of the blocks (`sampled`).

Sampling is SHARDS (Waldspurger et al., FAST 2015): a block belongs to the sample if a hash of its number says so, so it
keeps all of its uses; a cache of the sample's share of the size stands for the whole. Flat view only: a sample of blocks
has no prefixes.
"""

from dataclasses import replace

import numpy as np

from kvcache.compiled import compiled, loop
from kvcache.request import Int32, Int64, Requests
from kvcache.shelf import Array

COLD = 0
HASH = np.uint64(0x9E3779B97F4A7C15)
SEED_STEP, ALL_BITS = 0xD1B54A32D192ED03, (1 << 64) - 1


@loop
def _add(tree: Array, i: int, change: int) -> None:
    while i < len(tree):
        tree[i] += change
        i += i & -i


@loop
def _sum(tree: Array, i: int) -> int:
    total = 0
    while i > 0:
        total += tree[i]
        i -= i & -i
    return total


@compiled
def lru_distances(blocks: Int32, offset: Int64, n_blocks: int) -> Int32:
    """int32[access]: the stack distance of each access, COLD (0) for a first use. Requests are offset[i]:offset[i + 1]."""
    distance = np.zeros(len(blocks), np.int32)
    last = np.zeros(n_blocks, np.int64)
    tree = np.zeros(len(blocks) + 2, np.int32)  # Fenwick tree: 1 where a block's last use is
    now, distinct = 0, 0
    for i in range(len(offset) - 1):
        for j in range(offset[i], offset[i + 1]):
            if last[blocks[j]] > 0:
                distance[j] = distinct - _sum(tree, last[blocks[j]] - 1)
        for j in range(offset[i + 1] - 1, offset[i] - 1, -1):
            if last[blocks[j]] > 0:
                _add(tree, last[blocks[j]], -1)
            else:
                distinct += 1
            now += 1
            last[blocks[j]] = now
            _add(tree, now, 1)
    return distance


def hits_by_size(distance: Int32, weight: Array | None = None) -> Array:
    """[size]: hits (or their weight) in a cache of that many blocks, from 0 to the largest distance."""
    warm = distance > COLD
    return np.cumsum(np.bincount(distance[warm], None if weight is None else weight[warm], minlength=1))


def sampled(requests: Requests, blocks: Int32, rate: float, seed: int) -> Requests:
    """The requests' blocks that are in one sample of `rate` (0 to 1) of all blocks; `seed` names the sample."""
    mixed = (blocks.astype(np.uint64) + np.uint64((seed + 1) * SEED_STEP & ALL_BITS)) * HASH
    mixed ^= mixed >> np.uint64(29)
    kept = (mixed * HASH) >> np.uint64(40) < np.uint64(rate * 2**24)
    count = np.add.reduceat(np.append(kept, False).astype(np.int64), requests.unit_offset[:-1])
    count[np.diff(requests.unit_offset) == 0] = 0
    offset = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    tokens = (count * requests.unit_tokens).astype(np.int32)
    return replace(
        requests,
        units=np.ascontiguousarray(blocks[kept]),
        unit_offset=offset,
        prompt_tokens=tokens,
        output_offset=None,
        output_units=None,
    )
