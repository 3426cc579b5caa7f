"""Tuning keeps every run, goes on where it stopped, counts different runs only, and leaves failures and limits aside."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from experiments import cli
from experiments.complaints import SpecError
from experiments.design import Design
from experiments.grid import axes
from experiments.jobs import Job, Task
from experiments.load import Draft
from experiments.local import Work, in_processes
from experiments.trace import Trace
from experiments.tune import Aim, Found, Objective, tune
from reports.rows import rows_by_key

LINE = '{"timestamp": 0, "input_length": 600, "output_length": 10, "hash_ids": [0, 1]}\n'
Row = dict[str, Any]
Tuned = Callable[..., Found]


def alone(jobs: Sequence[Job], work: Work) -> Iterator[tuple[Job, Row]]:
    return in_processes(jobs, work, 1)


@pytest.fixture
def tuned(tmp_path: Path) -> Tuned:
    """A search over 8 x 6 pools whose hit rate grows with the pools and whose cost is their sum; 13 blocks fail."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text(LINE, encoding="utf-8")
    made: list[tuple[int, int]] = []

    def run(spec: Any, requests: Any, *, timing: bool = True) -> Row:
        gpu, host = spec.capacity.gpu_blocks, spec.capacity.host_blocks
        made.append((gpu, host))
        if gpu == 13:
            raise ValueError("13 blocks")
        if gpu == 99 and len(made) == 6:
            raise KeyboardInterrupt
        return {"hit_rate_tokens": 1 - 1 / (gpu + 2 * host), "makespan_s": float(gpu + host), "notes": []}

    def go(budget: int, *limits: str, grid: Sequence[str] = (), at_once: int = 1) -> Found:
        design = Design(grid=axes(grid or ["gpu_blocks=10:17:1", "host_blocks=0:5:1"]))
        task = Task(Draft(), [], Trace(str(trace)), design)
        aim = Aim([Objective.read("hit_rate_tokens:max"), Objective.read("makespan_s")], limits, budget)
        try:
            return tune(task, aim, tmp_path / "out", run, alone, lambda tally: None, at_once)
        finally:
            go.made = list(made)  # type: ignore[attr-defined]

    return go


def test_budget_is_spent_on_different_runs_and_the_front_is_what_none_beats(tuned: Tuned) -> None:
    found = tuned(20, at_once=3)
    made = tuned.made  # type: ignore[attr-defined]
    assert len(made) == len(set(made)) == len(found.rows) == 20
    assert found.front[0]["makespan_s"] == max(row["makespan_s"] for row in found.front)
    for row in found.front:
        assert not any(
            other["hit_rate_tokens"] >= row["hit_rate_tokens"] and other["makespan_s"] < row["makespan_s"]
            for other in found.rows
            if other["error"] is None
        )


def test_started_again_with_a_larger_budget_only_the_difference_is_run(tuned: Tuned, tmp_path: Path) -> None:
    tuned(8)
    before = rows_by_key(tmp_path / "out" / "rows.jsonl")
    found = tuned(14)
    assert len(tuned.made) == 14  # type: ignore[attr-defined]
    assert [row["run"] for row in found.rows] == list(range(14))
    after = rows_by_key(tmp_path / "out" / "rows.jsonl")
    assert {key: after[key] for key in before} == before
    assert "point" not in pd.read_parquet(tmp_path / "out" / "sweep.parquet").columns


def test_space_smaller_than_the_budget_is_run_once_and_failures_are_in_no_front(tuned: Tuned) -> None:
    found = tuned(100, grid=["gpu_blocks=12,13", "host_blocks=0,1"])
    assert len(found.rows) == 4
    assert sum(row["error"] == "13 blocks" for row in found.rows) == 2
    assert {row["gpu_blocks"] for row in found.front} == {12}


def test_limits_keep_runs_out_of_the_front(tuned: Tuned) -> None:
    assert all(row["makespan_s"] <= 14 for row in tuned(40, "makespan_s<=14s").front)
    assert tuned(40, "makespan_s<1s").front == []


def test_ctrl_c_keeps_the_finished_runs_and_says_how_many(tuned: Tuned, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt, match=r"stopped; 5 of 48 runs are kept"):
        tuned(48, grid=["gpu_blocks=99", "host_blocks=0:60:1"])
    assert len(pd.read_parquet(tmp_path / "out" / "sweep.parquet")) == 5


@pytest.mark.parametrize("text", ["ttft:best", ":min"])
def test_objective_without_a_figure_or_with_another_end_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="write FIGURE:min or FIGURE:max"):
        Objective.read(text)


def test_objective_without_an_end_takes_the_better_one() -> None:
    assert [Objective.read(text).sign for text in ("hit_rate_tokens", "ttft_p99_s")] == [-1, 1]


def test_command_tunes_real_runs_and_writes_the_front(tmp_path: Path) -> None:
    grid = ("--grid", "host_tokens=0,100000", "--grid", "tokens_per_block=32,64", "--gpu-tokens", "20000")
    arguments = ["tune", "synthetic:multitenant?requests=40", *grid, "--no-timing", "--budget", "4"]
    arguments += [
        "--objective",
        "hit_rate_tokens:max",
        "--objective",
        "host_cache_gib:min",
        "--out",
        str(tmp_path / "t"),
    ]
    result = CliRunner().invoke(cli.app, [*arguments, "--constraint", "hit_rate_tokens>1%"])
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines()[0].startswith("4 runs tried, ")
    front = pd.read_csv(tmp_path / "t" / "front.csv")
    assert list(front.columns) == ["host_tokens", "tokens_per_block", "hit_rate_tokens", "host_cache_gib"]
    assert front["host_cache_gib"].is_monotonic_decreasing
    assert front["hit_rate_tokens"].is_monotonic_decreasing
    wrong = CliRunner().invoke(cli.app, [*arguments, "--constraint", "hit_rate_tokens"])
    assert wrong.exit_code == 2
    assert "write FIGURE<VALUE" in wrong.stderr
