"""Prefill on some workers, decoding on others, and the transfer of each prompt's cache between them, in SimPy.

It decides no block (`kvcache` does) and works out no transfer (`sim.handover` does). TensorRT-LLM's flow:

    context worker     queue, prefill, first token; its blocks stay pinned ---------------------.
    generation worker              takes all blocks first; asks for those it lacks --> transfer --> goes on, answers
    both               a transfer that fails, is cancelled or times out frees both sides' blocks, once

The user sees the first token once the generation worker has the cache: TTFT = queue + prefill + wait for decode memory + wait
for a buffer + transfer.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy

from kvcache.engine import Outcome
from kvcache.keys import mix
from kvcache.remote import blocks_to_send
from kvcache.request import Int64
from sim.feed import Batch, Records
from sim.fleet import S_PINS, STARTED, given_up, received, request_at, unpinned
from sim.fleet_room import engine_of
from sim.handover import Handover
from sim.routing import Cluster

WAITING, SENDING, DONE, FAILED = range(4)


@dataclass(eq=False)
class Transfer:
    """One prompt on its way. Times are seconds of the simulation; -1 where it has not come so far."""

    number: int
    batch: Batch
    r: int
    sender: int
    sender_serial: int
    ended_s: float
    receiver: int = -1
    receiver_serial: int = -1
    state: int = WAITING
    admitted_s: float = -1.0
    began_s: float = -1.0
    done_s: float = -1.0
    parts: Handover | None = None
    process: simpy.Process | None = None


@dataclass(frozen=True)
class Rules:
    """What can go wrong with a transfer."""

    timeout_s: float = float("inf")
    """kv_transfer_timeout_ms: counted from the prompt's end."""
    failure_share: float = 0.0
    """Share of the transfers that fail at their end."""
    seed: int = 0


LOGGED = ("number", "memory_s", "buffer_s", "prepare_s", "wire_s", "convert_s", "hidden_s")


@dataclass
class Log:
    """Transfers that are over, a row of `LOGGED` each: wait for decode memory, wait for a buffer, parts of the transfer."""

    rows: list[tuple[float, ...]] = field(default_factory=list)
    wire_bytes: float = 0.0
    failed: list[int] = field(default_factory=list)
    """Numbers of the requests whose transfer failed, was cancelled or timed out: nobody answers them."""
    timed_out: int = 0

    def columns(self) -> dict[str, np.ndarray[Any, Any]]:
        """By name; empty arrays where nothing was transferred."""
        table = np.array(self.rows, np.float64).reshape(-1, len(LOGGED))
        return {name: table[:, i] for i, name in enumerate(LOGGED)}


class Disaggregated:
    """The reactions that make a cluster a disaggregated one: workers 0 .. context - 1 compute prompts, the others decode."""

    def __init__(
        self,
        cluster: Cluster,
        context: int,
        seconds: Callable[[int, int], Handover],
        send_buffers: int,
        receive_buffers: int,
        rules: Rules = Rules(),
    ) -> None:
        """`seconds`: the parts of a transfer of so many blocks of a prompt of so many tokens."""
        workers = len(cluster.fleet.status)
        self.log = Log()
        self.prefill = Records()
        """Outcomes on context workers."""
        self.context = np.arange(context)
        self.generation = np.arange(context, workers)
        self.open = self.generation
        """Generation workers that take requests."""
        self._cluster = cluster
        self._seconds = seconds
        self._rules = rules
        self._lanes = [
            simpy.Resource(cluster.env, send_buffers if w < context else receive_buffers) for w in range(workers)
        ]
        self._number = [dict[int, tuple[Batch, int, int]]() for _ in range(context)]  # serial -> its request
        self._sent = [dict[int, Transfer]() for _ in range(context)]
        self._coming = [dict[int, Transfer]() for _ in range(workers)]
        cluster.reactions = self
        cluster.strict = True
        cluster.open = np.arange(context, dtype=np.int64)
        cluster.fleet.status[:context, S_PINS] = 1

    def arrived(self, batch: Batch, r: int, number: int, worker: int, now_s: float) -> None:
        """Its prompt is computed on the context worker it was routed to, with one token."""
        self.compute(batch, r, number, worker, 0, now_s)

    def compute(self, batch: Batch, r: int, number: int, worker: int, remote: int, now_s: float) -> int:
        """Likewise, less the first `remote` tokens; returns the request's serial number on the context worker."""
        self.prefill.routed(number, worker)
        prompt_only = batch._replace(rows=batch.rows._replace(output=np.minimum(batch.rows.output, 1)))
        serial = self._cluster.hand_over(worker, prompt_only, r, number, remote, now_s)
        self._number[worker][serial] = (batch, r, number)
        return serial

    def signalled(self, worker: int, kind: int, serial: int, now_s: float) -> None:
        """A prompt is done, or a receiver has taken its blocks."""
        if kind == STARTED:
            transfer = self._coming[worker][serial]
            transfer.admitted_s = now_s
            transfer.process = self._cluster.env.process(self._send(transfer))
            return
        batch, r, number = self._number[worker].pop(serial)
        if batch.rows.output[r] <= 1:
            unpinned(self._cluster.fleet, worker, serial, now_s)
            return
        transfer = Transfer(number, batch, r, worker, serial, now_s)
        self._sent[worker][serial] = transfer
        self._cluster.in_flight += 1
        self._ask_receiver(transfer, now_s)
        if self._rules.timeout_s < float("inf"):
            self._cluster.env.process(self._watch(transfer))

    def _ask_receiver(self, transfer: Transfer, now_s: float) -> None:
        """A generation worker takes it."""
        transfer.receiver = self.receiver()
        prompt = int(transfer.batch.rows.prompt[transfer.r])
        transfer.receiver_serial = self._cluster.hand_over(
            transfer.receiver, transfer.batch, transfer.r, transfer.number, prompt, now_s
        )
        self._coming[transfer.receiver][transfer.receiver_serial] = transfer

    def receiver(self) -> int:
        """The open generation worker with the fewest requests."""
        meter = self._cluster.requests()[self.open]
        return int(self.open[int(np.argmin(meter))])

    def _send(self, transfer: Transfer) -> Generator[simpy.Event, Any, None]:
        """Wait for a buffer on both sides, then for the bytes."""
        try:
            with self._lanes[transfer.receiver].request() as inward, self._lanes[transfer.sender].request() as outward:
                yield inward
                yield outward
                transfer.state = SENDING
                yield self._cluster.env.timeout(self._begin(transfer))
        except simpy.Interrupt:
            return
        chance = (mix(mix(self._rules.seed + 1, transfer.number), 11) & 0xFFFFFFFF) / 4294967296.0
        self._over(transfer, ok=chance >= self._rules.failure_share)

    def _begin(self, transfer: Transfer) -> float:
        """The transfer starts now; how long it takes follows from what the receiver lacks."""
        transfer.began_s = float(self._cluster.env.now)
        engine = engine_of(self._cluster.fleet, transfer.receiver)
        r = int(request_at(self._cluster.fleet, transfer.receiver, transfer.receiver_serial))
        blocks = int(blocks_to_send(engine, r, int(engine.outcome.reused[r])))
        transfer.parts = self._seconds(blocks, int(transfer.batch.rows.prompt[transfer.r]))
        return transfer.parts.seconds

    def _watch(self, transfer: Transfer) -> Generator[simpy.Event, Any, None]:
        yield self._cluster.env.timeout(self._rules.timeout_s)
        if transfer.state in {WAITING, SENDING}:
            if transfer.process is not None and transfer.process.is_alive:
                transfer.process.interrupt()
            self.log.timed_out += 1
            self._over(transfer, ok=False)

    def cancel(self, number: int) -> bool:
        """The user goes away while request `number` is between its two workers. False: it is not there."""
        for sent in self._sent:
            for transfer in list(sent.values()):
                if transfer.number == number:
                    if transfer.process is not None and transfer.process.is_alive:
                        transfer.process.interrupt()
                    self._over(transfer, ok=False)
                    return True
        return False

    def _over(self, transfer: Transfer, *, ok: bool) -> None:
        """Both sides let go, once."""
        assert transfer.state in {WAITING, SENDING}, f"transfer of request {transfer.number} is over twice"
        now_s, fleet = float(self._cluster.env.now), self._cluster.fleet
        transfer.state, transfer.done_s = (DONE if ok else FAILED), now_s
        del self._sent[transfer.sender][transfer.sender_serial]
        del self._coming[transfer.receiver][transfer.receiver_serial]
        unpinned(fleet, transfer.sender, transfer.sender_serial, now_s)
        self._cluster.in_flight -= 1
        if ok:
            prompt = int(transfer.batch.rows.prompt[transfer.r])
            assert received(fleet, transfer.receiver, transfer.receiver_serial, prompt, now_s)
            self._note(transfer)
        else:
            assert given_up(fleet, transfer.receiver, transfer.receiver_serial, now_s)
            self.log.failed.append(transfer.number)

    def _note(self, transfer: Transfer) -> None:
        parts = transfer.parts
        assert parts is not None
        self.log.wire_bytes += parts.wire_bytes
        self.log.rows.append((
            transfer.number,
            transfer.admitted_s - transfer.ended_s,
            transfer.began_s - transfer.admitted_s,
            parts.prepare_s,
            parts.wire_s,
            parts.convert_s,
            parts.hidden_s,
        ))

    def ended(self, worker: int, numbers: Int64, outcome: Outcome) -> None:
        """A context worker's outcomes are the request's own only where it ended there."""
        if worker >= len(self.context):
            self._cluster.records.ended(worker, numbers, outcome)
            return
        self.prefill.ended(worker, numbers, outcome)
        alone = self._cluster.records.column("finish_s")[numbers] < 0
        self._cluster.records.ended(worker, numbers[alone], Outcome(*(column[alone] for column in outcome)))

    def settle(self) -> None:
        """After the run: a request came and was looked up where its prompt was computed; one whose transfer failed never ends."""
        here = np.flatnonzero(self.prefill.column("worker") >= 0)
        for name in ("reused", "sent_s", "start_s"):
            self._cluster.records.column(name)[here] = self.prefill.column(name)[here]
        self._cluster.records.column("finish_s")[self.log.failed] = np.nan

    def pinned(self, worker: int) -> list[int]:
        """Requests whose transfer is not over."""
        return list(self._sent[worker]) if worker < len(self.context) else []
