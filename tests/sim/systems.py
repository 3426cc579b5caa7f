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
from sim.cost import COUNT, FIXED_S, LINEAR_S_PER_TOKEN
from sim.lanes import WHOLE_S, make_lanes
from sim.transfer import LinkDirection, link_params
from sim.worker import Worker

WIDE = 1 << 20


def step_cost(fixed_s: float = 1.0, token_s: float = 0.0) -> NDArray[np.float64]:
    """A step takes `fixed_s` and `token_s` for each token it computes, and nothing else."""
    params = np.zeros(COUNT)
    params[FIXED_S], params[LINEAR_S_PER_TOKEN] = fixed_s, token_s
    return params


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
    overlap: bool = False,
    skip: bool = True,
) -> Worker:
    n = len(requests)
    state, load = prepare(requests, RetentionColumns.none(n), (pool,), settings._replace(record_copies=True))
    positions = longest_blocks(requests, settings.tokens_per_block)
    engine = make_engine(state, load, make_outcome(n), limits, positions)
    copies = np.zeros((5, 1, 3))
    copies[OFFLOAD, 0, WHOLE_S], copies[ONBOARD, 0, WHOLE_S] = offload_s, onboard_s
    link = link_params(LinkDirection(0.0, 1e9))
    return Worker(
        env, engine, make_lanes(state, copies, link, link, [1.0] * len(state.window)), cost, overlap=overlap, skip=skip
    )


def simulated(requests: Requests, pool: Pool, cost: NDArray[np.float64], **more: object) -> Worker:
    """One worker after it has served all requests."""
    alone = np.zeros(len(requests), np.int32)
    [worker] = simulate(
        lambda env: [worker_of(env, requests, pool, cost, **more)],  # type: ignore[arg-type]
        requests.arrival_s,
        alone,
    )
    return worker
