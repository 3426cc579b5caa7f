"""Decides, for `kvcache.curve`, which blocks one or two tiers hold: one loop over requests, under any policy.

It knows neither traces nor policy names: a policy arrives as the rule of a `kvcache.shelf`, whose tables it drives. It is
not the serving engine's cache: nothing here has slots, references held over time, priorities or copies.

Where only blocks without children in the tier (leaves) may go, a block is held by its children: HOLDS counts them.
Nothing has to pin a running request while it makes room: a tier holds all of its path or lacks the last block. In the
first case nothing is evicted, in the second every path block it holds has a child, and new blocks have no place yet.
"""

from kvcache.compiled import compiled, loop
from kvcache.eviction import REUSE, enter, leave, let_go, next_victim, use
from kvcache.request import Int32, Int64
from kvcache.shelf import (
    ABSENT,
    CAPACITY,
    CATEGORY,
    COUNT,
    DEPTH,
    HOLDS,
    NOW,
    QUEUED,
    SIZE,
    STATE,
    Array,
    Shelf,
    unlink,
)

HITS_WARM, HITS_COLD, HIT_TOKENS, EVICTIONS, COPIED_DOWN, COUNTS = range(6)
EXCLUSIVE, INCLUSIVE, SHADOW = range(3)
DEFAULT_PRIORITY = 35


@loop
def _come(s: Shelf, t: int, block: int, parent: int, uses: int) -> None:
    """Add `block`, with the uses it brings along, but without a place in the order."""
    enter(s, t, block, block, uses)
    if parent >= 0 and s.rule.leaves_only:
        s.rows[t, parent, HOLDS] += 1


@loop
def _go(s: Shelf, t: int, block: int, parent: int, evicted: bool) -> None:
    """Remove a block; a parent that waited for its last child may be evicted from now on."""
    leave(s, t, block, evicted)
    if parent >= 0 and s.rule.leaves_only:
        s.rows[t, parent, HOLDS] -= 1
        let_go(s, t, parent)


@loop
def _trim(s: Shelf, parents: Int32, t: int, inclusion: int, low: float, counts: Int64) -> None:
    """An over-full tier `t` evicts until it holds `low` of its capacity or no block may go; victims go down unless tiers are
    inclusive. One that has left a copy below needs no other: the copy becomes the newest there.
    """
    if s.meter[t, SIZE] <= s.meter[t, CAPACITY]:
        return
    while s.meter[t, SIZE] > int(low * s.meter[t, CAPACITY]):
        block = next_victim(s, t)
        if block < 0:
            return
        uses, parent = int(s.rows[t, block, COUNT]), int(parents[block])
        _go(s, t, block, parent, True)
        if inclusion != INCLUSIVE and t + 1 < len(s.meter):
            if s.rows[t + 1, block, STATE] == ABSENT:
                counts[COPIED_DOWN] += 1
            else:
                _go(s, t + 1, block, parent, False)
            _come(s, t + 1, block, parent, max(0, uses - 1))
            use(s, t + 1, block, DEFAULT_PRIORITY)
        elif inclusion == EXCLUSIVE or len(s.meter) == 1 or s.rows[1 - t, block, STATE] == ABSENT:
            counts[EVICTIONS] += 1


@loop
def _cached_prefix(s: Shelf, path: Int32, counts: Int64) -> int:
    """How many leading blocks of `path` are in some tier; each is counted as a hit of the warmest that holds it."""
    for depth in range(len(path)):
        if s.rows[0, path[depth], STATE] != ABSENT:
            counts[HITS_WARM] += 1
        elif len(s.meter) > 1 and s.rows[1, path[depth], STATE] != ABSENT:
            counts[HITS_COLD] += 1
        else:
            return depth
    return len(path)


@loop
def _raise_blocks(s: Shelf, parents: Int32, path: Int32, inclusion: int) -> None:
    """Bring what only the cold tier holds of `path` to the warm tier, with its uses; with shadows a copy stays where it is."""
    for i in range(len(path)):
        block = int(path[i])
        if s.rows[1, block, STATE] != ABSENT and s.rows[0, block, STATE] == ABSENT:
            if inclusion == EXCLUSIVE:
                _go(s, 1, block, int(parents[block]), False)
            _come(s, 0, block, int(parents[block]), int(s.rows[1, block, COUNT]))


@loop
def _admit(s: Shelf, t: int, parents: Int32, path: Int32, counts: Int64) -> None:
    """Add the missing blocks of `path`; what will get a new place leaves its old one before room is made."""
    for i in range(len(path)):
        block = int(path[i])
        if s.rows[t, block, STATE] == ABSENT:
            _come(s, t, block, int(parents[block]), 0)
            counts[COPIED_DOWN] += t
        elif s.rule.renews and s.rows[t, block, STATE] == QUEUED:
            unlink(s, t, block)


@loop
def _touch(s: Shelf, t: int, path: Int32) -> None:
    """Give `path` its places in the order, deepest first, so that a parent is newer than its children."""
    for i in range(len(path) - 1, -1, -1):
        use(s, t, int(path[i]), DEFAULT_PRIORITY)


@loop
def serve(s: Shelf, parents: Int32, path: Int32, inclusion: int, low: float, counts: Int64) -> int:
    """One request over the blocks `path`, first block first: how many of them it hits."""
    tiers = len(s.meter)
    hits = _cached_prefix(s, path, counts)
    if inclusion != INCLUSIVE and tiers > 1:
        _raise_blocks(s, parents, path, inclusion)
    touched = tiers if inclusion == INCLUSIVE else 1
    for t in range(touched):
        _admit(s, t, parents, path, counts)
    for t in range(tiers):
        _trim(s, parents, t, inclusion, low, counts)
    for t in range(touched):
        _touch(s, t, path)
    for t in range(tiers):
        _trim(s, parents, t, inclusion, low, counts)
    return hits


@loop
def replay(
    s: Shelf,
    parents: Int32,
    blocks: Int32,
    offset: Int64,
    tokens: Int32,
    arrival_s: Array,
    category: Int32,
    block_tokens: int,
    inclusion: int,
    low: float,
    counts: Int64,
) -> None:
    """Serve all requests, one after the other; adds to the counts HITS_WARM ... COPIED_DOWN."""
    for i in range(len(tokens)):
        path = blocks[offset[i] : offset[i + 1]]
        if len(path) > 0:
            for t in range(len(s.meter)):
                s.level[t, NOW] = arrival_s[i]
            if s.rule.kind == REUSE:
                for j in range(len(path)):
                    s.facts[path[j], CATEGORY] = category[i]
            hits = serve(s, parents, path, inclusion, low, counts)
            counts[HIT_TOKENS] += min(hits * block_tokens, int(tokens[i]))


@compiled
def note_depths(facts: Int32, blocks: Int32, offset: Int64, block_tokens: int) -> None:
    """Where in its prompt each block begins, in tokens."""
    for i in range(len(offset) - 1):
        for j in range(offset[i], offset[i + 1]):
            facts[blocks[j], DEPTH] = (j - offset[i]) * block_tokens
