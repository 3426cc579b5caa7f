"""A cluster in simulated time: requests are routed at their arrival, by what the router knows at that moment.

It decides nothing (`kvcache.routers` and the engines do) and spends no step (`sim.fleet` does): it holds the clock, in SimPy.
Between two moments at which something can come from outside (an arrival, a report of loads, a transfer's end) the workers
run on by themselves in one compiled call. Results do not depend on how often they are stopped in between.

    feed --due--> route: view = loads as last reported + own choices since;  index = KV events polled and on time
                  --> deliver to the worker's line --> advance ... --> outcome, by the request's number
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import simpy

from kvcache.compiled import loop
from kvcache.engine import Outcome
from kvcache.event_rows import FLUSHED, HEAD, LOST, OVERFLOWN, SENT, prompt_names
from kvcache.keys import Rows
from kvcache.prefix_index import PrefixIndex, drain, forget_oldest, make_index, overlaps, with_room
from kvcache.request import Float64, Int32, Int64
from kvcache.retention import RetentionColumns
from kvcache.routers import ACTIVE, QUEUED_TOKENS, WAITING, Asked, Router, View
from kvcache.tables import C_TOKENS_PER_BLOCK, T_SIZE, Array
from sim import fleet_room as room
from sim.fleet import (
    DELIVERED,
    LOADS,
    NO_ROWS,
    PARKED,
    READY,
    S_FULL,
    S_STATE,
    Fleet,
    advance,
    deliver,
    loads,
    next_end_s,
    outbox_at,
)

INFINITE = float("inf")


class Batch(NamedTuple):
    """Requests of a feed. `rows.space` numbers namespaces the same way in all batches."""

    arrival_s: Float64
    rows: Rows
    session: Int32
    retention: RetentionColumns


@dataclass(frozen=True)
class EventPath:
    """How KV events reach the router."""

    delay_s: float = 0.0
    poll_s: float = 0.0
    """Period of the consumer's polls; 0: it waits for them."""
    lost_share: float = 0.0
    buffer_events: int = 1 << 30
    """What a worker keeps between two polls (event_buffer_max_size); older events are dropped."""
    gather_s: float = 0.0
    """Period in which ranks other than the first of an attention-DP group hand theirs over."""
    ranks: int = 1
    """Workers that share one event manager: an attention-DP group."""
    index_slack: float = 1.25
    """A worker is never thought to hold more blocks than it has, times this; the oldest are forgotten."""
    seed: int = 0


class Feed:
    """Requests in order of arrival, batch by batch."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._base = -1
        self.at = 0
        self.batch: Batch | None = None
        self._more()

    def _more(self) -> None:
        passed = 0 if self.batch is None else len(self.batch.arrival_s)
        self.batch = next((b for b in self._batches if len(b.arrival_s)), None)
        self._base = max(0, self._base) + passed
        self.at = 0

    @property
    def due_s(self) -> float:
        """When the next request arrives; infinite after the last."""
        return INFINITE if self.batch is None else float(self.batch.arrival_s[self.at])

    @property
    def number(self) -> int:
        """Number of the next request in the whole workload."""
        return self._base + self.at

    def step(self) -> None:
        """The next request has been taken."""
        self.at += 1
        if self.batch is not None and self.at == len(self.batch.arrival_s):
            self._more()


class Records:
    """What became of each request, by its number; grows as they come."""

    def __init__(self, requests: int = 1024) -> None:
        self._size = 0
        self.worker = np.full(requests, -1, np.int32)
        self.reused = np.zeros(requests, np.int64)
        self.sent_s, self.start_s, self.first_token_s, self.finish_s = (np.full(requests, -1.0) for _ in range(4))

    NAMES = ("worker", "reused", "sent_s", "start_s", "first_token_s", "finish_s")

    def routed(self, number: int, worker: int) -> None:
        """Request `number` goes to `worker`."""
        if number >= len(self.worker):
            for name in self.NAMES:
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.full(len(old), 0 if name == "reused" else -1, old.dtype)]))
        self._size = max(self._size, number + 1)
        self.worker[number] = worker

    def ended(self, _worker: int, numbers: Int64, outcome: Outcome) -> None:
        """Outcomes of requests that leave a worker's tables."""
        for name in self.NAMES[1:]:
            getattr(self, name)[numbers] = getattr(outcome, name)

    def column(self, name: str) -> Array:
        """One column, one entry a request."""
        values: Array = getattr(self, name)[: self._size]
        return values


class Reactions(Protocol):
    """What happens to requests beyond a worker's own steps: transfers, loads from a store."""

    def arrived(self, batch: Batch, r: int, number: int, worker: int, now_s: float) -> None:
        """A request has been routed to `worker`; hand it over."""

    def signalled(self, worker: int, kind: int, serial: int, now_s: float) -> None:
        """A signal of `sim.fleet`."""

    def ended(self, worker: int, numbers: Int64, outcome: Outcome) -> None:
        """Outcomes of requests that leave a worker's tables."""

    def pinned(self, worker: int) -> list[int]:
        """Serial numbers of ended requests whose blocks are kept for a transfer."""


class Alone:
    """Nothing happens beyond a worker's own steps."""

    def __init__(self, cluster: "Cluster") -> None:
        self._cluster = cluster

    def arrived(self, batch: Batch, r: int, number: int, worker: int, now_s: float) -> None:
        """It joins the worker's line."""
        self._cluster.hand_over(worker, batch, r, number, 0, now_s)

    def signalled(self, worker: int, kind: int, serial: int, now_s: float) -> None:
        """Nobody gives signals."""
        raise AssertionError(f"signal {kind} of worker {worker}, request {serial}, at {now_s}")

    def ended(self, worker: int, numbers: Int64, outcome: Outcome) -> None:
        """Into the records."""
        self._cluster.records.ended(worker, numbers, outcome)

    def pinned(self, _worker: int) -> list[int]:
        """None."""
        return []


class Replica:
    """One replica of the router: its own choices since the last report of loads, which the others do not know of."""

    def __init__(self, router: Router, workers: int) -> None:
        self.router = router
        self.own = np.zeros((workers, LOADS))


@loop
def poll_all(f: Fleet, x: PrefixIndex, path: Array, seed: int, now_s: float) -> None:
    """Events of all workers that have come by `now_s`; `path` as `Cluster` makes it."""
    delay_s, poll_s, lost, buffer, gather_s, ranks = path[0], path[1], path[2], path[3], path[4], int(path[5])
    for w in range(len(f.status)):
        meter = f.outbox.meter[w]
        if meter[HEAD] < meter[FLUSHED]:
            # the first rank's own events are polled; the others' reach it with the gathering, and are polled then
            period_s = max(poll_s, gather_s) if w % ranks else poll_s
            drain(x, outbox_at(f, w), w, now_s - delay_s, period_s, int(buffer), lost, seed)


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
        self.replicas = [Replica(router, workers) for router in routers]
        self.open = np.arange(workers, dtype=np.int64)
        """Workers that take requests."""
        self.index = make_index(workers)
        self.blind = 0
        """Decisions of a router that reads events while none had come from any worker."""
        self.reactions: Reactions = Alone(self)
        self.strict = False
        """Steps are taken in the order of their ends over all workers; needed where there are signals."""
        self.in_flight = 0
        """Reactions under way: the run does not end before them."""
        self._path = path
        self._path_row = np.array([
            path.delay_s, path.poll_s, path.lost_share, path.buffer_events, path.gather_s, path.ranks,
        ])  # fmt: skip
        self._period_s = report_period_s
        self._overlap = overlap
        self._skip = skip
        self._progress = progress
        self._loads, self._now = np.zeros((workers, LOADS)), np.zeros((workers, LOADS))
        self._held, self._on_gpu = np.zeros(workers, np.int64), np.zeros(workers, np.int64)
        self._names = np.zeros(1024, np.int64)
        self._turn = 0
        self._tpb = int(fleet.state.conf[0, C_TOKENS_PER_BLOCK])
        self._done = False
        self._overrun = 0
        blocks = fleet.state.tier[:, 0, :, T_SIZE].sum(axis=1)
        self._bound = (blocks * path.index_slack).astype(np.int64)
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
        """The workers' loads reach all replicas at the same moments; what they chose since is part of it then."""
        while not self._done:
            loads(self.fleet, self._loads)
            for replica in self.replicas:
                replica.own[:] = 0
            yield self.env.timeout(self._period_s)

    def _make_room_for_events(self, now_s: float) -> None:
        self._poll(now_s)
        self.fleet = room.with_larger_outboxes(self.fleet)

    def _poll(self, now_s: float) -> None:
        pending = int((self.fleet.outbox.meter[:, FLUSHED] - self.fleet.outbox.meter[:, HEAD]).sum())
        if pending == 0:
            return
        self.index = with_room(self.index, pending)
        poll_all(self.fleet, self.index, self._path_row, self._path.seed, now_s)
        for w in np.flatnonzero(self.index.blocks > self._bound):
            self._overrun += forget_oldest(self.index, int(w), int(self._bound[w] / self._path.index_slack))

    def _arrive(self, now_s: float) -> None:
        """Route the next request and hand it to its worker."""
        assert self.feed.batch is not None
        batch, r, number = self.feed.batch, self.feed.at, self.feed.number
        worker = int(self.route(batch, r, now_s))
        self.records.routed(number, worker)
        self.reactions.arrived(batch, r, number, worker, now_s)
        self.feed.step()
        if self._progress is not None and number % 256 == 255:
            self._progress(number + 1)

    def requests(self) -> Float64:
        """Requests that wait or run on each worker."""
        loads(self.fleet, self._now)
        return self._now[:, WAITING] + self._now[:, ACTIVE]

    def route(self, batch: Batch, r: int, now_s: float) -> int:
        """The worker that the next replica in turn chooses for request r."""
        replica = self.replicas[self._turn]
        self._turn = (self._turn + 1) % len(self.replicas)
        prompt = int(batch.rows.prompt[r])
        asked = Asked(
            prompt, -(-prompt // self._tpb), int(batch.session[r]), self._asked_names(replica.router, batch, r)
        )
        held = self._seen(replica.router, asked, now_s)
        if self._period_s <= 0.0:
            loads(self.fleet, self._loads)
        seen = self._loads + replica.own if self._period_s > 0.0 else self._loads
        view = View(now_s, self._tpb, self.open, seen[self.open], held[self.open], self._on_gpu[self.open])
        worker = int(self.open[replica.router.choose(asked, view)])
        if self._period_s > 0.0:
            replica.own[worker, WAITING] += 1
            replica.own[worker, QUEUED_TOKENS] += max(0, prompt - int(held[worker]) * self._tpb)
        return worker

    def _asked_names(self, router: Router, batch: Batch, r: int) -> Int64:
        if not router.reads_prompt:
            return self._names[:0]
        if int(batch.rows.prompt[r]) // self._tpb > len(self._names):
            self._names = np.zeros(2 * int(batch.rows.prompt[r]) // self._tpb, np.int64)
        return self._names[: prompt_names(batch.rows, self._tpb, r, self._names)]

    def _seen(self, router: Router, asked: Asked, now_s: float) -> Int64:
        """Leading blocks that each worker is thought to hold."""
        if router.reads_events:
            self._poll(now_s)
            self.blind += int(self.fleet.outbox.meter[:, SENT].sum() == 0)
            overlaps(self.index, asked.names, len(asked.names), self._held, self._on_gpu)
        return self._held

    def hand_over(self, worker: int, batch: Batch, r: int, number: int, remote: int, now_s: float) -> int:
        """Request r of `batch` joins a worker's line; returns its serial number there."""
        keep = batch.retention
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

    def events(self) -> dict[str, int]:
        """What became of the events: received, dropped by full buffers, lost, forgotten by the index for want of bounds."""
        meter = self.fleet.outbox.meter.sum(axis=0)
        return {
            "received": int(meter[SENT]),
            "overflown": int(meter[OVERFLOWN]),
            "lost": int(meter[LOST]),
            "forgotten_blocks": self._overrun,
            "blind_decisions": self.blind,
        }
