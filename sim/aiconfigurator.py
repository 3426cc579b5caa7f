"""Seconds of a step from aiconfigurator's data base: kernels that NVIDIA timed on its GPUs, summed over a model's layers.

The package `aiconfigurator-core` (an optional extra, imported on use) holds the tables and their interpolation; here it is
asked once for a grid of steps, which becomes the tables of `sim.cost`, so that a run costs what any other does:

    dense layers       every context operation but attention, by tokens: products, norms, experts, collectives
    prefill attention  of one chunk by its tokens and mean context; below half its tokens, of several prompts; never less
                       than a decode step would take to read the same context, which its tables leave out for few tokens
    decode attention   by context tokens and sequences

Its TensorRT-LLM tables of the version it calls current are used. The output head of more than one sequence is the
roofline's, and so is the overhead of a step, since aiconfigurator times kernels only. Experts are whole on a rank (expert
parallelism over all of them). Steps outside the grid take its edge, and a run says how many those were.
"""

import importlib.metadata
import json
import logging
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sim import cost
from sim.cost import CostParams, assembled
from sim.hardware import Hardware
from sim.models import Model
from sim.roofline import RooflineCost
from sim.surface import Numbers, surface

SYSTEMS = {"h100-sxm": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm", "l40s": "l40s"}
"""Its name for our presets; it has tables of other cards, which no preset describes."""
PRODUCTS = {
    "bf16": "bfloat16",
    "fp16": "bfloat16",
    "fp8": "fp8",
    "int8": "int8_wo",
    "int4": "int4_wo",
    "nvfp4": "nvfp4",
}
EXPERTS = {**PRODUCTS, "mxfp4": "w4a16_mxfp4"}
CACHES = {"bf16": "bfloat16", "fp16": "bfloat16", "fp8": "fp8", "int8": "int8"}
"""Its names for number formats."""
TOKENS = tuple(2.0 ** (n / 4) for n in range(4 * 15 + 1))
CHUNKS = tuple(2.0**n for n in range(16))
CONTEXTS = tuple(2.0**n for n in range(3, 18))
TOTALS = tuple(2.0**n for n in range(4, 24))
SEQUENCES = tuple(2.0**n for n in range(11))
"""The grid: tokens of a step; tokens and mean contexts of a chunk; context tokens and sequences of a batch."""
LEAST_MS = 1e-6


class AiconfiguratorCost:
    """See `sim.cost.CostModel`. What its data base lacks is refused with what it says about it."""

    def __init__(
        self,
        model: Model,
        hardware: Hardware,
        dtype: str = "bf16",
        kv_dtype: str = "bf16",
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
    ) -> None:
        base = RooflineCost(model, hardware, dtype, kv_dtype, tensor_parallel, pipeline_parallel).figures()
        system, handle = _engine(model, hardware, dtype, kv_dtype, tensor_parallel)
        self._ask = _asked(handle, f"{model.name} ({dtype} weights, {kv_dtype} cache) on {tensor_parallel} x {system}")
        kept = (cost.HEAD_S_PER_SEQ, cost.STAGES)
        figures = {place: base[place] for place in kept}
        figures |= {cost.FIXED_S: hardware.step_overhead_s, cost.FULL_LAYERS: 1.0, cost.LIMITED: 1.0}
        tables = {cost.DENSE: self._dense(), cost.PREFILL: self._prefill(), cost.DECODE: self._decode()}
        self.params: CostParams = assembled(figures, tables)
        version = importlib.metadata.version("aiconfigurator-core")
        self.notes = (f"steps: kernels by aiconfigurator-core {version}, {system}, its current TensorRT-LLM tables",)

    def _dense(self) -> Numbers:
        rest = [self._ask("context", 1, round(n), 0)[0] for n in TOKENS]
        rising = np.maximum.accumulate(np.array(rest))  # a measured step down is noise
        return surface(TOKENS, (1.0,), 1e-3 * rising / np.array(TOKENS))

    def _prefill(self) -> Numbers:
        values = [[1e-3 * self._chunk_ms(tokens, mean) / (tokens * mean) for tokens in CHUNKS] for mean in CONTEXTS]
        return surface(CONTEXTS, CHUNKS, np.array(values))

    def _chunk_ms(self, tokens: float, mean: float) -> float:
        """Attention of `tokens` query tokens that see `mean` tokens each on average."""
        if mean < tokens / 2:
            return self._ask("context", round(tokens / (2 * mean)), round(2 * mean), 0)[1]
        before = round(mean - tokens / 2)
        seen = before + round(tokens)
        return max(self._ask("context", 1, seen, before)[1], self._ask("generation", 1, seen, 0)[1])

    def _decode(self) -> Numbers:
        values = [[1e-3 * self._batch_ms(total, seqs) / total for seqs in SEQUENCES] for total in TOTALS]
        return surface(TOTALS, SEQUENCES, np.array(values))

    def _batch_ms(self, total: float, seqs: float) -> float:
        return self._ask("generation", round(seqs), max(1, round(total / seqs)), 0)[1]


def _engine(model: Model, hardware: Hardware, dtype: str, kv_dtype: str, ranks: int) -> tuple[str, Any]:
    """Its name of the card, and its engine for the model."""
    try:
        from aiconfigurator_core.sdk import EngineHandle
    except ImportError:
        raise ValueError("cost_model aiconfigurator needs its package: pip install kvtier[aiconfigurator]") from None
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
    system = SYSTEMS.get(hardware.name)
    if system is None:
        raise ValueError(f"cost_model aiconfigurator has no tables for {hardware.name}; it has {', '.join(SYSTEMS)}")
    products = PRODUCTS["bf16" if dtype == "mxfp4" else dtype]
    formats = {"gemm_quant_mode": products, "moe_quant_mode": EXPERTS[dtype]}
    formats["kvcache_quant_mode"] = formats["fmha_quant_mode"] = _known(CACHES, kv_dtype)
    split = {"tp_size": ranks, "moe_tp_size": 1, "moe_ep_size": ranks if model.experts else 1}
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(config_of(model)), encoding="utf-8")
        try:
            return system, EngineHandle.compile(directory, system, "trtllm", **split, **formats)
        except (ValueError, KeyError, RuntimeError, NotImplementedError) as error:
            raise ValueError(f"cost_model aiconfigurator cannot take {model.name}: {_short(error)}") from None


def _known(names: Mapping[str, str], name: str) -> str:
    if name not in names:
        raise ValueError(f"cost_model aiconfigurator has no tables for a cache of {name}; it has {', '.join(names)}")
    return names[name]


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _asked(handle: Any, what: str) -> Callable[[str, int, int, int], tuple[float, float]]:
    """A question to its engine: (everything but attention, attention) in ms of one context or generation step."""

    def ask(phase: str, batch: int, tokens: int, before: int) -> tuple[float, float]:
        try:
            if phase == "context":
                operations, _ = handle.run_static_per_op(
                    batch_size=batch, isl=tokens, osl=1, prefix=before, mode="static_ctx"
                )
            else:
                operations = handle.decode_step_per_op(batch, tokens, 2)
        except RuntimeError as error:
            raise ValueError(f"cost_model aiconfigurator has no data for {what}: {_short(error)}") from None
        attention = sum(ms for name, ms, *_ in operations if "attention" in name or "mla" in name)
        rest = sum(ms for _, ms, *_ in operations) - attention
        return max(rest, LEAST_MS), max(attention, LEAST_MS)

    return ask


def config_of(model: Model) -> dict[str, Any]:
    """The model as a Hugging Face configuration, in the keys that aiconfigurator reads."""
    config: dict[str, Any] = {
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.intermediate_size,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_position_embeddings,
    }
    if not model.experts:
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **config}
    routed = {"num_experts_per_tok": model.experts_per_token, "moe_intermediate_size": model.expert_size}
    if model.mla:
        latent = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
        routed |= {name: getattr(model, name) for name in latent}
        routed |= {"n_routed_experts": model.experts, "n_shared_experts": model.shared_experts}
        routed |= {"first_k_dense_replace": model.dense_layers}
        return {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", **config, **routed}
    if any(model.windows):
        routed |= {"num_local_experts": model.experts, "sliding_window": min(w for w in model.windows if w)}
        return {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", **config, **routed}
    routed |= {"num_experts": model.experts}
    return {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", **config, **routed}
