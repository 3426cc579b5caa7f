"""One engine in simulated time: it turns the engine's steps into seconds, in SimPy.

It decides nothing (`kvcache.engine` does). A worker sleeps until a request arrives, then spends step after step: first the
copies on their lanes, then the kernels, or part of both beside each other (`overlap`, a what-if). Steps that nobody can
disturb, because the next arrival lies behind them and nobody waits for their end, are spent in one compiled call; the
results are the same one by one.
"""

import math
from collections.abc import Generator, Iterator
from typing import Any, Protocol

import numpy as np
import simpy

from kvcache.compiled import loop
from kvcache.engine import Engine, arrive, begin_step, end_step, is_idle, may_finish
from kvcache.line import (
    DECODE_CONTEXT,
    DECODE_SEQS,
    DECODE_WINDOW,
    N_ACTIVE,
    N_DONE,
    N_FLIGHT,
    PAUSES,
    PREFILL_CONTEXT,
    PREFILL_PAIRS,
    PREFILL_TOKENS,
    PREFILL_WINDOW_PAIRS,
    STARVED,
    STEPS,
)
from kvcache.overlap import overlap_ahead, overlap_begin, overlap_end, overlap_may_finish
from kvcache.rules import is_vllm, iteration, overlaps
from kvcache.tables import Array
from kvcache.vllm_engine import vllm_begin, vllm_end, vllm_may_finish
from sim.cost import CostParams, is_beyond, step_seconds_windowed
from sim.lanes import Lanes, copies_seconds

# Entries of `clock`.
NOW_S, COMPUTE_S, COPY_WAIT_S, TOKENS_MADE, BEYOND_STEPS, HOST_S = range(6)
"""BEYOND_STEPS: steps outside what the cost model was measured for. HOST_S, a constant: what the host does for a step,
which the overlap scheduler does while the step before runs."""


class Source(Protocol):
    """Where requests come from."""

    @property
    def listens(self) -> bool:
        """Ends of requests make others arrive: it wants to know of them."""

    def ended(self, worker: "Worker") -> None:
        """A step of this worker has ended now; what arrives because of it is delivered later in the same instant."""

    def deliver(self, now_s: float) -> None:
        """Hand every request that has arrived by `now_s` to its worker."""

    def quiet_until_s(self, worker: "Worker") -> float:
        """Nothing arrives at this worker before, unless because of a request that ends there; infinite: never again."""

    @property
    def exhausted(self) -> bool:
        """Everything has been delivered."""


@loop
def plan_seconds(e: Engine, cost: CostParams) -> float:
    """Seconds of the planned step's kernels."""
    p = e.line.plan
    return step_seconds_windowed(
        cost,
        p[PREFILL_TOKENS],
        p[PREFILL_PAIRS],
        p[PREFILL_WINDOW_PAIRS],
        p[PREFILL_CONTEXT],
        p[DECODE_SEQS],
        p[DECODE_CONTEXT],
        p[DECODE_WINDOW],
    )


@loop
def waiting_s(copy_s: float, compute_s: float, overlap: float) -> float:
    """How long a step's copies keep its kernels from working; `overlap` is the part of either that can pass beside the
    other.

    0: the kernels wait for all copies. 1: for none. Between, as a pipeline of layers: with n equal layers, and overlap
    1 - 1/n, the first layer's copy comes before everything, and the last layer's kernels after all copies.
    """
    return max(copy_s * (1.0 - overlap), copy_s - compute_s * overlap)


@loop
def spend(e: Engine, lanes: Lanes, cost: CostParams, clock: Array, overlap: float) -> None:
    """The copies and kernels of the step just begun take their time."""
    copy_s = copies_seconds(e.state, lanes)
    compute_s = plan_seconds(e, cost)
    p = e.line.plan
    if is_beyond(cost, p[PREFILL_TOKENS], p[PREFILL_PAIRS], p[PREFILL_WINDOW_PAIRS], p[DECODE_SEQS], p[DECODE_CONTEXT]):
        clock[BEYOND_STEPS] += 1
    wait_s = waiting_s(copy_s, compute_s, overlap)
    clock[COMPUTE_S] += compute_s
    clock[COPY_WAIT_S] += wait_s
    clock[NOW_S] += wait_s + compute_s


@loop
def run_span(
    e: Engine, lanes: Lanes, cost: CostParams, clock: Array, until_s: float, overlap: float, watched: bool
) -> bool:
    """Spend steps from clock[NOW_S] on; the last one begun ends at or after `until_s` and is left for `end_step`.

    `watched`: or it may be the last one of a request. clock[NOW_S] becomes its end. False: the engine has nothing to do.
    """
    while True:
        if not begin_step(e, clock[NOW_S]):
            return False
        spend(e, lanes, cost, clock, overlap)
        if clock[NOW_S] >= until_s or (watched and may_finish(e)):
            return True
        clock[TOKENS_MADE] += end_step(e, clock[NOW_S])


@loop
def run_vllm_span(
    e: Engine, lanes: Lanes, cost: CostParams, clock: Array, until_s: float, overlap: float, watched: bool
) -> bool:
    """`run_span` by vLLM's iteration."""
    while True:
        if not vllm_begin(e, clock[NOW_S]):
            return False
        spend(e, lanes, cost, clock, overlap)
        if clock[NOW_S] >= until_s or (watched and vllm_may_finish(e)):
            return True
        clock[TOKENS_MADE] += vllm_end(e, clock[NOW_S])


@loop
def hidden_s(spent_s: float, host_s: float) -> float:
    """What a step of `spent_s` seconds, `host_s` of them the host's, saves where the host worked while the one before
    ran: the longer of the host's part and the rest is left."""
    return max(0.0, min(host_s, spent_s - host_s))


@loop
def run_overlap_span(
    e: Engine, lanes: Lanes, cost: CostParams, clock: Array, until_s: float, overlap: float, watched: bool
) -> bool:
    """`run_span` by the overlap scheduler: the next step is scheduled when a step begins.

    The host's part is in the cost of a step; here it passes beside the kernels of the step before, if there is one.
    """
    while True:
        ready, now_s = e.line.meter[N_FLIGHT + 1] > 0, clock[NOW_S]
        if not overlap_begin(e, now_s):
            return False
        spend(e, lanes, cost, clock, overlap)
        if ready:
            hidden = hidden_s(clock[NOW_S] - now_s, clock[HOST_S])
            clock[NOW_S] -= hidden
            clock[COMPUTE_S] -= hidden
        overlap_ahead(e, now_s)
        if clock[NOW_S] >= until_s or (watched and overlap_may_finish(e)):
            return True
        clock[TOKENS_MADE] += overlap_end(e, clock[NOW_S])


def steps(
    e: Engine, lanes: Lanes, cost: CostParams, arrival_s: Array, *, overlap: float, host_s: float = 0.0
) -> Iterator[tuple[float, bool]]:
    """One engine alone, step by step, for those who watch: (time, False) before each step is scheduled, (that time, True)
    once it is. Arrivals are those of the engine's own requests; the seconds are those that `Worker` spends.
    """
    now_s, arrived = 0.0, 0
    order = np.argsort(arrival_s, kind="stable")
    rules = iteration(e)
    while True:
        while arrived < len(arrival_s) and arrival_s[order[arrived]] <= now_s:
            r = int(order[arrived])
            e.outcome.sent_s[r] = arrival_s[r]
            arrive(e, r)
            arrived += 1
        ready = rules.ahead is not None and e.line.meter[N_FLIGHT + 1] > 0
        if not ready:
            yield now_s, False
        if rules.begin(e, now_s):
            if not ready:
                yield now_s, True
            copy_s, compute_s = copies_seconds(e.state, lanes), plan_seconds(e, cost)
            spent_s = waiting_s(copy_s, compute_s, overlap) + compute_s
            if rules.ahead is not None:
                yield now_s, False
                rules.ahead(e, now_s)
                yield now_s, True
            now_s += spent_s
            now_s -= hidden_s(spent_s, host_s) if ready else 0.0
            rules.end(e, now_s)
        elif arrived < len(arrival_s):
            now_s = float(arrival_s[order[arrived]])
        else:
            return


def until(env: simpy.Environment, time_s: float) -> Generator[simpy.Event, Any, None]:
    """Wait until exactly `time_s`: a sum of floats may miss it by its last digit, and a second, short hop cannot."""
    while env.now < time_s:
        delay_s = time_s - env.now
        yield env.timeout(delay_s if env.now + delay_s <= time_s else math.nextafter(delay_s, 0.0))


class Worker:
    """One engine, its lanes and its clock."""

    def __init__(
        self,
        env: simpy.Environment,
        engine: Engine,
        lanes: Lanes,
        cost: CostParams,
        *,
        overlap: float,
        skip: bool,
        host_s: float = 0.0,
    ) -> None:
        self.engine = engine
        self.lanes = lanes
        self.clock = np.array([0.0, 0.0, 0.0, 0.0, 0.0, host_s])
        self._span = run_vllm_span if is_vllm(engine) else run_overlap_span if overlaps(engine) else run_span
        self._end = iteration(engine).end
        self._env = env
        self._cost = cost
        self._overlap = overlap
        self._skip = skip
        self._bell = env.event()
        self._asleep = False

    def arrive(self, request: int, arrival_s: float) -> None:
        """A request for this worker."""
        self.engine.outcome.sent_s[request] = arrival_s
        arrive(self.engine, request)
        if self._asleep:
            self._asleep = False
            self.clock[NOW_S] = max(self.clock[NOW_S], arrival_s)
            self._bell.succeed()

    def run(self, source: Source) -> Generator[simpy.Event, Any, None]:
        """The worker's life as a SimPy process; it ends when nothing waits and nothing will arrive."""
        while True:
            until_s = source.quiet_until_s(self) if self._skip else float(self.clock[NOW_S])
            if self._span(self.engine, self.lanes, self._cost, self.clock, until_s, self._overlap, source.listens):
                yield from until(self._env, float(self.clock[NOW_S]))
                self.clock[TOKENS_MADE] += self._end(self.engine, self.clock[NOW_S])
                if source.listens:
                    source.ended(self)
                    yield self._env.timeout(0)  # until every step that ends now has ended
                source.deliver(float(self.clock[NOW_S]))
                continue
            if not is_idle(self.engine):
                raise AssertionError(self._stuck())
            self._bell, self._asleep = self._env.event(), True
            if source.exhausted:
                return
            yield self._bell

    @property
    def quiet_until_s(self) -> float:
        """No request ends here before; infinite while it sleeps."""
        return math.inf if self._asleep else float(self.clock[NOW_S])

    @property
    def done(self) -> Array:
        """Its own numbers of the requests that have ended, in that order."""
        return self.engine.line.done[: self.engine.line.meter[N_DONE]]

    def _stuck(self) -> str:
        meter = self.engine.line.meter
        return (
            f"no step is possible at {self.clock[NOW_S]:.6f} s although requests wait:"
            f" {int(meter[N_ACTIVE])} active, {int(meter[STARVED])} times out of blocks"
        )

    @property
    def pauses(self) -> int:
        """How often a request was paused for want of blocks (MAX_UTILIZATION)."""
        return int(self.engine.line.meter[PAUSES])

    @property
    def steps(self) -> int:
        """Steps begun so far."""
        return int(self.engine.line.meter[STEPS])
