"""What a spec may add to a cluster: a store behind its workers, pools that grow and shrink; and their figures.

It owns no rule (`sim.store`, `sim.bypass` and `sim.scaling` do).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.cluster_spec import PoolRule
from experiments.outcome import Lengths
from experiments.ready import Ready
from experiments.spec import Spec
from kvcache.capacity import bytes_per_token
from kvcache.request import Int64
from kvcache.tables import T_SIZE
from sim.bypass import Bypass
from sim.disagg import Disaggregated
from sim.feed import Records
from sim.fleet import Fleet
from sim.fleet_room import Start
from sim.routing import Cluster
from sim.scaling import Backlog, Bounds, Occupancy, Pool, Rule
from sim.store import SharedStore, StoreLink


@dataclass(frozen=True)
class Stored:
    """The store of a run; `bypass` where prompts may pass the context workers by."""

    shared: SharedStore
    bypass: Bypass | None
    block_bytes: float


def store_of(work: Ready, cluster: Cluster, both: Disaggregated | None = None) -> Stored | None:
    """The spec's store behind the workers of an idle cluster; `both`: it is disaggregated."""
    store, the_plan = work.spec.store, work.plan
    if not store.size:
        return None
    _check_store(work)
    tpb = the_plan.settings.tokens_per_block
    block_bytes = tpb * float(sum(bytes_per_token(the_plan.model.shape(), the_plan.cache_dtype).values()))
    if store.size < block_bytes:
        raise ValueError(
            f"store.size is {int(store.size)} bytes and one block {block_bytes:.0f}; it must hold one at least"
        )
    link = StoreLink(store.latency_s, block_bytes / (store.gigabytes_per_s * 1e9), store.streams)
    shared = SharedStore(cluster, int(store.size // block_bytes), link, tpb)
    return Stored(shared, None if both is None else Bypass(cluster, both, shared, store.bypass_tokens), block_bytes)


def _check_store(work: Ready) -> None:
    if len(work.plan.pools) > 1 or work.plan.pools[0].sliding:
        raise ValueError("store.size: TensorRT-LLM's connector serves models with full attention only")
    if not work.spec.kv_cache_config.enable_block_reuse:
        raise ValueError("store.size: what is saved are blocks kept for reuse: leave enable_block_reuse on")
    if work.spec.scheduler.capacity_scheduler_policy != "GUARANTEED_NO_EVICT":
        raise ValueError("store.size: requests that wait for a load cannot be paused: use GUARANTEED_NO_EVICT")


def store_figures(store: Stored, lengths: Lengths) -> dict[str, Any]:
    """What the store gave, apart from what workers found in their own caches."""
    shared = store.shared
    tokens, prompt = shared.loaded_blocks * shared.tokens_per_block, int(lengths.prompt_tokens.sum(dtype="int64"))
    return {
        "hit_tokens": tokens,
        "hit_rate": tokens / prompt if prompt else 0.0,
        "loaded_bytes": int(shared.loaded_blocks * store.block_bytes),
        "saved_bytes": int(shared.saved_blocks * store.block_bytes),
        "held_bytes": int(len(shared.blocks) * store.block_bytes),
        "loads": shared.loads,
        "load_mean_s": shared.loading_s / shared.loads if shared.loads else 0.0,
        **({} if store.bypass is None else {"bypassed_requests": store.bypass.bypassed}),
    }


@dataclass(frozen=True)
class Group:
    """Workers that may become a pool: their numbers, what a cold one starts as, whom to tell who is open."""

    workers: list[int]
    make: Callable[[], Start]
    tell: Callable[[Int64], None]


def pools_of(spec: Spec, cluster: Cluster, groups: Mapping[str, Group]) -> dict[str, Pool]:
    """The groups that the spec lets grow and shrink."""
    scaling, pools = spec.autoscaling, dict[str, Pool]()
    for name, group in groups.items():
        said: PoolRule | None = getattr(scaling, name)
        if said is not None:
            bounds = Bounds(said.min_workers, len(group.workers), scaling.period_s, scaling.start_s)
            rule = _rule(said, cluster.fleet, group.workers[0])
            pools[name] = Pool(cluster, group.workers, rule, bounds, group.make, group.tell)
    return pools


def _rule(said: PoolRule, fleet: Fleet, worker: int) -> Rule:
    if said.rule == "kv":
        return Occupancy(said.above, said.below, int(fleet.state.tier[worker, 0, 0, T_SIZE]))
    return Backlog(said.above, said.below)


def pool_figures(pools: Mapping[str, Pool], records: Records) -> dict[str, Any]:
    """[time, open workers] at every change of each pool, and the mean over the run; nothing where none changes."""
    if not pools:
        return {}
    last_s = float(np.nanmax(records.column("finish_s"), initial=0.0))
    return {
        "pool_sizes": {
            name: [[time_s, n] for time_s, n in pool.sizes if time_s <= last_s] for name, pool in pools.items()
        },
        "mean_workers": {name: pool.mean_workers(last_s) for name, pool in pools.items()},
    }
