"""Decides how many KV-cache blocks fit: bytes a token, bytes a block, blocks on the GPU and in host memory, one rank.

It does not measure memory (the caller says how many bytes there are) and knows no weights. It models TensorRT-LLM's
`KVCacheManager.calculateMaxNumBlocks` (route "cpp", rounds up) and the PyTorch backend's `KvCacheCreator` (route
"python", rounds down, the usual one), with `WindowBlockManager`'s pools. We differ in two places: recurrent-state and
indexer pools are not counted, and `adjust_window_sizes_for_vswa` (shrinking windows of which not one sequence fits) is
not done: such a configuration is refused or simply small.

    AttentionLayers   layers that share one window and one head count
    ModelShape        all of them, in layer order    stage(), with_windows() -> another ModelShape
    bytes_per_token   per window                     copy_bytes: the descriptors of one block's copy
    block_counts      -> BlockCounts                 explain(): the arithmetic, one line a step
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
SPELLINGS = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16", "fp8_e4m3": "fp8"}
NVFP4_SCALE_ELEMENTS = 16
"""NVFP4: two values a byte, and one FP8 scale for each 16 values."""

Window = int | None
"""An attention window in tokens; None is full attention."""


@dataclass(frozen=True)
class AttentionLayers:
    """Layers alike: the same window (None: full attention), KV heads and head size. MLA ignores the last two."""

    window_tokens: Window
    layers: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.window_tokens is not None and self.window_tokens < 1:
            raise ValueError(f"window_tokens is {self.window_tokens}; it must be at least 1 or None")


@dataclass(frozen=True)
class ModelShape:
    """What the cache must know of a model. `layer_order` repeats over the layers and names the group of each one;
    empty means the groups follow one another."""

    name: str
    groups: tuple[AttentionLayers, ...]
    kind: Literal["gqa", "mla"] = "gqa"
    kv_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    layer_order: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.groups:
            raise ValueError(f"{self.name}: groups is empty; a model has at least one attention layer")
        if self.kind not in {"gqa", "mla"}:
            raise ValueError(f"{self.name}: kind is {self.kind!r}; known kinds: gqa, mla")
        if self.kind == "mla" and self.kv_lora_rank < 1:
            raise ValueError(f"{self.name}: kv_lora_rank is {self.kv_lora_rank}; kind mla needs at least 1")
        order = self.order()
        counted = [order.count(i) for i in range(len(self.groups))]
        if counted != [group.layers for group in self.groups]:
            wanted = [group.layers for group in self.groups]
            raise ValueError(f"{self.name}: layer_order gives the groups {counted} layers; they have {wanted}")

    @property
    def layers(self) -> int:
        """Attention layers in all."""
        return sum(group.layers for group in self.groups)

    def order(self) -> list[int]:
        """The group of every layer, first to last."""
        if not self.layer_order:
            return [i for i, group in enumerate(self.groups) for _ in range(group.layers)]
        return [self.layer_order[i % len(self.layer_order)] for i in range(self.layers)]


def _regroup(shape: ModelShape, layers: Sequence[AttentionLayers]) -> ModelShape:
    """The same model with these layers, each given as a group of one."""
    kinds = list(dict.fromkeys(layers))
    groups = tuple(replace(kind, layers=layers.count(kind)) for kind in kinds)
    return replace(shape, groups=groups, layer_order=tuple(kinds.index(layer) for layer in layers))


def _one_by_one(shape: ModelShape) -> list[AttentionLayers]:
    return [replace(shape.groups[i], layers=1) for i in shape.order()]


def stage(shape: ModelShape, pipeline_parallel: int, rank: int) -> ModelShape:
    """The layers of one pipeline rank: contiguous, and the first ranks take one layer more where it does not divide."""
    if not 1 <= pipeline_parallel <= shape.layers:
        raise ValueError(f"pipeline_parallel is {pipeline_parallel}; {shape.name} has {shape.layers} layers to share")
    if not 0 <= rank < pipeline_parallel:
        raise ValueError(f"pipeline rank is {rank}; with pipeline_parallel {pipeline_parallel} it is below that")
    share, more = divmod(shape.layers, pipeline_parallel)
    first = rank * share + min(rank, more)
    return _regroup(shape, _one_by_one(shape)[first : first + share + (rank < more)])


def with_windows(shape: ModelShape, max_attention_window: Sequence[int], max_sequence_len: int) -> ModelShape:
    """The model under TensorRT-LLM's `max_attention_window`, a list that repeats over the layers. A window that holds
    the longest sequence is full attention."""
    if not max_attention_window:
        raise ValueError("max_attention_window is empty; leave it unset for the model's own windows")
    windows = [w if w < max_sequence_len else None for w in max_attention_window]
    layers = [replace(layer, window_tokens=windows[i % len(windows)]) for i, layer in enumerate(_one_by_one(shape))]
    return _regroup(shape, layers)


def kv_dtype(name: str) -> str:
    """The short name of a cache element type (`bfloat16` is bf16)."""
    short = SPELLINGS.get(name, name)
    if short not in ELEMENT_BYTES and short != "nvfp4":
        known = ", ".join([*ELEMENT_BYTES, "nvfp4"])
        raise ValueError(f"KV cache dtype is {name!r}; known: {known}")
    return short


def _parts(elements: int, dtype: str) -> tuple[int, ...]:
    """Bytes of that many elements: values, then scales where there are any."""
    if dtype == "nvfp4":
        return -(-elements // 2), -(-elements // NVFP4_SCALE_ELEMENTS)
    return (elements * ELEMENT_BYTES[dtype],)


def local_kv_heads(kv_heads: int, tensor_parallel: int, attention_dp: bool = False) -> int:
    """KV heads on one rank: split over the tensor-parallel ranks, at least one; all of them under attention DP."""
    if tensor_parallel < 1:
        raise ValueError(f"tensor_parallel is {tensor_parallel}; it must be at least 1")
    return kv_heads if attention_dp else -(-kv_heads // tensor_parallel)


def copy_bytes(
    shape: ModelShape, dtype: str, tensor_parallel: int = 1, *, tokens_per_block: int = 1, attention_dp: bool = False
) -> dict[Window, tuple[int, ...]]:
    """For each window (ascending, full attention last), the bytes of each descriptor of one block's copy.

    A block is one contiguous span in each pool of its window; there is a pool for every head count, and NVFP4 doubles
    them (values first, then all the scales). TensorRT-LLM makes one copy a pool and merges nothing.
    """
    dtype = kv_dtype(dtype)
    pools: dict[Window, dict[tuple[int, int], list[int]]] = {}
    for group in shape.groups:
        heads = local_kv_heads(group.kv_heads, tensor_parallel, attention_dp)
        if shape.kind == "mla":
            key, parts = (1, 0), _parts(shape.kv_lora_rank + shape.qk_rope_head_dim, dtype)
        else:
            if dtype == "nvfp4" and group.head_dim % NVFP4_SCALE_ELEMENTS:
                raise ValueError(f"{shape.name}: head_dim is {group.head_dim}; nvfp4 needs a multiple of 16")
            key, parts = (heads, group.head_dim), _parts(2 * heads * group.head_dim, dtype)
        sums = pools.setdefault(group.window_tokens, {}).setdefault(key, [0] * len(parts))
        for i, part in enumerate(parts):
            sums[i] += group.layers * part * tokens_per_block
    windows = sorted(pools, key=lambda w: (w is None, w or 0))
    return {
        w: tuple(sums[i] for i in range(2 if dtype == "nvfp4" else 1) for _, sums in sorted(pools[w].items()))
        for w in windows
    }


def bytes_per_token(
    shape: ModelShape, dtype: str, tensor_parallel: int = 1, *, attention_dp: bool = False
) -> dict[Window, int]:
    """Cache bytes of one token on one rank, for each window (ascending, full attention last)."""
    copies = copy_bytes(shape, dtype, tensor_parallel, attention_dp=attention_dp)
    return {window: sum(parts) for window, parts in copies.items()}


def temporary_window_tokens(window_tokens: int, max_num_tokens: int, max_input_len: int) -> int:
    """Tokens a sliding window holds on top while a long prompt is in work (paged context FMHA)."""
    return max(0, min(max_num_tokens, max_input_len - window_tokens))


def window_shares(
    per_token: dict[Window, int],
    rule: Literal["need", "equal"] | Sequence[float],
    max_sequence_len: int | None = None,
    max_num_tokens: int = 0,
) -> tuple[float, ...]:
    """How memory is split over windows. "need": by bytes a token times window tokens (newest); "equal" (until early
    2026); numbers: TRTLLM_WINDOW_SIZE_SHARES, ascending windows, of any sum."""
    if len(per_token) == 1:
        return (1.0,)
    if rule == "equal":
        weights = [1.0] * len(per_token)
    elif rule == "need":
        if max_sequence_len is None:
            raise ValueError("max_sequence_len is not set; sharing memory over several windows by need takes it")
        tokens = [max_sequence_len if w is None else min(w, max_sequence_len) for w in per_token]
        tokens = [w + temporary_window_tokens(w, max_num_tokens, max_sequence_len) for w in tokens]
        weights = [float(b * t) for b, t in zip(per_token.values(), tokens, strict=True)]
    else:
        weights = [float(x) for x in rule]
        if len(weights) != len(per_token) or min(weights) <= 0:
            raise ValueError(f"TRTLLM_WINDOW_SIZE_SHARES is {weights}; it needs {len(per_token)} numbers above 0")
    return tuple(w / sum(weights) for w in weights)


def transfer_buffer_bytes(
    per_token: dict[Window, int],
    tokens_per_block: int,
    max_tokens_in_buffer: int | None = None,
    *,
    buffers: int = 3,
    default_bytes: int = 512 * 1024 * 1024,
) -> int:
    """What disaggregated transfer takes from the KV budget. Each of the `buffers` (2 to send, 1 to receive) holds
    `max_tokens_in_buffer` tokens, of a sliding window at most the window and one block; unset: 512 MiB each."""
    if max_tokens_in_buffer is None:
        return buffers * default_bytes
    size = 0
    for window, token_bytes in per_token.items():
        room = -(-(window or max_tokens_in_buffer) // tokens_per_block) * tokens_per_block + tokens_per_block
        size += min(max_tokens_in_buffer, room) * token_bytes
    return buffers * size


@dataclass(frozen=True)
class WindowBlocks:
    """The blocks of one window: `copy_bytes` holds the size of each descriptor of one block's copy."""

    window_tokens: Window
    bytes_per_token: int
    block_bytes: int
    share: float
    primary_blocks: int
    secondary_blocks: int
    copy_bytes: tuple[int, ...]

    @property
    def descriptors(self) -> int:
        """Copies a block's move is made of."""
        return len(self.copy_bytes)


@dataclass(frozen=True)
class BlockCounts:
    """What fits on one rank, for each window."""

    tokens_per_block: int
    windows: tuple[WindowBlocks, ...]
    steps: tuple[str, ...]

    def explain(self) -> list[str]:
        """The arithmetic, one line a step."""
        return list(self.steps)

    @property
    def primary_tokens(self) -> int:
        """Tokens the GPU pool of the last window (full attention, or the widest) holds. A running request needs all
        of its tokens here; host memory does not lengthen it."""
        return self.windows[-1].primary_blocks * self.tokens_per_block


def block_counts(
    shape: ModelShape,
    dtype: str,
    available_bytes: int,
    *,
    free_gpu_memory_fraction: float = 0.9,
    tokens_per_block: int = 32,
    host_cache_size: int = 0,
    max_tokens: int | None = None,
    max_gpu_total_bytes: int = 0,
    transfer_bytes: int = 0,
    tensor_parallel: int = 1,
    attention_dp: bool = False,
    max_sequence_len: int | None = None,
    max_num_tokens: int = 0,
    shares: Literal["need", "equal"] | Sequence[float] = "need",
    route: Literal["python", "cpp"] = "python",
) -> BlockCounts:
    """Blocks on the GPU and in host memory on one rank, whose pipeline stage `shape` is (see `stage`).

    `available_bytes` is what weights and activations left free. Counts of several ranks that must agree are their
    minimum: that is the caller's. With several windows the Python route calls the C++ one.
    """
    if not 0 < free_gpu_memory_fraction < 1:
        raise ValueError(f"free_gpu_memory_fraction is {free_gpu_memory_fraction}; it must be in (0, 1)")
    _at_least("available_bytes", available_bytes, 1)
    _at_least("tokens_per_block", tokens_per_block, 1)
    _at_least("host_cache_size", host_cache_size, 0)
    _at_least("max_tokens", max_tokens, 1)
    copies = copy_bytes(shape, dtype, tensor_parallel, tokens_per_block=tokens_per_block, attention_dp=attention_dp)
    per_token = bytes_per_token(shape, dtype, tensor_parallel, attention_dp=attention_dp)
    split = window_shares(per_token, shares, max_sequence_len, max_num_tokens)

    budget = int(available_bytes * free_gpu_memory_fraction)
    steps = [f"{free_gpu_memory_fraction} (free_gpu_memory_fraction) x {available_bytes} B available = {budget} B"]
    if max_gpu_total_bytes and budget > max_gpu_total_bytes:
        budget = max_gpu_total_bytes
        steps.append(f"max_gpu_total_bytes caps it at {budget} B")
    if transfer_bytes:
        budget -= transfer_bytes
        steps.append(f"less {transfer_bytes} B of transfer buffers = {budget} B")
    if len(split) > 1:
        steps.append(f"shared over {len(split)} windows by the C++ route; each rounds its blocks up")
        if max_tokens is not None:
            steps.append(f"max_tokens {max_tokens} is ignored: it holds for a single window only")
    limit = max_tokens if len(split) == 1 else None
    up = route == "cpp" or len(split) > 1

    windows = []
    for (window, token_bytes), share in zip(per_token.items(), split, strict=True):
        label = "full attention" if window is None else f"window {window}"
        primary = _gpu_blocks(label, budget, share, token_bytes, tokens_per_block, limit, up, steps)
        secondary = _host_blocks(label, host_cache_size, share, token_bytes, tokens_per_block, steps)
        block_bytes = token_bytes * tokens_per_block
        windows.append(WindowBlocks(window, token_bytes, block_bytes, share, primary, secondary, copies[window]))
    return BlockCounts(tokens_per_block, tuple(windows), tuple(steps))


def _at_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise ValueError(f"{name} is {value}; it must be at least {least}")


def _gpu_blocks(
    label: str,
    budget: int,
    share: float,
    token_bytes: int,
    tpb: int,
    max_tokens: int | None,
    up: bool,
    steps: list[str],
) -> int:
    """Blocks of one window's share of the GPU budget; appends its arithmetic to `steps`."""
    tokens = max(0, int(budget * share)) // token_bytes
    steps.append(f"{label}: {share:.4f} x {budget} B / {token_bytes} B a token = {tokens} tokens")
    if max_tokens is not None and max_tokens < tokens:
        tokens = max_tokens
        steps.append(f"{label}: max_tokens caps it at {tokens} tokens")
    blocks = -(-tokens // tpb) if up else tokens // tpb
    steps.append(f"{label}: / {tpb} tokens a block = {blocks} GPU blocks (rounded {'up' if up else 'down'})")
    if blocks < 1:
        raise ValueError(
            f"{label}: the GPU pool of {int(budget * share)} bytes holds no block of {token_bytes * tpb} bytes; "
            "raise free_gpu_memory_fraction, or lower tokens_per_block or whatever else takes GPU memory"
        )
    return blocks


def _host_blocks(label: str, host_bytes: int, share: float, token_bytes: int, tpb: int, steps: list[str]) -> int:
    """Blocks of one window's share of the host pool; appends its arithmetic to `steps`."""
    if not host_bytes:
        return 0
    blocks = int(host_bytes * share) // token_bytes // tpb
    steps.append(f"{label}: host {share:.4f} x {host_bytes} B / {token_bytes * tpb} B a block = {blocks} host blocks")
    if blocks < 1:
        raise ValueError(
            f"{label}: host_cache_size gives it {int(host_bytes * share)} bytes and a block takes "
            f"{token_bytes * tpb}; raise host_cache_size ({host_bytes}) or set it to 0"
        )
    return blocks
