"""Runs one worker's share slowly, stopping before and after everything that changes its cache, for those who watch.

The loops are those of `experiments.run`; the figures are the same (a test compares them).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from experiments.engines import cost_of, engine_of, host_of, lanes_of, layers_of, overlap_of
from experiments.ready import Part, Ready
from experiments.run import sent_s
from kvcache.engine import Engine
from kvcache.line import N_ACTIVE, N_STARTED, REQUEST
from kvcache.load import Load, longest_blocks, prepare
from kvcache.sequences import make_matches, make_sequences
from kvcache.serve import replay_serial
from kvcache.tables import State
from sim.lanes import Lanes
from sim.worker import steps


@dataclass(frozen=True)
class Moment:
    """The cache just before (`after` False) or just after some requests were looked up and given blocks.

    `started` are the numbers (within the part) of the requests that started; `running` of all that took blocks. The engine
    and its lanes are there when time is spent.
    """

    state: State
    load: Load
    now_s: float
    after: bool
    started: tuple[int, ...] = ()
    running: tuple[int, ...] = ()
    engine: Engine | None = None
    lanes: Lanes | None = None


def moments(work: Ready, part: Part, *, timing: bool, events: bool = False) -> Iterator[Moment]:
    """Every moment of the worker's life; without timing, of serving one request after the other."""
    return _timed(work, part, events) if timing else _serial(work, part, events)


def _serial(work: Ready, part: Part, events: bool) -> Iterator[Moment]:
    settings = work.plan.settings._replace(record_events=events)
    state, load = prepare(part.requests, part.retention, work.plan.pools, settings)
    positions = longest_blocks(part.requests, settings.tokens_per_block)
    q, m = make_sequences(len(work.plan.pools), 1, positions), make_matches(1, positions)
    scratch, reused = np.zeros((3, 1), np.int64), np.zeros(len(part.rows), np.int64)
    arrival_us = np.asarray(part.requests.arrival_s * 1e6).astype(np.int64)
    for r, now_s in enumerate(part.requests.arrival_s):
        yield Moment(state, load, float(now_s), False)
        replay_serial(state, q, m, load, scratch, arrival_us, r, r + 1, reused)
        yield Moment(state, load, float(now_s), True, (r,), (r,))


def _timed(work: Ready, part: Part, events: bool) -> Iterator[Moment]:
    e = engine_of(work, part, events=events)
    lanes, overlap = lanes_of(work, e.state), overlap_of(work.spec, layers_of(work))
    sent, host_s = sent_s(work)[part.rows], host_of(work)
    for now_s, after in steps(e, lanes, cost_of(work), sent, overlap=overlap, host_s=host_s):
        started, running = _who(e) if after else ((), ())
        yield Moment(e.state, e.load, now_s, after, started, running, e, lanes)


def _who(e: Engine) -> tuple[tuple[int, ...], tuple[int, ...]]:
    line = e.line
    rows = line.active[: line.meter[N_ACTIVE]]
    running = tuple(int(r) for r in line.rows[rows, REQUEST])
    return running[len(running) - int(line.meter[N_STARTED]) :], running
