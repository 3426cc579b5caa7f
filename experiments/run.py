"""One run: a spec and a workload in, one row of figures out.

It owns no rule and no clock of its own: `experiments.ready` checks and prepares, `kvcache` decides, `sim` spends the time.
Without timing it is `experiments.untimed`.
"""

import time
from typing import Any

from experiments.disagg import disaggregated, of_generation
from experiments.engines import cost_model_of, cost_of, engine_of, host_of, lanes_of, layers_of, overlap_of
from experiments.outcome import Served, fold
from experiments.prepared import Prepare, shared_tables
from experiments.progress import Report
from experiments.ready import Ready, part_of, ready, turns_of, worker_of
from experiments.routed import STATIC, evenness_of, routed
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
    work = ready(of_generation(spec), requests, timing=timing)
    figures: dict[str, Any] = {}
    said: list[str] = []
    with shared_tables() as prepare:
        if not timing:
            return decided([work], len(requests), progress, begun, prepare=prepare)
        if spec.cluster.disaggregated:
            served, figures, said = disaggregated(work, progress, skip=skip)
        elif spec.workload.router in STATIC:
            served = _timed(work, prepare, progress, skip=skip)
            figures = evenness_of(work, served) if len(served) > 1 else {}
        else:
            served, figures, said = routed(work, progress, skip=skip)
    row = fold(spec, work.requests, work.plan, served, wall_s=time.perf_counter() - begun)
    figures |= paces(spec, row, int(figures.get("gpus", 0)))
    return {**row, **figures, "notes": [*said, *work.notes, *_cost_notes(work, served)]}


def paces(spec: Spec, row: dict[str, Any], gpus: int) -> dict[str, Any]:
    """What each GPU gives and what each user gets; `gpus` 0: every worker does everything."""
    split = spec.parallel
    gpus = gpus or spec.workload.workers * split.tensor_parallel_size * split.pipeline_parallel_size
    tpot = row["tpot_s"]
    return {
        "gpus": gpus,
        "output_tokens_per_s_per_gpu": row["output_tokens_per_s"] / gpus,
        "tokens_per_s_per_user": 1 / tpot["mean"] if tpot and tpot["mean"] > 0 else None,
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
