"""Block counts in engines' logs (G)."""

from typing import Literal

from experiments.published.figure import Figure, Group
from kvcache.capacity import AttentionLayers, ModelShape, block_counts, bytes_per_token
from sim.models import load_model

GIB = 1024**3
QWEN_1_5_7B = ModelShape("qwen1.5-7b", (AttentionLayers(None, 32, 32, 128),))


def groups() -> list[Group]:
    """G."""
    cases: tuple[tuple[str, ModelShape, str, float, float, int, Literal["python", "cpp"]], ...] = (
        ("2894", load_model("qwen2.5-7b").shape(), "fp16", 28.59, 0.9, 64, "python"),
        ("2268", QWEN_1_5_7B, "fp16", 21.89, 0.9, 64, "cpp"),
        ("4275", load_model("llama-3.1-8b").shape(), "fp8", 17.83, 0.9, 32, "cpp"),
    )
    logged = {"2894": (57_344, 7_528), "2268": (524_288, 631), "4275": (65_536, 8_219)}
    figures = []
    for issue, shape, dtype, free_gib, fraction, tpb, route in cases:
        [token] = bytes_per_token(shape, dtype).values()
        counts = block_counts(
            shape,
            dtype,
            int(free_gib * GIB),
            free_gpu_memory_fraction=fraction,
            tokens_per_block=tpb,
            route=route,
        )
        bytes_logged, blocks = logged[issue]
        figures += [
            Figure("G", f"issue {issue}, bytes a token", "B", bytes_logged, token, 0.0),
            Figure("G", f"issue {issue}, blocks", "", blocks, counts.windows[0].primary_blocks, 0.001),
        ]
    pool = block_counts(load_model("llama-3.1-8b").shape(), "fp8", int(52.51 * GIB / 0.9) + 1)
    figures.append(Figure("G", "issue 6294, tokens in 52.51 GiB", "tokens", 860_320, pool.primary_tokens, 0.001))
    return [
        Group(
            "G",
            "Block counts logged by TensorRT-LLM",
            "NVIDIA/TensorRT-LLM issues 2894, 2268 (block size inferred), 4275, 6294",
            tuple(figures),
            "Blocks: fraction x free memory / bytes of a block. The logs print GiB to two digits (4275: 0.02 % off).",
        )
    ]
