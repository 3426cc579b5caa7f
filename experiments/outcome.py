"""Folds what the workers leave behind into one row: counts, bytes, times, causes. The only place where rows are made."""

from dataclasses import astuple, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from experiments.cluster_spec import Slo
from experiments.pools import Plan
from experiments.spec import Spec
from experiments.version import kvtier_version
from kvcache.engine import Outcome
from kvcache.request import Float64, Int32, Int64, Requests
from kvcache.tables import (
    ALLOC_TOTAL,
    CAUSE_0,
    CAUSES,
    DISK_WRITES,
    DROPPED,
    DROPPED_BELOW_THRESHOLD,
    GEN_ALLOC,
    HIT_TOKENS_GPU,
    INTRA_COPIES,
    MISSED,
    OFFLOADED,
    ONBOARDED,
    ONBOARDED_FROM_DISK,
    PARTIAL_FROM_HOST,
    PARTIAL_REUSED,
    REUSED,
    STORED,
    State,
)
from reports.columns import GIB
from sim.worker import COMPUTE_S, COPY_WAIT_S

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class Spent(Protocol):
    """What a worker has spent: its clock as `sim.worker` keeps it, steps begun, requests paused."""

    @property
    def clock(self) -> NDArray[np.float64]: ...

    @property
    def steps(self) -> int: ...

    @property
    def pauses(self) -> int: ...


@dataclass(frozen=True)
class Served:
    """One worker after the run: the row numbers of its requests and its tables; `worker` is None without timing."""

    rows: Int64
    state: State
    outcome: Outcome
    worker: Spent | None


@dataclass(frozen=True)
class Lengths:
    """What a row needs of requests whose content is not kept."""

    prompt_tokens: Int32
    output_tokens: Int32

    def __len__(self) -> int:
        """Requests."""
        return len(self.prompt_tokens)


@dataclass(frozen=True)
class Totals:
    """What a workload, or a piece of one, adds up to."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    tail_tokens: int = 0
    """Pool space that last, part-filled blocks leave empty, summed over requests."""
    hit_tokens: int = 0
    """Prompt tokens that were found computed."""

    @classmethod
    def of(cls, requests: "Requests | Lengths", tokens_per_block: int, hit_tokens: int) -> "Totals":
        """The totals of some requests."""
        prompt, output = (int(t.sum(dtype=np.int64)) for t in (requests.prompt_tokens, requests.output_tokens))
        total = requests.prompt_tokens.astype(np.int64) + requests.output_tokens
        return cls(len(requests), prompt, output, int((-total % tokens_per_block).sum()), hit_tokens)

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def fold(
    spec: Spec, requests: "Requests | Lengths", the_plan: Plan, served: list[Served], *, wall_s: float
) -> dict[str, Any]:
    """The row of a run. Counts by block are those of the first (full-attention) window; bytes are of all windows."""
    hit = int(sum(int(part.outcome.reused.sum()) for part in served))
    totals = Totals.of(requests, spec.kv_cache_config.tokens_per_block, hit)
    timed = [part.worker for part in served if part.worker is not None]
    times = _times(spec.slo, requests, served) if timed else no_times()
    return row_of(spec, the_plan, totals, [part.state for part in served], times, timed, wall_s=wall_s)


def row_of(
    spec: Spec,
    the_plan: Plan,
    totals: Totals,
    states: list[State],
    times: dict[str, Any],
    timed: list[Spent],
    *,
    wall_s: float,
) -> dict[str, Any]:
    """The row of a run from its totals and the workers' tables as they are after it."""
    stats = sum((state.stats for state in states), start=np.zeros_like(states[0].stats))
    first = stats[0]
    looked, reused = int(first[REUSED] + first[MISSED]), int(first[REUSED])
    prompt, hit = totals.prompt_tokens, totals.hit_tokens
    tiers = {name: int(first[HIT_TOKENS_GPU + i]) for i, name in enumerate(("gpu", "host", "disk"))}
    row: dict[str, Any] = {
        "requests": totals.requests,
        "prompt_tokens": prompt,
        "output_tokens": totals.output_tokens,
        "lookup_blocks": looked,
        "reused_blocks": reused,
        "partial_reused_blocks": int(first[PARTIAL_REUSED]),
        "hit_rate_blocks": reused / looked if looked else 0.0,
        "hit_tokens": hit,
        "hit_rate_tokens": hit / prompt if prompt else 0.0,
        "hit_tokens_by_tier": tiers,
        **_traffic(stats, the_plan),
        "dropped_blocks": int(first[DROPPED]),
        "dropped_below_threshold_blocks": int(first[DROPPED_BELOW_THRESHOLD]),
        **_by_priority(states),
        "tail_tokens": totals.tail_tokens,
        "misses_by_cause": {
            name: int(first[CAUSE_0 + i]) for i, name in enumerate(CAUSES) if i != 1 and first[CAUSE_0 + i]
        },
        "gpu_blocks": the_plan.pools[0].blocks[0],
        "host_blocks": the_plan.pools[0].blocks[1],
        "disk_blocks": the_plan.pools[0].blocks[2] if len(the_plan.pools[0].blocks) > 2 else 0,
        "block_bytes": the_plan.block_bytes[0],
        "host_cache_gib": sum(p.blocks[1] * size for p, size in zip(the_plan.pools, the_plan.block_bytes, strict=True))
        / GIB,
        **times,
    }
    touched = int(stats[:, [ALLOC_TOTAL, REUSED, STORED]].sum())
    steps = sum(worker.steps for worker in timed)
    row["steps"] = steps if timed else None
    row["pauses"] = sum(worker.pauses for worker in timed) if timed else None
    row["events_per_s"] = (touched + steps + totals.requests) / wall_s
    row["wall_s"] = wall_s
    row["spec"] = spec.shown()
    row["version"] = kvtier_version()
    return row


def _by_priority(states: list[State]) -> dict[str, dict[str, int]]:
    """Which priorities were offloaded, brought back, dropped for being below the threshold: {priority: blocks} each."""
    counts = sum((state.by_priority for state in states), start=np.zeros_like(states[0].by_priority))
    names = ("offload_blocks_by_priority", "onboard_blocks_by_priority", "below_threshold_blocks_by_priority")
    return {name: {str(p): int(row[p]) for p in np.flatnonzero(row)} for name, row in zip(names, counts, strict=True)}


def _traffic(stats: NDArray[np.int64], the_plan: Plan) -> dict[str, int]:
    size = np.array(the_plan.block_bytes, np.int64)

    def both(name: str, counts: NDArray[np.int64]) -> dict[str, int]:
        return {f"{name}_blocks": int(counts.sum()), f"{name}_bytes": int((counts * size).sum())}

    return {
        **both("offload", stats[:, OFFLOADED]),
        **both("onboard", stats[:, ONBOARDED] + stats[:, ONBOARDED_FROM_DISK] + stats[:, PARTIAL_FROM_HOST]),
        **both("disk_write", stats[:, DISK_WRITES]),
        **both("disk_read", stats[:, ONBOARDED_FROM_DISK]),
        "intra_device_copy_blocks": int(stats[:, INTRA_COPIES].sum()),
        "gen_alloc_blocks": int(stats[:, GEN_ALLOC].sum()),
    }


def _spread(values: NDArray[np.float64]) -> dict[str, float] | None:
    if len(values) == 0:
        return None
    return {"mean": float(values.mean()), **{name: float(np.quantile(values, p)) for name, p in QUANTILES.items()}}


def no_times() -> dict[str, Any]:
    """The times of a run without a clock: none."""
    return dict.fromkeys(("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s", "makespan_s", "compute_s", "copy_wait_s"))


def _times(slo: Slo, requests: Requests | Lengths, served: list[Served]) -> dict[str, Any]:
    n = len(requests)
    sent, first, last = np.empty(n), np.empty(n), np.empty(n)
    for part in served:
        sent[part.rows] = part.outcome.sent_s
        first[part.rows], last[part.rows] = part.outcome.first_token_s, part.outcome.finish_s
    answered = ~np.isnan(last)  # a transfer that fails leaves none
    assert (last[answered] >= 0).all(), "a request never finished"
    output = np.where(answered, requests.output_tokens, 0).astype(np.int64)
    several = output > 1
    ttft, tpot = (first - sent)[answered], (last - first)[several] / (output[several] - 1)
    makespan = float(last[answered].max(initial=-np.inf) - sent.min()) if answered.any() else 0.0
    clocks = np.array([part.worker.clock for part in served if part.worker is not None])
    return {
        "ttft_s": _spread(ttft),
        "tpot_s": _spread(tpot),
        "e2e_s": _spread((last - sent)[answered]),
        "output_tokens_per_s": int(output.sum()) / makespan if makespan > 0 else 0.0,
        "makespan_s": makespan,
        **_goodput(slo, n, makespan, ttft, several[answered], tpot),
        "compute_s": float(clocks[:, COMPUTE_S].sum()),
        "copy_wait_s": float(clocks[:, COPY_WAIT_S].sum()),
    }


def _goodput(
    slo: Slo, n: int, makespan: float, ttft: Float64, several: NDArray[np.bool_], tpot: Float64
) -> dict[str, float]:
    """Requests that got what `slo` promises, a second and as a share of all; nothing where it promises nothing.

    A request of one token has no time per output token and keeps that limit.
    """
    if slo == Slo():
        return {}
    kept = np.ones(len(ttft), np.bool_) if slo.ttft_s is None else ttft <= slo.ttft_s
    if slo.tpot_s is not None:
        kept[several] &= tpot <= slo.tpot_s
    good = int(kept.sum())
    return {"goodput_requests_per_s": good / makespan if makespan > 0 else 0.0, "goodput_share": good / n}
