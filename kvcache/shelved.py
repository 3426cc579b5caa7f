"""Free blocks under a policy of `kvcache.eviction`: what the manager does to a block, told to the policy's tables.

It decides no order itself. A block that holds content of the tree is an item of its (window, level) as soon as it is free
for the first time, and stays one while requests use it (held) until its content is dropped or goes to another level. A
block without such content is in the queues of `kvcache.queues`, which are emptied first: TensorRT-LLM's order among them.

    released, new content     enter, first use           claimed by a match       held; a use when it is released again
    chosen, content dropped   leave, evicted             moved to another level   leave there, enter here with its uses
"""

from functools import cache
from typing import Any, NamedTuple

from numba import types

from kvcache.compiled import by_address, loop
from kvcache.eviction import enter, leave, let_go, next_victim, use
from kvcache.policies import POLICIES, Policy, pointer
from kvcache.shelf import (
    ABSENT,
    CONTENT,
    COUNT,
    DEPTH,
    FREE_ITEMS,
    HOLDS,
    NOW,
    QUEUED,
    STATE,
    Array,
    Shelf,
    make_shelf,
    unlink,
)

MOST_LISTS = 1024  # of a counting policy: uses beyond that no longer tell blocks apart


class Shelved(NamedTuple):
    """The tables, and the three things done to them, called by address: no loop is compiled anew for another policy."""

    shelf: Shelf
    put: Any  # FunctionType of `put`
    take: Any  # FunctionType of `take`
    victim: Any  # FunctionType of `victim`


def make_shelved(policy: Policy, sizes: list[int], nodes: int) -> Shelved:
    """One tier for each (window, level); the items are block rows, the contents nodes."""
    shelf = make_shelf(policy.rule, pointer(policy.score), sizes, sum(sizes), nodes, MOST_LISTS)
    shelf.facts[:, DEPTH] = -1
    return Shelved(shelf, *_doors())


@cache
def _doors() -> tuple[Any, Any, Any]:
    """The three functions, compiled once: every shelf has the same type."""
    lru = POLICIES["lru"]
    shelf, n = make_shelf(lru.rule, pointer(lru.score), [1], 1, 1, 1), types.int64
    return (
        by_address(put, types.void, shelf, n, n, n, n, types.float64),
        by_address(take, types.void, shelf, n, types.boolean),
        by_address(victim, n, shelf, n, types.float64),
    )


def put(s: Shelf, t: int, block: int, node: int, priority: int, now_s: float) -> None:
    """A block with content becomes free in tier t."""
    home, uses = int(s.home[block]), 0
    s.level[t, NOW] = now_s
    if home != -1:
        same = s.rows[home, block, CONTENT] == node
        inside = s.rows[home, block, STATE] != ABSENT
        if same:
            uses = int(s.rows[home, block, COUNT])
        if inside and (home != t or not same):
            s.rows[home, block, HOLDS] = 0
            leave(s, home, block, False)
            inside = False
        if not inside:
            home = -1
    if home == -1:
        enter(s, t, block, node, uses)
    s.home[block] = t
    s.rows[t, block, HOLDS] = 0
    use(s, t, block, priority)
    let_go(s, t, block)
    s.meter[t, FREE_ITEMS] += 1


def take(s: Shelf, block: int, lost: bool) -> None:
    """A free block is claimed: by a match, or, `lost`, because its content is dropped or goes to another level."""
    t = int(s.home[block])
    s.meter[t, FREE_ITEMS] -= 1
    if lost:
        leave(s, t, block, True)
        return
    s.rows[t, block, HOLDS] = 1
    if s.rule.renews and s.rows[t, block, STATE] == QUEUED:
        unlink(s, t, block)


def victim(s: Shelf, t: int, now_s: float) -> int:
    """The policy's next victim in tier t."""
    s.level[t, NOW] = now_s
    return int(next_victim(s, t))


@loop
def note_depth(s: Shelf, parents: Array, node: int, tokens_per_block: int) -> None:
    """Where in its prompt a block begins, in tokens, worked out once for a node and those above it. The root is node 0."""
    above, steps = node, 0
    while above != 0 and s.facts[above, DEPTH] < 0:
        above = int(parents[above])
        steps += 1
    depth = tokens_per_block * (steps - 1) if above == 0 else int(s.facts[above, DEPTH]) + tokens_per_block * steps
    for _ in range(steps):
        s.facts[node, DEPTH] = depth
        depth -= tokens_per_block
        node = int(parents[node])
