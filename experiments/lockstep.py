"""Lockstep: the simulator's calls, recorded, then made to fresh policy objects and carried out on real memory.

The logical clock is the simulator's in both, so decisions must be the same to the last slot; only the copies' seconds
are compared. A transfer is what one step copies in one direction: the copies of one kind, one after the other on
their stream.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.engines import cost_of, engine_of, lanes_of, layers_of, overlap_of
from experiments.ready import Ready, whole
from hw.device import Device
from hw.measure import steady
from hw.memory import Layout
from hw.mover import KINDS
from hw.worker import Check, Worker
from kvcache.commands import K_KIND, K_TOKENS, K_WINDOW, Commands, SansIOEngine
from kvcache.engine import Engine
from kvcache.tables import INTRA_COPY, N_COPIES, ONBOARD, Array
from sim.lanes import LANE_ONBOARD, LANES, START_S, TOKEN_S, WHOLE_S, Lanes, copies_seconds
from sim.worker import plan_seconds, waiting_s

Progress = Callable[[int, int], None]


class Call(NamedTuple):
    """One iteration as the simulator saw it."""

    arrived: int  # requests told of before it, in all
    now_s: float
    commands: Commands
    decisions: str  # digest of all commands so far
    finish_s: float
    copies_s: float  # predicted, start of the first to end of the last
    kind_s: tuple[float, ...]  # predicted work by kind of copy


@dataclass(frozen=True)
class Recording:
    """All calls of one run, and the engine as it was at the end."""

    calls: list[Call]
    engine: Engine
    copies: int


def record(work: Ready, limit_steps: int | None = None) -> Recording:
    """Simulate the workload on one worker and write down every call."""
    part = whole(work)
    e = engine_of(work, part)
    engine, lanes, cost = SansIOEngine(e), lanes_of(work, e.state), cost_of(work)
    arrival_s, now_s, arrived = part.requests.arrival_s, 0.0, 0
    calls: list[Call] = []
    overlap = overlap_of(work.spec, layers_of(work))
    while limit_steps is None or len(calls) < limit_steps:
        while arrived < len(arrival_s) and arrival_s[arrived] <= now_s:
            engine.arrive(arrived)
            arrived += 1
        commands = engine.next_commands(now_s)
        kind_s, copies_s = _predicted(e, lanes, commands.copies)
        compute_s = plan_seconds(e, cost) if commands.step is not None else 0.0
        finish_s = now_s + waiting_s(copies_s, compute_s, overlap) + compute_s
        calls.append(Call(arrived, now_s, commands, engine.decisions, finish_s, copies_s, kind_s))
        if commands.step is not None:
            engine.finish(commands.step, finish_s)
            now_s = finish_s
        elif arrived < len(arrival_s):
            now_s = float(arrival_s[arrived])
        else:
            break
    return Recording(calls, e, sum(len(call.commands.copies) for call in calls))


def _predicted(e: Engine, lanes: Lanes, copies: Array) -> tuple[tuple[float, ...], float]:
    """Seconds of the step's copies by kind and in all, as the simulator spends them."""
    e.state.tally[N_COPIES] = len(copies)  # they still stand in the list
    before = lanes.work_s.copy()
    span = float(copies_seconds(e.state, lanes))
    by_lane = lanes.work_s - before
    inside = copies[copies[:, K_KIND] == INTRA_COPY]
    cost = lanes.cost[INTRA_COPY][inside[:, K_WINDOW]] if len(inside) else np.zeros((0, 3))
    tokens = inside[:, K_TOKENS]
    inside_s = float(np.where(tokens == 0, cost[:, WHOLE_S], cost[:, START_S] + tokens * cost[:, TOKEN_S]).sum())
    kinds = [float(by_lane[kind]) for kind in range(LANES)]
    kinds[ONBOARD] = max(0.0, float(by_lane[LANE_ONBOARD]) - inside_s)
    return (*kinds, inside_s), span


@dataclass(frozen=True)
class Difference:
    """The first call whose commands differ."""

    step: int
    expected: Call
    got: Commands

    def lines(self) -> list[str]:
        """What the simulator's engine said and what this one says."""
        mine, theirs = self.expected.commands, self.got
        same = min(len(mine.copies), len(theirs.copies))
        at = next((i for i in range(same) if not np.array_equal(mine.copies[i], theirs.copies[i])), same)

        def say(c: Commands) -> str:
            return _row(c.copies[at]) if at < len(c.copies) else f"{len(c.copies)} copies, {c.step}"

        return [
            f"call {self.step} at {self.expected.now_s:.6f} s differs, first in copy {at}:",
            f"  simulator  {say(mine)}",
            f"  hardware   {say(theirs)}",
        ]


def _row(copy: Array) -> str:
    kind, window, source, target, tokens, key = (int(x) for x in copy)
    return f"{KINDS[kind]}, window {window}, slot {source} to {target}, {tokens or 'all'} tokens, key {key}"


@dataclass
class Replayed:
    """One pass over real memory."""

    seconds: list[float] = field(default_factory=list)  # by transfer: spent on its copies
    steady_s: list[float] = field(default_factory=list)  # by transfer: without what held single copies up
    clock_s: float = 0.0  # all copies, from start to end of each on the clock
    span_s: float = 0.0  # all steps, from the start of a step's first copy to the end of its last
    moves: int = 0
    checks: int = 0
    hits_checked: int = 0
    decisions: str = ""
    difference: Difference | None = None


def _by_kind(copies: Array) -> Iterator[NDArray[np.int64]]:
    """The transfers of one step: numbers of the copies of each kind there is."""
    for kind in np.unique(copies[:, K_KIND]):
        yield np.flatnonzero(copies[:, K_KIND] == kind)


def _sizes(layout: Layout, copies: Array) -> NDArray[np.int64]:
    """Bytes of each copy; a copy is of few kinds, so each kind is asked for once."""
    kinds, which = np.unique(copies[:, [K_WINDOW, K_TOKENS]], axis=0, return_inverse=True)
    each = np.array([layout.copy_bytes(window, tokens) for window, tokens in kinds.tolist()], np.int64)
    sizes: NDArray[np.int64] = each[which.ravel()]
    return sizes


def transfers(recording: Recording, layout: Layout) -> dict[str, NDArray[Any]]:
    """Columns of all transfers: step, kind, blocks, bytes, predicted seconds."""
    rows = []
    for step, call in enumerate(recording.calls):
        copies = call.commands.copies
        for mine in _by_kind(copies):
            kind = int(copies[mine[0], K_KIND])
            moved = int(_sizes(layout, copies[mine]).sum())
            rows.append((step, kind, len(mine), moved, call.kind_s[kind]))
    step_, kind_, blocks, size, seconds = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    return {
        "step": np.array(step_, np.int64),
        "kind": np.array(kind_, np.int64),
        "blocks": np.array(blocks, np.int64),
        "bytes": np.array(size, np.int64),
        "predicted_s": np.array(seconds, np.float64),
    }


def replay(
    work: Ready,
    recording: Recording,
    device: Device,
    *,
    check: Check = "end",
    progress: Progress | None = None,
    engine: SansIOEngine | None = None,
) -> Replayed:
    """Make the recorded calls to a fresh engine (`engine`, or one of `work`'s) and carry its commands out; stops at the
    first difference.
    """
    engine = engine or SansIOEngine(engine_of(work, whole(work)))
    worker, result, layout = Worker(engine, device, check=check), Replayed(), device.layout
    for step, (call, arrivals) in enumerate(_with_arrivals(recording)):
        for request in arrivals:
            engine.arrive(request)
        commands = engine.next_commands(call.now_s)
        if engine.decisions != call.decisions:
            result.difference = Difference(step, call, commands)
            break
        times = worker.copies(commands)
        for mine in _by_kind(commands.copies):
            size = _sizes(layout, commands.copies[mine])
            result.seconds.append(float(times.spent_s[mine].sum()))
            result.steady_s.append(steady(times.spent_s[mine], size))
        result.clock_s += float(times.clock_s.sum())
        result.span_s += times.span_s
        worker.kernels()
        if commands.step is not None:
            engine.finish(commands.step, call.finish_s)
        if progress is not None and step % 64 == 0:
            progress(step, len(recording.calls))
    device.verify()
    result.moves, result.checks, result.hits_checked = worker.moves, worker.checks, worker.hits_checked
    result.decisions = engine.decisions
    return result


def _with_arrivals(recording: Recording) -> Iterator[tuple[Call, range]]:
    before = 0
    for call in recording.calls:
        yield call, range(before, call.arrived)
        before = call.arrived
