"""300 ShareGPT requests measured on vLLM 0.19 and an RTX 4090; three figures were fitted to the first 100 of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.load import load
from experiments.published_vllm import (
    FITTED_ON,
    Seen,
    errors,
    loss,
    measured,
    plot,
    simulated,
    table,
    tuned,
    workload,
)
from experiments.run import run
from experiments.trace import Trace
from sim.hardware import load_hardware

FIRST, REST = slice(0, FITTED_ON), slice(FITTED_ON, None)


@pytest.fixture(scope="module")
def ours() -> Seen:
    return simulated()


@pytest.mark.parametrize(
    ("figure", "tolerance"),
    [("TPOT mean", 0.05), ("TTFT mean", 0.05), ("TTFT p50", 0.05), ("last token", 0.03), ("peak KV use", 0.01)],
)
def test_requests_that_nothing_was_fitted_to_are_within_tolerance(ours: Seen, figure: str, tolerance: float) -> None:
    assert abs(errors(ours, measured(), REST)[figure]) < tolerance


def test_committed_figures_still_give_the_committed_errors(ours: Seen) -> None:
    committed = {
        "first": {"TPOT mean": 0.13, "TPOT p50": 0.09, "TTFT mean": -0.2, "TTFT p50": -0.91, "last token": 0.39},
        "rest": {"TPOT mean": 0.06, "TPOT p50": -0.23, "TTFT mean": 0.48, "TTFT p50": 0.5, "last token": 0.41},
    }
    for rows, expected in ((FIRST, committed["first"]), (REST, committed["rest"])):
        found = errors(ours, measured(), rows)
        assert {k: round(100 * found[k], 2) for k in expected} == expected
    assert (ours.kv_peak, measured().kv_peak) == (1.0, 1.0)
    assert abs(ours.kv_use.mean() - measured().kv_use.mean()) < 0.01


def test_preset_holds_what_the_fit_found_and_a_step_aside_fits_worse(ours: Seen) -> None:
    machine = workload().plan.hardware
    figures = (machine.linear_efficiency, machine.hbm_efficiency, machine.step_overhead_s)
    assert figures == (1.0, 0.975, 2.75e-3)
    least = loss(ours, measured())
    for at, step in ((0, -0.05), (1, -0.02), (1, 0.02), (2, -0.5e-3), (2, 0.5e-3)):
        aside = list(figures)
        aside[at] += step
        other = simulated(tuned(machine, (aside[0], aside[1], aside[2])))
        assert loss(other, measured()) > least


def test_scheduling_a_step_ahead_costs_early_requests_less_than_the_error(ours: Seen) -> None:
    # Requests 12 to 40 arrive before the pool is full and after the engine has warmed up: they wait for steps only.
    early = slice(12, 40)
    work = workload()
    profile = work.spec.profile.model_copy(update={"async_scheduling": False})
    without = replace(work, spec=work.spec.model_copy(update={"profile": profile}))
    real = measured().ttft_s[early].mean()
    assert abs(ours.ttft_s[early].mean() / real - 1) < 0.05
    assert 0.01 < ours.ttft_s[early].mean() - simulated(work=without).ttft_s[early].mean() < 0.05


def test_command_line_run_gives_the_same_times(ours: Seen) -> None:
    row = run(load("vllm_rtx4090")[0], Trace("llmservingsim_sharegpt300_blk16").requests())
    assert row["ttft_s"]["mean"] == pytest.approx(ours.ttft_s.mean())
    assert row["tpot_s"]["mean"] == pytest.approx(np.nanmean(ours.tpot_s))
    assert row["makespan_s"] == pytest.approx(ours.end_s.max())
    assert row["gpu_blocks"] == 2587


def test_another_card_needs_its_data_sheet_only(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "vllm-profile.md").read_text(encoding="utf-8")
    (tmp_path / "my-card.yaml").write_text(page.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    other, this = load_hardware(tmp_path / "my-card.yaml"), load_hardware("rtx4090")
    assert (other.hbm_bytes_per_s, other.flops["bf16"]) == (1.2e12, 200e12)
    for name in ("hbm_efficiency", "linear_efficiency", "step_overhead_s", "attention_half_context_tokens"):
        assert getattr(other, name) == getattr(this, name)


def test_table_and_plot_show_both_runs(ours: Seen, tmp_path: Path) -> None:
    lines = table(ours, measured())
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["first", "rest", "mean"]
    assert plot(ours, measured(), tmp_path / "cdf.png").stat().st_size > 10_000
