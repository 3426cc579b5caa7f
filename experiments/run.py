"""One run: a spec and a workload in, one row of figures out.

It owns no rule and no clock of its own: pools come from `experiments.pools`, priorities from `experiments.retention`,
decisions from `kvcache`, seconds from `sim`. Without timing the workload is served one request at a time in file order
with service time zero, the cache-only view.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.outcome import Served, fold
from experiments.pools import Plan, plan
from experiments.retention import columns
from experiments.spec import Spec
from kvcache.engine import Limits, make_engine, make_outcome
from kvcache.load import longest_blocks, prepare
from kvcache.request import Int64, Requests
from kvcache.retention import RetentionColumns
from kvcache.sequences import make_matches, make_sequences
from kvcache.serve import replay_serial
from kvcache.tables import DISK_READ, DISK_WRITE, INTRA_COPY, OFFLOAD, ONBOARD, State
from sim.cluster import assign, simulate
from sim.cost import RooflineCost
from sim.lanes import LANES, START_S, TOKEN_S, WHOLE_S, make_lanes
from sim.transfer import copy_seconds, link_params
from sim.worker import Worker

Progress = Callable[[int, int], None]


def run(
    spec: Spec,
    requests: Requests,
    *,
    timing: bool = True,
    progress: Progress | None = None,
    skip: bool = True,
) -> dict[str, Any]:
    """Serve `requests` under `spec` and return one row (plain JSON). `skip` False spends every step by itself."""
    begun = time.perf_counter()
    requests, notes = fitted(spec, _scheduled(spec, requests))
    the_plan = plan(spec, _longest(requests))
    requests, more = _servable(spec, requests, the_plan)
    retention = columns(requests, spec.retention)
    if timing:
        _check(spec, the_plan)
        served = _timed(spec, requests, retention, the_plan, progress, skip=skip)
    else:
        served = _serial(requests, retention, the_plan, progress)
    row = fold(spec, requests, the_plan, served, wall_s=time.perf_counter() - begun)
    notes = [*notes, *more, *the_plan.notes]
    if requests.unit_tokens > 1 and spec.kv_cache_config.tokens_per_block < requests.unit_tokens:
        notes.append(
            f"lower bound: sharing inside a trace block of {requests.unit_tokens} tokens is unknown"
            f" (tokens_per_block {spec.kv_cache_config.tokens_per_block} is finer)"
        )
    row["notes"] = notes
    return row


def _scheduled(spec: Spec, requests: Requests) -> Requests:
    """Arrivals as the workload section wants them."""
    arrival = requests.arrival_s
    if spec.workload.spread_arrivals:
        arrival = _spread(arrival)
    return replace(requests, arrival_s=np.ascontiguousarray(arrival / spec.workload.rate_scale))


def _spread(arrival: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Requests of one instant evenly up to the next instant; the last instant's as densely as the one before it."""
    instants, first, count = np.unique(arrival, return_index=True, return_counts=True)
    if len(instants) < 2:
        return arrival
    gap = np.append(np.diff(instants), instants[-1] - instants[-2])
    place = np.arange(len(arrival)) - np.repeat(first, count)
    return np.asarray(arrival + place * np.repeat(gap / count, count))


def _longest(requests: Requests) -> int:
    return int((requests.prompt_tokens.astype(np.int64) + requests.output_tokens).max(initial=1))


def fitted(spec: Spec, requests: Requests) -> tuple[Requests, list[str]]:
    """The requests no longer than scheduler.max_seq_len, by the `too_long` policy."""
    limit = spec.scheduler.max_seq_len
    if limit is None:
        return requests, []
    return _limited(spec, requests, limit, f"scheduler.max_seq_len={limit}")


def _servable(spec: Spec, requests: Requests, the_plan: Plan) -> tuple[Requests, list[str]]:
    """The requests that the GPU pool can hold from first to last token, by the `too_long` policy."""
    tpb = spec.kv_cache_config.tokens_per_block
    full = [pool for pool in the_plan.pools if not pool.sliding]
    blocks = min((pool.blocks[0] for pool in full), default=the_plan.pools[0].blocks[0])
    for pool in the_plan.pools:
        if pool.sliding and pool.blocks[0] * tpb < pool.window_tokens + 2 * tpb:
            raise ValueError(
                f"the pool of the {pool.window_tokens}-token window holds {pool.blocks[0]} blocks of {tpb} tokens;"
                " one sequence needs more: raise capacity.gpu_tokens"
            )
    return _limited(spec, requests, blocks * tpb, f"the GPU pool of {blocks} blocks of {tpb} tokens")


def _limited(spec: Spec, requests: Requests, limit: int, what: str) -> tuple[Requests, list[str]]:
    total = requests.prompt_tokens.astype(np.int64) + requests.output_tokens
    over = np.flatnonzero(total > limit)
    if len(over) == 0:
        return requests, []
    if spec.too_long == "error":
        i = int(over[0])
        raise ValueError(
            f"request {i} needs {int(requests.prompt_tokens[i])} prompt + {int(requests.output_tokens[i])} output tokens,"
            f" more than {what} can hold ({limit} tokens; {len(over)} of {len(requests)} requests are too long):"
            " raise capacity.gpu_tokens or set too_long=drop or too_long=truncate"
        )
    if spec.too_long == "drop":
        kept = np.flatnonzero(total <= limit).astype(np.int64)
        if len(kept) == 0:
            raise ValueError(f"every request is longer than {what} can hold ({limit} tokens)")
        return requests.take(kept), [f"dropped {len(over)} requests longer than {what} (too_long=drop)"]
    output = np.minimum(requests.output_tokens, limit - 1).astype(np.int32)
    prompt = np.minimum(requests.prompt_tokens, limit - output).astype(np.int32)
    cut = replace(requests, prompt_tokens=prompt, output_tokens=output, output_offset=None, output_units=None)
    return cut, [f"truncated {len(over)} requests longer than {what} (too_long=truncate)"]


def _check(spec: Spec, the_plan: Plan) -> None:
    policy = spec.scheduler.capacity_scheduler_policy
    if policy != "GUARANTEED_NO_EVICT":
        raise ValueError(f"scheduler.capacity_scheduler_policy is {policy}; timed runs know GUARANTEED_NO_EVICT only")
    tpb, tokens = the_plan.settings.tokens_per_block, spec.scheduler.max_num_tokens
    if tokens < spec.scheduler.max_batch_size + tpb:
        raise ValueError(
            f"scheduler.max_num_tokens is {tokens}; it must be at least max_batch_size + tokens_per_block"
            f" ({spec.scheduler.max_batch_size} + {tpb}), or prefill could starve"
        )


def _serial(requests: Requests, retention: RetentionColumns, the_plan: Plan, progress: Progress | None) -> list[Served]:
    settings = the_plan.settings
    state, load = prepare(requests, retention, the_plan.pools, settings)
    positions, n = longest_blocks(requests, settings.tokens_per_block), len(requests)
    q, m = make_sequences(len(the_plan.pools), 1, positions), make_matches(1, positions)
    outcome, scratch = make_outcome(n), np.zeros((3, 1), np.int64)
    arrival_us = np.asarray(requests.arrival_s * 1e6).astype(np.int64)
    step = n if progress is None else max(1, n // 50)
    for first in range(0, n, step):
        last = min(n, first + step)
        done = int(replay_serial(state, q, m, load, scratch, arrival_us, first, last, outcome.reused))
        if done < last:
            raise ValueError(f"request {done} does not fit in the GPU pool of {the_plan.pools[0].blocks[0]} blocks")
        if progress is not None:
            progress(last, n)
    return [Served(np.arange(n, dtype=np.int64), state, outcome, None)]


@dataclass(frozen=True)
class _Part:
    """One worker's share of the workload."""

    rows: Int64
    requests: Requests
    retention: RetentionColumns


def _timed(
    spec: Spec,
    requests: Requests,
    retention: RetentionColumns,
    the_plan: Plan,
    progress: Progress | None,
    *,
    skip: bool,
) -> list[Served]:
    n, workers = len(requests), spec.workload.workers
    rng = np.random.default_rng(spec.workload.seed)
    worker_of = assign(spec.workload.router, n, workers, requests.session, rng)
    parts = []
    for w in range(workers):
        rows = np.flatnonzero(worker_of == w).astype(np.int64)
        parts.append(_Part(rows, requests.take(rows), retention.take(rows)))
    cost = RooflineCost(
        the_plan.model,
        the_plan.hardware,
        the_plan.weight_dtype,
        the_plan.cache_dtype,
        spec.parallel.tensor_parallel_size,
    ).params
    made = simulate(
        lambda env: [_worker(env, spec, part, the_plan, cost, skip=skip) for part in parts],
        requests.arrival_s,
        worker_of,
        progress,
    )
    return [
        Served(part.rows, worker.engine.state, worker.engine.outcome, worker)
        for part, worker in zip(parts, made, strict=True)
    ]


def _worker(env: Any, spec: Spec, part: _Part, the_plan: Plan, cost: Any, *, skip: bool) -> Worker:
    settings = the_plan.settings._replace(record_copies=True)
    state, load = prepare(part.requests, part.retention, the_plan.pools, settings)
    scheduler = spec.scheduler
    limits = Limits(scheduler.max_batch_size, scheduler.max_num_tokens, scheduler.enable_chunked_prefill)
    positions = longest_blocks(part.requests, settings.tokens_per_block)
    engine = make_engine(state, load, make_outcome(len(part.requests)), limits, positions)
    host = the_plan.hardware.link("host")
    lanes = make_lanes(state, copy_costs(the_plan, state), link_params(host.d2h), link_params(host.h2d))
    return Worker(env, engine, lanes, cost, overlap=spec.overlap == "full", skip=skip)


def copy_costs(the_plan: Plan, state: State) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Seconds of one block's copy by kind and window, as `sim.lanes.Lanes.cost` wants them."""
    host, gds = the_plan.hardware.link("host"), the_plan.hardware.link("gds")
    directions = {OFFLOAD: host.d2h, ONBOARD: host.h2d, DISK_WRITE: gds.d2h, DISK_READ: gds.h2d}
    cost = np.zeros((LANES + 1, len(state.window), 3))
    for w, sizes in enumerate(the_plan.copy_bytes):
        for kind, direction in directions.items():
            cost[kind, w, WHOLE_S] = sum(copy_seconds(direction, 1, size) for size in sizes)
        # a partial copy moves only its tokens; from the host they pass the link, inside the GPU they are read and written
        per_token = sum(sizes) / the_plan.settings.tokens_per_block
        cost[ONBOARD, w, START_S] = len(sizes) * host.h2d.latency_s
        cost[ONBOARD, w, TOKEN_S] = per_token / host.h2d.bandwidth_bytes_per_s
        hbm = the_plan.hardware.hbm_bytes_per_s * the_plan.hardware.hbm_efficiency
        cost[INTRA_COPY, w, WHOLE_S] = the_plan.hardware.kernel_latency_s * len(sizes) + 2 * sum(sizes) / hbm
        cost[INTRA_COPY, w, START_S] = the_plan.hardware.kernel_latency_s * len(sizes)
        cost[INTRA_COPY, w, TOKEN_S] = 2 * per_token / hbm
    return cost
