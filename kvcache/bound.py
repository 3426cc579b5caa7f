"""Decides how many hits no policy can exceed: Belady's MIN for one tier, and what that says about a hierarchy of tiers.

It is clairvoyant: it reads the whole trace. A step is one content that is used: looked up (it may hit) or only made (a
generated block: no lookup, but from then on it may lie in the cache).

`may_bypass` True: whatever is used may also not be kept. Proven optimal (Belady 1966, with the used content itself among
the candidates) for hits of single contents. It is optimal for prefix hits too: a block's predecessor is used right before
it, so its next use is never later; MIN gives up the later next use first, hence never keeps a block without those before it,
and all its hits are prefix hits; no cache has more prefix hits than hits. `may_bypass` False: every miss takes a place, as
in a cache that loads on demand. Optimal for single contents; for prefix hits it is only what that algorithm gets.

A hierarchy (`least_cost`): with G contents in the warm tier and G + H in both, no policy finds more than MIN(G) in the warm
one nor more than MIN(G + H) at all. Each is exact by itself; that one policy reaches both at once is not proven, so the cost
that follows is a lower bound.
"""

import numpy as np

from kvcache.compiled import compiled, loop
from kvcache.request import Int32, Int64
from kvcache.shelf import Array

NEVER = 1 << 60


@compiled
def next_uses(contents: Int32, n_contents: int) -> Int64:
    """For each step the next step that uses the same content; NEVER if there is none."""
    after = np.full(len(contents), NEVER, np.int64)
    seen = np.full(n_contents, NEVER, np.int64)
    for i in range(len(contents) - 1, -1, -1):
        after[i] = seen[contents[i]]
        seen[contents[i]] = i
    return after


@loop
def _push(heap: Array, n: int, use: int, content: int) -> None:
    """Add to a heap whose first entry has the latest next use."""
    i = n
    while i > 0 and heap[(i - 1) // 2, 0] < use:
        heap[i, 0] = heap[(i - 1) // 2, 0]
        heap[i, 1] = heap[(i - 1) // 2, 1]
        i = (i - 1) // 2
    heap[i, 0] = use
    heap[i, 1] = content


@loop
def _pop(heap: Array, n: int) -> None:
    """Remove the first of n entries."""
    use, content = heap[n - 1, 0], heap[n - 1, 1]
    i = 0
    while 2 * i + 1 < n - 1:
        child = 2 * i + 1
        if child + 1 < n - 1 and heap[child + 1, 0] > heap[child, 0]:
            child += 1
        if heap[child, 0] <= use:
            break
        heap[i, 0] = heap[child, 0]
        heap[i, 1] = heap[child, 1]
        i = child
    heap[i, 0] = use
    heap[i, 1] = content


@loop
def _evict(heap: Array, n: int, cached: Int64) -> int:
    """Drop the content with the latest next use, and the stale entries before it; returns how many entries are left."""
    while cached[heap[0, 1]] != heap[0, 0]:
        _pop(heap, n)
        n -= 1
    cached[heap[0, 1]] = -1
    _pop(heap, n)
    return n - 1


@compiled
def _min_hits(contents: Int32, looked_up: Array, after: Int64, capacity: int, may_bypass: bool, hit: Array) -> None:
    """Serve all steps with `capacity` places, evicting the latest next use; marks the lookups that hit in `hit`."""
    cached = np.full(contents.max() + 1, -1, np.int64)  # next use; -1: not cached
    heap = np.empty((len(contents), 2), np.int64)
    held, n = 0, 0
    for i in range(len(contents)):
        content = contents[i]
        if cached[content] >= 0:
            hit[i] = looked_up[i]
        else:
            if held == capacity and not may_bypass:
                n = _evict(heap, n, cached)
                held -= 1
            held += 1
        cached[content] = after[i]
        _push(heap, n, after[i], content)
        n += 1
        if held > capacity:
            n = _evict(heap, n, cached)
            held -= 1


def min_hits(contents: Int32, looked_up: Array, capacity: int, *, may_bypass: bool = True) -> Array:
    """bool[step]: which lookups hit under MIN. `contents` int32[step], `looked_up` bool[step], `capacity` in contents."""
    hit = np.zeros(len(contents), np.bool_)
    if capacity > 0 and len(contents):
        _min_hits(contents, looked_up, next_uses(contents, int(contents.max()) + 1), capacity, may_bypass, hit)
    return hit


def least_cost(lookups: int, warm_hits: int, all_hits: int, load_cost: float, compute_cost: float) -> float:
    """The least that `lookups` lookups can cost when a warm hit costs nothing, a cold one `load_cost`, a miss `compute_cost`.

    Valid for any policy if `warm_hits` and `all_hits` are MIN's for the warm tier and for both, and every block costs the
    same. Where loading costs more than computing, computing is taken: nobody has to load.
    """
    load_cost = min(load_cost, compute_cost)
    return lookups * compute_cost - all_hits * (compute_cost - load_cost) - warm_hits * load_cost


def most_saved(contents: Int32, looked_up: Array, worth: Array, capacity: int) -> float:
    """The most worth that hits can have when lookup i is worth `worth[i]` (a bound, not reached in general).

    PFOO-U (Berger, Beckmann & Harchol-Balter, SIGMETRICS 2018): a hit keeps one place from one use to the next; places x
    steps is all there is; the best worth a step of place is bought first, the last one in part.
    """
    after = next_uses(contents, int(contents.max(initial=-1)) + 1)
    at = np.flatnonzero(after != NEVER)
    at = at[looked_up[after[at]]]
    length = (after[at] - at).astype(np.float64)
    value = np.asarray(worth, np.float64)[after[at]]
    best = np.argsort(-value / length, kind="stable")
    used = np.cumsum(length[best])
    room = float(capacity) * len(contents)
    whole = int(np.searchsorted(used, room, side="right"))
    saved = float(value[best[:whole]].sum())
    if whole < len(best):
        left = room - (used[whole - 1] if whole else 0.0)
        saved += float(value[best[whole]] * left / length[best[whole]])
    return saved
