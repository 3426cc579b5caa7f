"""Follows every prompt through the prefixes seen so far: which are new, which come again, after how much and how long.

It does not sum up (`traces.stats` does). A prefix is a block and all before it, known by its 62-bit name (`traces.chain`).

Up to `most` of them are followed one by one, in about 50 bytes each. Then some are let go, and every one that stays stands
for as many as its weight says: prefixes are sampled by a hash of their name, as in SHARDS (Waldspurger et al., FAST 2015), so
that one keeps all of its uses; the share is halved as often as it must be. What is used most stays with the weight it has,
whatever its hash: a few prefixes that make up much of a trace would otherwise be in the sample or not. All counts are then
unbiased estimates; `new_variance` and `token_variance` say how far off those of first uses are.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvcache.compiled import compiled
from kvcache.request import Float64, Int32, Int64, Requests
from traces.chain import chained
from traces.dense import longer, slot, table_of

N_DISTANCES = 512
PER_OCTAVE = 8
N_BUCKETS = 128
FIRST_REQUESTS = 1 << 16
MOST = 1 << 21
PART_BLOCKS = 1 << 20
STAYING = 8
"""One in so many of the prefixes may stay whatever its hash."""
HASH_BITS = 22
MULTIPLIER = 0x2545F4914F6CDD1D


@dataclass(frozen=True)
class Found:
    """What a piece's requests did not find, and what their own sessions had left; int64, one entry a request."""

    missed: Int64
    """Blocks that were used for the first time."""
    missed_tokens: Int64
    """Prompt tokens in them."""
    own: Int64
    """Blocks hit that the request's own session used first."""


class Prefixes:
    """The prefixes of the pieces followed so far, and histograms of how they came again.

    `distances[k]` counts block hits by the number of different blocks that requests in between touched, `ages[k]` by
    seconds since the last use (in milliseconds), both in classes of an eighth of an octave (class 0: none). `new` and
    `spans` count over `N_BUCKETS` equal stretches of `bucket_s` seconds: prefixes first seen, and (as differences)
    prefixes that were used before and will be used again.
    """

    def __init__(self, most: int | None = MOST) -> None:
        """`most`: prefixes to follow at once; None: all there are."""
        self.n = 0
        self.n_requests = 0
        self.halvings = 0
        self.bucket_s = 2.0**-10
        self.distances, self.ages = np.zeros(N_DISTANCES, np.int64), np.zeros(N_DISTANCES, np.int64)
        self.new, self.spans = np.zeros(N_BUCKETS, np.int64), np.zeros(N_BUCKETS + 1, np.int64)
        self.variance = np.zeros(2)
        self.names, self.last_s = np.empty(0, np.int64), np.empty(0, np.float64)
        self.uses, self.owner, self.last, self.weight = (np.empty(0, np.int32) for _ in range(4))
        self._most = most
        self._table = np.full(16, -1, np.int32)
        self._live = np.zeros(FIRST_REQUESTS, np.int64)  # a Fenwick tree over requests: prefixes that each touched last

    @property
    def share(self) -> float:
        """The part of new prefixes that is followed now."""
        return 0.5**self.halvings

    @property
    def used_once(self) -> int:
        """Prefixes that were used only once."""
        return int(self.weight[: self.n][self.uses[: self.n] == 1].sum(dtype=np.int64))

    def follow(self, piece: Requests) -> Found:
        """Go on with one more piece."""
        names, size = chained(piece), np.diff(piece.unit_offset)
        found = Found(*(np.zeros(len(piece), np.int64) for _ in range(3)))
        part = np.cumsum(size) // PART_BLOCKS
        ends = np.flatnonzero(np.diff(part, append=-1) != 0) + 1
        for first, end in pairwise([0, *ends]):
            self._follow(piece, names, found, int(first), int(end))
        return found

    def _follow(self, piece: Requests, names: Int64, found: Found, first: int, end: int) -> None:
        while self._most is not None and self.n > self._most:
            self._let_go(self._most)
        n_blocks = int(piece.unit_offset[end] - piece.unit_offset[first])
        self._make_room(n_blocks, end - first)
        self._reach(float(piece.arrival_s[end - 1]))
        self.n = _follow(
            (piece.unit_offset, piece.prompt_tokens, piece.session, piece.arrival_s, names),
            (self._table, self.names, self.uses, self.owner, self.last, self.weight, self.last_s, self._live),
            (self.distances, self.ages, self.new, self.spans, self.variance),
            (found.missed, found.missed_tokens, found.own),
            (first, end, piece.unit_tokens, self.n, self.n_requests, self.halvings),
            self.bucket_s,
        )
        self.n_requests += end - first

    def _let_go(self, most: int) -> None:
        """Halve the sample, but for what is used most."""
        self.halvings += 1
        uses, weight = self.uses[: self.n], self.weight[: self.n]
        stay = uses > np.partition(uses, -(most // STAYING) - 1)[-(most // STAYING) - 1]
        in_sample = _in_sample(self.names[: self.n], self.halvings)
        weight[~stay] = 1 << self.halvings
        kept = np.flatnonzero(stay | in_sample)
        self.n = len(kept)
        for rows in (self.names, self.uses, self.owner, self.last, self.weight, self.last_s):
            rows[: self.n] = rows[kept]
        self._table = table_of(self.names, self.n, self.n)
        self._renumber_requests(0)

    def _make_room(self, n_more: int, n_requests: int) -> None:
        need = self.n + n_more
        for name in ("names", "uses", "owner", "last", "weight", "last_s"):
            setattr(self, name, longer(getattr(self, name), self.n, need))
        if 3 * need > 2 * len(self._table):
            self._table = table_of(self.names, self.n, need)
        if self.n_requests + n_requests >= len(self._live):
            self._renumber_requests(n_requests)

    def _renumber_requests(self, n_more: int) -> None:
        """Number anew the requests that some prefix was last used by, in their order; weigh them anew."""
        last = self.last[: self.n]
        weights = np.bincount(last, self.weight[: self.n], minlength=self.n_requests)
        place = np.cumsum(weights > 0) - 1
        last[:] = place[last]
        weights = weights[weights > 0].astype(np.int64)
        self.n_requests = len(weights)
        self._live = np.zeros(max(FIRST_REQUESTS, 2 * (self.n_requests + n_more)), np.int64)
        _build(self._live, weights)

    def _reach(self, second: float) -> None:
        """Make the stretches long enough for this time."""
        while second >= self.bucket_s * N_BUCKETS:
            self.bucket_s *= 2
            nothing = np.zeros(N_BUCKETS // 2, np.int64)
            self.new = np.concatenate((self.new.reshape(-1, 2).sum(axis=1), nothing))
            spans = self.spans[:-1].reshape(-1, 2).sum(axis=1)
            self.spans = np.concatenate((spans, self.spans[-1:], nothing))


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
def _is_in_sample(name: int, halvings: int) -> bool:
    mixed = ((name ^ (name >> 31)) * MULTIPLIER) & ((1 << 62) - 1)
    return (mixed >> (62 - HASH_BITS)) < (1 << HASH_BITS) >> halvings


@compiled
def _in_sample(names: Int64, halvings: int) -> NDArray[np.bool_]:
    found = np.empty(len(names), np.bool_)
    for i in range(len(names)):
        found[i] = _is_in_sample(int(names[i]), halvings)
    return found


@compiled
def _follow(
    columns: tuple[Int64, Int32, Int32, Float64, Int64],
    prefixes: tuple[Int32, Int64, Int32, Int32, Int32, Int32, Float64, Int64],
    counts: tuple[Int64, Int64, Int64, Int64, Float64],
    found: tuple[Int64, Int64, Int64],
    sizes: tuple[int, int, int, int, int, int],
    bucket_s: float,
) -> int:
    """Look up every prefix of some requests; returns how many are followed now.

    Blocks that the same request touched last have the same distance, so a run of them asks and updates the tree over
    requests once, at the request's end.
    """
    offset, prompt, session, arrival_s, names = columns
    table, known, uses, owner, last, weight, last_s, live = prefixes
    distances, ages, new, spans, variance = counts
    missed, missed_tokens, own = found
    first, end, unit_tokens, n, n_requests, halvings = sizes
    longest = 1
    for i in range(first, end):
        longest = max(longest, int(offset[i + 1] - offset[i]))
    run_of, run = np.empty(longest, np.int64), np.empty(longest, np.int64)
    for i in range(first, end):
        now = n_requests + i - first
        bucket = int(arrival_s[i] / bucket_s)
        runs, blocks = 0, 0
        total = _sum_to(live, now)
        for j in range(offset[i], offset[i + 1]):
            at = slot(table, known, int(names[j]))
            node = int(table[at])
            if node < 0:
                if halvings > 0 and not _is_in_sample(int(names[j]), halvings):
                    continue
                tokens = min(unit_tokens, int(prompt[i]) - int(j - offset[i]) * unit_tokens)
                node, w = n, 1 << halvings
                table[at] = node
                known[node], uses[node], owner[node], weight[node] = names[j], 0, session[i], w
                n += 1
                new[bucket] += w
                missed[i] += w
                missed_tokens[i] += w * tokens
                variance[0] += w * (w - 1)
                variance[1] += w * (w - 1) * tokens * tokens
            else:
                w = int(weight[node])
                if session[i] >= 0 and owner[node] == session[i]:
                    own[i] += w
                if runs == 0 or last[node] != run_of[runs - 1]:
                    run_of[runs], run[runs] = last[node], 0
                    runs += 1
                run[runs - 1] += w
                ages[_class((arrival_s[i] - last_s[node]) * 1000)] += w
                before = int(last_s[node] / bucket_s)
                if bucket > before:
                    spans[before] += w
                    spans[bucket] -= w
            blocks += w
            uses[node] += 1
            last[node] = now
            last_s[node] = arrival_s[i]
        for k in range(runs):
            distances[_class(total - _sum_to(live, int(run_of[k])))] += run[k]
        for k in range(runs):
            _add(live, int(run_of[k]), -int(run[k]))
        _add(live, now, blocks)
    return n
