"""The free queues: which unreferenced block is taken next, and when a priority expires. Under another policy than
TensorRT-LLM's the order is `kvcache.shelved`'s; machine code is made for the one in use (a state without a shelf has none).

Models TensorRT-LLM's `LRUEvictionPolicy`: a queue a (level, priority), front = next victim, lowest priority first, plus an
ordered set of expiring blocks. Differences: equal expiry times break by block id (TensorRT-LLM: by pointer), and the
queues of several windows share one table.

    head(w, level, p) <-> oldest <-> ... <-> newest <-> head        pop at the left, release at the right
"""

from kvcache.compiled import inlined, loop
from kvcache.eviction import SCORE
from kvcache.shelf import FREE_ITEMS
from kvcache.shelved import Shelved, note_depth
from kvcache.tables import (
    C_BLOCKS,
    C_LEVELS,
    C_TOKENS_PER_BLOCK,
    CLOCK_US,
    DEFAULT_PRIORITY,
    DURATION_MS,
    EXPIRED,
    LEVEL,
    N_HEAP,
    NEXT,
    NODE,
    PARENT,
    PREV,
    PRIORITIES,
    PRIORITY,
    QUEUE_LEVEL,
    T_FREE,
    T_LOWEST,
    WINDOW,
    State,
)


@loop
def ring(s: State, w: int, level: int, priority: int) -> int:
    """Row of the head of one queue."""
    return int(s.conf[C_BLOCKS] + (w * s.conf[C_LEVELS] + level) * PRIORITIES + priority)


@loop
def front(s: State, w: int, level: int) -> int:
    """The block of `level` to be taken next, not taken yet; -1 if every queue of the level is empty."""
    if s.tier[w, level, T_FREE] == 0:
        return -1
    return _front(s, s.shelf, w, level)


@loop
def _front(s: State, shelf: Shelved | None, w: int, level: int) -> int:
    """What follows the test for emptiness; under another policy empty blocks go first, in queues as ever."""
    if shelf is not None:
        t = int(w * s.conf[C_LEVELS] + level)
        if shelf.shelf.meter[t, FREE_ITEMS] == s.tier[w, level, T_FREE]:
            return int(shelf.victim(shelf.shelf, t, s.tally[CLOCK_US] * 1e-6))
    p = s.tier[w, level, T_LOWEST]
    head = ring(s, w, level, p)
    while s.blocks[head, NEXT] == head:
        head += 1
        p += 1
    s.tier[w, level, T_LOWEST] = p
    return int(s.blocks[head, NEXT])


@loop
def _link(s: State, block: int, left: int, right: int) -> None:
    s.blocks[left, NEXT] = block
    s.blocks[block, PREV] = left
    s.blocks[block, NEXT] = right
    s.blocks[right, PREV] = block


@loop
def unlink(s: State, block: int) -> None:
    """Take `block` out of whatever queue it is in; nothing happens if it is in none."""
    right = s.blocks[block, NEXT]
    if right == -1:
        return
    _unlink(s, s.shelf, block, right)


@loop
def _unlink(s: State, shelf: Shelved | None, block: int, right: int) -> None:
    if shelf is not None:
        if right == block:
            level = int(s.blocks[block, QUEUE_LEVEL])
            shelf.take(shelf.shelf, block, s.blocks[block, NODE] == -1 or s.blocks[block, LEVEL] != level)
            s.blocks[block, NEXT] = -1
            s.tier[s.blocks[block, WINDOW], level, T_FREE] -= 1
            return
    left = s.blocks[block, PREV]
    s.blocks[left, NEXT] = right
    s.blocks[right, PREV] = left
    s.blocks[block, NEXT] = -1
    s.tier[s.blocks[block, WINDOW], s.blocks[block, QUEUE_LEVEL], T_FREE] -= 1


@loop
def _push(s: State, block: int, to_front: bool) -> None:
    _push_in(s, s.shelf, block, to_front)


@loop
def _push_in(s: State, shelf: Shelved | None, block: int, to_front: bool) -> None:
    if shelf is not None:
        if s.blocks[block, NODE] != -1:
            _put(s, shelf, block)
            return
    w, level, p = s.blocks[block, WINDOW], s.blocks[block, LEVEL], s.blocks[block, PRIORITY]
    head = ring(s, w, level, p)
    if to_front:
        _link(s, block, head, s.blocks[head, NEXT])
    else:
        _link(s, block, s.blocks[head, PREV], head)
    s.blocks[block, QUEUE_LEVEL] = level
    s.tier[w, level, T_FREE] += 1
    s.tier[w, level, T_LOWEST] = min(s.tier[w, level, T_LOWEST], p)


@loop
def _put(s: State, shelf: Shelved, block: int) -> None:
    """A block with content becomes free under another policy; its own row is its NEXT then."""
    w, level, node = int(s.blocks[block, WINDOW]), int(s.blocks[block, LEVEL]), int(s.blocks[block, NODE])
    if shelf.shelf.rule.kind == SCORE:
        note_depth(shelf.shelf, s.nodes[:, PARENT], node, int(s.conf[C_TOKENS_PER_BLOCK]))
    t = int(w * s.conf[C_LEVELS] + level)
    shelf.put(shelf.shelf, t, block, node, int(s.blocks[block, PRIORITY]), s.tally[CLOCK_US] * 1e-6)
    s.blocks[block, NEXT] = block
    s.blocks[block, QUEUE_LEVEL] = level
    s.tier[w, level, T_FREE] += 1


@inlined
def release(s: State, block: int, to_front: bool) -> None:
    """An unreferenced block becomes free: back (or front) of its level's and priority's queue; its duration starts now."""
    if s.blocks[block, NEXT] != -1:
        return
    _push(s, block, to_front)
    if s.blocks[block, DURATION_MS] >= 0 and s.blocks[block, PRIORITY] != DEFAULT_PRIORITY:
        when = s.tally[CLOCK_US] + 1000 * int(s.blocks[block, DURATION_MS])
        s.expiry_us[block] = when
        _heap_add(s, when, block)


@inlined
def claim(s: State, block: int, priority: int, duration_ms: int) -> None:
    """Take `block` out of its queue. `priority` -1 keeps the old one; the duration is replaced in any case (-1 = none)."""
    unlink(s, block)
    if priority >= 0:
        s.blocks[block, PRIORITY] = priority
    s.expiry_us[block] = -1
    s.blocks[block, DURATION_MS] = duration_ms
    s.blocks[block, EXPIRED] = 0


@loop
def refresh(s: State, now_us: int) -> int:
    """Expire: blocks due at or before `now_us` go to priority 35, at the end of that queue. Returns how many did."""
    s.tally[CLOCK_US] = now_us
    expired = 0
    while s.tally[N_HEAP] > 0 and s.heap[0, 0] <= now_us:
        when, block = int(s.heap[0, 0]), int(s.heap[0, 1])
        _heap_pop(s)
        if s.expiry_us[block] != when:
            continue  # claimed or released again since
        s.expiry_us[block] = -1
        _expire(s, s.shelf, block)
        expired += 1
    return expired


@loop
def _expire(s: State, shelf: Shelved | None, block: int) -> None:
    """`block` is queued: whoever takes a block out of its queue ends its expiry. Only priority queues order by priority."""
    s.blocks[block, EXPIRED] = 1
    if shelf is None:
        unlink(s, block)
        s.blocks[block, PRIORITY] = DEFAULT_PRIORITY
        _push(s, block, False)
    else:
        s.blocks[block, PRIORITY] = DEFAULT_PRIORITY


@loop
def next_expiry_us(s: State) -> int:
    """When the earliest entry of the expiry heap is due (it may have been claimed since); -1 if there is none."""
    return int(s.heap[0, 0]) if s.tally[N_HEAP] > 0 else -1


@loop
def _before(s: State, a: int, b: int) -> bool:
    if s.heap[a, 0] != s.heap[b, 0]:
        return bool(s.heap[a, 0] < s.heap[b, 0])
    return bool(s.heap[a, 1] < s.heap[b, 1])


@loop
def _swap_entries(s: State, a: int, b: int) -> None:
    s.heap[a, 0], s.heap[b, 0] = s.heap[b, 0], s.heap[a, 0]
    s.heap[a, 1], s.heap[b, 1] = s.heap[b, 1], s.heap[a, 1]


@loop
def _sift_down(s: State, i: int) -> None:
    n = s.tally[N_HEAP]
    while True:
        child = 2 * i + 1
        if child >= n:
            return
        if child + 1 < n and _before(s, child + 1, child):
            child += 1
        if not _before(s, child, i):
            return
        _swap_entries(s, i, child)
        i = child


@loop
def _heap_pop(s: State) -> None:
    last = s.tally[N_HEAP] - 1
    _swap_entries(s, 0, last)
    s.tally[N_HEAP] = last
    _sift_down(s, 0)


@loop
def _heap_add(s: State, when: int, block: int) -> None:
    if s.tally[N_HEAP] == len(s.heap):
        _drop_stale(s)
    i = int(s.tally[N_HEAP])
    s.heap[i, 0] = when
    s.heap[i, 1] = block
    s.tally[N_HEAP] = i + 1
    while i > 0 and _before(s, i, (i - 1) // 2):
        _swap_entries(s, i, (i - 1) // 2)
        i = (i - 1) // 2


@loop
def _drop_stale(s: State) -> None:
    """Rebuild the heap from the blocks that still expire: it has room for two entries a block, so this stays rare."""
    kept = 0
    for block in range(s.conf[C_BLOCKS]):
        if s.expiry_us[block] >= 0:
            s.heap[kept, 0] = s.expiry_us[block]
            s.heap[kept, 1] = block
            kept += 1
    s.tally[N_HEAP] = kept
    for i in range(kept // 2 - 1, -1, -1):
        _sift_down(s, i)
