"""Prefill apart from decoding: what it gains (C4), where a transfer's time goes (C5), links between GPUs (C6)."""

import numpy as np

from experiments.published.figure import Figure, Group
from experiments.rate_match import Load, Machine, aggregated, gains, matched
from sim.handover import LinkProfile, Transport, handover, load_link
from sim.hardware import load_hardware
from sim.layout import Split, conversion
from sim.models import load_model

PACES = (20.0, 30.0, 40.0, 50.0, 60.0, 80.0, 100.0)
"""Tokens a second for each user."""
QWEN_LAYERS, QWEN_KV_HEADS, QWEN_HEAD_DIM = 94, 4, 128  # Qwen3-235B-A22B, its config.json
BLOG = "TensorRT-LLM technical blog 5"


def groups() -> list[Group]:
    """C4, C5 and C6."""
    return [_gain(), _parts(), _links()]


def deepseek_gains(load: Load) -> list[tuple[float, float]]:
    """DeepSeek-R1 on GB200: tokens a second and GPU apart over together, the best split of either side, at each pace."""
    machine = Machine(load_model("deepseek-r1"), load_hardware("gb200"), "nvfp4", "fp8")
    context, generation = [Split(4), Split(8)], [Split(4), Split(8), Split(16), Split(32)]
    apart = [p for c in context for g in generation for p in matched(machine, c, g, load, 8192)]
    together = [p for g in generation for p in aggregated(machine, g, load, 8192)]
    return gains(apart, together, PACES)


def under_the_curve(load: Load, context: str, generation: str, share: float) -> float:
    """By which share the tokens/s/GPU of a simulated run lie under the rate-matched curve at its tokens/s/user: DeepSeek-R1
    on GB200, at `share` of what the context workers could compute."""
    from experiments.disagg_study import Study, side, studied

    settings = ["model=deepseek-r1", "hardware=gb200", "dtype=fp8"]
    sides = (side(context, "--ctx"), side(generation, "--gen"))
    rate = share * sides[0].workers * studied(Study(load, *sides, 1, 1.0), None, settings)["context_rate_per_s"]
    result = studied(Study(load, *sides, 1500, rate), None, settings)
    paces, rates = np.array(sorted((p["tokens_per_s_per_user"], p["tokens_per_s_per_gpu"]) for p in result["points"])).T
    there = float(np.interp(1 / result["apart"]["tpot_s"]["mean"], paces, rates))
    return 1 - float(result["apart"]["tokens_per_s_per_gpu"]) / there


def _gain() -> Group:
    figures = []
    for isl, osl, least, most in ((4400, 1200, 1.4, 1.8), (8192, 256, 1.73, 2.0)):
        found = [gain for _, gain in deepseek_gains(Load(isl, osl))]
        figures += [
            Figure("C4", f"ISL {isl}, OSL {osl}, least gain", "x", least, min(found), None),
            Figure("C4", f"ISL {isl}, OSL {osl}, largest gain", "x", most, max(found), None),
        ]
    for load, context, share in ((Load(4400, 1200), "n=1,tp=4", 0.6), (Load(8192, 256), "n=2,tp=4", 0.9)):
        below = under_the_curve(load, context, "n=1,tp=8", share)
        what = f"ISL {load.isl}, OSL {load.osl}, end to end under the curve"
        figures.append(Figure("C4", what, "%", 25.0, 100 * below, 0.0, at_most=True))
    return Group(
        "C4",
        "DeepSeek-R1 on GB200, GPUs apart over GPUs together, at equal tokens/s/user",
        BLOG,
        tuple(figures),
        "Rate-matched curves, 20 to 100 tokens/s/user. Ours: FP4 weights, FP8 cache, tensor parallel 4 to 32 on either side"
        " (there expert parallel), 8,192 tokens a context step, no multi-token prediction, an aggregated engine that"
        " stops decoding for each prompt step. There 8192/256 is up to 1.73 (4 GPUs decode) and 2 (8 GPUs); what they"
        " measured end to end lay 0 to 25 % under such curves. Ours end to end: 1,500 requests from first to last, 4 or 8"
        " GPUs for prompts and 8 to decode, at 60 or 90 % of what the context workers could compute, in a Poisson stream."
        " What may make our gains smaller: tensor parallelism over all GPUs of an engine, where they spread experts and keep"
        " attention on each GPU.",
    )


def _parts() -> Group:
    """Shapes only: neither the split nor the network of those runs is public."""
    hopper, link = load_hardware("h100-sxm"), load_link("nixl-ucx")
    split = conversion(QWEN_LAYERS, QWEN_KV_HEADS, Split(4), Split(4))
    per_token = 2.0 * QWEN_LAYERS * QWEN_KV_HEADS * QWEN_HEAD_DIM  # keys and values, 8 bits
    parts = handover(Transport(link), split, hopper, 256, 32, per_token, QWEN_LAYERS)
    posted = 112_000 * link.descriptor_s
    return Group(
        "C5",
        "Where a transfer's time goes",
        "TensorRT-LLM PR #12273 (Qwen3-235B, 8,192 tokens), vLLM #55434",
        (
            Figure("C5", "prepare", "ms", 0.42, 1e3 * parts.prepare_s, 0.01, "links/nixl-ucx prepare_s"),
            Figure("C5", "transfer, FP8 cache, TP4 to TP4", "ms", 10.7, 1e3 * (parts.convert_s + parts.wire_s), None),
            Figure(
                "C5", "posting 112,000 descriptors of 4.9 GB", "%", 56.9, 100 * posted / (posted + _wire(link)), None
            ),
        ),
        "The split of those runs is not public; twice the cache (16 bits) would take twice as long.",
    )


def _wire(link: LinkProfile) -> float:
    return 4.9e9 / link.bandwidth_bytes_per_s


def _links() -> Group:
    figures = []
    for name, where, large, small in (("nvlink", "one node", 347.7, 104.9), ("nixl-ucx", "two nodes", 35.9, 19.4)):
        link = load_link(name)
        for size, published, fixes in ((1 << 26, large, "bandwidth"), (1 << 20, small, "start_s")):
            rate = size / (link.start_s + size / link.bandwidth_bytes_per_s) / 1e9
            what = f"H100, {where}, {size >> 20} MiB"
            figures.append(Figure("C6", what, "GB/s", published, rate, 0.10, f"links/{name} {fixes}"))
    return Group("C6", "One message between two GPUs", "Vidur, data/profiling/network, send_recv.csv", tuple(figures))
