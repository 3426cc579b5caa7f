"""Eviction policies: which item of a tier goes next, what a use changes, what is remembered of what has gone.

Each policy is a `Rule` (`POLICIES`, at the end, with its source) over one kind of order; the tables are `kvcache.shelf`'s.
TensorRT-LLM's own policy is not here: the manager has it in its free queues (`kvcache.queues`). What every kind shares:

    enter        a content comes into the tier (FRESH: it has no place until it is queued); ghosts speak up now
    use          a use of an item: hit, or first use of a fresh one; gives or renews its place
    next_victim  the item to go next, or -1; looking takes nothing
    leave        the item goes: evicted (it may be remembered), or moved to another tier

Items that may not go (HOLDS) are never victims. In the flat view, where nothing holds an item, each kind is its source's
algorithm; where several contents enter before room is made (a request in the tree view), ghost-driven choices (ARC's "was
it in B2") follow the last of them.
"""

import numpy as np

from kvcache.compiled import loop
from kvcache.shelf import (
    ABSENT,
    BEGUN,
    CAPACITY,
    CATEGORIES,
    CATEGORY,
    CONTENT,
    COUNT,
    DEPTH,
    FLOOR,
    FOLLOWED,
    FRESH,
    GAP_S,
    GHOSTS_IN,
    HAND,
    HAS_EVICTED,
    HEAP_SIZE,
    HELD,
    HIT_GHOST,
    HOLDS,
    LIFE_S,
    LIST,
    LOWEST,
    NEXT,
    NOW,
    PENDING,
    QUEUED,
    QUEUED_IN,
    SEEN,
    SIZE,
    STATE,
    TARGET,
    WAITING,
    Shelf,
    forget,
    forget_oldest,
    head_of,
    heap_push,
    link_before,
    move_to_newest,
    oldest,
    push_newest,
    push_oldest,
    remember,
    remembered,
    unlink,
)

LISTS, SIEVE, S3FIFO, ARC, TINYLFU, REUSE, SCORE = range(7)

SMALL, MAIN = 1, 2  # S3-FIFO
T1, T2 = 1, 2  # ARC; its ghosts B1, B2 have the same numbers
WINDOW, PROBATION, PROTECTED = 1, 2, 3  # W-TinyLFU
PROTECTED_SHARE = 0.8  # of W-TinyLFU's main part
MOST_COUNTED = 15  # W-TinyLFU's counters have four bits
MOST_USES = 3  # S3-FIFO's have two
UNKNOWN = 2.0  # no probability


# ---- entering and leaving ----------------------------------------------------------------------------------------------


@loop
def enter(s: Shelf, t: int, item: int, content: int, uses: int) -> None:
    """`content` comes into tier t in the place of `item`, with the uses it brings along, without a place in the order."""
    row = s.rows[t, item]
    row[STATE] = FRESH
    row[COUNT] = uses
    row[CONTENT] = content
    row[LIST] = 1
    s.meter[t, SIZE] += 1
    if s.rule.ghost_share > 0:
        ghost = remembered(s, t, content)
        s.meter[t, HIT_GHOST] = ghost
        if ghost > 0:
            row[LIST] = 2
            if s.rule.kind == ARC:
                _adapt(s, t, ghost)
            forget(s, t, content)
        elif s.rule.kind == S3FIFO and s.meter[t, HAS_EVICTED] == 0 and s.meter[t, SIZE] <= s.meter[t, CAPACITY]:
            if s.meter[t, QUEUED_IN + SMALL] >= int(s.meter[t, CAPACITY] * s.rule.first_share):
                row[LIST] = MAIN


@loop
def _adapt(s: Shelf, t: int, ghost: int) -> None:
    """ARC: a ghost hit moves the target size of T1 towards the list whose ghost it was."""
    mine, other = s.meter[t, GHOSTS_IN + ghost], s.meter[t, GHOSTS_IN + 3 - ghost]
    step = max(1.0, other / mine)
    target = s.level[t, TARGET] + (step if ghost == T1 else -step)
    s.level[t, TARGET] = min(max(target, 0.0), float(s.meter[t, CAPACITY]))


@loop
def leave(s: Shelf, t: int, item: int, evicted: bool) -> None:
    """`item` leaves tier t. Evicted: for want of room, so that ghosts and ageing take note; else it moves or is taken."""
    if s.rows[t, item, STATE] == QUEUED:
        if evicted:
            _note_eviction(s, t, item)
        unlink(s, t, item)
    s.rows[t, item, STATE] = ABSENT
    s.meter[t, SIZE] -= 1


@loop
def _note_eviction(s: Shelf, t: int, item: int) -> None:
    kind, which = s.rule.kind, int(s.rows[t, item, LIST])
    content = int(s.rows[t, item, CONTENT])
    if kind == SCORE:
        s.level[t, FLOOR] = max(s.level[t, FLOOR], s.order[t, item, 0])
    elif kind == REUSE:
        age_s, life_s = s.level[t, NOW] - s.order[t, item, 0], s.level[t, LIFE_S]
        s.level[t, LIFE_S] = life_s + (age_s - life_s) / 64 if life_s > 0 else age_s
    elif kind == S3FIFO and which == SMALL:
        room = int(s.meter[t, CAPACITY] * s.rule.ghost_share)
        if room > 0:
            if s.meter[t, GHOSTS_IN + 1] >= room:
                forget_oldest(s, t, 1)
            remember(s, t, content, 1)
    elif kind == ARC:
        _arc_ghosts(s, t, content, which)


@loop
def _arc_ghosts(s: Shelf, t: int, content: int, which: int) -> None:
    """ARC's case IV keeps T1 + B1 at the capacity and all four at twice that; then the victim becomes a ghost."""
    capacity = s.meter[t, CAPACITY]
    in_t1, in_t2 = s.meter[t, QUEUED_IN + T1], s.meter[t, QUEUED_IN + T2]
    in_b1, in_b2 = s.meter[t, GHOSTS_IN + T1], s.meter[t, GHOSTS_IN + T2]
    if s.meter[t, HIT_GHOST] == 0:
        if in_t1 + in_b1 >= capacity:
            if in_t1 >= capacity:
                return
            forget_oldest(s, t, T1)
        elif in_t1 + in_b1 + in_t2 + in_b2 >= 2 * capacity:
            forget_oldest(s, t, T2)
    remember(s, t, content, which)


# ---- using -------------------------------------------------------------------------------------------------------------


@loop
def use(s: Shelf, t: int, item: int, priority: int) -> None:
    """One use of `item`: a fresh one gets its first place, another what the policy gives to a hit."""
    row, kind = s.rows[t, item], s.rule.kind
    fresh = row[STATE] == FRESH
    if kind == SIEVE:
        row[COUNT] = 0 if fresh else 1
    elif kind == S3FIFO:
        row[COUNT] = 0 if fresh else min(MOST_USES, row[COUNT] + 1)
    elif s.rule.counts or row[COUNT] == 0:
        row[COUNT] += 1
    if kind == TINYLFU:
        _count_seen(s, t, int(row[CONTENT]))
    if not (fresh or s.rule.renews):
        return
    if row[STATE] == QUEUED:
        unlink(s, t, item)
    if kind == LISTS and s.rule.counts:
        row[COUNT] = min(int(row[COUNT]), s.rows.shape[1] - len(s.home) - 1)
        row[LIST] = row[COUNT]
    elif kind == ARC and not fresh:
        row[LIST] = T2
    elif kind == TINYLFU and not fresh and row[LIST] != WINDOW:
        row[LIST] = PROTECTED
    elif kind == REUSE:
        _learn(s, t, item, fresh)
    elif kind == SCORE:
        s.order[t, item, 0] = _score(s, t, item, priority)
    queue(s, t, item)
    if kind == TINYLFU and row[LIST] == PROTECTED:
        _demote(s, t)


@loop
def queue(s: Shelf, t: int, item: int) -> None:
    """Give `item` a place as the newest; one that is held and has a score waits outside the heap."""
    if s.rule.kind != SCORE:
        push_newest(s, t, item)
    elif s.rows[t, item, HOLDS] == 0:
        heap_push(s, t, item, s.order[t, item, 0])
    else:
        s.rows[t, item, STATE] = HELD


@loop
def let_go(s: Shelf, t: int, item: int) -> None:
    """Nothing holds `item` any more: if it has stepped out of its list it returns to where it was met."""
    if s.rows[t, item, STATE] != HELD or s.rows[t, item, HOLDS] > 0:
        return
    if s.rule.kind == SCORE:
        heap_push(s, t, item, s.order[t, item, 0])
    elif s.rule.kind == SIEVE and s.meter[t, HAND] >= 0:
        link_before(s, t, item, int(s.meter[t, HAND]))
        s.meter[t, HAND] = item
    else:
        push_oldest(s, t, item)


@loop
def _score(s: Shelf, t: int, item: int, priority: int) -> float:
    depth = int(s.facts[s.rows[t, item, CONTENT], DEPTH])
    uses = int(s.rows[t, item, COUNT])
    return float(s.score_of(s.level[t, NOW], uses, depth, priority, s.level[t, FLOOR]))


@loop
def _learn(s: Shelf, t: int, item: int, fresh: bool) -> None:
    """Workload-aware: how often, and after how long, blocks of this category are used again."""
    content = int(s.rows[t, item, CONTENT])
    if not fresh:
        before = s.habits[t, int(s.rows[t, item, LIST]) - 1]
        before[FOLLOWED] += 1
        before[GAP_S] += s.level[t, NOW] - s.order[t, item, 0]
    category = int(s.facts[content, CATEGORY])
    s.habits[t, category, BEGUN] += 1
    s.order[t, item, 0] = s.level[t, NOW]
    s.rows[t, item, LIST] = 1 + category


@loop
def _count_seen(s: Shelf, t: int, content: int) -> None:
    """W-TinyLFU: one use more; after ten uses a place all counts are halved."""
    s.facts[content, SEEN] = min(MOST_COUNTED, s.facts[content, SEEN] + 1)
    s.level[t, TARGET] += 1
    if s.level[t, TARGET] >= 10 * max(1, s.meter[t, CAPACITY]):
        s.level[t, TARGET] = 0
        for other in range(len(s.facts)):
            s.facts[other, SEEN] //= 2


@loop
def _window_size(s: Shelf, t: int) -> int:
    return max(1, int(s.meter[t, CAPACITY] * s.rule.first_share))


@loop
def _demote(s: Shelf, t: int) -> None:
    """W-TinyLFU: the protected part keeps to its size; who falls out is on probation again."""
    most = int((s.meter[t, CAPACITY] - _window_size(s, t)) * PROTECTED_SHARE)
    if s.meter[t, QUEUED_IN + PROTECTED] > most:
        move_to_newest(s, t, oldest(s, t, PROTECTED), PROBATION)


# ---- choosing ----------------------------------------------------------------------------------------------------------


@loop
def next_victim(s: Shelf, t: int) -> int:
    """The item that goes next, not taken yet; -1 if none may go."""
    kind = s.rule.kind
    if kind == LISTS:
        return _lowest_list(s, t)
    if kind == SCORE:
        return int(s.heap[t, 0]) if s.meter[t, HEAP_SIZE] > 0 else -1
    if kind == SIEVE:
        return _sieve(s, t)
    if kind == S3FIFO:
        return _s3_fifo(s, t)
    if kind == ARC:
        in_t1, target = s.meter[t, QUEUED_IN + T1], s.level[t, TARGET]
        from_t1 = in_t1 > target or (in_t1 == target and s.meter[t, HIT_GHOST] == T2)
        return _either(s, t, T1 if from_t1 else T2)
    if kind == TINYLFU:
        return _tiny_lfu(s, t)
    return _least_likely(s, t)


@loop
def _first_free(s: Shelf, t: int, which: int) -> int:
    """The oldest item of a list that may go; those before it that may not step out."""
    item = oldest(s, t, which)
    while item >= 0 and s.rows[t, item, HOLDS] > 0:
        unlink(s, t, item)
        item = oldest(s, t, which)
    return item


@loop
def _either(s: Shelf, t: int, which: int) -> int:
    """The oldest item of list `which` (1 or 2), or of the other one if none may go."""
    item = _first_free(s, t, which)
    return item if item >= 0 else _first_free(s, t, 3 - which)


@loop
def _lowest_list(s: Shelf, t: int) -> int:
    while s.meter[t, WAITING] > 0:
        item = _first_free(s, t, int(s.meter[t, LOWEST]))
        if item >= 0:
            return item
        s.meter[t, LOWEST] += 1
    return -1


@loop
def _sieve(s: Shelf, t: int) -> int:
    """The hand goes from old to new, takes marks away, and stops at the first item without one."""
    head = head_of(s, t, 1)
    item = int(s.meter[t, HAND])
    while s.meter[t, WAITING] > 0:
        if item < 0 or item == head:
            item = int(s.rows[t, head, NEXT])
            if item == head:
                break
        after = int(s.rows[t, item, NEXT])
        s.meter[t, HAND] = item
        if s.rows[t, item, HOLDS] > 0:
            unlink(s, t, item)
        elif s.rows[t, item, COUNT] > 0:
            s.rows[t, item, COUNT] = 0
            s.meter[t, HAND] = after
        else:
            return item
        item = after
    return -1


@loop
def _s3_fifo(s: Shelf, t: int) -> int:
    s.meter[t, HAS_EVICTED] = 1
    small = int(s.meter[t, CAPACITY] * s.rule.first_share)
    while s.meter[t, WAITING] > 0:
        if s.meter[t, QUEUED_IN + MAIN] > s.meter[t, CAPACITY] - small or s.meter[t, QUEUED_IN + SMALL] == 0:
            item = _s3_main(s, t)
        else:
            item = _s3_small(s, t)
        if item >= 0:
            return item
    return -1


@loop
def _s3_small(s: Shelf, t: int) -> int:
    """The oldest of the small queue that was hardly used; what was used goes over to the main queue."""
    item = _first_free(s, t, SMALL)
    while item >= 0 and s.rows[t, item, COUNT] >= s.rule.past:
        s.rows[t, item, COUNT] = 0
        move_to_newest(s, t, item, MAIN)
        item = _first_free(s, t, SMALL)
    return item


@loop
def _s3_main(s: Shelf, t: int) -> int:
    """The oldest of the main queue without uses left; each other one spends one use and goes round again."""
    item = _first_free(s, t, MAIN)
    while item >= 0 and s.rows[t, item, COUNT] > 0:
        s.rows[t, item, COUNT] -= 1
        move_to_newest(s, t, item, MAIN)
        item = _first_free(s, t, MAIN)
    return item


@loop
def _tiny_lfu(s: Shelf, t: int) -> int:
    """What has outgrown the window asks for a place in the main part: of it and the main victim the rarer one goes."""
    if s.meter[t, PENDING] >= 0:
        if s.rows[t, s.meter[t, PENDING], HOLDS] == 0:
            return int(s.meter[t, PENDING])
        s.meter[t, PENDING] = -1
    newcomer = -1
    while s.meter[t, QUEUED_IN + WINDOW] > _window_size(s, t):
        newcomer = _first_free(s, t, WINDOW)
        if newcomer < 0:
            break
        main = _either(s, t, PROBATION) if s.meter[t, QUEUED_IN + PROBATION] > 0 else _first_free(s, t, PROTECTED)
        move_to_newest(s, t, newcomer, PROBATION)
        if main < 0:
            continue
        s.meter[t, PENDING] = main if _seen(s, t, newcomer) > _seen(s, t, main) else newcomer
        return int(s.meter[t, PENDING])
    item = _first_free(s, t, PROBATION)
    if item < 0:
        item = _first_free(s, t, PROTECTED)
    if item < 0:
        item = _first_free(s, t, WINDOW)
    return item


@loop
def _seen(s: Shelf, t: int, item: int) -> int:
    return int(s.facts[s.rows[t, item, CONTENT], SEEN])


@loop
def _least_likely(s: Shelf, t: int) -> int:
    """Workload-aware: of the oldest items of all categories the one least likely to be used within a lifetime."""
    best, lowest = -1, UNKNOWN
    for category in range(CATEGORIES):
        if s.habits[t, category, BEGUN] == 0:  # nothing of this kind has come yet
            continue
        item = _first_free(s, t, 1 + category)
        if item < 0:
            continue
        if best < 0:
            best = item
            continue
        if lowest == UNKNOWN:
            lowest = _likely(s, t, best)
        likely = _likely(s, t, item)
        if likely < lowest:
            best, lowest = item, likely
    return best


@loop
def _likely(s: Shelf, t: int, item: int) -> float:
    """That an item is used within a lifetime from now: exponential gaps, one use and one end seen beforehand.

    A lifetime is what evicted items had on average; before the first eviction, the age itself.
    """
    age_s = s.level[t, NOW] - s.order[t, item, 0]
    begun, followed, gap_s = s.habits[t, int(s.rows[t, item, LIST]) - 1]
    life_s = s.level[t, LIFE_S] if s.level[t, LIFE_S] > 0 else age_s + 1e-9
    mean_s = (gap_s + life_s) / (followed + 1)
    return float((followed + 1) / (begun + 2) * (np.exp(-age_s / mean_s) - np.exp(-(age_s + life_s) / mean_s)))
