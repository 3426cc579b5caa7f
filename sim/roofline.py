"""Seconds of a step from first principles: a model's FLOPs and bytes on a machine's data sheet, in the form of `sim.cost`.

    dense layers       matrix products by their shape (`sim.products`); quantised weights are read in their own bytes
    experts            max(FLOPs / (peak x efficiency), bytes of the experts reached / HBM)
    prefill attention  FLOPs / (bf16 peak x its efficiency), or what is read
    decode attention   what is read / HBM, or FLOPs
    all-reduce         two a layer, ring bytes over NVLink (the host link where there is none), and latency

Tensor parallelism divides FLOPs and bytes as cache and weights are divided; whole experts on a rank (expert parallelism
under tensor-parallel attention) are as many bytes and FLOPs, and the same all-reduce, so they cost the same here: that
one rank's experts may be hotter than another's is left out. Every figure is the hardware's; none is fitted here. Measured
against (tests/sim/test_roofline.py): Llama-3.1-8B on H100, 1K to 100K tokens; attention alone; linear layers alone.
"""

import math

import numpy as np

from kvcache.capacity import bytes_per_token
from sim import cost
from sim.cost import CostParams, assembled
from sim.hardware import Hardware
from sim.models import WIDE_BYTES, Model, bytes_per_weight
from sim.products import Card, dense_seconds
from sim.surface import Numbers, surface

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
TOKENS = tuple(2.0 ** (eighth / 8) for eighth in range(8 * 17 + 1))
"""Tokens of a step at which the products are worked out, 1 to 131,072, eight an octave."""


class RooflineCost:
    """See `sim.cost.CostModel`. `dtype` is that of the weights, `kv_dtype` that of the cache; prefill attention runs in
    16 bits whatever they are."""

    def __init__(
        self,
        model: Model,
        hardware: Hardware,
        dtype: str = "bf16",
        kv_dtype: str = "bf16",
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
    ) -> None:
        bytes_per_weight(dtype)
        self.model, self.hardware, self.dtype = model, hardware, dtype
        self.tensor_parallel, self.pipeline_parallel = tensor_parallel, pipeline_parallel
        self.hbm = hardware.hbm_bytes_per_s * hardware.hbm_efficiency
        self.per_token = bytes_per_token(model.shape(), kv_dtype, tensor_parallel)
        self.notes: tuple[str, ...] = ()
        self.params: CostParams = assembled(self.figures(), {cost.DENSE: self.dense()})

    def figures(self) -> dict[int, float]:
        """Everything but tables."""
        return {**self._products(), **self._attention(), **self._fixed()}

    def card(self) -> Card:
        """What matrix products meet."""
        hardware = self.hardware
        flops = next(hardware.flops[rate] for rate in RATES[self.dtype] if rate in hardware.flops)
        weight = WIDE_BYTES if self.dtype == "mxfp4" else bytes_per_weight(self.dtype)
        return Card(flops * hardware.linear_efficiency, self.hbm, hardware.multiprocessors, weight)

    def dense(self) -> Numbers:
        """Seconds a token of the dense layers, by tokens."""
        card, model, tp = self.card(), self.model, self.tensor_parallel
        return surface(TOKENS, (1.0,), np.array([dense_seconds(card, model, n, tp) / n for n in TOKENS]))

    def _products(self) -> dict[int, float]:
        """Experts, the output head, and what lies between the products."""
        model, hardware, tp = self.model, self.hardware, self.tensor_parallel
        wide = hardware.flops["bf16"] * hardware.linear_efficiency * tp
        expert_flops = 2.0 * model.moe_layers * model.experts_per_token * model.expert_parameters
        expert_bytes = model.moe_layers * model.expert_parameters * bytes_per_weight(self.dtype) / tp
        some = model.experts > model.experts_per_token
        return {
            cost.HEAD_S_PER_SEQ: model.head_flops_per_token() / wide,
            cost.HEAD_READ_S: model.vocab_size * model.hidden_size * WIDE_BYTES / tp / self.hbm,
            cost.EXPERT_S_PER_TOKEN: expert_flops / (self.card().flops_per_s * tp),
            cost.EXPERT_READ_S: expert_bytes / self.hbm,
            cost.EXPERTS: model.experts,
            cost.LOG_MISS: math.log1p(-model.experts_per_token / model.experts) if some else 0.0,
            cost.ACTIVATION_S_PER_TOKEN: _activation_bytes(model, tp) / self.hbm,
        }

    def _attention(self) -> dict[int, float]:
        model, hardware = self.model, self.hardware
        sliding = {w for w in model.windows if w is not None}
        if len(sliding) > 1:
            raise ValueError(f"{model.name} has the windows {sorted(sliding)}; the cost model knows full and one more")
        window_layers = sum(w is not None for w in model.windows)
        flops = hardware.flops["bf16"] * hardware.attention_efficiency * self.tensor_parallel
        full = self.per_token.get(None, 0)
        return {
            cost.WINDOW_TOKENS: min(sliding, default=math.inf),
            cost.WINDOW_LAYERS: window_layers,
            cost.FULL_LAYERS: model.layers - window_layers,
            cost.CONTEXT_READ_S_FULL: full / self.hbm,
            cost.CONTEXT_READ_S_WINDOW: (sum(self.per_token.values()) - full) / self.hbm,
            cost.PAIR_S: model.attention_flops_per_pair() / flops,
            cost.DECODE_PAIR_S: model.attention_flops_per_pair(absorbed=True) / flops,
            cost.HALF_CONTEXT: hardware.attention_half_context_tokens,
            cost.ATTENTION_LATENCY_S: model.layers * hardware.kernel_latency_s,
            cost.DECODE_LATENCY_S: model.layers * hardware.decode_attention_latency_s,
        }

    def _fixed(self) -> dict[int, float]:
        """Kernels' latencies, all-reduces, the way from stage to stage."""
        model, hardware, tp, stages = self.model, self.hardware, self.tensor_parallel, self.pipeline_parallel
        fixed = hardware.step_overhead_s + model.layers * hardware.kernels_per_layer * hardware.kernel_latency_s
        per_token = 0.0
        if tp > 1 or stages > 1:
            link = hardware.link("nvlink" if "nvlink" in hardware.links else "host").h2d
            hidden = model.hidden_size * 2 / link.bandwidth_bytes_per_s
            reduces, ring = 2 * model.layers if tp > 1 else 0, 2 * (tp - 1) / tp
            per_token = reduces * ring * hidden + (stages - 1) * hidden
            fixed += (reduces + stages - 1) * link.latency_s
        return {cost.FIXED_S: fixed, cost.REDUCE_S_PER_TOKEN: per_token, cost.STAGES: stages}


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
