"""One run: a spec and a workload in, one row of figures out.

It owns no rule and no clock of its own: `experiments.ready` checks and prepares, `kvcache` decides, `sim` spends the time.
Without timing it is `experiments.untimed`.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from experiments.disagg import disaggregated, of_generation, split_of
from experiments.engines import cost_model_of, cost_of, engine_of, host_of, lanes_of, layers_of, overlap_of
from experiments.outcome import Served, fold
from experiments.pieces import Pieces
from experiments.prepared import Prepare, shared_tables
from experiments.progress import Report
from experiments.ready import Ready, on_a_fleet, part_of, ready, turns_of, worker_of
from experiments.routed import evenness_of, routed
from experiments.spec import Spec
from experiments.untimed import decided
from kvcache.request import Float64, Requests
from sim.cluster import simulate
from sim.worker import BEYOND_STEPS, Worker


def run(
    spec: Spec,
    requests: Requests,
    *,
    timing: bool = True,
    progress: Report | None = None,
    skip: bool = True,
) -> dict[str, Any]:
    """Serve `requests` under `spec` and return one row (plain JSON). `skip` False spends every step by itself."""
    begun = time.perf_counter()
    if timing and on_a_fleet(spec):
        return run_pieces(spec, [requests], progress=progress, total=len(requests), skip=skip)
    work = ready(spec, requests, timing=timing)
    with shared_tables() as prepare:
        if not timing:
            return decided([work], len(requests), progress, begun, prepare=prepare)
        served = _timed(work, prepare, progress, skip=skip)
    row = fold(spec, work.requests, work.plan, served, wall_s=time.perf_counter() - begun)
    figures = evenness_of(work, served) if len(served) > 1 else {}
    figures |= paces(row, gpus_of(spec))
    return {**row, **figures, "notes": [*work.notes, *_cost_notes(work, served)]}


def run_pieces(
    spec: Spec,
    pieces: Iterable[Requests],
    *,
    progress: Report | None = None,
    total: int | None = None,
    skip: bool = True,
) -> dict[str, Any]:
    """The row of `run`, timed, for a cluster whose workload comes in pieces (`experiments.ready.on_a_fleet`).

    The rules must not need the whole trace (`experiments.ready.needs_whole_trace`).
    """
    begun = time.perf_counter()
    fed = Pieces(of_generation(spec), pieces)
    serve = disaggregated if spec.cluster.disaggregated else routed
    served, figures, said = serve(fed, None if progress is None else lambda done: progress(done, total), skip=skip)
    row = fold(spec, fed.lengths(), fed.first.plan, served, wall_s=time.perf_counter() - begun)
    figures |= paces(row, gpus_of(spec, figures.get("mean_workers", {})))
    return {**row, **figures, "notes": [*said, *fed.last.notes, *_cost_notes(fed.last, served)]}


def gpus_of(spec: Spec, mean_workers: Mapping[str, float] = {}) -> float:
    """GPUs of the run; where a pool grew and shrank, of its mean."""
    cluster = spec.cluster
    if cluster.disaggregated:
        sides = {"context": cluster.context, "generation": cluster.generation}
        return sum(mean_workers.get(name, side.workers) * split_of(side).gpus for name, side in sides.items())
    split = spec.parallel
    workers = mean_workers.get("aggregated", spec.workload.workers)
    return workers * split.tensor_parallel_size * split.pipeline_parallel_size


def paces(row: dict[str, Any], gpus: float) -> dict[str, Any]:
    """What each GPU gives and what each user gets."""
    tpot, good = row["tpot_s"], row.get("goodput_requests_per_s")
    return {
        "gpus": gpus,
        "output_tokens_per_s_per_gpu": row["output_tokens_per_s"] / gpus,
        "tokens_per_s_per_user": 1 / tpot["mean"] if tpot and tpot["mean"] > 0 else None,
        **({} if good is None else {"goodput_requests_per_s_per_gpu": good / gpus}),
    }


def sent_s(work: Ready) -> Float64:
    """When each request comes to its worker: its arrival, or what follows from the ends of others."""
    sent = work.requests.arrival_s.copy()
    if work.spec.workload.takes_turns:
        with shared_tables() as prepare:
            for part in _timed(work, prepare, None, skip=True):
                sent[part.rows] = part.outcome.sent_s
    return sent


def _cost_notes(work: Ready, served: list[Served]) -> list[str]:
    """Where the seconds of steps come from, and how many of them are nobody's measurement."""
    workers = [part.worker for part in served if part.worker is not None]
    beyond, steps = (
        int(sum(figures)) for figures in ((w.clock[BEYOND_STEPS] for w in workers), (w.steps for w in workers))
    )
    notes = list(cost_model_of(work).notes)
    if beyond:
        notes.append(
            f"cost_model {work.spec.cost_model}: {beyond:,} of {steps:,} steps lie outside what was measured; they take the"
            " nearest measurement's rate"
        )
    return notes


def _timed(work: Ready, prepare: Prepare, progress: Report | None, *, skip: bool) -> list[Served]:
    workers, cost = worker_of(work), cost_of(work)
    parts = [part_of(work, workers, w) for w in range(work.spec.workload.workers)]

    def start(env: Any) -> list[Worker]:
        engines = [engine_of(work, part, prepare=prepare) for part in parts]
        overlap = overlap_of(work.spec, layers_of(work))
        host_s = host_of(work)
        return [
            Worker(env, e, lanes_of(work, e.state), cost, overlap=overlap, skip=skip, host_s=host_s) for e in engines
        ]

    made = simulate(start, work.requests.arrival_s, workers, progress, turns_of(work))
    return [
        Served(part.rows, worker.engine.state, worker.engine.outcome, worker)
        for part, worker in zip(parts, made, strict=True)
    ]
