"""Simulated systems whose step times can be worked out on paper."""

from collections.abc import Sequence

import numpy as np
import simpy
from numpy.typing import NDArray

from kvcache.engine import Limits, make_engine, make_outcome
from kvcache.load import longest_blocks, prepare
from kvcache.request import Requests
from kvcache.retention import RetentionColumns
from kvcache.tables import OFFLOAD, ONBOARD, Pool, Settings
from sim.cluster import simulate
from sim.cost import DENSE, FIXED_S, assembled
from sim.lanes import WHOLE_S, make_lanes
from sim.surface import surface
from sim.transfer import LinkDirection, link_params
from sim.turns import Turns
from sim.worker import Worker

WIDE = 1 << 20


def step_cost(fixed_s: float = 1.0, token_s: float = 0.0) -> NDArray[np.float64]:
    """A step takes `fixed_s` and `token_s` for each token it computes, and nothing else."""
    each = surface((1.0,), (1.0,), np.array([max(token_s, 1e-300)]))
    return assembled({FIXED_S: fixed_s}, {DENSE: each})


def requests_of(
    arrival_s: Sequence[float] | NDArray[np.float64],
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[int] | NDArray[np.int32],
) -> Requests:
    return Requests(
        "test",
        1,
        np.array(arrival_s, np.float64),
        np.array([len(p) for p in prompts], np.int32),
        np.array(outputs, np.int32),
        np.cumsum([0, *(len(p) for p in prompts)]).astype(np.int64),
        np.array([token for p in prompts for token in p], np.int32),
    )


def worker_of(
    env: simpy.Environment,
    requests: Requests,
    pool: Pool,
    cost: NDArray[np.float64],
    *,
    settings: Settings = Settings(tokens_per_block=4),
    limits: Limits = Limits(),
    offload_s: float = 0.0,
    onboard_s: float = 0.0,
    overlap: float = 0.0,
    skip: bool = True,
    host_s: float = 0.0,
) -> Worker:
    n = len(requests)
    state, load = prepare(requests, RetentionColumns.none(n), (pool,), settings._replace(record_copies=True))
    positions = longest_blocks(requests, settings.tokens_per_block)
    engine = make_engine(state, load, make_outcome(n), limits, positions)
    copies = np.zeros((5, 1, 3))
    copies[OFFLOAD, 0, WHOLE_S], copies[ONBOARD, 0, WHOLE_S] = offload_s, onboard_s
    link = link_params(LinkDirection(0.0, 1e9))
    return Worker(
        env,
        engine,
        make_lanes(state, copies, link, link, [1.0] * len(state.window)),
        cost,
        overlap=overlap,
        skip=skip,
        host_s=host_s,
    )


def simulated(
    requests: Requests, pool: Pool, cost: NDArray[np.float64], turns: Turns | None = None, **more: object
) -> Worker:
    """One worker after it has served all requests."""
    [worker] = served_by(np.zeros(len(requests), np.int32), requests, pool, cost, turns, **more)
    return worker


def served_by(
    workers: NDArray[np.int32],
    requests: Requests,
    pool: Pool,
    cost: NDArray[np.float64],
    turns: Turns | None = None,
    **more: object,
) -> list[Worker]:
    """The workers 0, 1, ... after request i was served by workers[i]."""
    parts = [requests.take(np.flatnonzero(workers == w)) for w in range(int(workers.max(initial=0)) + 1)]
    return simulate(
        lambda env: [worker_of(env, part, pool, cost, **more) for part in parts],  # type: ignore[arg-type]
        requests.arrival_s,
        workers,
        turns=turns,
    )


def times(workers: NDArray[np.int32], made: list[Worker], name: str) -> NDArray[np.float64]:
    """One column of the outcome of all requests: `sent_s`, `finish_s`, ..."""
    column = np.empty(len(workers))
    for w, worker in enumerate(made):
        column[workers == w] = getattr(worker.engine.outcome, name)
    return column
