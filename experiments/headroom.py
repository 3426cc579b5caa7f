"""What no policy can exceed in a run's own blocks, and how much of the way there from LRU each policy gets.

Two bounds, both for full blocks in the order of the requests. Hits: Belady's MIN over all tiers' blocks. Cost: a block that is
not found costs its computing, one found behind the GPU its loading, both as the run's own cost model and link have them for the
mean prompt; `kvcache.bound.least_cost` says the least that all lookups can cost. Both hold for one worker with one attention
window; otherwise there is none, and a note says so.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from experiments.engines import copy_costs, cost_of
from experiments.ready import ready, whole
from experiments.spec import Spec
from experiments.ways import ways_of
from kvcache.bound import least_cost, min_hits, most_saved
from kvcache.load import prepare
from kvcache.policies import PRIORITY
from kvcache.request import Requests
from kvcache.tables import ONBOARD
from sim.cost import CostParams, step_seconds


@dataclass(frozen=True)
class Bound:
    """Full blocks that no policy exceeds, and seconds that no policy's lookups cost less than."""

    gpu_blocks: int
    """Found in a cache of the GPU's blocks."""
    all_blocks: int
    """Found in a cache of all tiers' blocks."""
    lookup_blocks: int
    tokens_per_block: int
    compute_s: float
    """Of one block."""
    load_s: float
    """Of one block from the host."""
    least_cost_s: float
    most_saved_s: float
    """Of computing, by the best hits, where a block costs the more the deeper it lies: an upper bound (PFOO-U)."""
    all_prefill_s: float
    """Computing every block that is looked up, counted in the same way."""

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def bound_of(spec: Spec, requests: Requests, *, timing: bool) -> tuple[Bound | None, list[str]]:
    """The bounds of a run, or why there are none."""
    if spec.workload.workers > 1:
        return None, ["no bound: several workers have a cache each"]
    work = ready(spec, requests, timing=timing)
    if len(work.plan.pools) > 1:
        return None, ["no bound: the model has several attention windows"]
    part = whole(work)
    state, made = prepare(part.requests, part.retention, work.plan.pools, work.plan.settings)
    tpb = work.plan.settings.tokens_per_block
    length = np.diff(made.key_offset) - 2  # full blocks, generated ones included
    at = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    contents = made.keys[np.repeat(made.key_offset[:-1], length) + at]
    looked_up = at < np.repeat((made.prompt.astype(np.int64) - 1) // tpb, length)
    gpu, every = work.plan.pools[0].blocks[0], sum(work.plan.pools[0].blocks)
    warm, found = (int(min_hits(contents, looked_up, room).sum()) for room in (gpu, every))
    params, lookups = cost_of(work), int(looked_up.sum())
    compute_s = _prefill_s(params, float(made.prompt.mean())) * tpb / float(made.prompt.mean())
    load_s = float(copy_costs(work.plan, ways_of(work.spec, work.plan.hardware), state)[ONBOARD, 0].max())
    by_depth = np.diff([_prefill_s(params, float(k * tpb)) for k in range(int(at.max(initial=0)) + 2)])
    cost_s = least_cost(lookups, warm, found, load_s, compute_s)
    saved_s = most_saved(contents, looked_up, by_depth[at], every)
    return Bound(
        warm, found, lookups, tpb, compute_s, load_s, cost_s, saved_s, float(by_depth[at][looked_up].sum())
    ), []


def _prefill_s(params: CostParams, tokens: float) -> float:
    """Seconds of a prompt in one step; no token is no time."""
    return float(step_seconds(params, tokens, tokens * tokens / 2, 0.0, 0.0))


def add_headroom(rows: list[dict[str, Any]], bound: Bound | None) -> None:
    """(policy - LRU) / (bound - LRU), in full blocks and in cost; LRU is `priority` where plain LRU was not asked for."""
    if bound is None:
        return
    for row in rows:
        behind = sum(row["hit_tokens_by_tier"].values()) - row["hit_tokens_by_tier"]["gpu"]
        loaded = min(row["full_blocks"], behind // bound.tokens_per_block)
        row["lookup_cost_s"] = (bound.lookup_blocks - row["full_blocks"]) * bound.compute_s + loaded * bound.load_s
    named = {row["policy"]: row for row in rows}
    lru = named.get("lru", named.get(PRIORITY))
    if lru is None:
        return
    for name, figure, best in (
        ("headroom", "full_blocks", bound.all_blocks),
        ("cost_headroom", "lookup_cost_s", bound.least_cost_s),
    ):
        way, start = best - lru[figure], lru[figure]
        if abs(way) > 1e-9:
            for row in rows:
                row[name] = (row[figure] - start) / way + 0.0  # no -0.0
