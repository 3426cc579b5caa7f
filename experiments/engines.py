"""Engines for a worker's share of the workload: tables, lanes and costs put together as the spec wants them."""

from typing import Any

import numpy as np

from experiments.pools import Plan
from experiments.prepared import Prepare
from experiments.ready import Part, Ready
from experiments.spec import Spec
from experiments.ways import Ways, disk_share, ways_of
from kvcache.engine import Engine, Limits, make_engine, make_outcome
from kvcache.load import longest_blocks, prepare
from kvcache.tables import DISK_READ, DISK_WRITE, INTRA_COPY, OFFLOAD, ONBOARD, State
from sim.cost import DECODE_PAIR_S, CostModel, CostParams
from sim.cost_models import cost_model
from sim.lanes import LANES, START_S, TOKEN_S, WHOLE_S, Lanes, make_lanes
from sim.transfer import descriptor_seconds, link_params


def engine_of(work: Ready, part: Part, *, events: bool = False, prepare: Prepare = prepare) -> Engine:
    """An idle engine that knows its share of the requests."""
    settings = work.plan.settings._replace(record_copies=True, record_events=events)
    state, load = prepare(part.requests, part.retention, work.plan.pools, settings)
    positions = longest_blocks(part.requests, settings.tokens_per_block)
    return make_engine(state, load, make_outcome(len(part.requests)), limits_of(work), positions)


def limits_of(work: Ready) -> Limits:
    """The scheduler's limits."""
    scheduler, drafts = work.spec.scheduler, work.spec.speculative_config
    return Limits(
        scheduler.max_batch_size,
        scheduler.max_num_tokens,
        scheduler.enable_chunked_prefill,
        scheduler.chunk_unit_size or 0,
        policy_of(work.spec),
        scheduler.context_chunking_policy,
        scheduler.disable_overlap_scheduler,
        0 if drafts is None else drafts.draft_len,
        0.0 if drafts is None else drafts.accepted_tokens_per_step,
    )


def policy_of(spec: Spec) -> str:
    """The engine's policy: TensorRT-LLM's capacity scheduler by its name, or vLLM's scheduler."""
    if spec.profile.name == "vllm":
        return "VLLM_ASYNC" if spec.profile.async_scheduling else "VLLM"
    return spec.scheduler.capacity_scheduler_policy


def lanes_of(work: Ready, state: State) -> Lanes:
    """The engine's copy lanes on the spec's hardware."""
    ways = ways_of(work.spec, work.plan.hardware)
    block_bytes = [sum(sizes) for sizes in work.plan.copy_bytes]
    host = link_params(ways.host.d2h), link_params(ways.host.h2d)
    share = disk_share(work.plan, ways)
    return make_lanes(state, copy_costs(work.plan, ways, state), *host, block_bytes, share)


def cost_of(work: Ready) -> CostParams:
    """Seconds of a step, as parameters."""
    params = cost_model_of(work).params
    drafts = work.spec.speculative_config
    if drafts is not None:  # a verified sequence asks with 1 + draft_len tokens, and its cache is read once
        params[DECODE_PAIR_S] *= 1 + drafts.draft_len
    return params


def cost_model_of(work: Ready) -> CostModel:
    """The spec's cost model for its model, machine and split."""
    the_plan, parallel = work.plan, work.spec.parallel
    dtypes = (the_plan.weight_dtype, the_plan.cache_dtype)
    split = (parallel.tensor_parallel_size, parallel.pipeline_parallel_size)
    return cost_model(work.spec.cost_model, the_plan.model, the_plan.hardware, *dtypes, *split)


def overlap_of(spec: Spec, layers: int) -> float:
    """The part of a step's copies that passes beside its kernels, in a model of so many layers a pipeline stage."""
    return {"trtllm": 0.0, "layerwise": 1.0 - 1.0 / layers, "full": 1.0}[spec.overlap]


def layers_of(work: Ready) -> int:
    """Layers of one pipeline stage."""
    return max(1, work.plan.model.layers // work.spec.parallel.pipeline_parallel_size)


def host_of(work: Ready) -> float:
    """Seconds of a step that are the host's, where the overlap scheduler hides them; 0 without it."""
    return 0.0 if work.spec.scheduler.disable_overlap_scheduler else work.plan.hardware.step_overhead_s


def copy_costs(the_plan: Plan, ways: Ways, state: State) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Seconds of one block's copy by kind and window, as `sim.lanes.Lanes.cost` wants them."""
    host, disk = ways.host, ways.disk
    directions = {OFFLOAD: host.d2h, ONBOARD: host.h2d, DISK_WRITE: disk.d2h, DISK_READ: disk.h2d}
    cost = np.zeros((LANES + 1, len(state.window), 3))
    for w, sizes in enumerate(the_plan.copy_bytes):
        for kind, direction in directions.items():
            cost[kind, w, WHOLE_S] = sum(direction.start_s + descriptor_seconds(direction, size) for size in sizes)
        # a partial copy moves only its tokens; from the host they pass the link, inside the GPU they are read and written
        per_token = sum(sizes) / the_plan.settings.tokens_per_block
        for kind, direction in ((ONBOARD, host.h2d), (DISK_READ, disk.h2d)):
            cost[kind, w, START_S] = len(sizes) * direction.latency_s
            cost[kind, w, TOKEN_S] = per_token / direction.bandwidth_bytes_per_s
        hbm = the_plan.hardware.hbm_bytes_per_s * the_plan.hardware.hbm_efficiency
        cost[INTRA_COPY, w, WHOLE_S] = the_plan.hardware.kernel_latency_s * len(sizes) + 2 * sum(sizes) / hbm
        cost[INTRA_COPY, w, START_S] = the_plan.hardware.kernel_latency_s * len(sizes)
        cost[INTRA_COPY, w, TOKEN_S] = 2 * per_token / hbm
    return cost
