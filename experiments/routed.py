"""Runs a workload on a cluster whose router sees the workers: from a spec to `sim.routing` and back to what a row is made of.

It owns no rule. Workers' tables begin small and follow what they hold; the workload comes piece by piece.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from experiments.cluster_extras import Group, pool_figures, pools_of, store_figures, store_of
from experiments.engines import cost_of, lanes_of, layers_of, limits_of, overlap_of
from experiments.outcome import Lengths, Served
from experiments.pieces import Pieces
from experiments.ready import Ready
from experiments.spec import Spec
from kvcache.engine import make_engine, make_outcome
from kvcache.line import PAUSES, STEPS, Outcome
from kvcache.load import longest_blocks, prepare
from kvcache.request import Int64, Requests
from kvcache.retention import RetentionColumns
from kvcache.routers import Router, Weights, make_router
from kvcache.tables import Array
from sim.dispatch import EventPath
from sim.feed import Feed, Records
from sim.fleet import Fleet
from sim.fleet_room import Start, engine_of, make_fleet
from sim.routing import Cluster

Progress = Callable[[int], None]
"""Called with how many requests have been routed."""


@dataclass(frozen=True)
class FleetWorker:
    """What one worker of a fleet has spent."""

    clock: NDArray[np.float64]
    steps: int
    pauses: int


def starts_of(work: Ready, workers: int, *, events: bool, tell_all: bool = False) -> list[Start]:
    """Idle workers as the spec wants them, with small tables of content."""
    nobody, requests = work.requests.take(np.empty(0, np.int64)), work.requests
    settings = work.plan.settings._replace(record_copies=True, record_events=events, tell_all=tell_all)
    positions = longest_blocks(requests, settings.tokens_per_block)
    cost = cost_of(work)
    starts = []
    for _ in range(workers):
        state, load = prepare(nobody, RetentionColumns.none(0), work.plan.pools, settings)
        engine = make_engine(state, load, make_outcome(0), limits_of(work), positions)
        starts.append(Start(engine, lanes_of(work, state), cost))
    return starts


def cluster_of(work: Ready, env: simpy.Environment, feed: Feed, progress: Progress | None, *, skip: bool) -> Cluster:
    """The cluster that the spec describes, idle."""
    starts = starts_of(work, work.spec.workload.workers, events=told(work.spec))
    return cluster_with(work, starts, env, feed, progress, skip=skip)


def cluster_with(
    work: Ready, starts: list[Start], env: simpy.Environment, feed: Feed, progress: Any, *, skip: bool
) -> Cluster:
    """Workers that start so, behind the routers of the spec."""
    spec = work.spec
    return Cluster(
        env,
        make_fleet(starts, requests=1024, key_room=32768),
        feed,
        routers_of(spec),
        path=event_path(spec),
        report_period_s=spec.router.report_period_s,
        overlap=overlap_of(spec, layers_of(work)),
        skip=skip,
        progress=progress,
    )


def routers_of(spec: Spec) -> list[Router]:
    """The router's replicas, each with its own chance."""
    rng, weights = np.random.default_rng(spec.workload.seed), Weights(**spec.router.weights())
    return [make_router(spec.workload.router, weights, rng.spawn(1)[0]) for _ in range(spec.router.replicas)]


def told(spec: Spec) -> bool:
    """Workers that a router asks tell it what they hold."""
    return routers_of(spec)[0].reads_events and event_path(spec).buffer_events > 0


def _whole_group(work: Ready, cluster: Cluster) -> Group:
    """All workers, as a pool whose open ones take requests."""

    def tell(workers: Int64) -> None:
        cluster.open = workers

    return Group(list(range(work.spec.workload.workers)), lambda: starts_of(work, 1, events=told(work.spec))[0], tell)


def event_path(spec: Spec) -> EventPath:
    """How KV events reach the router."""
    router = spec.router
    return EventPath(
        delay_s=router.event_delay_s,
        poll_s=router.event_poll_s,
        lost_share=router.event_loss,
        buffer_events=spec.kv_cache_config.event_buffer_max_size or router.event_buffer,
        gather_s=router.attention_dp_events_gather_period_s,
        ranks=router.attention_dp_size,
        seed=spec.workload.seed,
    )


def routed(
    pieces: Pieces, progress: Progress | None, *, skip: bool = True
) -> tuple[list[Served], dict[str, Any], list[str]]:
    """Run it: what each worker served, the figures about routing, and what must be said about them."""
    work = pieces.first
    check(work.spec, f"workload.router={work.spec.workload.router}")
    cluster = cluster_of(work, simpy.Environment(), Feed(pieces.batches()), progress, skip=skip)
    store = store_of(work, cluster)
    pools = pools_of(work.spec, cluster, {"aggregated": _whole_group(work, cluster)})
    records = cluster.run()
    served = [served_by(cluster.fleet, records, w) for w in range(len(cluster.fleet.status))]
    lengths = pieces.lengths()
    figures = routing_figures(lengths, cluster, records)
    if store is not None:
        figures["store"] = store_figures(store, lengths)
    figures |= pool_figures(pools, records)
    return served, figures, said(cluster, figures)


def check(spec: Spec, what: str) -> None:
    """Refuse what workers of a fleet do not know."""
    if spec.workload.takes_turns:
        raise ValueError(f"{what} knows arrivals of the trace only: leave concurrency and wait_for_turns out")
    if spec.profile.name == "vllm":
        raise ValueError(f"{what} knows TensorRT-LLM's profiles only, not vllm")
    if not spec.scheduler.disable_overlap_scheduler:
        raise ValueError(f"{what} does not know the overlap scheduler: leave scheduler.disable_overlap_scheduler true")


def served_by(fleet: Fleet, records: Records, w: int) -> Served:
    """One worker's share of the run."""
    rows = np.flatnonzero(records.column("worker") == w).astype(np.int64)
    columns = (records.column(name)[rows] for name in ("reused", "sent_s", "start_s", "first_token_s", "finish_s"))
    meter = fleet.line.meter[w]
    worker = FleetWorker(fleet.clock[w], int(meter[STEPS]), int(meter[PAUSES]))
    return Served(rows, engine_of(fleet, w).state, Outcome(*columns), worker)


def routing_figures(requests: Requests | Lengths, cluster: Cluster, records: Records) -> dict[str, Any]:
    """How the router spread the work, and what became of the events."""
    spread = evenness(requests, records.column("worker"), records.column("reused"), len(cluster.fleet.status))
    return {
        **spread,
        "events": cluster.dispatch.events(cluster.fleet),
        "index_blocks": int(cluster.dispatch.index.blocks.sum()),
        "index_bytes": sum(table.nbytes for table in cluster.dispatch.index),
    }


def evenness(requests: Requests | Lengths, worker_of: Array, reused: Array, workers: int) -> dict[str, Any]:
    """Hit rate and requests of each worker; the busiest one's tokens over the mean's."""
    prompt, hit, output = (
        np.bincount(worker_of, weights=tokens, minlength=workers)
        for tokens in (requests.prompt_tokens, reused, requests.output_tokens)
    )
    made = prompt - hit + output
    return {
        "requests_by_worker": np.bincount(worker_of, minlength=workers).tolist(),
        "hit_rate_by_worker": [float(h / p) if p else 0.0 for h, p in zip(hit, prompt, strict=True)],
        "imbalance": float(made.max() / made.mean()) if made.sum() else 1.0,
    }


def evenness_of(work: Ready, served: list[Served]) -> dict[str, Any]:
    """Likewise of workers that each ran by themselves."""
    worker_of, reused = np.zeros(len(work.requests), np.int64), np.zeros(len(work.requests), np.int64)
    for w, part in enumerate(served):
        worker_of[part.rows], reused[part.rows] = w, part.outcome.reused
    return evenness(work.requests, worker_of, reused, len(served))


def said(cluster: Cluster, figures: dict[str, Any]) -> list[str]:
    """Notes nobody should miss."""
    events = figures["events"]
    if not cluster.dispatch.replicas[0].router.reads_events or events["received"]:
        return []
    return [
        f"WARNING: the router reads KV events and received none: all {events['blind_decisions']} decisions rested on load"
        " alone (raise kv_cache_config.event_buffer_max_size, lower router.event_loss)"
    ]
