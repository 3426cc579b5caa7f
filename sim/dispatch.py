"""The router's side of a cluster: its replicas, the loads last reported to them, and the index that KV events build.

It chooses no worker (`kvcache.routers` do) and keeps no clock (`sim.routing` does). A replica's view is

    loads as last reported + its own choices since;   blocks held = what events tell that were polled and came in time
"""

from dataclasses import dataclass

import numpy as np

from kvcache.compiled import loop
from kvcache.event_rows import FLUSHED, HEAD, LOST, OVERFLOWN, SENT, prompt_names
from kvcache.prefix_index import PrefixIndex, drain, forget_oldest, make_index, overlaps, with_room
from kvcache.request import Int64
from kvcache.routers import QUEUED_TOKENS, WAITING, Asked, Router, View
from kvcache.tables import C_TOKENS_PER_BLOCK, T_SIZE, Array
from sim.feed import Batch
from sim.fleet import LOADS, Fleet, loads, outbox_at


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


class Replica:
    """One replica of the router: its own choices since the last report of loads, which the others do not know of."""

    def __init__(self, router: Router, workers: int) -> None:
        self.router = router
        self.own = np.zeros((workers, LOADS))


@loop
def poll_all(f: Fleet, x: PrefixIndex, path: Array, seed: int, now_s: float) -> None:
    """Events of all workers that have come by `now_s`; `path` as `Dispatch` makes it."""
    delay_s, poll_s, lost, buffer, gather_s, ranks = path[0], path[1], path[2], path[3], path[4], int(path[5])
    for w in range(len(f.status)):
        meter = f.outbox.meter[w]
        if meter[HEAD] < meter[FLUSHED]:
            # the first rank's own events are polled; the others' reach it with the gathering, and are polled then
            period_s = max(poll_s, gather_s) if w % ranks else poll_s
            drain(x, outbox_at(f, w), w, now_s - delay_s, period_s, int(buffer), lost, seed)


class Dispatch:
    """Replicas of a router, one asked after the other; what they know of a fleet, which is handed in with each call."""

    def __init__(self, fleet: Fleet, routers: list[Router], path: EventPath, report_period_s: float) -> None:
        workers = len(fleet.status)
        self.replicas = [Replica(router, workers) for router in routers]
        self.index = make_index(workers)
        self.blind = 0
        """Decisions of a router that reads events while none had come from any worker."""
        self.period_s = report_period_s
        """Between two reports of loads; 0: they are known at any moment."""
        self._path = path
        self._path_row = np.array([
            path.delay_s, path.poll_s, path.lost_share, path.buffer_events, path.gather_s, path.ranks,
        ])  # fmt: skip
        self._loads = np.zeros((workers, LOADS))
        self._held, self._on_gpu = np.zeros(workers, np.int64), np.zeros(workers, np.int64)
        self._names = np.zeros(1024, np.int64)
        self._turn = 0
        self._tpb = int(fleet.state.conf[0, C_TOKENS_PER_BLOCK])
        self._overrun = 0
        self._sizes = fleet.state.tier[:, 0, 0, T_SIZE]
        blocks = fleet.state.tier[:, 0, :, T_SIZE].sum(axis=1)
        self._bound = (blocks * path.index_slack).astype(np.int64)

    def report(self, fleet: Fleet) -> None:
        """The workers' loads reach all replicas at the same moments; what they chose since is part of it then."""
        loads(fleet, self._loads)
        for replica in self.replicas:
            replica.own[:] = 0

    def poll(self, fleet: Fleet, now_s: float) -> None:
        """Events that have come by `now_s` reach the index, which stays within its bounds."""
        pending = int((fleet.outbox.meter[:, FLUSHED] - fleet.outbox.meter[:, HEAD]).sum())
        if pending == 0:
            return
        self.index = with_room(self.index, pending)
        poll_all(fleet, self.index, self._path_row, self._path.seed, now_s)
        for w in np.flatnonzero(self.index.blocks > self._bound):
            self._overrun += forget_oldest(self.index, int(w), int(self._bound[w] / self._path.index_slack))

    def choose(self, fleet: Fleet, workers: Int64, batch: Batch, r: int, now_s: float) -> int:
        """The one of `workers` that the next replica in turn chooses for request r of `batch`."""
        replica = self.replicas[self._turn]
        self._turn = (self._turn + 1) % len(self.replicas)
        prompt = int(batch.rows.prompt[r])
        asked = Asked(
            prompt, -(-prompt // self._tpb), int(batch.session[r]), self._asked_names(replica.router, batch, r)
        )
        held = self._seen(fleet, replica.router, asked, now_s)
        if self.period_s <= 0.0:
            loads(fleet, self._loads)
        seen = self._loads + replica.own if self.period_s > 0.0 else self._loads
        view = View(
            now_s, self._tpb, workers, seen[workers], held[workers], self._on_gpu[workers], self._sizes[workers]
        )
        worker = int(workers[replica.router.choose(asked, view)])
        if self.period_s > 0.0:
            replica.own[worker, WAITING] += 1
            replica.own[worker, QUEUED_TOKENS] += max(0, prompt - int(held[worker]) * self._tpb)
        return worker

    def known_tokens(self, worker: int) -> int:
        """Of the prompt routed last, what the index says that `worker` holds; 0 with a router that does not ask it."""
        return int(self._held[worker]) * self._tpb

    def _asked_names(self, router: Router, batch: Batch, r: int) -> Int64:
        if not router.reads_prompt:
            return self._names[:0]
        if int(batch.rows.prompt[r]) // self._tpb > len(self._names):
            self._names = np.zeros(2 * int(batch.rows.prompt[r]) // self._tpb, np.int64)
        return self._names[: prompt_names(batch.rows, self._tpb, r, self._names)]

    def _seen(self, fleet: Fleet, router: Router, asked: Asked, now_s: float) -> Int64:
        """Leading blocks that each worker is thought to hold."""
        if router.reads_events:
            self.poll(fleet, now_s)
            self.blind += int(fleet.outbox.meter[:, SENT].sum() == 0)
            overlaps(self.index, asked.names, len(asked.names), self._held, self._on_gpu)
        return self._held

    def events(self, fleet: Fleet) -> dict[str, int]:
        """What became of the events: received, dropped by full buffers, lost, forgotten by the index for want of bounds."""
        meter = fleet.outbox.meter.sum(axis=0)
        return {
            "received": int(meter[SENT]),
            "overflown": int(meter[OVERFLOWN]),
            "lost": int(meter[LOST]),
            "forgotten_blocks": self._overrun,
            "blind_decisions": self.blind,
        }
