"""The record of a run: the same times and counts as the run itself, steps that do not overlap, a timeline that opens."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from experiments.load import load
from experiments.ready import ready
from experiments.record import Record, record
from experiments.run import run
from experiments.timeline import events
from traces.read import read

TRACE = "mooncake_arxiv_first1000"
SETTINGS = ["tokens_per_block=512", "capacity.gpu_blocks=250", "capacity.host_blocks=100", "workers=2"]


@pytest.fixture(scope="module")
def both() -> tuple[dict[str, Any], Record]:
    spec, requests = load(None, SETTINGS)[0], read(TRACE).head(80)
    return run(spec, requests), record(ready(spec, requests, timing=True))


def test_record_has_the_times_and_counts_of_the_run(both: tuple[dict[str, Any], Record]) -> None:
    row, made = both
    requests, steps = made.requests, made.steps
    assert len(requests) == row["requests"]
    assert (requests["first_token_s"] - requests["arrival_s"]).mean() == pytest.approx(row["ttft_s"]["mean"], rel=1e-12)
    assert (requests["finish_s"] - requests["arrival_s"]).mean() == pytest.approx(row["e2e_s"]["mean"], rel=1e-12)
    assert requests["reused_tokens"].sum() == row["hit_tokens"]
    assert len(steps) == row["steps"]
    assert steps["compute_s"].sum() == pytest.approx(row["compute_s"])
    assert steps["copy_wait_s"].sum() == pytest.approx(row["copy_wait_s"], abs=1e-9)
    assert steps["offload_bytes"].sum() == row["offload_bytes"] > 0
    assert steps["onboard_bytes"].sum() == row["onboard_bytes"]


def test_steps_of_a_worker_follow_each_other_and_tiers_never_hold_more_than_they_have(
    both: tuple[dict[str, Any], Record],
) -> None:
    for _, rows in both[1].steps.groupby("worker"):
        assert (rows["start_s"].to_numpy()[1:] >= rows["end_s"].to_numpy()[:-1]).all()
    assert (both[1].steps["gpu_in_use_blocks"] + both[1].steps["gpu_cached_blocks"] <= 250).all()
    assert both[1].steps["host_blocks"].max() <= 100


def test_timeline_has_every_step_and_every_request_with_its_phases(both: tuple[dict[str, Any], Record]) -> None:
    made = both[1]
    told = list(events(made))
    steps = [event for event in told if event["ph"] == "X" and event["tid"] == 1]
    assert len(steps) == len(made.steps)
    assert max(event["ts"] + event["dur"] for event in steps) == pytest.approx(
        1e6 * made.steps["end_s"].max(), abs=0.01
    )
    begun = [event for event in told if event["ph"] == "b"]
    ended = [event for event in told if event["ph"] == "e"]
    assert len(begun) == len(ended)
    assert sum(event["name"].startswith("request ") for event in begun) == len(made.requests)
    assert (
        sum(event["args"]["bytes"] for event in told if event["name"] == "offload") == made.steps["offload_bytes"].sum()
    )


def test_command_writes_record_and_timeline_and_the_report_reads_them(tmp_path: Path) -> None:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    result = CliRunner().invoke(
        app,
        [
            "replay",
            TRACE,
            "--limit",
            "80",
            *settings,
            "--record",
            str(tmp_path / "run"),
            "--timeline",
            str(tmp_path / "t.json"),
        ],
    )
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["traceEvents"]
    page = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "-o", str(tmp_path / "run.html")])
    assert page.exit_code == 0, page.output
    text = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert "What the tiers hold" in text
    assert "Time to first token" in text


def test_record_without_times_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["replay", TRACE, "--limit", "80", "--no-timing", "--record", str(tmp_path / "run")]
    )
    assert result.exit_code == 2
    assert "--record and --timeline show times" in result.stderr
