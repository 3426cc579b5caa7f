"""Follows every prompt through the prefixes seen so far: which are new, which come again, after how much and how long.

It does not sum up (`traces.stats` does). A prefix is a block and all before it; each gets a number once and keeps it.
Memory grows with the number of different prefixes: 28 bytes each, and what the tables hold in reserve.
"""

import numpy as np

from kvcache.compiled import compiled
from kvcache.request import Float64, Int32, Int64, Requests

N_DISTANCES = 512
PER_OCTAVE = 8
N_BUCKETS = 128
NEVER = -1
FIRST_REQUESTS = 1 << 16


class Prefixes:
    """The prefixes of the pieces followed so far, and histograms of how they came again.

    `distances[k]` counts block hits by the number of different blocks that requests in between touched, `ages[k]` by
    seconds since the last use (in milliseconds), both in classes of an eighth of an octave (class 0: none). `new`,
    `hits` and `spans` count over `N_BUCKETS` equal stretches of `bucket_s` seconds: prefixes first seen, blocks hit, and
    (as differences) prefixes that were used before and will be used again.
    """

    def __init__(self) -> None:
        self.n = 0
        self.n_requests = 0
        self.bucket_s = 2.0**-10
        self.distances, self.ages = np.zeros(N_DISTANCES, np.int64), np.zeros(N_DISTANCES, np.int64)
        self.new, self.hits = np.zeros(N_BUCKETS, np.int64), np.zeros(N_BUCKETS, np.int64)
        self.spans = np.zeros(N_BUCKETS + 1, np.int64)
        self.parent, self.unit, self.uses = (np.empty(0, np.int32) for _ in range(3))
        self.owner, self.last = np.empty(0, np.int32), np.empty(0, np.int32)
        self.last_s = np.empty(0, np.float64)
        self._table = np.full(16, NEVER, np.int32)
        self._live = np.zeros(FIRST_REQUESTS, np.int64)  # a Fenwick tree over requests: prefixes that each touched last

    def follow(self, piece: Requests) -> tuple[Int32, Int64, Int64]:
        """Number of each block's prefix, and for each request the blocks hit from its front: all, of other sessions."""
        self._make_room(len(piece.units) + 2 * len(piece), len(piece))
        self._reach(float(piece.arrival_s[-1]) if len(piece) else 0.0)
        prefix = np.empty(len(piece.units), np.int32)
        found, foreign = np.zeros(len(piece), np.int64), np.zeros(len(piece), np.int64)
        self.n = _follow(
            (piece.unit_offset, piece.units, piece.salt, piece.lora, piece.session, piece.arrival_s),
            (self._table, self.parent, self.unit, self.uses, self.owner, self.last, self.last_s, self._live),
            (self.distances, self.ages, self.new, self.hits, self.spans),
            (prefix, found, foreign),
            self.n,
            self.n_requests,
            self.bucket_s,
        )
        self.n_requests += len(piece)
        return prefix, found, foreign

    def _make_room(self, n_more: int, n_requests: int) -> None:
        need = self.n + n_more
        if need > len(self.parent):
            for name in ("parent", "unit", "uses", "owner", "last", "last_s"):
                old = getattr(self, name)
                grown = np.zeros(max(need, len(old) * 3 // 2), old.dtype)
                grown[: self.n] = old[: self.n]
                setattr(self, name, grown)
        if 3 * need > 2 * len(self._table):
            self._table = np.full(1 << (2 * need).bit_length(), NEVER, np.int32)
            _enter(self._table, self.parent, self.unit, self.n)
        if self.n_requests + n_requests >= len(self._live):
            self._forget_idle_requests(n_requests)

    def _forget_idle_requests(self, n_more: int) -> None:
        """Number anew the requests that some prefix was last used by, in their order."""
        last = self.last[: self.n]
        counts = np.bincount(last[last >= 0], minlength=self.n_requests) if self.n else np.zeros(0, np.int64)
        place = np.cumsum(counts > 0) - 1
        last[last >= 0] = place[last[last >= 0]]
        counts = counts[counts > 0]
        self.n_requests = len(counts)
        self._live = np.zeros(max(FIRST_REQUESTS, 2 * (self.n_requests + n_more)), np.int64)
        _build(self._live, counts.astype(np.int64))

    def _reach(self, second: float) -> None:
        """Make the stretches long enough for this time."""
        while second >= self.bucket_s * N_BUCKETS:
            self.bucket_s *= 2
            for name in ("new", "hits"):
                old = getattr(self, name)
                setattr(
                    self, name, np.concatenate((old.reshape(-1, 2).sum(axis=1), np.zeros(N_BUCKETS // 2, np.int64)))
                )
            spans = self.spans[:-1].reshape(-1, 2).sum(axis=1)
            self.spans = np.concatenate((spans, self.spans[-1:], np.zeros(N_BUCKETS // 2, np.int64)))


@compiled
def _slot(table: Int32, parent: Int32, unit: Int32, above: int, name: int) -> int:
    """Where the prefix (above, name) stands in the table, or the free place where it would."""
    mask = len(table) - 1
    h = (above + 3) * 1013904223 + (name + 3) * 461845907  # both below 2**62: no overflow
    at = (h ^ (h >> 29)) & mask
    while table[at] >= 0 and (parent[table[at]] != above or unit[table[at]] != name):
        at = (at + 1) & mask
    return at


@compiled
def _enter(table: Int32, parent: Int32, unit: Int32, n: int) -> None:
    """Fill an empty table with the first n prefixes."""
    for i in range(n):
        table[_slot(table, parent, unit, int(parent[i]), int(unit[i]))] = i


@compiled
def _build(tree: Int64, counts: Int64) -> None:
    for i in range(len(counts)):
        _add(tree, i, int(counts[i]))


@compiled
def _add(tree: Int64, at: int, amount: int) -> None:
    at += 1
    while at < len(tree):
        tree[at] += amount
        at += at & -at


@compiled
def _sum_to(tree: Int64, at: int) -> int:
    """Sum of the entries 0 to at, both included."""
    total = 0
    at += 1
    while at > 0:
        total += tree[at]
        at -= at & -at
    return int(total)


@compiled
def _class(amount: float) -> int:
    """The class of an eighth of an octave."""
    if amount < 1:
        return 0
    return min(1 + int(np.log2(amount) * 8), 511)


@compiled
def _follow(
    columns: tuple[Int64, Int32, Int32, Int32, Int32, Float64],
    prefixes: tuple[Int32, Int32, Int32, Int32, Int32, Int32, Float64, Int64],
    counts: tuple[Int64, Int64, Int64, Int64, Int64],
    out: tuple[Int32, Int64, Int64],
    n: int,
    n_requests: int,
    bucket_s: float,
) -> int:
    """Walk every prompt down the tree of prefixes; returns how many prefixes there are now.

    A namespace (salt, lora) is two more steps from the root, and no block. Blocks that the same request touched last
    have the same distance, so a run of them asks and updates the tree over requests once, at the request's end.
    """
    offset, units, salt, lora, session, arrival_s = columns
    table, parent, unit, uses, owner, last, last_s, live = prefixes
    distances, ages, new, hits, spans = counts
    prefix, found, foreign = out
    longest = 1
    for i in range(len(offset) - 1):
        longest = max(longest, int(offset[i + 1] - offset[i]))
    run_of, run = np.empty(longest, np.int64), np.empty(longest, np.int64)
    for i in range(len(offset) - 1):
        now = n_requests + i
        bucket = int(arrival_s[i] / bucket_s)
        above, hit, runs, blocks = -1, True, 0, 0
        total = _sum_to(live, now)
        for j in range(int(offset[i]) - 2, int(offset[i + 1])):
            is_block = j >= offset[i]
            name = int(units[j]) if is_block else int(salt[i] if j == offset[i] - 2 else lora[i]) - 2**31 + 8
            at = _slot(table, parent, unit, above, name)
            is_new = table[at] < 0
            if is_new:
                table[at] = n
                parent[n], unit[n], uses[n] = above, name, 0
                owner[n], last[n] = session[i], -1
                n += 1
            node = int(table[at])
            above = node
            if not is_block:
                continue
            prefix[j] = node
            uses[node] += 1
            hit = hit and not is_new
            if is_new:
                new[bucket] += 1
                blocks += 1
            elif hit:
                found[i] += 1
                hits[bucket] += 1
                if session[i] < 0 or owner[node] != session[i]:
                    foreign[i] += 1
            if not is_new and last[node] != now:
                if runs == 0 or last[node] != run_of[runs - 1]:
                    run_of[runs], run[runs] = last[node], 0
                    runs += 1
                run[runs - 1] += 1
                blocks += 1
                ages[_class((arrival_s[i] - last_s[node]) * 1000)] += 1
                before = int(last_s[node] / bucket_s)
                if bucket > before:
                    spans[before] += 1
                    spans[bucket] -= 1
            last[node] = now
            last_s[node] = arrival_s[i]
        for k in range(runs):
            distances[_class(total - _sum_to(live, int(run_of[k])))] += run[k]
        for k in range(runs):
            _add(live, int(run_of[k]), -int(run[k]))
        _add(live, now, blocks)
    return n
