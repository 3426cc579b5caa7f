"""Copies between GPU and host: size and number of descriptors (B1 to B7)."""

from experiments.published.figure import Figure, Group
from kvcache.capacity import copy_bytes
from sim.cost import step_seconds
from sim.hardware import load_hardware
from sim.models import load_model
from sim.roofline import RooflineCost
from sim.transfer import LinkDirection, copy_seconds, descriptor_seconds

KIB, MIB = 1024, 1024**2
BLOG = "vLLM blog of 2026-01-08 on its KV offloading connector, H100 with PCIe 5.0"

H2D = {8: 2.2, 16: 4.3, 32: 7.5, 64: 14.4, 128: 22.8, 256: 31.8, 512: 39.5, 1024: 44.4}
H2D |= {2048: 47.7, 4096: 49.8, 8192: 50.7, 16384: 51.2}
D2H = {8: 2.3, 16: 4.5, 32: 8.2, 64: 15.3, 128: 21.6, 256: 29.3, 512: 37.1, 1024: 42.5}
D2H |= {2048: 46.2, 4096: 48.7, 8192: 50.0, 16384: 50.7}
BATCHED = {4: 3.8, 8: 5.3, 16: 6.3, 24: 6.9, 28: 44.1, 64: 51.8}


def groups() -> list[Group]:
    """B1 to B7."""
    return [_one_by_one(), _block_bytes(), _batched(), _lmcache(), _c2c(), _nvbandwidth(), _system_files()]


def gb_per_s(direction: LinkDirection, size: float, *, busy: bool = False) -> float:
    """GB/s of 1,000 descriptors of one size."""
    return 1000 * size / copy_seconds(direction, 1000, size, busy_other_direction=busy) / 1e9


def _one_by_one() -> Group:
    link = load_hardware("h100-sxm").link("host")
    figures = []
    for name, way, published in (("H2D", link.h2d, H2D), ("D2H", link.d2h, D2H)):
        line = LinkDirection(way.latency_s, way.bandwidth_bytes_per_s)
        figures += [
            Figure("B1", f"{name} {kib} KiB", "GB/s", rate, gb_per_s(way, kib * KIB), 0.10, "h100-sxm links.host.table")
            for kib, rate in published.items()
        ]
        figures += [
            Figure("B1", f"{name} {kib} KiB, line only", "GB/s", published[kib], gb_per_s(line, kib * KIB), None)
            for kib in (16, 64, 2048)
        ]
    both = sum(gb_per_s(way, 2 * MIB, busy=True) for way in (link.h2d, link.d2h))
    figures.append(Figure("B1", "both ways, 2 MiB", "GB/s", 83.4, both, 0.10, "h100-sxm links.host.duplex_factor"))
    return Group(
        "B1",
        "H100, pinned memory, 1,000 descriptors a copy",
        f"{BLOG}, figures 3 and 4 (read from the plot)",
        tuple(figures),
        "`line only` is latency + bytes / bandwidth without the table: 3.5 us and 52.5 (H2D), 50.8 GB/s (D2H). A copy"
        " by a kernel instead of the copy engines (68.5 GB/s both ways together) is not modelled.",
    )


def _block_bytes() -> Group:
    """What one copy of a 16-token block moves: a page a layer for keys and one for values, or all layers at once."""
    cases = {  # model: ranks, KiB of one page before, MiB of one block after
        "llama-3.1-8b": (1, 32, 2.0),
        "llama-3.1-70b": (4, 8, 1.25),
        "llama-3.2-1b": (1, 16, 0.5),
        "qwen2.5-7b": (1, 16, 0.875),
        "qwen3-32b": (2, 16, 2.0),
    }
    figures = []
    for name, (ranks, page_kib, block_mib) in cases.items():
        model = load_model(name)
        [parts] = copy_bytes(model.shape(), "bf16", ranks, tokens_per_block=16).values()
        what = f"{name}, {ranks} GPU{'s' if ranks > 1 else ''}"
        figures += [
            Figure("B2", f"{what}, page", "KiB", page_kib, sum(parts) / model.layers / 2 / KIB, 0.0),
            Figure("B2", f"{what}, block", "MiB", block_mib, sum(parts) / MIB, 0.0),
        ]
    note = (
        "The post prints 0.87 MB for Qwen2.5-7B (0.875); its row on Qwen3-8B does not follow from that model's shape."
    )
    return Group("B2", "Bytes of a block of 16 tokens", BLOG, tuple(figures), note)


def _batched() -> Group:
    way = load_hardware("h100-sxm").link("host_batched").h2d
    figures = [
        Figure("B3", f"H2D {kib} KiB, 100,000", "GB/s", rate, gb_per_s(way, kib * KIB), 0.10, "h100-sxm host_batched")
        for kib, rate in BATCHED.items()
    ]
    figures += [
        Figure("B3", "H2D 24 KiB, 10,000", "GB/s", 25.8, gb_per_s(way, 24 * KIB), None),
        Figure("B3", "step from 24 to 28 KiB", "times", 44.1 / 6.9, _step(way), 0.10, "h100-sxm host_batched"),
    ]
    return Group(
        "B3",
        "Batched copies: the step at 28 KiB",
        "vLLM pull request 42212 (H100, cudaMemcpyBatchAsync, pages a call)",
        tuple(figures),
        "A table with a step; latency and bandwidth alone have none. Where between 24 and 28 KiB it lies is not"
        " measured, nor are D2H and other devices; calls of fewer pages are faster below it (the 10,000 row), which is"
        " not modelled.",
    )


def _step(way: LinkDirection) -> float:
    return gb_per_s(way, 28 * KIB) / gb_per_s(way, 24 * KIB)


def _lmcache() -> Group:
    """16-token blocks of 2.25 MiB."""
    link = load_hardware("h100-sxm").link("host")
    [parts] = copy_bytes(load_model("qwen3-8b").shape(), "bf16", tokens_per_block=16).values()
    gib = [tokens * sum(parts) / 16 / 1024**3 for tokens in (10_010, 3_866)]
    load, store = (
        copy_seconds(way, -(-tokens // 16), sum(parts)) for way, tokens in ((link.h2d, 10_010), (link.d2h, 3_866))
    )
    return Group(
        "B4",
        "Qwen3-8B through LMCache",
        "log in LMCache pull request 1740; its GB are GiB",
        (
            Figure("B4", "bytes of 10,010 tokens", "GiB", 1.3747, gib[0], 0.001),
            Figure("B4", "bytes of 3,866 tokens", "GiB", 0.5309, gib[1], 0.001),
            Figure("B4", "load 10,010 tokens", "ms", 33.43, 1e3 * load, 0.10),
            Figure("B4", "store 3,866 tokens", "ms", 11.95, 1e3 * store, 0.10),
        ),
        "The log does not name the GPU; 44 GiB/s takes PCIe 5.0. Priced as the engine's blocks of 16 tokens (2.25 MiB);"
        " as LMCache's chunks of 256 tokens (36 MiB) the load would be 14 % short.",
    )


def c2c_ratio(speed_up: float, tensor_parallel: int = 2) -> tuple[float, float]:
    """The prompt length at which loading beats computing by `speed_up` on an H100, and how much faster GH200 loads it.

    Llama-3-70B, 8-bit weights, two GPUs, blocks of 32 tokens; time to first token of one request alone.
    """
    model, tpb = load_model("llama-3.1-70b"), 32
    [parts] = copy_bytes(model.shape(), "bf16", tensor_parallel, tokens_per_block=tpb).values()

    def seconds(name: str, tokens: int) -> tuple[float, float]:
        machine = load_hardware(name)
        params = RooflineCost(model, machine, "fp8", "bf16", tensor_parallel).params
        copy = copy_seconds(machine.link("host").h2d, -(-tokens // tpb), sum(parts))
        return step_seconds(params, tokens, tokens**2 / 2, 0, 0), copy + step_seconds(params, 1, tokens, 0, 0)

    low, high = 32, 1 << 20
    while high - low > 16:
        tokens = (low + high) // 2
        compute, load = seconds("h100-sxm", tokens)
        low, high = (low, tokens) if compute / load > speed_up else (tokens, high)
    return float(high), seconds("h100-sxm", high)[1] / seconds("gh200", high)[1]


def _c2c() -> Group:
    tokens, ratio = c2c_ratio(14.0)
    return Group(
        "B5",
        f"GH200 beside H100: loading {tokens:,.0f} tokens, where the H100 gains 14 times",
        "NVIDIA blog posts: host offload up to 14x (H100) and 28x (GH200) faster than recompute, Llama-3-70B",
        (Figure("B5", "TTFT H100 / GH200", "times", 2.0, ratio, None),),
        "Expected between 1.5 and 2.5. The posts give no prompt length, precision or number of GPUs.",
    )


def _nvbandwidth() -> Group:
    a100 = load_hardware("a100-40gb")
    host, nvlink = a100.link("host").h2d, a100.link("nvlink").h2d
    return Group(
        "B6",
        "PCIe 4.0 server",
        "nvbandwidth README",
        (
            Figure("B6", "H2D alone", "GB/s", 26.0, gb_per_s(host, 64 * MIB), 0.10, "a100-40gb links.host"),
            Figure("B6", "H2D, D2H busy", "GB/s", 18.6, gb_per_s(host, 64 * MIB, busy=True), 0.10, "a100-40gb duplex"),
            Figure("B6", "GPU to GPU", "GB/s", 276.0, nvlink.bandwidth_bytes_per_s / 1e9, None),
        ),
        "GPU to GPU there is the copy engine; our NVLink is what collectives reach (Vidur's table), which is less.",
    )


def _system_files() -> Group:
    """Memory bandwidth is taken as it is; link peaks are bounds of what we took from measurements."""
    figures = [
        Figure("B7", f"{name} HBM", "TB/s", peak, load_hardware(name).hbm_bytes_per_s / 1e12, 0.005)
        for name, peak in (("h100-sxm", 3.35), ("h200", 4.8), ("b200", 7.7))
    ]
    factor = load_hardware("h100-sxm").hbm_efficiency
    figures.append(Figure("B7", "share of HBM peak", "", 0.8, factor, 0.005, "memory.efficiency"))
    peaks = {
        "host": (("a100-40gb", 32), ("h100-sxm", 64), ("h200", 64), ("b200", 128)),
        "nvlink": (("a100-40gb", 300), ("h100-sxm", 450), ("h200", 450), ("b200", 900)),
        "network": (("a100-40gb", 25), ("h100-sxm", 50), ("h200", 50), ("b200", 100)),
    }
    for link, rows in peaks.items():
        for name, peak in rows:
            rate = 1 / descriptor_seconds(load_hardware(name).link(link).h2d, 2**30) * 2**30 / 1e9
            figures.append(Figure("B7", f"{name} {link}", "GB/s", peak, rate, 0.0, at_most=True))
    return Group(
        "B7",
        "Memory and link peaks",
        "aiconfigurator's system files",
        tuple(figures),
        "Peaks are bounds (<=): our links carry what somebody measured. A100: the 80 GB card's HBM differs, left out.",
    )
