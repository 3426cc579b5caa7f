"""Requests that wait for others to end: a session's next turn, and the line before a closed loop.

It sends requests and serves none. A request is due when its previous turn has ended and its think time has passed, in an
open loop not before its own arrival time either. In a closed loop at most `concurrency` requests are in flight, over all
workers; a slot that becomes free goes at once to the due request that stands first in the trace. Times of arrival count
for nothing there but the order.

    open loop     due = max(arrival, end of the turn before + think)        sent when due
    closed loop   due = end of the turn before + think, 0 for a first turn  sent when due and a slot is free
"""

import heapq
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from kvcache.request import Float64, Int32, Int64
from sim.worker import Worker, until


@dataclass(frozen=True, eq=False)
class Turns:
    """Who waits for whom; arrays of one entry a request."""

    before: Int64  # number of the turn before, -1: a first turn
    think_s: Float64  # from the end of the turn before to this one
    concurrency: int | None = None  # requests in flight, at most; None: an open loop


def turns_before(session: Int32) -> Int64:
    """The number of each request's previous turn, in the order of the trace; -1 where there is none."""
    before = np.full(len(session), -1, np.int64)
    last: dict[int, int] = {}
    for r, s in enumerate(session.tolist()):
        if s >= 0:
            before[r] = last.get(s, -1)
            last[s] = r
    return before


class TurnTaking:
    """Sends each request to its worker when its turn has come."""

    def __init__(
        self,
        env: simpy.Environment,
        turns: Turns,
        arrival_s: Float64,
        worker_of: Int32,
        number: Int64,
        workers: list[Worker],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        n = len(worker_of)
        self._env, self._turns, self._workers, self._progress = env, turns, workers, progress
        self._closed = turns.concurrency is not None
        self._arrival_s = np.zeros(n) if self._closed else arrival_s
        self._free = n if turns.concurrency is None else turns.concurrency
        self._worker_of = worker_of
        self._rows = [np.flatnonzero(worker_of == w) for w in range(len(workers))]
        self._number = number  # of each request among those of its worker
        followers = np.flatnonzero(turns.before >= 0)
        self._after = dict(zip(turns.before[followers].tolist(), followers.tolist(), strict=True))
        apart = bool((worker_of[followers] == worker_of[turns.before[followers]]).all())
        self._apart = apart and not self._closed  # no worker's ends make anything arrive at another one
        self._seen = [0] * len(workers)
        firsts = np.flatnonzero(turns.before < 0)
        self._coming = [(float(self._arrival_s[r]), int(r)) for r in firsts]  # a heap: due then, whatever happens
        heapq.heapify(self._coming)
        self._due: list[int] = []  # a heap: due, and waiting for a slot
        self._sent = 0

    @property
    def listens(self) -> bool:
        """Ends of requests make others arrive."""
        return True

    @property
    def exhausted(self) -> bool:
        """The last request has been delivered."""
        return self._sent == len(self._arrival_s)

    def quiet_until_s(self, worker: Worker) -> float:
        """The next arrival that is certain; and before that, no other worker ends a request."""
        known_s = self._coming[0][0] if self._coming and self._free > 0 else math.inf
        if self._apart:
            return known_s
        return min([known_s, *(other.quiet_until_s for other in self._workers if other is not worker)])

    def ended(self, worker: Worker) -> None:
        """Whoever waited for a request that has just ended on this worker may come now, or after a while of thinking."""
        w = self._workers.index(worker)
        done = worker.done
        for number in done[self._seen[w] :].tolist():
            self._free += 1
            follower = self._after.get(int(self._rows[w][number]), -1)
            if follower >= 0:
                due_s = max(float(self._arrival_s[follower]), self._env.now + float(self._turns.think_s[follower]))
                heapq.heappush(self._coming, (due_s, follower))
                if due_s > self._env.now:
                    self._env.process(self._deliver_at(due_s))
        self._seen[w] = len(done)

    def deliver(self, now_s: float) -> None:
        """Send what is due by `now_s`, as far as there are slots: first in the trace, first sent."""
        while self._coming and self._coming[0][0] <= now_s:
            heapq.heappush(self._due, heapq.heappop(self._coming)[1])
        while self._due and self._free > 0:
            r = heapq.heappop(self._due)
            self._free -= 1
            self._sent += 1
            self._workers[int(self._worker_of[r])].arrive(int(self._number[r]), now_s)
            if self._progress is not None and self._sent % 256 == 0:
                self._progress(self._sent, len(self._arrival_s))

    def _deliver_at(self, time_s: float) -> Generator[simpy.Event, Any, None]:
        yield from until(self._env, time_s)
        yield self._env.timeout(0)  # until every step that ends now has ended
        self.deliver(time_s)

    def run(self) -> Generator[simpy.Event, Any, None]:
        """First turns, in their own time, as a SimPy process."""
        for time_s in sorted({time_s for time_s, _ in self._coming}):
            yield from self._deliver_at(time_s)
