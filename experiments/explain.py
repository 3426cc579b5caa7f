"""Why each block of one request was found or not: which tier, or since when not, and who pushed it out.

It replays the trace with the loops of `experiments.run` and only watches (`experiments.watch`); the causes are those that
`misses_by_cause` sums.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.ready import part_of, ready, whole, worker_of
from experiments.spec import Spec
from experiments.watch import Moment, moments
from kvcache.request import Requests
from kvcache.sequences import M_COUNT, M_PARTIAL, M_TOKENS, NO_CAP, Matches, find_matches, make_matches, miss_cause
from kvcache.tables import (
    BELOW_THRESHOLD,
    CAUSES,
    EVICTED_DISK,
    EVICTED_GPU,
    EVICTED_HOST,
    EXPIRED_FATE,
    LEVEL,
    PRIORITY,
    SHORT_BLOCK,
)

TIERS = ("gpu", "host", "disk")
PUSHED_OUT = frozenset({BELOW_THRESHOLD, EVICTED_GPU, EVICTED_HOST, EVICTED_DISK, EXPIRED_FATE})
FEW = 3  # this many of the requests that pushed a block out are named


@dataclass(frozen=True)
class BlockStory:
    """One prompt block. `outcome` is a tier or "miss"; `hit_tokens` of its `tokens` were found; `priority` it had then."""

    block: int
    first_token: int
    tokens: int
    outcome: str
    hit_tokens: int = 0
    priority: int | None = None
    cause: str | None = None
    pushed_out_s: float | None = None
    pushed_out_by: tuple[int, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """One request's lookup, at `looked_up_s` seconds of the trace's time."""

    request: int
    prompt_tokens: int
    hit_tokens: int
    looked_up_s: float
    blocks: tuple[BlockStory, ...]


class _Watch:
    """The blocks of one request while others are served: when each left the cache, and in whose step."""

    def __init__(self, request: int, numbers: NDArray[np.int64]) -> None:
        self.request = request
        self.numbers = numbers
        self.gone: dict[int, tuple[float, tuple[int, ...]]] = {}
        self.matches: Matches | None = None
        self._held: NDArray[np.bool_] | None = None
        self._before: Explanation | None = None

    def keys(self, at: Moment) -> NDArray[np.int32]:
        """Nodes of the request's full blocks (prompt and output)."""
        first, end = int(at.load.key_offset[self.request]), int(at.load.key_offset[self.request + 1])
        keys: NDArray[np.int32] = at.load.keys[first : end - 2]
        return keys

    def look(self, at: Moment) -> None:
        """Notice what left the cache during this step."""
        held = at.state.value[0, self.keys(at)] >= 0
        if self._held is not None:
            by = tuple(int(self.numbers[r]) for r in (at.started or at.running)[:FEW])
            self.gone |= {int(i): (at.now_s, by) for i in np.flatnonzero(self._held & ~held)}
        self._held = held

    def story(self, at: Moment) -> Explanation:
        """The lookup as it would be at this moment."""
        state, load, tpb = at.state, at.load, int(at.state.conf[0])
        prompt = int(load.prompt[self.request])
        n, full = -(-prompt // tpb), (prompt - 1) // tpb
        end = int(load.key_offset[self.request + 1])
        m = self.matches = self.matches or make_matches(1, n + 1)
        find_matches(state, m, 0, 0, self.keys(at), full, int(load.keys[end - 2]), NO_CAP)
        blocks = [
            self._hit(at, m, i, min(tpb, prompt - i * tpb), tpb)
            if i < m.entry[0, M_COUNT]
            else self._miss(at, m, i, min(tpb, prompt - i * tpb), tpb)
            for i in range(n)
        ]
        number = int(self.numbers[self.request])
        return Explanation(number, prompt, int(m.entry[0, M_TOKENS]), at.now_s, tuple(blocks))

    @staticmethod
    def _hit(at: Moment, m: Matches, i: int, size: int, tpb: int) -> BlockStory:
        row = at.state.blocks[m.blocks[0, i]]
        last = i == m.entry[0, M_COUNT] - 1 and m.entry[0, M_PARTIAL] > 0
        hit = int(m.entry[0, M_PARTIAL]) if last else size
        return BlockStory(i, i * tpb, size, TIERS[int(row[LEVEL])], hit, int(row[PRIORITY]))

    def _miss(self, at: Moment, m: Matches, i: int, size: int, tpb: int) -> BlockStory:
        if size < tpb:
            return BlockStory(i, i * tpb, size, "miss", cause=CAUSES[SHORT_BLOCK])
        state, node = at.state, int(self.keys(at)[i])
        cause = int(miss_cause(state, 0, node, i == int(m.entry[0, M_COUNT])))
        when, by = self.gone.get(i, (None, ())) if cause in PUSHED_OUT else (None, ())
        return BlockStory(i, i * tpb, size, "miss", cause=CAUSES[cause], pushed_out_s=when, pushed_out_by=by)


def explain(spec: Spec, requests: Requests, number: int, *, timing: bool = True) -> Explanation:
    """Replay until request `number` (counted from 0 in replay order) is looked up, and tell the story of its blocks."""
    if not 0 <= number < len(requests):
        raise ValueError(f"request {number} is not in the trace; it has requests 0 to {len(requests) - 1}")
    work = ready(spec, requests, timing=timing)
    if number >= len(work.requests):
        raise ValueError(f"request {number} was dropped: only {len(work.requests)} requests fit (too_long=drop)")
    part = whole(work)
    if timing:
        workers = worker_of(work)
        part = part_of(work, workers, int(workers[number]))
    watch = _Watch(int(np.searchsorted(part.rows, number)), part.rows)
    latest: Explanation | None = None
    for at in moments(work, part, timing=timing):
        due = part.requests.arrival_s[watch.request] <= at.now_s
        if not at.after and due:
            latest = watch.story(at)
        if at.after and watch.request in at.started and latest is not None:
            return latest
        if at.after:
            watch.look(at)
    raise AssertionError(f"request {number} never started")
