"""A store that all workers share, behind the connector: prompts it holds are loaded instead of computed.

It decides no block. The scheduler asks as `kvcache.connector.ConnectorScheduler` says; blocks go by the names they have on
every worker (`kvcache.event_rows`), since node numbers differ. Loads and saves take time here and move nothing. The
store serves so many of them at once, over all workers. A prompt is saved when its request ends; the blocks stay pinned
on the worker while they are read. A full store lets go what was used longest ago.

    arrival --match--> takes its blocks, is held --load over the worker's link, one after the other--> computes the rest
    end     --> pinned --save--> unpinned
"""

from collections import OrderedDict
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from kvcache.engine import Outcome
from kvcache.event_rows import prompt_names
from kvcache.request import Int64
from sim.feed import Batch
from sim.fleet import S_PINS, STARTED, received, request_at, unpinned
from sim.fleet_room import engine_of
from sim.routing import Cluster


@dataclass(frozen=True)
class StoreLink:
    """What it takes to move blocks between a worker and the store."""

    start_s: float
    block_s: float
    """Seconds of one block over a link that nobody else uses."""
    streams: int = 1
    """Loads and saves that the store serves at once, over all workers."""


class Blocks:
    """Names of the blocks a store of `capacity` blocks holds, least recently used first."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"the store holds {capacity} blocks; it needs room for at least 1")
        self._capacity = capacity
        self._held: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def match(self, names: Int64) -> int:
        """Leading blocks that are here; they are used now."""
        found = 0
        for name in names.tolist():
            if name not in self._held:
                break
            found += 1
        for name in reversed(names[:found].tolist()):
            self._held.move_to_end(name)
        return found

    def add(self, names: Int64) -> int:
        """Take blocks in, the last ones to leave first; returns how many were new."""
        new = 0
        for name in reversed(names.tolist()):
            new += name not in self._held
            self._held[name] = None
            self._held.move_to_end(name)
        while len(self._held) > self._capacity:
            self._held.popitem(last=False)
        return new


class SharedStore:
    """The reactions that give a cluster a shared store, and the connector its schedulers ask."""

    def __init__(self, cluster: Cluster, capacity: int, link: StoreLink, tokens_per_block: int) -> None:
        self.blocks = Blocks(capacity)
        self.loaded_blocks = 0
        self.loading_s = 0.0
        """Seconds that requests waited for their loads, turns for a stream included."""
        self.loads = 0
        self.saved_blocks = 0
        self._cluster = cluster
        self._link = link
        self.tokens_per_block = tokens_per_block
        self._lane = simpy.Resource(cluster.env, link.streams)
        workers = len(cluster.fleet.status)
        self._asked = [dict[int, tuple[Int64, int]]() for _ in range(workers)]  # serial -> prompt names, tokens matched
        self._saving = [set[int]() for _ in range(workers)]
        cluster.reactions = self
        cluster.strict = True
        cluster.fleet.status[:, S_PINS] = 1

    def get_num_new_matched_tokens(self, nodes: Sequence[int], num_computed_tokens: int) -> tuple[int, bool]:
        """Whole blocks without a gap, beyond those computed; they come later. `nodes`: names of the prompt's full blocks."""
        tokens = self.blocks.match(np.array(nodes, np.int64)) * self.tokens_per_block
        return max(0, tokens - num_computed_tokens), True

    def _start_load(self, worker: int, serial: int, names: Int64, num_computed_tokens: int) -> None:
        """Over the worker's link, once the store has a stream for it."""
        blocks = len(names) - num_computed_tokens // self.tokens_per_block
        self._cluster.in_flight += 1
        self._cluster.env.process(self._load(worker, serial, blocks, len(names) * self.tokens_per_block))

    def _start_save(self, worker: int, serial: int, names: Int64) -> bool:
        """What the store lacks is read from the worker; False: it lacks nothing."""
        new = len(names) - self.blocks.match(names)
        if new == 0:
            return False
        self._cluster.in_flight += 1
        self._cluster.env.process(self._save(worker, serial, names, new))
        return True

    def matched(self, batch: Batch, r: int) -> tuple[Int64, int]:
        """Names of a prompt's whole blocks, and tokens of them to load; the last token is always computed."""
        prompt = int(batch.rows.prompt[r])
        names = np.zeros(prompt // self.tokens_per_block + 1, np.int64)
        names = names[: prompt_names(batch.rows, self.tokens_per_block, r, names)]
        tokens, _ = self.get_num_new_matched_tokens(names.tolist(), 0)
        return names, min(tokens, (prompt - 1) // self.tokens_per_block * self.tokens_per_block)

    def asked(self, worker: int, serial: int, names: Int64, tokens: int) -> None:
        """A request of a worker's tables may load so many tokens."""
        self._asked[worker][serial] = (names, tokens)

    def knows(self, worker: int, serial: int) -> bool:
        """The request asked the store and has not ended."""
        return serial in self._asked[worker]

    def arrived(self, batch: Batch, r: int, number: int, worker: int, now_s: float) -> None:
        """Ask the store, then hand the request over with what it may load."""
        names, tokens = self.matched(batch, r)
        self.asked(worker, self._cluster.hand_over(worker, batch, r, number, tokens, now_s), names, tokens)

    def signalled(self, worker: int, kind: int, serial: int, now_s: float) -> None:
        """A request has its blocks and waits for their content, or has ended."""
        if kind == STARTED:
            names, matched = self._asked[worker][serial]
            engine = engine_of(self._cluster.fleet, worker)
            there = int(engine.outcome.reused[int(request_at(self._cluster.fleet, worker, serial))])
            self._start_load(worker, serial, names[: matched // self.tokens_per_block], there)
            return
        names, _ = self._asked[worker].pop(serial)
        if self._start_save(worker, serial, names):
            self._saving[worker].add(serial)
        else:
            unpinned(self._cluster.fleet, worker, serial, now_s)

    def _busy(self, blocks: int) -> Generator[simpy.Event, Any, None]:
        with self._lane.request() as turn:
            yield turn
            yield self._cluster.env.timeout(self._link.start_s + blocks * self._link.block_s)

    def _load(self, worker: int, serial: int, blocks: int, tokens: int) -> Generator[simpy.Event, Any, None]:
        begun_s = float(self._cluster.env.now)
        yield from self._busy(blocks)
        self.loads += 1
        self.loaded_blocks += blocks
        self.loading_s += float(self._cluster.env.now) - begun_s
        self._cluster.in_flight -= 1
        assert received(self._cluster.fleet, worker, serial, tokens, float(self._cluster.env.now))

    def _save(self, worker: int, serial: int, names: Int64, blocks: int) -> Generator[simpy.Event, Any, None]:
        yield from self._busy(blocks)
        self.saved_blocks += self.blocks.add(names)
        self._saving[worker].remove(serial)
        self._cluster.in_flight -= 1
        unpinned(self._cluster.fleet, worker, serial, float(self._cluster.env.now))

    def ended(self, worker: int, numbers: Int64, outcome: Outcome) -> None:
        """Into the records."""
        self._cluster.records.ended(worker, numbers, outcome)

    def pinned(self, worker: int) -> list[int]:
        """Requests whose blocks are being saved."""
        return sorted(self._saving[worker])
