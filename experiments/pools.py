"""From a spec to pools: which windows a model has, how many blocks fit in each tier, what one block weighs.

The arithmetic is `kvcache.capacity`'s; here the spec's overrides are applied and impossible sizes refused.
"""

from dataclasses import dataclass
from typing import Literal

from experiments.eviction import eviction_of
from experiments.spec import Offload, Spec
from kvcache.capacity import BlockCounts, block_counts, kv_dtype, stage, temporary_window_tokens, with_windows
from kvcache.gate import NO_LIMIT, OffloadRule
from kvcache.tables import Pool, Settings
from sim.hardware import Hardware, load_hardware
from sim.models import Model, load_model

WEIGHT_DTYPE = {"gpt-oss-120b": "mxfp4", "deepseek-r1": "fp8"}
"""Number format of the weights where the published checkpoint is not bf16."""


@dataclass(frozen=True)
class Plan:
    """Everything a run needs besides requests."""

    model: Model
    hardware: Hardware
    weight_dtype: str
    cache_dtype: str
    counts: BlockCounts
    pools: tuple[Pool, ...]
    copy_bytes: tuple[tuple[int, ...], ...]  # per window: bytes of each descriptor of one block
    block_bytes: tuple[int, ...]  # per window
    settings: Settings
    max_seq_len: int
    notes: tuple[str, ...]


def plan(spec: Spec, longest_tokens: int) -> Plan:
    """Pools and rules of one worker; `longest_tokens` is the longest prompt + output of the workload."""
    model, hardware = load_model(spec.model), load_hardware(spec.hardware)
    cfg = spec.kv_cache_config
    weight = WEIGHT_DTYPE.get(model.name, "bf16")
    cache = "bf16" if cfg.dtype == "auto" else kv_dtype(cfg.dtype)
    max_seq_len = spec.scheduler.max_seq_len or max(model.max_position_embeddings, longest_tokens)
    shape = model.shape()
    if cfg.max_attention_window is not None:
        shape = with_windows(shape, cfg.max_attention_window, max_seq_len)
    _check_parallel(spec)
    tp, pp = spec.parallel.tensor_parallel_size, spec.parallel.pipeline_parallel_size
    free = int(hardware.hbm_bytes - model.weight_bytes(weight, tp, pp))
    given = spec.capacity.blocks("gpu", cfg.tokens_per_block)
    if free <= 0 and given is None:
        raise ValueError(
            f"the weights of {model.name} ({model.weight_bytes(weight, tp, pp) / 1e9:.0f} GB a GPU at"
            f" tensor_parallel_size={tp}) leave no room on {hardware.name} ({hardware.hbm_bytes / 1e9:.0f} GB);"
            " raise parallel.tensor_parallel_size or give capacity.gpu_tokens"
        )
    counts = block_counts(
        stage(shape, pp, 0),  # the fullest rank decides
        cache,
        free
        if free > 0
        else int(hardware.hbm_bytes),  # without room the GPU pool was given, and is not worked out here
        free_gpu_memory_fraction=min(cfg.free_gpu_memory_fraction, 0.999999),
        tokens_per_block=cfg.tokens_per_block,
        host_cache_size=int(cfg.host_cache_size or 0),
        max_tokens=cfg.max_tokens,
        max_gpu_total_bytes=int(cfg.max_gpu_total_bytes),
        tensor_parallel=tp,
        max_sequence_len=max_seq_len,
        max_num_tokens=spec.scheduler.max_num_tokens,
    )
    windows = sorted(counts.windows, key=lambda w: (w.window_tokens is not None, w.window_tokens or 0))
    pools = tuple(
        Pool(
            window.window_tokens or max_seq_len,
            _tiers(spec, window.primary_blocks, window.secondary_blocks, window.block_bytes),
            window.window_tokens is not None,
            temporary_window_tokens(window.window_tokens, spec.scheduler.max_num_tokens, max_seq_len)
            if window.window_tokens is not None
            else 0,
        )
        for window in windows
    )
    return Plan(
        model,
        hardware,
        weight,
        cache,
        counts,
        pools,
        tuple(window.copy_bytes for window in windows),
        tuple(window.block_bytes for window in windows),
        _settings(spec),
        max_seq_len,
        _notes(spec, pools),
    )


def _check_parallel(spec: Spec) -> None:
    """What a run would otherwise pass over in silence."""
    if spec.parallel.enable_attention_dp:
        raise ValueError("parallel.enable_attention_dp is true; runs do not know it: leave it false")


def _tiers(spec: Spec, gpu: int, host: int, block_bytes: int) -> tuple[int, ...]:
    """Blocks of each tier, warm to cold; what `capacity` gives overrides what memory holds."""
    tpb = spec.kv_cache_config.tokens_per_block
    names: tuple[tuple[Literal["gpu", "host", "disk"], int], ...] = (
        ("gpu", gpu),
        ("host", host),
        ("disk", int(spec.kv_cache_config.disk_cache_size or 0) // block_bytes),
    )
    blocks = []
    for name, fallback in names:
        given = spec.capacity.blocks(name, tpb)
        blocks.append(fallback if given is None else given)
    if blocks[0] < 1:
        raise ValueError(
            f"the GPU pool holds {blocks[0]} blocks of {tpb} tokens; raise capacity.gpu_tokens or lower tokens_per_block"
        )
    if spec.profile.name == "vllm":
        return _vllm_tiers(blocks)
    return tuple(blocks) if blocks[2] > 0 else tuple(blocks[:2])


def _vllm_tiers(blocks: list[int]) -> tuple[int, ...]:
    """vLLM keeps one block for itself, the null block; a second tier is not modelled."""
    if blocks[1] or blocks[2]:
        raise ValueError(
            "profile vllm has no host or disk tier (vLLM's offloading connectors are not modelled):"
            " leave host_cache_size, host_tokens, host_blocks and the disk's out"
        )
    if blocks[0] < 2:
        raise ValueError(
            f"the GPU pool holds {blocks[0]} blocks and vLLM keeps one for itself; raise capacity.gpu_tokens"
        )
    return blocks[0] - 1, 0


def _settings(spec: Spec) -> Settings:
    cfg, profile = spec.kv_cache_config, spec.profile
    cold = cfg.cold_tier_offload_min_priority
    return Settings(
        tokens_per_block=cfg.tokens_per_block,
        secondary_offload_min_priority=cfg.offload_min_priority,
        cold_tier_offload_min_priority=0 if cold is None else cold,
        enable_block_reuse=cfg.enable_block_reuse,
        enable_partial_reuse=cfg.enable_partial_reuse and profile.name != "vllm",  # vLLM matches whole blocks
        copy_on_partial_reuse=cfg.copy_on_partial_reuse,
        evict_descendants=profile.evict_descendants,
        detached_first=profile.detached_first,
        emptied_host_slot_front=profile.emptied_host_slot == "front",
        sequential_claim=profile.claim == "sequential",
        offload=_offload(spec),
        eviction=eviction_of(spec.policy),
    )


def _offload(spec: Spec) -> OffloadRule | None:
    """None where the threshold alone decides."""
    if spec.offload == Offload():
        return None
    ttl_s = spec.offload.ttl_s
    return OffloadRule(
        spec.offload.min_uses, spec.offload.contiguous, NO_LIMIT if ttl_s is None else round(1e6 * ttl_s)
    )


def _notes(spec: Spec, pools: tuple[Pool, ...]) -> tuple[str, ...]:
    notes = []
    if spec.profile.name == "vllm":
        if len(pools) > 1 or pools[0].sliding:
            raise ValueError("profile vllm knows models with full attention only; use profile=trtllm for this model")
        notes.append("profile vllm: one block of the pool is vLLM's null block and holds nothing")
    if len(pools) > 1 and spec.capacity.blocks("gpu", spec.kv_cache_config.tokens_per_block) is not None:
        notes.append("the model has several attention windows; capacity.* gives each of them a pool of that size")
    if len(pools[0].blocks) > 2 and spec.profile.name != "cascade":
        raise ValueError(
            f"profile {spec.profile.name} has no disk tier that adds capacity (TensorRT-LLM v1's file modes add none);"
            " use profile=cascade, or leave disk_tokens and disk_cache_size out"
        )
    return tuple(notes)
