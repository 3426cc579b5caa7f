"""A disaggregated run: from the spec's `cluster` section to context and generation workers, and back to figures.

It owns no rule (`sim.disagg`, `sim.handover`, `sim.layout` do). Pools of both sides follow from their own split, less what
registered transfer buffers take.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import simpy

from experiments.cluster_extras import Group, pool_figures, pools_of, store_figures, store_of
from experiments.cluster_spec import Side
from experiments.engines import cost_of
from experiments.outcome import Served
from experiments.pieces import Pieces
from experiments.pools import plan
from experiments.ready import Ready, longest_tokens
from experiments.routed import Progress, check, cluster_with, routing_figures, said, served_by, starts_of, told
from experiments.spec import Parallel, Spec
from kvcache.capacity import bytes_per_token
from kvcache.request import Int64
from sim.cost import step_seconds
from sim.disagg import Disaggregated, Rules
from sim.feed import Feed
from sim.handover import Handover, Transport, buffer_bytes, handover, load_link
from sim.layout import Conversion, Split, conversion
from sim.models import Model
from sim.routing import Cluster


def split_of(side: Side) -> Split:
    """How one worker of a side is split."""
    return Split(side.tensor_parallel_size, side.pipeline_parallel_size)


def side_spec(spec: Spec, side: Side) -> Spec:
    """The spec of one side's workers."""
    parallel = Parallel(
        tensor_parallel_size=side.tensor_parallel_size, pipeline_parallel_size=side.pipeline_parallel_size
    )
    return spec.model_copy(update={"parallel": parallel})


def of_generation(spec: Spec) -> Spec:
    """The spec with the split of its generation workers, which hold whole requests; itself where all workers do both."""
    return side_spec(spec, spec.cluster.generation) if spec.cluster.disaggregated else spec


def check_split(model: Model, split: Split) -> None:
    """Refuse ranks that would get no whole head, or no layer."""
    if model.heads % split.tensor:
        raise ValueError(
            f"tp={split.tensor}: the {model.heads} heads of {model.name} cannot be shared evenly by so many GPUs"
        )
    if split.pipeline > model.layers:
        raise ValueError(f"pp={split.pipeline}: {model.name} has {model.layers} layers only")


def transport_of(spec: Spec) -> Transport:
    """How caches are handed over."""
    cluster = spec.cluster
    return Transport(
        link=load_link(cluster.link),
        zero_copy=cluster.zero_copy,
        layerwise=cluster.layerwise,
        parallel=cluster.parallel_receive,
        buffer_tokens=cluster.max_tokens_in_buffer,
        send_buffers=cluster.send_buffers,
        receive_buffers=cluster.receive_buffers,
        pieces_per_block=cluster.pieces_per_block,
    )


def conversion_of(model: Model, context: Split, generation: Split) -> Conversion:
    """Who sends what to whom."""
    return conversion(model.layers, model.kv_heads, context, generation, mla=model.mla)


def whole_bytes_per_token(model: Model, cache_dtype: str) -> float:
    """Cache bytes of one token over all layers and heads, each once."""
    return float(sum(bytes_per_token(model.shape(), cache_dtype).values()))


def side_of(work: Ready, side: Side, *, sends: bool) -> Ready:
    """The workload ready for one side's workers: their pools, less the buffers."""
    check_split(work.plan.model, split_of(side))
    spec = side_spec(work.spec, side)
    the_plan = plan(spec, longest_tokens(work.requests))
    cluster, transport = work.spec.cluster, transport_of(work.spec)
    split = conversion_of(the_plan.model, split_of(cluster.context), split_of(cluster.generation))
    taken = buffer_bytes(transport, whole_bytes_per_token(the_plan.model, the_plan.cache_dtype), split, sends=sends)
    given = spec.capacity.blocks("gpu", spec.kv_cache_config.tokens_per_block) is not None
    pools = []
    for pool, block_bytes in zip(the_plan.pools, the_plan.block_bytes, strict=True):
        less = 0 if given else -(-taken // (block_bytes * len(the_plan.pools)))
        if pool.blocks[0] <= less:
            raise ValueError(
                f"the transfer buffers take {taken / 1e9:.1f} GB a GPU and leave no block: lower cluster.max_tokens_in_buffer"
            )
        pools.append(pool._replace(blocks=(pool.blocks[0] - less, *pool.blocks[1:])))
    return replace(work, spec=spec, plan=replace(the_plan, pools=tuple(pools)))


def handovers(work: Ready, context: Ready) -> Any:
    """Seconds of a transfer of so many blocks of a prompt of so many tokens."""
    cluster, transport, the_plan = work.spec.cluster, transport_of(work.spec), context.plan
    split = conversion_of(the_plan.model, split_of(cluster.context), split_of(cluster.generation))
    per_token = whole_bytes_per_token(the_plan.model, the_plan.cache_dtype)
    tpb, params = the_plan.settings.tokens_per_block, cost_of(context)
    most = work.spec.scheduler.max_num_tokens

    def seconds(blocks: int, prompt: int) -> Handover:
        last = min(prompt, most)  # the prompt's last chunk, behind which layers may travel
        prefill_s = step_seconds(params, last, last * (prompt - last / 2), 0, 0)
        return handover(transport, split, the_plan.hardware, blocks, tpb, per_token, the_plan.model.layers, prefill_s)

    return seconds


def disaggregated(
    pieces: Pieces, progress: Progress | None, *, skip: bool = True
) -> tuple[list[Served], dict[str, Any], list[str]]:
    """Run it: what each worker served, the figures of transfers and routing, notes."""
    work = pieces.first
    _check(work)
    context, generation = sides_of(work)
    cluster, both = _cluster_of(pieces, context, generation, progress, skip=skip)
    store = store_of(work, cluster, both)
    pools = pools_of(work.spec, cluster, _groups(context, generation, cluster, both))
    records = cluster.run()
    both.settle()
    served = [served_by(cluster.fleet, records, w) for w in range(len(cluster.fleet.status))]
    lengths = pieces.lengths()
    figures = routing_figures(lengths, cluster, records) | transfer_figures(both)
    if store is not None:
        figures["store"] = store_figures(store, lengths)
    figures |= pool_figures(pools, records)
    notes, failed = said(cluster, figures), len(both.log.failed)
    lost = [f"{failed} transfers failed or timed out: their requests have no answer"] if failed else []
    return served, figures, [*notes, *lost]


def sides_of(work: Ready) -> tuple[Ready, Ready]:
    """The workload ready for context workers and for generation workers."""
    cluster = work.spec.cluster
    return side_of(work, cluster.context, sends=True), side_of(work, cluster.generation, sends=False)


def _groups(context: Ready, generation: Ready, cluster: Cluster, both: Disaggregated) -> dict[str, Group]:
    """Both sides, as pools whose open workers take requests."""

    def tell_router(workers: Int64) -> None:
        cluster.open = workers

    def tell_senders(workers: Int64) -> None:
        both.open = workers

    return {
        "context": Group(
            both.context.tolist(), lambda: starts_of(context, 1, events=told(context.spec))[0], tell_router
        ),
        "generation": Group(both.generation.tolist(), lambda: starts_of(generation, 1, events=False)[0], tell_senders),
    }


def _cluster_of(
    pieces: Pieces, context: Ready, generation: Ready, progress: Progress | None, *, skip: bool
) -> tuple[Cluster, Disaggregated]:
    """Context workers first, then generation workers; idle."""
    work, spec, cluster = pieces.first, pieces.first.spec, pieces.first.spec.cluster
    starts = [
        *starts_of(context, cluster.context.workers, events=told(spec)),
        *starts_of(generation, cluster.generation.workers, events=False),
    ]
    simulated = cluster_with(work, starts, simpy.Environment(), Feed(pieces.batches()), progress, skip=skip)
    timeout_s = cluster.kv_transfer_timeout_ms / 1e3 or float("inf")
    rules = Rules(timeout_s, cluster.transfer_failure_share, spec.workload.seed)
    seconds, buffers = handovers(work, context), (cluster.send_buffers, cluster.receive_buffers)
    return simulated, Disaggregated(simulated, cluster.context.workers, seconds, *buffers, rules)


def _check(work: Ready) -> None:
    spec = work.spec
    check(spec, "cluster.context")
    if not spec.kv_cache_config.enable_block_reuse:
        raise ValueError("cluster.context: a prompt's blocks are kept for their transfer by block reuse: leave it on")
    if spec.scheduler.capacity_scheduler_policy != "GUARANTEED_NO_EVICT":
        raise ValueError("cluster.context: requests that wait for a transfer cannot be paused: use GUARANTEED_NO_EVICT")


def transfer_figures(both: Disaggregated) -> dict[str, Any]:
    """Where the time to the first token went, in means over the requests that were transferred."""
    columns = both.log.columns()
    number = columns["number"].astype(np.int64)
    sent, start, first = (both.prefill.column(name)[number] for name in ("sent_s", "start_s", "first_token_s"))
    parts = {
        "queue": start - sent,
        "prefill": first - start,
        **{name: columns[f"{name}_s"] for name in ("memory", "buffer", "prepare", "wire", "convert")},
        "hidden": -columns["hidden_s"],
    }
    return {
        "ttft_parts": {f"{name}_s": float(part.mean()) if len(part) else 0.0 for name, part in parts.items()},
        "transferred_bytes": both.log.wire_bytes,
        "failed_transfers": len(both.log.failed),
        "timed_out_transfers": both.log.timed_out,
        "failed_requests": sorted(both.log.failed),
    }
