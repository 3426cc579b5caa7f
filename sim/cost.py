"""Seconds of one engine step, from first principles: a roofline of the model on the machine.

It schedules nothing and moves no cache blocks. A step is a sum of kernels that run one after the other:

    linear layers      max(FLOPs / (peak x efficiency), weight bytes / (HBM x efficiency)); experts apart, and only
                       the experts that some token of the batch is expected to reach are read
    activations        what norms, rotary embedding and the gate read and write, at HBM speed
    prefill attention  max(FLOPs, cache bytes of the chunks' contexts); a query token costs as much as
                       `half_context_tokens` more of context, which is how short prompts lose efficiency
    decode attention   max(cache bytes, FLOPs), and a fixed time a layer
    all-reduce         two a layer over NVLink (over the host link where there is none): latency + ring bytes
    fixed              kernels x their latency, and a step's own overhead

Tensor parallelism divides FLOPs and bytes as cache and weights are divided. Every figure is the hardware's; none is
fitted here. Measured against (tests/sim/test_cost.py): Llama-3.1-8B on H100, 1K to 100K tokens; attention alone;
linear layers alone.

Units of work. `pairs` counts query token x context token: a chunk of c tokens after b others makes c * (b + c / 2);
sum over chunks. Sliding-window layers see less, so the exact form `step_seconds_windowed` takes, beside each sum, the
same sum with every context cut to the window (`context_pairs`); `step_seconds` works it out from the means instead: it
is exact for models without a window, for one chunk beyond the window, and where all sequences are longer (or all
shorter) than it. It takes prefill tokens to be one chunk: with several, their context is read once too few.
"""

import math

import numpy as np
from numpy.typing import NDArray

from kvcache.capacity import bytes_per_token
from kvcache.compiled import loop
from sim.hardware import Hardware
from sim.models import WIDE_BYTES, Model, bytes_per_weight

CostParams = NDArray[np.float64]

RATES = {
    "bf16": ("bf16",),
    "fp16": ("bf16",),
    "fp8": ("fp8", "bf16"),
    "int8": ("int8", "bf16"),
    "nvfp4": ("fp4", "bf16"),
    "mxfp4": ("bf16",),
    "int4": ("bf16",),
}
"""The number format matrix products run in, by weight dtype: the first one the card has. mxfp4, int4: weights only."""

(
    LINEAR_S_PER_TOKEN,
    HEAD_S_PER_SEQ,
    DENSE_READ_S,
    EXPERT_S_PER_TOKEN,
    EXPERT_READ_S,
    EXPERTS,
    LOG_MISS,
    ACTIVATION_S_PER_TOKEN,
    FULL_LAYERS,
    WINDOW_LAYERS,
    WINDOW_TOKENS,
    PAIR_S,
    HALF_CONTEXT,
    CONTEXT_READ_S_FULL,
    CONTEXT_READ_S_WINDOW,
    DECODE_PAIR_S,
    ATTENTION_LATENCY_S,
    DECODE_LATENCY_S,
    REDUCE_S_PER_TOKEN,
    FIXED_S,
    COUNT,
) = range(21)
"""What each place of `CostParams` holds. Seconds are of one rank, over all its layers, unless the name says layer."""


class RooflineCost:
    """The cost of steps of one model on one machine; `params` is what the compiled functions read.

    `dtype` is that of the weights, `kv_dtype` that of the cache. Prefill attention runs in 16 bits whatever they are.
    """

    def __init__(
        self, model: Model, hardware: Hardware, dtype: str = "bf16", kv_dtype: str = "bf16", tensor_parallel: int = 1
    ) -> None:
        bytes_per_weight(dtype)
        sliding = {w for w in model.windows if w is not None}
        if len(sliding) > 1:
            raise ValueError(f"{model.name} has the windows {sorted(sliding)}; the cost model knows full and one more")
        self.model, self.hardware, self.dtype, self.kv_dtype = model, hardware, dtype, kv_dtype
        self.tensor_parallel = tensor_parallel
        hbm = hardware.hbm_bytes_per_s * hardware.hbm_efficiency
        per_token = bytes_per_token(model.shape(), kv_dtype, tensor_parallel)
        params = np.zeros(COUNT, np.float64)
        params[CONTEXT_READ_S_FULL] = per_token.pop(None, 0) / hbm
        params[CONTEXT_READ_S_WINDOW] = sum(per_token.values()) / hbm
        params[WINDOW_TOKENS] = min(sliding, default=math.inf)
        params[WINDOW_LAYERS] = sum(w is not None for w in model.windows)
        params[FULL_LAYERS] = model.layers - params[WINDOW_LAYERS]
        self._linear(params, hbm)
        self._attention(params)
        self._fixed(params)
        self.params: CostParams = params

    def _linear(self, params: CostParams, hbm: float) -> None:
        model, hardware, tp = self.model, self.hardware, self.tensor_parallel
        known = next(hardware.flops[rate] for rate in RATES[self.dtype] if rate in hardware.flops)
        flops = known * hardware.linear_efficiency * tp
        expert_bytes = model.moe_layers * model.expert_parameters * bytes_per_weight(self.dtype) / tp
        embedding = 0 if model.tied_embedding else model.vocab_size * model.hidden_size * WIDE_BYTES / tp
        expert_flops = 2.0 * model.moe_layers * model.experts_per_token * model.expert_parameters
        dense_bytes = model.weight_bytes(self.dtype, tp) - model.experts * expert_bytes - embedding
        params[LINEAR_S_PER_TOKEN] = (model.linear_flops_per_token() - expert_flops) / flops
        params[HEAD_S_PER_SEQ] = model.head_flops_per_token() / (
            hardware.flops["bf16"] * hardware.linear_efficiency * tp
        )
        params[DENSE_READ_S] = dense_bytes / hbm
        params[EXPERT_S_PER_TOKEN] = expert_flops / flops
        params[EXPERT_READ_S] = expert_bytes / hbm
        params[EXPERTS] = model.experts
        if model.experts > model.experts_per_token:
            params[LOG_MISS] = math.log1p(-model.experts_per_token / model.experts)
        params[ACTIVATION_S_PER_TOKEN] = _activation_bytes(model, tp) / hbm

    def _attention(self, params: CostParams) -> None:
        model, hardware = self.model, self.hardware
        flops = hardware.flops["bf16"] * hardware.attention_efficiency * self.tensor_parallel
        params[PAIR_S] = model.attention_flops_per_pair() / flops
        params[DECODE_PAIR_S] = model.attention_flops_per_pair(absorbed=True) / flops
        params[HALF_CONTEXT] = hardware.attention_half_context_tokens
        params[ATTENTION_LATENCY_S] = model.layers * hardware.kernel_latency_s
        params[DECODE_LATENCY_S] = model.layers * hardware.decode_attention_latency_s

    def _fixed(self, params: CostParams) -> None:
        model, hardware, tp = self.model, self.hardware, self.tensor_parallel
        params[FIXED_S] = hardware.step_overhead_s + model.layers * hardware.kernels_per_layer * (
            hardware.kernel_latency_s
        )
        if tp > 1:
            link = hardware.link("nvlink" if "nvlink" in hardware.links else "host").h2d
            ring = 2 * (tp - 1) / tp * model.hidden_size * 2
            params[REDUCE_S_PER_TOKEN] = 2 * model.layers * ring / link.bandwidth_bytes_per_s
            params[FIXED_S] += 2 * model.layers * link.latency_s


def _activation_bytes(model: Model, tensor_parallel: int) -> float:
    """What one token makes the kernels between the matrix products read and write, 16 bits an element, all layers.

    Twice a layer the norm reads input and residual and writes residual and output, on every rank alike (8 x hidden);
    rotary embedding reads and writes queries, keys and values, the gate reads two and writes one (split over ranks).
    """
    width = model.experts_per_token * model.expert_size + model.shared_experts * model.expert_size
    gates = model.moe_layers * width + (model.layers - model.moe_layers) * model.intermediate_size
    heads = model.heads * (model.qk_nope_head_dim + model.qk_rope_head_dim if model.mla else model.head_dim)
    keys = model.kv_lora_rank + model.qk_rope_head_dim if model.mla else 2 * model.kv_heads * model.head_dim
    split = 3 * gates + model.layers * 2 * (heads + keys)
    return 2.0 * (8 * model.hidden_size * model.layers + split / tensor_parallel)


@loop
def context_pairs(context_before: float, chunk_tokens: float, window_tokens: float) -> float:
    """Query x context token pairs of one chunk, each context cut to the window (`math.inf`: none)."""
    before, chunk, window = float(context_before), float(chunk_tokens), float(window_tokens)
    if before >= window:
        return chunk * window
    growing = min(chunk, window - before)
    pairs = growing * (before + growing / 2.0)
    if growing < chunk:
        pairs += (chunk - growing) * window
    return pairs


@loop
def step_seconds_windowed(
    params: CostParams,
    prefill_tokens: float,
    prefill_pairs: float,
    prefill_window_pairs: float,
    prefill_context_tokens: float,
    decode_seqs: float,
    decode_context_tokens: float,
    decode_window_tokens: float,
) -> float:
    """Seconds of one step, exact in all its sums; no token is no time. `prefill_context_tokens` sums the chunks'
    contexts, chunks included; the `_window_` sums cut each context to the window and are unused without one."""
    prefill, seqs = float(prefill_tokens), float(decode_seqs)
    tokens = prefill + seqs
    if tokens <= 0.0:
        return 0.0
    dense = max(tokens * params[LINEAR_S_PER_TOKEN] + seqs * params[HEAD_S_PER_SEQ], params[DENSE_READ_S])
    seconds = params[FIXED_S] + dense + tokens * (params[ACTIVATION_S_PER_TOKEN] + params[REDUCE_S_PER_TOKEN])
    experts = params[EXPERTS]
    if experts > 0.0:
        reached = experts
        if params[LOG_MISS] < 0.0:
            reached = experts * (1.0 - math.exp(tokens * params[LOG_MISS]))
        seconds += max(tokens * params[EXPERT_S_PER_TOKEN], reached * params[EXPERT_READ_S])
    full, sliding = params[FULL_LAYERS], params[WINDOW_LAYERS]
    if prefill > 0.0:
        pairs = full * float(prefill_pairs)
        read = params[CONTEXT_READ_S_FULL] * float(prefill_context_tokens)
        if sliding > 0.0:
            pairs += sliding * float(prefill_window_pairs)
            read += params[CONTEXT_READ_S_WINDOW] * min(float(prefill_context_tokens), prefill + params[WINDOW_TOKENS])
        pairs += (full + sliding) * prefill * params[HALF_CONTEXT]
        seconds += params[ATTENTION_LATENCY_S] + max(pairs * params[PAIR_S], read)
    if seqs > 0.0:
        pairs = full * float(decode_context_tokens)
        read = params[CONTEXT_READ_S_FULL] * float(decode_context_tokens)
        if sliding > 0.0:
            pairs += sliding * float(decode_window_tokens)
            read += params[CONTEXT_READ_S_WINDOW] * float(decode_window_tokens)
        seconds += params[DECODE_LATENCY_S] + max(pairs * params[DECODE_PAIR_S], read)
    return float(seconds)


@loop
def step_seconds(
    params: CostParams,
    prefill_tokens: float,
    prefill_attention_token_pairs: float,
    decode_seqs: float,
    decode_context_tokens: float,
) -> float:
    """`step_seconds_windowed` with what the window leaves taken from the means; see the top of this file."""
    prefill, pairs = float(prefill_tokens), float(prefill_attention_token_pairs)
    seqs, contexts = float(decode_seqs), float(decode_context_tokens)
    window = params[WINDOW_TOKENS]
    window_pairs = 0.0
    context = 0.0
    if prefill > 0.0:
        before = max(pairs / prefill - prefill / 2.0, 0.0)
        context = before + prefill
        window_pairs = context_pairs(before, prefill, window)
    window_tokens = 0.0
    if seqs > 0.0:
        window_tokens = min(contexts, seqs * window)
    return step_seconds_windowed(params, prefill, pairs, window_pairs, context, seqs, contexts, window_tokens)
