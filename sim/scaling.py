"""Pools of workers that grow and shrink by a rule while a run goes on, as a planner does it.

It routes nothing: it opens and closes workers for whoever routes. A worker that is opened starts after `start_s`, with a
cold cache; one that is closed gets no new requests and ends those it has. The rule sees the open workers' loads only.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import simpy

from kvcache.prefix_index import forget_oldest
from kvcache.request import Float64, Int64
from kvcache.routers import ACTIVE, BLOCKS, WAITING
from sim.fleet import LOADS, loads
from sim.fleet_room import Start, chill
from sim.routing import Cluster


class Rule(Protocol):
    """How many workers there should be."""

    def wanted(self, now: int, loads: Float64) -> int:
        """`now` workers are open or about to open; `loads` are the open ones' (`kvcache.routers.View`)."""


@dataclass(frozen=True)
class Backlog:
    """One more when each open worker has more than `high` requests on average, one less below `low`."""

    high: float
    low: float

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high:
            raise ValueError(f"low is {self.low} and high {self.high}; it must be 0 <= low < high")

    def wanted(self, now: int, loads: Float64) -> int:
        """By requests that wait or run."""
        each = float((loads[:, WAITING] + loads[:, ACTIVE]).mean())
        return now + (each > self.high) - (each < self.low)


@dataclass(frozen=True)
class Occupancy:
    """One more when the open workers have more than `high` of their GPU blocks in use on average, one less below `low`."""

    high: float
    low: float
    blocks: int
    """GPU blocks of one worker."""

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high < 1:
            raise ValueError(f"low is {self.low} and high {self.high}; it must be 0 <= low < high < 1")

    def wanted(self, now: int, loads: Float64) -> int:
        """By blocks in use."""
        share = float(loads[:, BLOCKS].mean()) / self.blocks
        return now + (share > self.high) - (share < self.low)


@dataclass(frozen=True)
class Bounds:
    """Limits and pace of a pool."""

    least: int
    most: int
    period_s: float
    start_s: float
    """From the decision to the first request: weights to load, kernels to capture."""

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"a pool of {self.least} to {self.most} workers; it must be 1 <= least <= most")
        if self.period_s <= 0 or self.start_s < 0:
            raise ValueError(f"period_s is {self.period_s}, start_s {self.start_s}; above 0 and at least 0")


class Pool:
    """Some workers of a cluster, of which a few take requests. `make` gives what a cold worker starts as; `tell` is told
    the numbers of the open workers at every change."""

    def __init__(
        self,
        cluster: Cluster,
        workers: list[int],
        rule: Rule,
        bounds: Bounds,
        make: Callable[[], Start],
        tell: Callable[[Int64], None],
    ) -> None:
        if len(workers) != bounds.most:
            raise ValueError(f"the pool has {len(workers)} workers and may grow to {bounds.most}")
        self.sizes: list[tuple[float, int]] = [(0.0, bounds.least)]
        """(time, open workers) at every change."""
        self._cluster = cluster
        self._rule = rule
        self._bounds = bounds
        self._make = make
        self._tell = tell
        self._open = workers[: bounds.least]
        self._closed = workers[bounds.least :]
        self._coming = 0
        self._loads = np.zeros((len(cluster.fleet.status), LOADS))
        self._used: set[int] = set(self._open)
        tell(np.array(self._open, np.int64))
        cluster.env.process(self._plan())

    def _plan(self) -> Generator[simpy.Event, Any, None]:
        while not self._cluster.over:
            yield self._cluster.env.timeout(self._bounds.period_s)
            loads(self._cluster.fleet, self._loads)
            now = len(self._open) + self._coming
            wanted = self._rule.wanted(now, self._loads[self._open])
            wanted = min(max(wanted, self._bounds.least), self._bounds.most)
            for _ in range(wanted - now):
                self._coming += 1
                self._cluster.env.process(self._start())
            for _ in range(min(now - wanted, len(self._open) - 1)):
                self._closed.append(self._open.pop())
                self._changed()

    def _start(self) -> Generator[simpy.Event, Any, None]:
        """Open the closed worker that has been idle longest; with one that still ends its requests nothing is gained."""
        yield self._cluster.env.timeout(self._bounds.start_s)
        self._coming -= 1
        loads(self._cluster.fleet, self._loads)
        idle = [
            w
            for w in self._closed
            if self._loads[w, WAITING] + self._loads[w, ACTIVE] == 0 and not self._cluster.reactions.pinned(w)
        ]
        if not idle:
            return
        worker = idle[0]
        if worker in self._used:
            chill(self._cluster.fleet, worker, self._make(), self._cluster.reactions.ended)
            forget_oldest(self._cluster.dispatch.index, worker, 0)
        self._used.add(worker)
        self._closed.remove(worker)
        self._open.append(worker)
        self._changed()

    def mean_workers(self, until_s: float) -> float:
        """Open workers, on average from the start to `until_s`."""
        ends = [time_s for time_s, _ in self.sizes[1:]] + [until_s]
        spans = [(min(end, until_s) - min(begun, until_s), n) for (begun, n), end in zip(self.sizes, ends, strict=True)]
        return sum(span * n for span, n in spans) / until_s if until_s > 0 else float(self.sizes[0][1])

    def _changed(self) -> None:
        self._tell(np.array(sorted(self._open), np.int64))
        self.sizes.append((float(self._cluster.env.now), len(self._open)))
