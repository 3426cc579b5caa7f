"""Caches sent from node to node (C1, C3)."""

from pathlib import Path

from experiments.published.figure import Figure, Group
from kvcache.capacity import copy_bytes
from sim.cost import step_seconds
from sim.hardware import load_hardware
from sim.models import load_model
from sim.roofline import RooflineCost
from sim.transfer import copy_seconds

H800 = Path(__file__).parent / "h800-roce.yaml"
RANKS = 8
TRANSFER_MS = (0.54, 0.61, 0.92, 1.50, 2.51, 4.75, 8.84, 16.43, 31.65)
TTFT_MS = (46.1, 48.0, 59.9, 67.3, 85.3, 124.4, 212.1, 387.5, 749.6)


def groups() -> list[Group]:
    """C1 and C3."""
    return [_roce(), _mooncake_equation()]


def _roce() -> Group:
    """A prompt's cache from one server to another, an eighth over each GPU's link."""
    model, machine = load_model("qwen3-8b"), load_hardware(H800)
    [parts] = copy_bytes(model.shape(), "bf16", RANKS).values()
    params = RooflineCost(model, machine, tensor_parallel=RANKS).params
    figures, first = [], []
    for i, (transfer_ms, ttft_ms) in enumerate(zip(TRANSFER_MS, TTFT_MS, strict=True)):
        tokens = 128 << i
        seconds = copy_seconds(machine.link("network").h2d, 1, tokens * sum(parts))
        figures.append(
            Figure("C1", f"transfer {tokens:,} tokens", "ms", transfer_ms, 1e3 * seconds, 0.10, "h800-roce network")
        )
        if tokens in {128, 4096, 32768}:
            prefill = step_seconds(params, tokens, tokens**2 / 2, 0, 0)
            first.append(Figure("C1", f"TTFT {tokens:,} tokens", "ms", ttft_ms, 1e3 * (prefill + seconds), None))
    return Group(
        "C1",
        "Qwen3-8B, 8 x H800, RoCE",
        "Mooncake documentation, performance/vllm/vllm-v1-pd-performance.md",
        (*figures, *first),
        "Two parameters hold nine transfer times. TTFT there is that of a server with vLLM's proxy and two schedulers,"
        " which the model leaves out: it is far below.",
    )


def minimum_load_bytes_per_s(
    prefix_tokens: int, hidden_size: int, query_heads_per_kv_head: int, bytes_per_element: float, flops_per_s: float
) -> float:
    """Mooncake's equation 2: loading a prefix beats computing it above this bandwidth, for any number of layers.

    Bytes of a layer: 2 p d s / gqa. FLOPs of a layer: 4 p^2 d + 22 p d^2 (LLaMA3-70B's shape).
    """
    p, d = prefix_tokens, hidden_size
    bytes_per_layer = 2 * p * d * bytes_per_element / query_heads_per_kv_head
    return bytes_per_layer * flops_per_s / (4 * p**2 * d + 22 * p * d**2)


def _mooncake_equation() -> Group:
    figures = []
    for gpu, published, worked_out, flops in (("A800", 6, 5.86, 312e12), ("H800", 19, 18.57, 989e12)):
        ours = minimum_load_bytes_per_s(8192, 8192, 8, 2.0, 8 * flops) / 1e9
        figures += [
            Figure("C3", f"8 x {gpu}, closed form", "GB/s", worked_out, ours, 0.01),
            Figure("C3", f"8 x {gpu}, as printed", "GB/s", published, float(round(ours)), 0.0),
        ]
    model, machine = load_model("llama-3.1-70b"), load_hardware(H800)
    [per_token] = copy_bytes(model.shape(), "bf16").values()
    prefill = step_seconds(RooflineCost(model, machine, tensor_parallel=8).params, 8192, 8192**2 / 2, 0, 0)
    figures.append(Figure("C3", "8 x H800, our step", "GB/s", 19, 8192 * sum(per_token) / prefill / 1e9, None))
    return Group(
        "C3",
        "Least bandwidth at which loading pays: LLaMA3-70B, 8,192 tokens",
        "Mooncake, FAST'25, equation 2",
        tuple(figures),
        "The equation takes the peak FLOPs; a real step takes longer, so that slower links pay too (`our step`).",
    )
