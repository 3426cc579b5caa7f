"""Decides, for `kvcache.curve`, which blocks one or two tiers hold: queues of blocks, and one loop over requests.

It knows neither traces nor policy names: a policy arrives as three flags. It is not the serving engine's cache: nothing
here has slots, references held over time, priorities or copies.

A tier is one int32 table, a row a block, followed by one sentinel row a frequency. Each sentinel heads a circular list,
front = next victim:

    frequency 1:  sentinel <-> oldest <-> ... <-> newest <-> (sentinel)
    frequency 2:  sentinel <-> ...

Without counting every block has frequency 1, so there is one list. Victims leave in the order (frequency, age).
Where only blocks without children in the tier (leaves) may go, a block that reaches the front while it has children
steps out of its list (HELD), and returns to the front when its last child has gone: no victim search ever scans.

Nothing has to pin a running request while it makes room: a tier holds all of its path or lacks the last block. In the
first case nothing is evicted, in the second every path block it holds has a child, and new blocks have no place yet.
"""

from typing import NamedTuple

import numpy as np

from kvcache.compiled import compiled
from kvcache.request import Int32, Int64

NEXT, PREVIOUS, STATE, FREQUENCY, CHILDREN, COLUMNS = range(6)
ABSENT, FRESH, HELD, QUEUED = range(4)  # FRESH: just entered, no place in the order yet
SIZE, CAPACITY, WAITING, LOWEST, FIRST_SENTINEL, METERS = range(6)
HITS_WARM, HITS_COLD, HIT_TOKENS, EVICTIONS, COUNTS = range(5)


class Policy(NamedTuple):
    """The order of eviction: lowest frequency first, then oldest place; both start when a block enters a tier."""

    hit_renews: bool  # a hit makes the block the newest
    hit_counts: bool  # a hit adds one to the block's frequency
    leaves_only: bool  # a block may go only when none that continues it is in its tier


def empty_tiers(capacities: list[int], n_blocks: int, max_frequency: int) -> tuple[Int32, Int64]:
    """Tables and meters of one tier a capacity, warm to cold, with nothing in them."""
    rows = n_blocks + max_frequency + 1
    tables = np.zeros((len(capacities), rows, COLUMNS), np.int32)
    tables[:, :, NEXT] = tables[:, :, PREVIOUS] = np.arange(rows, dtype=np.int32)
    meters = np.zeros((len(capacities), METERS), np.int64)
    meters[:, CAPACITY] = capacities
    meters[:, LOWEST] = 1
    meters[:, FIRST_SENTINEL] = n_blocks
    return tables, meters


@compiled
def link_before(tier: Int32, meter: Int64, block: int, place: int) -> None:
    """Put `block` into a list, directly in front of the row `place`."""
    before = tier[place, PREVIOUS]
    tier[block, PREVIOUS] = before
    tier[block, NEXT] = place
    tier[before, NEXT] = block
    tier[place, PREVIOUS] = block
    tier[block, STATE] = QUEUED
    meter[WAITING] += 1
    meter[LOWEST] = min(meter[LOWEST], tier[block, FREQUENCY])


@compiled
def unlink(tier: Int32, meter: Int64, block: int) -> None:
    """Take `block` out of its list; it stays in the tier."""
    before, after = tier[block, PREVIOUS], tier[block, NEXT]
    tier[before, NEXT] = after
    tier[after, PREVIOUS] = before
    tier[block, STATE] = HELD
    meter[WAITING] -= 1


@compiled
def push_newest(tier: Int32, meter: Int64, block: int) -> None:
    """Queue `block` as the newest of its frequency."""
    link_before(tier, meter, block, meter[FIRST_SENTINEL] + tier[block, FREQUENCY])


@compiled
def return_to_front(tier: Int32, meter: Int64, block: int) -> None:
    """Queue a HELD block again: it had reached the front, so it is older than all that still wait."""
    link_before(tier, meter, block, tier[meter[FIRST_SENTINEL] + tier[block, FREQUENCY], NEXT])


@compiled
def enter(tier: Int32, meter: Int64, block: int, parent: int, frequency: int) -> None:
    """Add `block`, with the frequency it brings along, but without a place in the order."""
    tier[block, STATE] = FRESH
    tier[block, FREQUENCY] = frequency
    meter[SIZE] += 1
    if parent >= 0:
        tier[parent, CHILDREN] += 1


@compiled
def leave(tier: Int32, meter: Int64, block: int, parent: int) -> None:
    """Remove a queued block; a parent that waited for its last child may be evicted from now on."""
    unlink(tier, meter, block)
    tier[block, STATE] = ABSENT
    meter[SIZE] -= 1
    if parent >= 0:
        tier[parent, CHILDREN] -= 1
        if tier[parent, CHILDREN] == 0 and tier[parent, STATE] == HELD:
            return_to_front(tier, meter, parent)


@compiled
def next_victim(tier: Int32, meter: Int64, policy: Policy) -> int:
    """The first block (leaf) in the order (frequency, age), or -1 when none may go."""
    while meter[WAITING] > 0:
        sentinel = meter[FIRST_SENTINEL] + meter[LOWEST]
        block = tier[sentinel, NEXT]
        if block == sentinel:
            meter[LOWEST] += 1
        elif policy.leaves_only and tier[block, CHILDREN] > 0:
            unlink(tier, meter, block)
        else:
            return int(block)
    return -1


@compiled
def trim(
    tables: Int32, meters: Int64, parents: Int32, level: int, policy: Policy, exclusive: bool, counts: Int64
) -> None:
    """Evict from tier `level` until it fits or no block may go; exclusive tiers hand victims to the next one."""
    tier, meter = tables[level], meters[level]
    while meter[SIZE] > meter[CAPACITY]:
        block = next_victim(tier, meter, policy)
        if block < 0:
            return
        leave(tier, meter, block, parents[block])
        if exclusive and level + 1 < len(tables):
            enter(tables[level + 1], meters[level + 1], block, parents[block], tier[block, FREQUENCY])
            push_newest(tables[level + 1], meters[level + 1], block)
        elif exclusive or tables[1 - level, block, STATE] == ABSENT:
            counts[EVICTIONS] += 1


@compiled
def cached_prefix(tables: Int32, path: Int32, counts: Int64) -> int:
    """How many leading blocks of `path` are in some tier; each is counted as a hit of the warmest that holds it."""
    for depth in range(len(path)):
        if tables[0, path[depth], STATE] != ABSENT:
            counts[HITS_WARM] += 1
        elif len(tables) > 1 and tables[1, path[depth], STATE] != ABSENT:
            counts[HITS_COLD] += 1
        else:
            return depth
    return len(path)


@compiled
def raise_blocks(tables: Int32, meters: Int64, parents: Int32, path: Int32) -> None:
    """Exclusive tiers: move what the cold tier holds of `path` to the warm tier, with its frequency."""
    for block in path:
        if tables[1, block, STATE] != ABSENT:
            leave(tables[1], meters[1], block, parents[block])
            enter(tables[0], meters[0], block, parents[block], tables[1, block, FREQUENCY])


@compiled
def admit(tier: Int32, meter: Int64, parents: Int32, path: Int32, policy: Policy) -> None:
    """Add the missing blocks of `path`; what will get a new place leaves its old one before room is made."""
    for block in path:
        if tier[block, STATE] == ABSENT:
            enter(tier, meter, block, parents[block], 0)
        elif policy.hit_renews and tier[block, STATE] == QUEUED:
            unlink(tier, meter, block)


@compiled
def touch(tier: Int32, meter: Int64, path: Int32, policy: Policy) -> None:
    """Give `path` its places in the order, deepest first, so that a parent is newer than its children."""
    for block in path[::-1]:
        if policy.hit_counts or tier[block, FREQUENCY] == 0:
            tier[block, FREQUENCY] += 1
        if policy.hit_renews or tier[block, STATE] == FRESH:
            push_newest(tier, meter, block)


@compiled
def serve(
    tables: Int32,
    meters: Int64,
    parents: Int32,
    path: Int32,
    policy: Policy,
    exclusive: bool,
    counts: Int64,
) -> int:
    """One request over the blocks `path`, first block first: how many of them it hits."""
    n_tiers = len(tables)
    hits = cached_prefix(tables, path, counts)
    if exclusive and n_tiers > 1:
        raise_blocks(tables, meters, parents, path)
    touched = 1 if exclusive else n_tiers
    for level in range(touched):
        admit(tables[level], meters[level], parents, path, policy)
    for level in range(n_tiers):
        trim(tables, meters, parents, level, policy, exclusive, counts)
    for level in range(touched):
        touch(tables[level], meters[level], path, policy)
    for level in range(n_tiers):
        trim(tables, meters, parents, level, policy, exclusive, counts)
    return hits


@compiled
def replay(
    tables: Int32,
    meters: Int64,
    parents: Int32,
    blocks: Int32,
    offset: Int64,
    tokens: Int32,
    block_tokens: int,
    policy: Policy,
    exclusive: bool,
) -> Int64:
    """Serve all requests, one after the other; the counts HITS_WARM ... EVICTIONS."""
    counts = np.zeros(COUNTS, np.int64)
    for i in range(len(tokens)):
        path = blocks[offset[i] : offset[i + 1]]
        if len(path) > 0:
            hits = serve(tables, meters, parents, path, policy, exclusive, counts)
            counts[HIT_TOKENS] += min(hits * block_tokens, int(tokens[i]))
    return counts
