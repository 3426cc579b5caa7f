"""What `kvtier size` does: how many blocks fit, each step of the arithmetic, and what will go wrong with that size.

The arithmetic is `kvcache.capacity`'s; here memory is looked up and the result is weighed against what is asked of it.
It counts weights, and not activations, CUDA graphs and context: `free_gib`, from the engine's log, replaces all that.
"""

from dataclasses import asdict, dataclass
from typing import Any

from experiments import console
from experiments.pools import WEIGHT_DTYPE
from kvcache.capacity import BlockCounts, WindowBlocks, block_counts, kv_dtype, local_kv_heads
from sim.hardware import load_hardware
from sim.models import Model, load_model

GIB = 1024**3


@dataclass(frozen=True)
class Ask:
    """What the user wants to know; sizes in GiB, lengths in tokens. One of `gpu`, `gpu_gib`, `free_gib` says how much
    memory there is."""

    model: str
    gpu: str | None = None
    gpu_gib: float | None = None
    free_gib: float | None = None
    tensor_parallel: int = 1
    dtype: str = "auto"
    weights: str | None = None
    fraction: float = 0.9
    tokens_per_block: int = 32
    host_cache_gib: float = 0.0
    isl: int | None = None
    osl: int = 0
    batch: int = 1
    route: str = "python"

    def __post_init__(self) -> None:
        if (self.gpu is not None) + (self.gpu_gib is not None) + (self.free_gib is not None) != 1:
            raise ValueError("give one of --gpu, --gpu-gib and --free-gib: they say how much memory there is")
        for name in ("gpu_gib", "free_gib"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1e6:
                raise ValueError(f"--{name.replace('_', '-')} is {value}; it must be a number of GiB above 0")
        if not 0 <= self.host_cache_gib < 1e6:
            raise ValueError(f"--host-cache-gib is {self.host_cache_gib}; it must be a number of GiB, at least 0")
        if self.route not in {"python", "cpp"}:
            raise ValueError(f"--route {self.route} is not known; known: python, cpp")


@dataclass(frozen=True)
class Answer:
    """The sizes, the steps that led there, and what to beware of."""

    ask: Ask
    model: Model
    free_bytes: int
    counts: BlockCounts
    steps: tuple[str, ...]
    warnings: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "ask": asdict(self.ask),
            "free_bytes": self.free_bytes,
            "windows": [asdict(window) for window in self.counts.windows],
            "gpu_tokens": self.counts.primary_tokens,
            "steps": list(self.steps),
            "warnings": list(self.warnings),
        }


def size(ask: Ask) -> Answer:
    """The arithmetic of one rank."""
    model = load_model(ask.model)
    free, first = _free_bytes(ask, model)
    cache = "bf16" if ask.dtype == "auto" else kv_dtype(ask.dtype)
    longest = max(model.max_position_embeddings, _sequence_tokens(ask))
    counts = block_counts(
        model.shape(),
        cache,
        free,
        free_gpu_memory_fraction=ask.fraction,
        tokens_per_block=ask.tokens_per_block,
        host_cache_size=int(ask.host_cache_gib * GIB),
        tensor_parallel=ask.tensor_parallel,
        max_sequence_len=longest,
        route="cpp" if ask.route == "cpp" else "python",
    )
    steps = [
        *_bytes(ask, model, cache, counts),
        *first,
        *counts.explain(),
        *_totals(ask, counts),
        *_request(ask, counts),
    ]
    return Answer(ask, model, free, counts, tuple(steps), tuple(_warnings(ask, model, counts)))


def show(answer: Answer, json: str | None) -> None:
    """Steps, then warnings; with `--json FILE` the data go there, and with `-` they take their place."""
    if json is not None:
        console.write_json(answer.plain(), json)
    if json == "-":
        return
    for line in answer.steps:
        console.say(line)
    for line in answer.warnings:
        console.say(f"warning: {line}")
    if json is not None:
        console.say(json)


def _gib(size: float) -> str:
    return f"{size / GIB:,.2f} GiB"


def _free_bytes(ask: Ask, model: Model) -> tuple[int, list[str]]:
    """What the cache may be sized from, and the lines that say so."""
    if ask.free_gib is not None:
        return int(ask.free_gib * GIB), [f"{ask.free_gib:,.2f} GiB free, as given (weights, activations: already off)"]
    if ask.gpu is not None:
        hardware = load_hardware(ask.gpu)
        memory, name = hardware.hbm_bytes, hardware.name
    else:
        assert ask.gpu_gib is not None
        memory, name = ask.gpu_gib * GIB, "the GPU"
    dtype = ask.weights or WEIGHT_DTYPE.get(model.name, "bf16")
    weights = model.weight_bytes(dtype, ask.tensor_parallel)
    free = int(memory - weights)
    if free <= 0:
        raise ValueError(
            f"the weights of {model.name} ({_gib(weights)} a GPU in {dtype} at --tp {ask.tensor_parallel}) leave no"
            f" room on {name} ({_gib(memory)}); raise --tp or give --weights fp8"
        )
    line = f"{_gib(memory)} ({name}) - {_gib(weights)} weights ({dtype}) = {_gib(free)} free"
    return free, [f"{line}; activations and CUDA context not counted (--free-gib takes the engine's own figure)"]


def _bytes(ask: Ask, model: Model, cache: str, counts: BlockCounts) -> list[str]:
    """Bytes of a token and of a block, by window."""
    tp = ask.tensor_parallel
    if model.mla:
        heads = f"{model.kv_lora_rank} + {model.qk_rope_head_dim} elements (MLA, the same on every rank)"
    else:
        local = local_kv_heads(model.kv_heads, tp)
        heads = f"2 x {local} KV head{'s' if local > 1 else ''} x {model.head_dim}"
        heads += f" ({model.kv_heads} over {tp} GPUs)" if tp > 1 else ""
    tpb = ask.tokens_per_block
    return [
        f"{model.name}: {model.layers} layers, {heads}, {cache} cache",
        *(
            f"{_label(window)}: {window.bytes_per_token:,} B a token on one GPU, x {tpb} ="
            f" {window.block_bytes / 1024:,.0f} KiB a block, moved as {window.descriptors} descriptor"
            f"{'s' if window.descriptors > 1 else ''}"
            for window in counts.windows
        ),
    ]


def _label(window: WindowBlocks) -> str:
    return "full attention" if window.window_tokens is None else f"window {window.window_tokens}"


def _totals(ask: Ask, counts: BlockCounts) -> list[str]:
    tpb = ask.tokens_per_block
    lines = []
    for window in counts.windows:
        gpu, host = window.primary_blocks, window.secondary_blocks
        lines.append(
            f"{_label(window)}: GPU {gpu:,} blocks = {gpu * tpb:,} tokens, {_gib(gpu * window.block_bytes)};"
            f" host {host:,} blocks = {host * tpb:,} tokens, {_gib(host * window.block_bytes)}"
        )
    if ask.host_cache_gib:
        ranks = ask.tensor_parallel
        lines.append(
            f"pinned host memory of the node: {ranks} rank{'s' if ranks > 1 else ''} x {ask.host_cache_gib:,.2f} GiB ="
            f" {ranks * ask.host_cache_gib:,.2f} GiB (host_cache_size is per rank)"
        )
    return lines


def _sequence_tokens(ask: Ask) -> int:
    return (ask.isl or 0) + ask.osl


def _needed(ask: Ask, window: WindowBlocks) -> int:
    """Blocks of all running requests at their longest; a sliding window keeps itself and one block more."""
    tokens = _sequence_tokens(ask)
    if window.window_tokens is not None:
        tokens = min(tokens, window.window_tokens + ask.tokens_per_block)
    return ask.batch * -(-tokens // ask.tokens_per_block)


def _request(ask: Ask, counts: BlockCounts) -> list[str]:
    if ask.isl is None:
        return []
    need = sum(_needed(ask, window) * window.block_bytes for window in counts.windows)
    return [
        f"active context: {ask.batch} x ({ask.isl:,} + {ask.osl:,}) tokens ="
        f" {sum(_needed(ask, window) for window in counts.windows):,} blocks, {_gib(need)}"
    ]


def _warnings(ask: Ask, model: Model, counts: BlockCounts) -> list[str]:
    return [*_context_warnings(ask, model, counts), *_host_warnings(ask, model, counts)]


def _context_warnings(ask: Ask, model: Model, counts: BlockCounts) -> list[str]:
    if ask.isl is None:
        return []
    found = []
    for window in counts.windows:
        need, have = _needed(ask, window), window.primary_blocks
        if need > have:
            one = need // ask.batch
            fits = f"{have // one} such requests fit" if have >= one else "not one such request fits"
            found.append(
                f"active context cannot exceed the GPU pool: needs {_gib(need * window.block_bytes)},"
                f" has {_gib(have * window.block_bytes)} ({_label(window)}; {fits}); host memory does not lengthen it,"
                " it only keeps blocks for reuse and for paused requests"
            )
    if _sequence_tokens(ask) > model.max_position_embeddings:
        found.append(
            f"{_sequence_tokens(ask):,} tokens are more than {model.name} takes ({model.max_position_embeddings:,})"
        )
    return found


def _host_warnings(ask: Ask, model: Model, counts: BlockCounts) -> list[str]:
    gpu = sum(w.primary_blocks * w.block_bytes for w in counts.windows)
    host = sum(w.secondary_blocks * w.block_bytes for w in counts.windows)
    if host == 0:
        return ["zero host blocks: host_cache_size is not set, and an evicted block is lost"]
    found = []
    if host < gpu:
        found.append(
            f"the host pool ({_gib(host)}) is smaller than the GPU pool ({_gib(gpu)}): with inclusive tiers (write"
            " through) it would add no hits; TensorRT-LLM moves blocks, so here it adds its own size"
        )
    tp = ask.tensor_parallel
    copies = tp if model.mla else -(-tp // model.kv_heads)
    if copies > 1:
        why = "MLA keeps the same cache on every rank" if model.mla else f"{model.kv_heads} KV heads on {tp} ranks"
        found.append(
            f"replicated host copies: {why}, so {tp * ask.host_cache_gib:,.2f} GiB pinned hold"
            f" {tp * ask.host_cache_gib / copies:,.2f} GiB of different blocks ({copies} copies of each)"
        )
    return found
