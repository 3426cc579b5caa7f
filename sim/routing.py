"""A cluster in simulated time: requests are routed at their arrival, by what the router knows at that moment.

It decides nothing (`sim.dispatch` asks the routers, the engines decide on blocks) and spends no step (`sim.fleet_steps`
does): it holds the clock, in SimPy. Between two moments at which something can come from outside (an arrival, a report of
loads, a transfer's end) the workers run on by themselves in one compiled call. Results do not depend on how often they
are stopped in between.

    feed --due--> dispatch chooses a worker --> deliver to its line --> advance ... --> outcome, by the request's number
"""

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import simpy

from kvcache.request import Float64
from kvcache.routers import ACTIVE, WAITING, Router
from kvcache.tables import C_TOKENS_PER_BLOCK
from sim import fleet_room as room
from sim.dispatch import Dispatch, EventPath
from sim.feed import INFINITE, Batch, Feed, Records
from sim.fleet import DELIVERED, LOADS, NO_ROWS, PARKED, READY, S_FULL, S_STATE, Fleet, deliver, expect_found, loads
from sim.fleet_steps import advance, next_end_s
from sim.reactions import Alone, Reactions


class Cluster:
    """Workers behind one router with several replicas."""

    def __init__(
        self,
        env: simpy.Environment,
        fleet: Fleet,
        feed: Feed,
        routers: list[Router],
        *,
        path: EventPath = EventPath(),
        report_period_s: float = 0.0,
        overlap: float = 0.0,
        skip: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        workers = len(fleet.status)
        self.env = env
        self.fleet = fleet
        self.feed = feed
        self.records = Records()
        self.dispatch = Dispatch(fleet, routers, path, report_period_s)
        self.open = np.arange(workers, dtype=np.int64)
        """Workers that take requests."""
        self.reactions: Reactions = Alone(self.hand_over, self.records)
        self.strict = False
        """Steps are taken in the order of their ends over all workers; needed where there are signals."""
        self.in_flight = 0
        """Reactions under way: the run does not end before them."""
        self._overlap = overlap
        self._skip = skip
        self._progress = progress
        self._now = np.zeros((workers, LOADS))
        self._tpb = int(fleet.state.conf[0, C_TOKENS_PER_BLOCK])
        self._done = False
        env.process(self._drive())
        if report_period_s > 0:
            env.process(self._report())

    def run(self) -> Records:
        """Until the last request has ended; returns what became of each."""
        self.env.run()
        for w in range(len(self.fleet.status)):
            room.forget_requests(self.fleet, w, [], self.reactions.ended)
        return self.records

    @property
    def over(self) -> bool:
        """The last request has ended."""
        return self._done

    def _drive(self) -> Generator[simpy.Event, Any, None]:
        while True:
            due_s = self.feed.due_s
            horizon_s = min(due_s, self.env.peek())
            if not self._skip:
                horizon_s = min(horizon_s, float(next_end_s(self.fleet)))
            reached_s = float(advance(self.fleet, horizon_s, self._overlap, self.strict))
            if self.fleet.status[:, S_FULL].any():
                self._make_room_for_events(reached_s)
            elif self.fleet.tally[0]:
                yield self.env.timeout(max(0.0, reached_s - self.env.now))
                signals = self.fleet.signals[: self.fleet.tally[0]].tolist()
                self.fleet.tally[0] = 0
                for worker, kind, serial in signals:
                    self.reactions.signalled(worker, kind, serial, reached_s)
            elif due_s == INFINITE and self._over():
                self._done = True
                return
            else:
                yield self.env.timeout(max(0.0, horizon_s - self.env.now))
                while self.feed.due_s <= horizon_s:
                    self._arrive(self.feed.due_s)

    def _over(self) -> bool:
        """Nothing is left to do; requests that can never go on are a fault."""
        states = self.fleet.status[:, S_STATE]
        if self.in_flight or (states >= READY).any():
            return False
        stuck = np.flatnonzero(states == PARKED)
        if len(stuck) == 0:
            return True
        raise AssertionError(f"no step is possible any more although worker {int(stuck[0])} has requests")

    def _report(self) -> Generator[simpy.Event, Any, None]:
        while not self._done:
            self.dispatch.report(self.fleet)
            yield self.env.timeout(self.dispatch.period_s)

    def _make_room_for_events(self, now_s: float) -> None:
        self.dispatch.poll(self.fleet, now_s)
        self.fleet = room.with_larger_outboxes(self.fleet)

    def _arrive(self, now_s: float) -> None:
        """Route the next request and hand it to its worker."""
        assert self.feed.batch is not None
        batch, r, number = self.feed.batch, self.feed.at, self.feed.number
        worker = self.dispatch.choose(self.fleet, self.open, batch, r, now_s)
        self.records.routed(number, worker)
        self.reactions.arrived(batch, r, number, worker, now_s)
        expect_found(self.fleet, worker, number, min(self.dispatch.known_tokens(worker), int(batch.rows.prompt[r])))
        self.feed.step()
        if self._progress is not None and number % 256 == 255:
            self._progress(number + 1)

    def requests(self) -> Float64:
        """Requests that wait or run on each worker."""
        loads(self.fleet, self._now)
        return self._now[:, WAITING] + self._now[:, ACTIVE]

    def hand_over(self, worker: int, batch: Batch, r: int, number: int, remote: int, now_s: float) -> int:
        """Request r of `batch` joins a worker's line; returns its serial number there."""
        keep, rows = batch.retention, batch.rows
        positions = -(-(int(rows.prompt[r]) + int(rows.output[r])) // self._tpb) + 2
        if positions > self.fleet.matches.blocks.shape[-1]:
            self.fleet = room.with_longer_sequences(self.fleet, positions)
        ranges = keep.ranges[keep.range_offset[r] : keep.range_offset[r + 1]]
        for tries in range(64):
            answer = deliver(
                self.fleet, worker, batch.rows, r, number, ranges, int(keep.decode_priority[r]),
                int(keep.decode_duration_ms[r]), remote, now_s, room.NODES_KEPT_FREE, room.NODES_KEPT_FREE * self._tpb,
            )  # fmt: skip
            if answer == DELIVERED:
                serial: int = room.last_serial(self.fleet, worker)
                return serial
            self._make_room(worker, rows=answer == NO_ROWS, double=tries > 0)
        raise AssertionError(f"the tables of worker {worker} have no room for request {number}")

    def _make_room(self, worker: int, *, rows: bool, double: bool) -> None:
        """Forget what is over; where that frees less than half, or was not enough, the tables double."""
        room.forget_requests(self.fleet, worker, self.reactions.pinned(worker), self.reactions.ended)
        if rows:
            if double or room.rows_are_short(self.fleet, worker):
                self.fleet = room.with_more_requests(self.fleet)
            return
        room.forget_keys(self.fleet, worker)
        if double or room.nodes_are_short(self.fleet, worker):
            self.fleet = room.with_more_nodes(self.fleet)
