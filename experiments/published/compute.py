"""Steps, and the time to the first token (D1 to D4)."""

from dataclasses import replace

from experiments.published.figure import Figure, Group
from experiments.published.runs import first_token_s, tokens_per_s
from sim.cost import FIXED_S, decode_seconds, dense_seconds, prefill_seconds
from sim.hardware import load_hardware
from sim.models import load_model, model_from_config
from sim.roofline import RooflineCost
from sim.transfer import Link, LinkDirection

BLOG = "vLLM blog of 2026-01-08 on its KV offloading connector, Llama-3.1-8B on H100"
FRONT_END_S = 3.1e-3
"""What is not a step in the blog's times: its load curve starts at 10.1 ms, and a step of one token takes 7.0."""

RECOMPUTE_MS = {
    1: 32,
    10: 258,
    20: 638,
    30: 1095,
    40: 1649,
    50: 2287,
    60: 3008,
    70: 3845,
    80: 4786,
    90: 5739,
    100: 6847,
}
LOAD_MS = {1: 13, 10: 39, 20: 68, 30: 103, 40: 129, 50: 157, 60: 187, 70: 215, 80: 249, 90: 276, 100: 307}
THOUSAND_TOKENS_PER_S = (42.9, 46.7, 52.1, 56.9, 64.7, 73.9, 89.3, 116.2, 158.7, 218.1, 389.3)
PROMPTS = 2_000
PREFILL_MS = {1: 0.0514, 2: 0.1483, 4: 0.3796, 8: 1.193, 16: 4.381}
DECODE_MS = {1: 0.0248, 32: 0.215, 64: 0.399}
LAYER_MS = {
    1: ((1, 0.175), (512, 0.375), (2048, 1.267), (4096, 2.608)),
    8: ((1, 0.041), (512, 0.096), (2048, 0.271), (4096, 0.516)),
}


def groups() -> list[Group]:
    """D1 to D4."""
    return [_first_token(), _throughput(), _attention(), _linear()]


def _first_token() -> Group:
    figures = []
    for thousand, recompute_ms in RECOMPUTE_MS.items():
        computed_s, loaded_s = first_token_s(1000 * thousand)
        tolerance = 0.15 if thousand == 1 else 0.10
        for name, published, seconds in (
            ("recompute", recompute_ms, computed_s),
            ("load", LOAD_MS[thousand], loaded_s),
        ):
            ours = 1e3 * (FRONT_END_S + seconds)
            figures.append(Figure("D1", f"{name} {thousand}K tokens", "ms", published, ours, tolerance))
    return Group(
        "D1",
        "Time to first token: computed, or loaded from host memory",
        f"{BLOG}, figure 1 (read from the plot)",
        tuple(sorted(figures, key=lambda f: f.what.split()[0] == "load")),
        "Timed runs of one request at a time. 3.1 ms are added for the server around the engine (one figure for all).",
    )


def _throughput() -> Group:
    figures = [
        Figure("D2", f"{10 * i} % hits", "k tok/s", published, tokens_per_s(i / 10, PROMPTS, 512) / 1e3, 0.10)
        for i, published in enumerate(THOUSAND_TOKENS_PER_S)
    ]
    for i in (5, 9):
        both = tokens_per_s(i / 10, PROMPTS, 512, "full") / 1e3
        what = f"{10 * i} % hits, copies beside kernels"
        figures.append(Figure("D2", what, "k tok/s", THOUSAND_TOKENS_PER_S[i], both, None))
    return Group(
        "D2",
        "Throughput against the share of prompts found in host memory",
        f"{BLOG}, figure 2 (read from the plot)",
        tuple(figures),
        f"Timed runs of {PROMPTS:,} prompts of 512 tokens instead of 10,000 (all 10,000 differ by less than 1 %)."
        " Copies come before kernels; beside them they would give more than was measured (last two rows). Stores are"
        " not part of the runs; the blog puts their cost at 3 % (0 % hits). At 100 % the blog's own bytes move at 51"
        " GB/s, where its figure 4 has 47.7 for blocks of 2 MB.",
    )


def _attention() -> Group:
    """One layer's attention kernels by themselves."""
    model, machine = load_model("llama-3.1-8b"), load_hardware("h100-sxm")
    prefill, decode = (RooflineCost(model, machine, kv_dtype=kv_dtype).params for kv_dtype in ("bf16", "fp8"))
    layer_ms = 1e3 / model.layers
    figures = []
    for k, published in PREFILL_MS.items():
        n = 1024.0 * k
        ours = layer_ms * prefill_seconds(prefill, n, n * n / 2, n * n / 2, n)
        figures.append(Figure("D3", f"prefill {k}K tokens", "ms", published, ours, 0.10, "h100-sxm compute.attention"))
    for batch, published in DECODE_MS.items():
        ours = layer_ms * decode_seconds(decode, float(batch), batch * 8192.0, batch * 8192.0)
        fixes = "h100-sxm decode_attention" if batch == 1 else ""
        figures.append(Figure("D3", f"decode {batch} x 8K", "ms", published, ours, 0.10, fixes))
    return Group(
        "D3",
        "Attention of one layer, 32 query and 8 KV heads of 128, H100",
        "aiconfigurator's tables for TensorRT-LLM 1.3.0rc10",
        tuple(figures),
        "Decode is read as an 8-bit cache: with 16 bits, batch 64 would take more than the card's bandwidth.",
    )


LLAMA_2_7B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "vocab_size": 1,
    "max_position_embeddings": 4096,
}
"""Layers only: Vidur's table has no embeddings."""


def _linear() -> Group:
    """Everything of a layer but attention and communication."""
    free = LinkDirection(0.0, 1e15)
    machine = replace(load_hardware("h100-sxm"), step_overhead_s=0.0, links={"nvlink": Link(free, free)})
    model = model_from_config("llama-2-7b", LLAMA_2_7B)
    figures = []
    for ranks, rows in LAYER_MS.items():
        params = RooflineCost(model, machine, tensor_parallel=ranks).params
        for tokens, published in rows:
            ours = 1e3 / model.layers * (params[FIXED_S] + dense_seconds(params, float(tokens), 0.0))
            fixes = "" if ranks > 1 else "h100-sxm compute.linear" if tokens > 1 else "h100-sxm compute.kernels"
            tolerance = 0.15 if (ranks, tokens) == (8, 512) else 0.10
            what = f"{ranks} GPU{'s' if ranks > 1 else ''}, {tokens:,} token{'s' if tokens > 1 else ''}"
            figures.append(Figure("D4", what, "ms", published, ours, tolerance, fixes))
    return Group(
        "D4",
        "Linear layers of one layer, Llama-2-7B, H100",
        "Vidur, data/profiling/compute/h100/meta-llama/Llama-2-7b-hf/mlp.csv",
        tuple(figures),
        "Narrow, shallow products (8 GPUs) reach less of the peak: tiles, waves and the writing of results say how much"
        " less. Vidur adds the residual in a kernel of its own, which TensorRT-LLM fuses: about 4 points of the rest.",
    )
