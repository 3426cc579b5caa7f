"""Published measurements against the simulator, each with its tolerance. Numbers stand here as they were published."""

from pathlib import Path
from typing import Any

import pytest

from experiments.figures import SECTIONS, figures, markdown, off, summary
from experiments.published.figure import Figure, Group
from experiments.published.runs import tokens_per_s

Literal = tuple[str, float, float]
"""What was measured, the published value, the relative tolerance."""

# vLLM blog of 2026-01-08 on KV offloading, H100 with PCIe 5.0, figures 3 and 4: GB/s of 1,000 pinned blocks
B1: list[Literal] = [
    ("H2D 8 KiB", 2.2, 0.10),
    ("H2D 16 KiB", 4.3, 0.10),
    ("H2D 32 KiB", 7.5, 0.10),
    ("H2D 64 KiB", 14.4, 0.10),
    ("H2D 128 KiB", 22.8, 0.10),
    ("H2D 256 KiB", 31.8, 0.10),
    ("H2D 512 KiB", 39.5, 0.10),
    ("H2D 1024 KiB", 44.4, 0.10),
    ("H2D 2048 KiB", 47.7, 0.10),
    ("H2D 4096 KiB", 49.8, 0.10),
    ("H2D 8192 KiB", 50.7, 0.10),
    ("H2D 16384 KiB", 51.2, 0.10),
    ("D2H 8 KiB", 2.3, 0.10),
    ("D2H 16 KiB", 4.5, 0.10),
    ("D2H 32 KiB", 8.2, 0.10),
    ("D2H 64 KiB", 15.3, 0.10),
    ("D2H 128 KiB", 21.6, 0.10),
    ("D2H 256 KiB", 29.3, 0.10),
    ("D2H 512 KiB", 37.1, 0.10),
    ("D2H 1024 KiB", 42.5, 0.10),
    ("D2H 2048 KiB", 46.2, 0.10),
    ("D2H 4096 KiB", 48.7, 0.10),
    ("D2H 8192 KiB", 50.0, 0.10),
    ("D2H 16384 KiB", 50.7, 0.10),
    ("both ways, 2 MiB", 83.4, 0.10),
]
# the same post: KiB of one layer's page of keys or values, MiB of one block of 16 tokens over all layers
B2: list[Literal] = [
    ("llama-3.1-8b, 1 GPU, page", 32, 0),
    ("llama-3.1-8b, 1 GPU, block", 2, 0),
    ("llama-3.1-70b, 4 GPUs, page", 8, 0),
    ("llama-3.1-70b, 4 GPUs, block", 1.25, 0),
    ("llama-3.2-1b, 1 GPU, page", 16, 0),
    ("llama-3.2-1b, 1 GPU, block", 0.5, 0),
    ("qwen2.5-7b, 1 GPU, page", 16, 0),
    ("qwen2.5-7b, 1 GPU, block", 0.875, 0),
    ("qwen3-32b, 2 GPUs, page", 16, 0),
    ("qwen3-32b, 2 GPUs, block", 2, 0),
]
# vLLM pull request 42212, H100: GB/s of a batched copy of 100,000 pages
B3: list[Literal] = [
    ("H2D 4 KiB, 100,000", 3.8, 0.10),
    ("H2D 8 KiB, 100,000", 5.3, 0.10),
    ("H2D 16 KiB, 100,000", 6.3, 0.10),
    ("H2D 24 KiB, 100,000", 6.9, 0.10),
    ("H2D 28 KiB, 100,000", 44.1, 0.10),
    ("H2D 64 KiB, 100,000", 51.8, 0.10),
    ("step from 24 to 28 KiB", 44.1 / 6.9, 0.10),
]
# log in LMCache pull request 1740 (its GB are GiB), Qwen3-8B
B4: list[Literal] = [
    ("bytes of 10,010 tokens", 1.3747, 0.001),
    ("bytes of 3,866 tokens", 0.5309, 0.001),
    ("load 10,010 tokens", 33.43, 0.10),
    ("store 3,866 tokens", 11.95, 0.10),
]
# nvbandwidth README
B6: list[Literal] = [("H2D alone", 26.0, 0.10), ("H2D, D2H busy", 18.6, 0.10)]
# aiconfigurator's system files: TB/s of memory; GB/s of links are peaks, so bounds
B7: list[Literal] = [
    ("h100-sxm HBM", 3.35, 0.005),
    ("h200 HBM", 4.8, 0.005),
    ("b200 HBM", 7.7, 0.005),
    ("share of HBM peak", 0.8, 0.005),
    ("a100-40gb host", 32, 0),
    ("h100-sxm host", 64, 0),
    ("h200 host", 64, 0),
    ("b200 host", 128, 0),
    ("a100-40gb nvlink", 300, 0),
    ("h100-sxm nvlink", 450, 0),
    ("h200 nvlink", 450, 0),
    ("b200 nvlink", 900, 0),
    ("a100-40gb network", 25, 0),
    ("h100-sxm network", 50, 0),
    ("h200 network", 50, 0),
    ("b200 network", 100, 0),
]
# Mooncake documentation, vllm-v1-pd-performance.md: ms, Qwen3-8B between two servers of 8 H800 over RoCE
C1: list[Literal] = [
    ("transfer 128 tokens", 0.54, 0.10),
    ("transfer 256 tokens", 0.61, 0.10),
    ("transfer 512 tokens", 0.92, 0.10),
    ("transfer 1,024 tokens", 1.50, 0.10),
    ("transfer 2,048 tokens", 2.51, 0.10),
    ("transfer 4,096 tokens", 4.75, 0.10),
    ("transfer 8,192 tokens", 8.84, 0.10),
    ("transfer 16,384 tokens", 16.43, 0.10),
    ("transfer 32,768 tokens", 31.65, 0.10),
]
# Mooncake, FAST'25, equation 2 for LLaMA3-70B and 8,192 tokens: GB/s worked out from it, and as the paper prints them
C3: list[Literal] = [
    ("8 x A800, closed form", 5.86, 0.01),
    ("8 x A800, as printed", 6, 0),
    ("8 x H800, closed form", 18.57, 0.01),
    ("8 x H800, as printed", 19, 0),
]
# TensorRT-LLM's technical blog 5: what was measured end to end lay 0 to 25 % under the rate-matched curves
C4: list[Literal] = [
    ("ISL 4400, OSL 1200, end to end under the curve", 25, 0),
    ("ISL 8192, OSL 256, end to end under the curve", 25, 0),
]
# TensorRT-LLM PR #12273, Qwen3-235B, 8,192 tokens: ms from a receiver's request to the first kernel
C5: list[Literal] = [("prepare", 0.42, 0.01)]
# Vidur, send_recv.csv: GB/s of one message between two H100, size in bytes
C6: list[Literal] = [
    ("H100, one node, 64 MiB", 347.7, 0.10),
    ("H100, one node, 1 MiB", 104.9, 0.10),
    ("H100, two nodes, 64 MiB", 35.9, 0.10),
    ("H100, two nodes, 1 MiB", 19.4, 0.10),
]
# vLLM blog of 2026-01-08, figure 1: ms to the first token, Llama-3.1-8B on H100
D1: list[Literal] = [
    ("recompute 1K tokens", 32, 0.15),
    ("recompute 10K tokens", 258, 0.10),
    ("recompute 20K tokens", 638, 0.10),
    ("recompute 30K tokens", 1095, 0.10),
    ("recompute 40K tokens", 1649, 0.10),
    ("recompute 50K tokens", 2287, 0.10),
    ("recompute 60K tokens", 3008, 0.10),
    ("recompute 70K tokens", 3845, 0.10),
    ("recompute 80K tokens", 4786, 0.10),
    ("recompute 90K tokens", 5739, 0.10),
    ("recompute 100K tokens", 6847, 0.10),
    ("load 1K tokens", 13, 0.15),
    ("load 10K tokens", 39, 0.10),
    ("load 20K tokens", 68, 0.10),
    ("load 30K tokens", 103, 0.10),
    ("load 40K tokens", 129, 0.10),
    ("load 50K tokens", 157, 0.10),
    ("load 60K tokens", 187, 0.10),
    ("load 70K tokens", 215, 0.10),
    ("load 80K tokens", 249, 0.10),
    ("load 90K tokens", 276, 0.10),
    ("load 100K tokens", 307, 0.10),
]
# the same post, figure 2: thousand prompt tokens a second by the share of prompts found in host memory
D2: list[Literal] = [
    ("0 % hits", 42.9, 0.10),
    ("10 % hits", 46.7, 0.10),
    ("20 % hits", 52.1, 0.10),
    ("30 % hits", 56.9, 0.10),
    ("40 % hits", 64.7, 0.10),
    ("50 % hits", 73.9, 0.10),
    ("60 % hits", 89.3, 0.10),
    ("70 % hits", 116.2, 0.10),
    ("80 % hits", 158.7, 0.10),
    ("90 % hits", 218.1, 0.10),
    ("100 % hits", 389.3, 0.10),
]
# aiconfigurator, H100, TensorRT-LLM 1.3.0rc10, 32 query and 8 KV heads of 128: ms of one layer's attention
D3: list[Literal] = [
    ("prefill 1K tokens", 0.0514, 0.10),
    ("prefill 2K tokens", 0.1483, 0.10),
    ("prefill 4K tokens", 0.3796, 0.10),
    ("prefill 8K tokens", 1.193, 0.10),
    ("prefill 16K tokens", 4.381, 0.10),
    ("decode 1 x 8K", 0.0248, 0.10),
    ("decode 32 x 8K", 0.215, 0.10),
    ("decode 64 x 8K", 0.399, 0.10),
]
# Vidur, mlp.csv, Llama-2-7B on H100: ms of one layer without attention
D4: list[Literal] = [
    ("1 GPU, 1 token", 0.175, 0.10),
    ("1 GPU, 512 tokens", 0.375, 0.10),
    ("1 GPU, 2,048 tokens", 1.267, 0.10),
    ("1 GPU, 4,096 tokens", 2.608, 0.10),
    ("8 GPUs, 1 token", 0.041, 0.10),
    ("8 GPUs, 512 tokens", 0.096, 0.15),
    ("8 GPUs, 2,048 tokens", 0.271, 0.10),
    ("8 GPUs, 4,096 tokens", 0.516, 0.10),
]
# gds-bench, four Solidigm D7-PS1010 in RAID 0, L40S: GiB/s
F1: list[Literal] = [
    ("GDS, 1 GPU, 4 workers, 8 MiB", 24.3, 0.10),
    ("GDS, 4 GPUs, read", 53.0, 0.10),
    ("GDS, 4 GPUs, write", 39.5, 0.10),
    ("POSIX, 1 thread, 16 MiB", 21.6, 0.10),
    ("GDS, 1 thread, 16 MiB", 12.6, 0.10),
    ("POSIX, 64 KiB", 10, 0),
    ("GDS, 64 KiB", 10, 0),
    ("POSIX over GDS, 1 thread", 21.6 / 12.6, 0.10),
    ("GDS 4 workers over POSIX 1", 24.3 / 21.6, 0.10),
]
# NVIDIA/TensorRT-LLM issues 2894, 2268, 4275, 6294: engine logs
G: list[Literal] = [
    ("issue 2894, bytes a token", 57_344, 0),
    ("issue 2894, blocks", 7_528, 0.001),
    ("issue 2268, bytes a token", 524_288, 0),
    ("issue 2268, blocks", 631, 0.001),
    ("issue 4275, bytes a token", 65_536, 0),
    ("issue 4275, blocks", 8_219, 0.001),
    ("issue 6294, tokens in 52.51 GiB", 860_320, 0.001),
]

PUBLISHED = {
    "B1": B1,
    "B2": B2,
    "B3": B3,
    "B4": B4,
    "B6": B6,
    "B7": B7,
    "C1": C1,
    "C3": C3,
    "C4": C4,
    "C5": C5,
    "C6": C6,
}
PUBLISHED |= {"D1": D1, "D2": D2, "D3": D3, "D4": D4, "DT": D1[:11], "F1": F1, "G": G}
BOUNDS = {("B7", what) for what, _, tolerance in B7 if tolerance == 0} | {
    *(("C4", what) for what, _, _ in C4),
    ("F1", "POSIX, 64 KiB"),
    ("F1", "GDS, 64 KiB"),
}
ROWS = [(row, *literal) for row, literals in PUBLISHED.items() for literal in literals]


@pytest.fixture(scope="module")
def groups() -> list[Group]:
    """Without those of a package that is not everywhere."""
    return [group for group in figures() if group.row != "DA"]


@pytest.fixture(scope="module")
def ours(groups: list[Group]) -> dict[tuple[str, str], Figure]:
    return {(figure.row, figure.what): figure for group in groups for figure in group.figures}


@pytest.mark.parametrize(("row", "what", "published", "tolerance"), ROWS, ids=[f"{r[0]} {r[1]}" for r in ROWS])
def test_a_published_figure_is_met_within_its_tolerance(
    ours: dict[tuple[str, str], Figure], row: str, what: str, published: float, tolerance: float
) -> None:
    figure = ours[row, what]
    if (row, what) in BOUNDS:
        assert figure.ours <= published
    else:
        assert figure.ours == pytest.approx(published, rel=tolerance, abs=0)


def test_every_judged_figure_shown_is_tested_here_with_the_same_value(ours: dict[tuple[str, str], Figure]) -> None:
    shown = [(f.row, f.what, f.published, f.tolerance) for f in ours.values() if f.tolerance is not None]
    assert sorted(shown) == sorted((row, what, float(value), tolerance) for row, what, value, tolerance in ROWS)
    assert {(f.row, f.what) for f in ours.values() if f.at_most} == BOUNDS


def test_rows_with_a_free_parameter_are_shown_for_their_shape(groups: list[Group]) -> None:
    assert [group.row for group in groups] == [
        *(
            "B1",
            "B2",
            "B3",
            "B4",
            "B5",
            "B6",
            "B7",
            "C1",
            "C3",
            "C4",
            "C5",
            "C6",
            "D1",
            "D2",
            "D3",
            "D4",
            "DT",
            "F1",
            "G",
            "Q21",
        )
    ]
    assert off(groups) == []
    shapes = {f.row for group in groups for f in group.figures if f.verdict == "shape"}
    assert shapes == {"B1", "B3", "B5", "B6", "C1", "C3", "C4", "C5", "D2", "DT", "Q21"}
    assert summary(groups).startswith(f"{len(ROWS)} of {len(ROWS)} figures within tolerance")


def test_gh200_loads_about_twice_as_fast_where_the_h100_gains_fourteen_times(
    ours: dict[tuple[str, str], Figure],
) -> None:
    # NVIDIA: up to 14x on H100, 28x on GH200
    assert 1.5 < ours["B5", "TTFT H100 / GH200"].ours < 2.5


def test_no_simulated_run_lies_above_its_rate_matched_curve(ours: dict[tuple[str, str], Figure]) -> None:
    assert all(ours["C4", what].ours > 0 for what, _, _ in C4)


def test_one_submitter_is_faster_by_posix_and_four_by_gds(ours: dict[tuple[str, str], Figure]) -> None:
    assert ours["F1", "POSIX over GDS, 1 thread"].ours > 1.5
    assert ours["F1", "GDS 4 workers over POSIX 1"].ours > 1


def test_fewer_prompts_of_the_same_length_give_the_same_throughput() -> None:
    # the blog has 10,000 prompts of 512 tokens, the figures 2,000
    for hit_rate in (0.0, 1.0):
        assert tokens_per_s(hit_rate, 2_000, 512) == pytest.approx(tokens_per_s(hit_rate, 10_000, 512), rel=0.01)


def test_throughput_is_what_serial_copies_and_kernels_give(ours: dict[tuple[str, str], Figure]) -> None:
    # 1 / ((1 - h) / T0 + h / T1): copies and kernels one after the other; both at once would give more
    none, all_of = ours["D2", "0 % hits"].ours, ours["D2", "100 % hits"].ours
    for i in range(1, 10):
        h = i / 10
        assert ours["D2", f"{10 * i} % hits"].ours == pytest.approx(1 / ((1 - h) / none + h / all_of), rel=0.02)


def test_copies_beside_kernels_would_give_more_than_was_measured(ours: dict[tuple[str, str], Figure]) -> None:
    assert ours["D2", "50 % hits, copies beside kernels"].deviation > 0.10
    assert ours["D2", "90 % hits, copies beside kernels"].deviation > 0.50


def test_a_bound_is_met_from_below_and_missed_from_above() -> None:
    def figure(ours: float, **more: Any) -> Figure:
        return Figure("X", "x", "", 10, ours, 0.1, **more)

    assert [figure(x).verdict for x in (8.9, 9.5, 10.5, 11.1)] == ["off", "ok", "ok", "off"]
    assert [figure(x, at_most=True).verdict for x in (1, 10.5, 11.1)] == ["ok", "ok", "off"]
    assert Figure("X", "x", "", 10, 99, None).verdict == "shape"


def test_an_unknown_section_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="--section Z is not known; known: B, C, D, E, F, G, Q"):
        figures("Z")
    assert set(SECTIONS) == {"B", "C", "D", "E", "F", "G", "Q"}


def test_the_documentation_shows_these_figures(groups: list[Group]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "figures.md").read_text(encoding="utf-8")
    assert page.partition("## The figures\n\n")[2] == markdown(groups) + "\n", "put `kvtier figures --markdown` there"
