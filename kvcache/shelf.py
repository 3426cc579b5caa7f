"""The table behind every policy but TensorRT-LLM's own: what lies in a tier, in which list or heap, and what was there before.

It decides nothing (`kvcache.eviction` does): it links, counts and orders. One `Shelf` serves all tiers of one cache; `t` is
the tier. An item is something that takes a place (a block), a content is what it holds; in the curve both are one number.

    lists    head <-> oldest <-> ... <-> newest <-> head      one ring a list, heads in the rows behind the items
    heap     lowest score first, the older of two equals      for policies that give a block a number
    ghosts   head <-> oldest <-> ... <-> newest <-> head      contents that have left, for policies that remember them

An item that may not go (others continue it, or somebody uses it) has HOLDS above zero. It steps out of its list when it is
met as the next victim (HELD) and returns to the front, or to where the hand stands, once nothing holds it: no search scans.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcache.compiled import loop

Array = NDArray[Any]

# Columns of `rows`.
NEXT, PREV, STATE, LIST, COUNT, HOLDS, CONTENT, HEAP_AT, COLUMNS = range(9)
ABSENT, FRESH, HELD, QUEUED = range(4)  # FRESH: just entered, no place in the order yet
# Columns of `meter`, one row a tier. FIRST_LIST: the row before the head of list 1. QUEUED_IN + n: items queued in list n.
SIZE, CAPACITY, WAITING, LOWEST, FIRST_LIST, HAND, PENDING, HEAP_SIZE, STAMP, HIT_GHOST, HAS_EVICTED = range(11)
QUEUED_IN, GHOSTS_IN, FREE_ITEMS, METERS = 11, 15, 18, 19  # lists from 3 on share one count
# Columns of `level`, one row a tier: numbers that a policy learns.
NOW, FLOOR, TARGET, LIFE_S, LEVELS = range(5)
# Columns of `facts`, one row a content.
DEPTH, CATEGORY, SEEN, FACTS = range(4)
# Columns of `habits`, one row a category: uses that began, those that were followed by another, seconds between these.
BEGUN, FOLLOWED, GAP_S, HABITS = range(4)
CATEGORIES = 16
G_NEXT, G_PREV, G_LIST = range(3)

SCORE_SIGNATURE = "float64(float64, int64, int64, int64, float64)"
ScoreFunction = Callable[[float, int, int, int, float], float]


class Rule(NamedTuple):
    """A policy as the loops read it. `kind` is one of `kvcache.eviction`'s; shares are of the tier's capacity."""

    kind: int
    renews: bool  # a use makes the item the newest of its list
    counts: bool  # a use adds one to the item's count, and the list is the count
    leaves_only: bool  # an item may go only when none that continues it is in its tier
    first_share: float  # of the first list (small queue, window)
    ghost_share: float  # of the contents remembered
    past: int  # uses in the first list that promote


class Shelf(NamedTuple):
    """Tables of one cache under one policy."""

    rule: Rule
    score_of: (
        Any  # FunctionType: (seconds, uses, depth, priority, floor) -> score; a plain function without the compiler
    )
    rows: Array  # int32[tier, item + list head, COLUMNS]
    meter: Array  # int64[tier, METERS]
    level: Array  # float64[tier, LEVELS]
    ghosts: Array  # int32[tier, 3 heads + content, 3]; no content unless ghost_share
    order: Array  # float64[tier, item, 2]: score and stamp, or time of the last use
    heap: Array  # int32[tier, item]
    facts: Array  # int32[content, FACTS]
    habits: Array  # float64[tier, CATEGORIES, HABITS]
    home: Array  # int32[item]: the tier where the item is, or was last; -1: none yet


def make_shelf(rule: Rule, score_of: Any, capacities: list[int], items: int, contents: int, lists: int) -> Shelf:
    """An empty shelf: a tier for each capacity, warm to cold, with lists 1 .. `lists`."""
    tiers, rows = len(capacities), items + lists + 1
    table = np.zeros((tiers, rows, COLUMNS), np.int32)
    table[:, :, NEXT] = table[:, :, PREV] = np.arange(rows, dtype=np.int32)
    table[:, :, HEAP_AT] = -1
    meter = np.zeros((tiers, METERS), np.int64)
    meter[:, CAPACITY] = capacities
    meter[:, LOWEST] = 1
    meter[:, FIRST_LIST] = items
    meter[:, HAND] = meter[:, PENDING] = -1
    ghosts = np.full((tiers, 3 + (contents if rule.ghost_share > 0 else 0), 3), -1, np.int32)
    ghosts[:, :3, G_NEXT] = ghosts[:, :3, G_PREV] = np.arange(3)
    return Shelf(
        rule,
        score_of,
        table,
        meter,
        np.zeros((tiers, LEVELS)),
        ghosts,
        np.zeros((tiers, items, 2)),
        np.zeros((tiers, items), np.int32),
        np.zeros((contents, FACTS), np.int32),
        np.zeros((tiers, CATEGORIES, HABITS)),
        np.full(items, -1, np.int32),
    )


def with_contents(s: Shelf, contents: int) -> Shelf:
    """`s` with room for so many contents."""
    more = contents - len(s.facts)
    if more <= 0:
        return s
    facts = np.concatenate([s.facts, np.zeros((more, FACTS), np.int32)])
    facts[len(s.facts) :, DEPTH] = -1
    if s.rule.ghost_share == 0:
        return s._replace(facts=facts)
    new = np.full((len(s.ghosts), more, 3), -1, np.int32)
    return s._replace(facts=facts, ghosts=np.concatenate([s.ghosts, new], axis=1))


def renumber(s: Shelf, number: Array) -> None:
    """Contents have new numbers (`number[old]`, -1: forgotten, never one that an item holds); they only become lower."""
    old = np.flatnonzero(number >= 0)
    items = s.rows[:, : len(s.home), CONTENT]
    items[:] = np.maximum(number[items], 0)
    s.facts[: len(old)] = s.facts[old]
    s.facts[len(old) : len(number)] = 0
    s.facts[len(old) : len(number), DEPTH] = -1
    for t in range(len(s.ghosts) if s.rule.ghost_share > 0 else 0):
        kept = [(which, int(number[c])) for which in (1, 2) for c in _listed(s, t, which) if number[c] >= 0]
        s.ghosts[t] = -1
        s.ghosts[t, :3, G_NEXT] = s.ghosts[t, :3, G_PREV] = np.arange(3)
        s.meter[t, GHOSTS_IN : GHOSTS_IN + 3] = 0
        for which, content in kept:
            remember(s, t, content, which)


def _listed(s: Shelf, t: int, which: int) -> list[int]:
    """The contents of a ghost list, oldest first."""
    found, at = [], int(s.ghosts[t, which, G_NEXT])
    while at != which:
        found.append(at - 3)
        at = int(s.ghosts[t, at, G_NEXT])
    return found


# ---- lists -------------------------------------------------------------------------------------------------------------


@loop
def link_before(s: Shelf, t: int, item: int, place: int) -> None:
    """Put `item` into its list, directly in front of the row `place`."""
    before = s.rows[t, place, PREV]
    s.rows[t, item, PREV] = before
    s.rows[t, item, NEXT] = place
    s.rows[t, before, NEXT] = item
    s.rows[t, place, PREV] = item
    s.rows[t, item, STATE] = QUEUED
    s.meter[t, WAITING] += 1
    which = int(s.rows[t, item, LIST])
    s.meter[t, QUEUED_IN + min(which, 3)] += 1
    s.meter[t, LOWEST] = min(s.meter[t, LOWEST], which)


@loop
def head_of(s: Shelf, t: int, which: int) -> int:
    """Row of the head of list `which`, from 1 on."""
    return int(s.meter[t, FIRST_LIST]) + which


@loop
def oldest(s: Shelf, t: int, which: int) -> int:
    """First item of a list, -1 if it is empty."""
    head = head_of(s, t, which)
    item = int(s.rows[t, head, NEXT])
    return -1 if item == head else item


@loop
def push_newest(s: Shelf, t: int, item: int) -> None:
    """Queue `item` as the newest of its list."""
    link_before(s, t, item, head_of(s, t, int(s.rows[t, item, LIST])))


@loop
def push_oldest(s: Shelf, t: int, item: int) -> None:
    """Queue `item` as the oldest of its list."""
    link_before(s, t, item, int(s.rows[t, head_of(s, t, int(s.rows[t, item, LIST])), NEXT]))


@loop
def unlink(s: Shelf, t: int, item: int) -> None:
    """Take a queued `item` out of its list or heap; it stays in the tier."""
    s.rows[t, item, STATE] = HELD
    s.meter[t, WAITING] -= 1
    if s.meter[t, PENDING] == item:
        s.meter[t, PENDING] = -1
    if s.rows[t, item, HEAP_AT] >= 0:
        _heap_remove(s, t, item)
        return
    before, after = s.rows[t, item, PREV], s.rows[t, item, NEXT]
    if s.meter[t, HAND] == item:
        s.meter[t, HAND] = after
    s.rows[t, before, NEXT] = after
    s.rows[t, after, PREV] = before
    s.meter[t, QUEUED_IN + min(int(s.rows[t, item, LIST]), 3)] -= 1


@loop
def move_to_newest(s: Shelf, t: int, item: int, which: int) -> None:
    """A queued `item` becomes the newest of list `which`."""
    unlink(s, t, item)
    s.rows[t, item, LIST] = which
    push_newest(s, t, item)


# ---- heap --------------------------------------------------------------------------------------------------------------


@loop
def _before(s: Shelf, t: int, a: int, b: int) -> bool:
    """Item a goes before item b."""
    if s.order[t, a, 0] != s.order[t, b, 0]:
        return bool(s.order[t, a, 0] < s.order[t, b, 0])
    return bool(s.order[t, a, 1] < s.order[t, b, 1])


@loop
def _heap_put(s: Shelf, t: int, at: int, item: int) -> None:
    s.heap[t, at] = item
    s.rows[t, item, HEAP_AT] = at


@loop
def _sift_up(s: Shelf, t: int, at: int, item: int) -> None:
    """Let `item` rise from the hole `at`."""
    while at > 0:
        above = int(s.heap[t, (at - 1) // 2])
        if not _before(s, t, item, above):
            break
        _heap_put(s, t, at, above)
        at = (at - 1) // 2
    _heap_put(s, t, at, item)


@loop
def _sift_down(s: Shelf, t: int, at: int, item: int) -> None:
    """Let `item` sink from the hole `at`."""
    n = int(s.meter[t, HEAP_SIZE])
    while 2 * at + 1 < n:
        below = 2 * at + 1
        if below + 1 < n and _before(s, t, int(s.heap[t, below + 1]), int(s.heap[t, below])):
            below += 1
        if not _before(s, t, int(s.heap[t, below]), item):
            break
        _heap_put(s, t, at, int(s.heap[t, below]))
        at = below
    _heap_put(s, t, at, item)


@loop
def heap_push(s: Shelf, t: int, item: int, score: float) -> None:
    """Queue `item` by its score; of equal scores the one queued first goes first."""
    s.meter[t, STAMP] += 1
    s.order[t, item, 0] = score
    s.order[t, item, 1] = s.meter[t, STAMP]
    s.rows[t, item, STATE] = QUEUED
    s.meter[t, WAITING] += 1
    s.meter[t, HEAP_SIZE] += 1
    _sift_up(s, t, int(s.meter[t, HEAP_SIZE]) - 1, item)


@loop
def _heap_remove(s: Shelf, t: int, item: int) -> None:
    at = int(s.rows[t, item, HEAP_AT])
    s.rows[t, item, HEAP_AT] = -1
    s.meter[t, HEAP_SIZE] -= 1
    last = int(s.heap[t, s.meter[t, HEAP_SIZE]])
    if last == item:
        return
    if at > 0 and _before(s, t, last, int(s.heap[t, (at - 1) // 2])):
        _sift_up(s, t, at, last)
    else:
        _sift_down(s, t, at, last)


# ---- ghosts ------------------------------------------------------------------------------------------------------------


@loop
def remember(s: Shelf, t: int, content: int, which: int) -> None:
    """`content` becomes the newest of ghost list `which` (1 or 2), whose head is the row of that number."""
    row = content + 3
    before = s.ghosts[t, which, G_PREV]
    s.ghosts[t, row, G_PREV] = before
    s.ghosts[t, row, G_NEXT] = which
    s.ghosts[t, row, G_LIST] = which
    s.ghosts[t, before, G_NEXT] = row
    s.ghosts[t, which, G_PREV] = row
    s.meter[t, GHOSTS_IN + which] += 1


@loop
def remembered(s: Shelf, t: int, content: int) -> int:
    """Which ghost list holds `content`; 0 if none does."""
    return max(0, int(s.ghosts[t, content + 3, G_LIST]))


@loop
def forget(s: Shelf, t: int, content: int) -> None:
    """Take `content` out of its ghost list."""
    row = content + 3
    before, after = s.ghosts[t, row, G_PREV], s.ghosts[t, row, G_NEXT]
    s.ghosts[t, before, G_NEXT] = after
    s.ghosts[t, after, G_PREV] = before
    s.meter[t, GHOSTS_IN + s.ghosts[t, row, G_LIST]] -= 1
    s.ghosts[t, row, G_LIST] = -1


@loop
def forget_oldest(s: Shelf, t: int, which: int) -> None:
    """Drop the oldest of ghost list `which`, if there is one."""
    row = int(s.ghosts[t, which, G_NEXT])
    if row != which:
        forget(s, t, row - 3)
