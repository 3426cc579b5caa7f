"""The other cost models against the measurements of section D that they can answer: `table` and `aiconfigurator`.

The roofline's errors are the rows D1 to D4 themselves. Here steps are summed without a run: prompts in chunks of 16,384
tokens as there, and the same 3.1 ms of the server. aiconfigurator's rows are there only where its package is.
A layer without attention bears a share of the output head here (3 us), which aiconfigurator does not tell apart.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from experiments.published.compute import BLOG, DECODE_MS, FRONT_END_S, LAYER_MS, LLAMA_2_7B, PREFILL_MS, RECOMPUTE_MS
from experiments.published.figure import Figure, Group
from sim.cost import FIXED_S, CostParams, decode_seconds, dense_seconds, prefill_seconds, step_seconds
from sim.cost_models import COST_MODELS
from sim.hardware import load_hardware
from sim.models import Model, load_model, model_from_config

KERNELS = Path(__file__).parent / "h100-kernels.yaml"
CHUNK = 16384
ROWS = {"table": "DT", "aiconfigurator": "DA"}
NOTES: Mapping[str, str] = {
    "table": "The kernels were timed one by one on a card with nothing else to do; a whole engine's are slower."
    " Attention of 16 sequences or more is read from tables of a 16-bit cache.",
    "aiconfigurator": "Its tables hold kernels only; 0.5 ms a step are added. What it says of one layer's attention is where"
    " D3 comes from (of an older version).",
}


def groups() -> list[Group]:
    """One group a model that is here."""
    names = ["table"]
    if importlib.util.find_spec("aiconfigurator_core") is not None:
        names.append("aiconfigurator")
    return [_group(name) for name in names]


def _group(name: str) -> Group:
    llama = load_model("llama-3.1-8b")
    params = _params(name, llama, "bf16")
    figures = []
    for k, ms in RECOMPUTE_MS.items():
        ours = 1e3 * (FRONT_END_S + _prompt_s(params, 1000 * k))
        tolerance = None if name == "aiconfigurator" else 0.15 if k == 1 else 0.10
        figures.append(Figure(ROWS[name], f"recompute {k}K tokens", "ms", ms, ours, tolerance))
    layer = 1e3 / llama.layers
    for k, layer_ms in PREFILL_MS.items():
        n = 1024.0 * k
        ours = layer * prefill_seconds(params, n, n * n / 2, n * n / 2, n)
        figures.append(Figure(ROWS[name], f"attention of {k}K tokens", "ms", layer_ms, ours, None))
    short = _params(name, llama, "fp8")
    for batch, layer_ms in DECODE_MS.items():
        ours = layer * decode_seconds(short, float(batch), batch * 8192.0, batch * 8192.0)
        figures.append(Figure(ROWS[name], f"attention of {batch} x 8K, decode", "ms", layer_ms, ours, None))
    dense = _params(name, model_from_config("llama-2-7b", {**LLAMA_2_7B, "vocab_size": 32_000}), "bf16")
    overhead = load_hardware("h100-sxm").step_overhead_s
    for tokens, layer_ms in LAYER_MS[1]:
        ours = 1e3 / 32 * (dense[FIXED_S] - overhead + dense_seconds(dense, float(tokens), 0.0))
        figures.append(Figure(ROWS[name], f"layer without attention, {tokens:,} tokens", "ms", layer_ms, ours, None))
    return Group(
        ROWS[name],
        f"cost_model {name}: D1, D3 and D4 (one GPU) by its steps",
        f"{BLOG}; aiconfigurator and Vidur as in D3 and D4",
        tuple(figures),
        NOTES[name],
    )


def _params(name: str, model: Model, kv_dtype: str) -> CostParams:
    hardware = load_hardware(KERNELS if name == "table" else "h100-sxm")
    return COST_MODELS[name](model, hardware, "bf16", kv_dtype, 1, 1).params


def _prompt_s(params: CostParams, tokens: int) -> float:
    seconds, before = 0.0, 0
    while before < tokens:
        chunk = min(CHUNK, tokens - before)
        seconds += step_seconds(params, chunk, chunk * (before + chunk / 2), 0, 0)
        before += chunk
    return seconds
