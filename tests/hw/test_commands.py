"""The three commands: exit codes and what they print."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments import lockstep, validate
from experiments.cli import app
from tests.hw.test_faults import file_size_limit

SMALL = [
    "--set",
    "tokens_per_block=64",
    "--set",
    "dtype=fp8",
    "--set",
    "parallel.tensor_parallel_size=8",
    "--limit",
    "20",
]
SMALL += ["--gpu-tokens", "131072", "--host-tokens", "65536", "--repeats", "1"]


def kvtier(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_validate_prints_a_verdict_and_leaves_figures_table_and_picture(tmp_path: Path) -> None:
    done = kvtier("validate", "mooncake_arxiv_first1000", *SMALL, "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "decisions identical in every call" in done.output
    assert "verdict: " in done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "transfers.parquet",
        "validation.json",
        "validation.png",
    ]
    assert json.loads((tmp_path / "validation.json").read_text())["decisions_identical"] is True


def test_a_policy_of_the_users_own_decides_on_real_memory_as_it_does_in_simulation(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text("class OldestStay:\n    def score(now_s, uses, depth, priority, floor):\n        return -now_s\n")
    more = ["--policy", f"{mine}:OldestStay", "--limit", "17", "--gpu-tokens", "98304", "--set", "too_long=drop"]
    done = kvtier("validate", "mooncake_arxiv_first1000", *SMALL, *more, "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "validation.json").read_text())
    assert result["spec"]["policy"] == f"{mine}:OldestStay"
    assert (result["decisions_identical"], result["corrupt"]) == (True, 0)
    assert min(result["comparisons"], result["copies"]) > 100


def test_validate_ends_with_1_and_the_first_differing_call_if_decisions_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(work: Any, recording: lockstep.Recording, *_: Any, **__: Any) -> lockstep.Replayed:
        call = recording.calls[3]
        return lockstep.Replayed(difference=lockstep.Difference(3, call, call.commands))

    monkeypatch.setattr(validate, "replay", other)
    done = kvtier("validate", "mooncake_arxiv_first1000", *SMALL)
    assert done.exit_code == 1
    assert "decisions DIFFER" in done.output
    assert "call 3 at " in done.output


def test_validate_ends_with_1_and_the_block_if_bytes_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    def corrupt(*_: Any, **__: Any) -> lockstep.Replayed:
        raise validate.WrongBytesError("after a step's offload: host slot 7 of window 0 should hold key node 12")

    monkeypatch.setattr(validate, "replay", corrupt)
    done = kvtier("validate", "mooncake_arxiv_first1000", *SMALL)
    assert done.exit_code == 1
    assert "host slot 7 of window 0 should hold key node 12" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--mode", "both ways"], "--mode both ways: write lockstep, live, both"),
        (["--device", "tpu"], "device 'tpu' is not known"),
        (["--profile", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["--gpu-tokens", "10000000"], "there is nothing to compare; lower capacity.gpu_tokens"),
    ],
)
def test_a_wrong_setting_is_one_line_and_2(arguments: list[str], said: str) -> None:
    done = kvtier("validate", "mooncake_arxiv_first1000", *SMALL, *arguments)
    assert done.exit_code == 2
    assert said in done.output
    assert done.output.count("\n") == 1


DISK = ["--set", "profile=cascade", "--host-tokens", "32768", "--disk-tokens", "131072"]


def test_a_full_disk_is_one_line_and_2_and_leaves_no_file(tmp_path: Path) -> None:
    with file_size_limit(1 << 20):
        done = kvtier("validate", "mooncake_arxiv_first1000", *SMALL, *DISK, "--storage", str(tmp_path))
    assert done.exit_code == 2
    assert "File too large" in done.output
    assert done.output.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_pools_beyond_all_memory_are_one_line_and_2() -> None:
    done = kvtier("validate", "mooncake_arxiv_first1000", *SMALL, "--host-tokens", "1e13")
    assert done.exit_code == 2
    assert "not enough memory" in done.output
    assert done.output.count("\n") == 1


@pytest.mark.parametrize("command", ["validate", "calibrate"])
def test_ctrl_c_is_one_line_and_130_and_leaves_no_slot_file(command: str, tmp_path: Path) -> None:
    slots, out = tmp_path / "slots", tmp_path / "out.yaml"
    arguments = ["validate", "mooncake_arxiv_first1000", *SMALL, *DISK, "--repeats", "1000000"]
    if command == "calibrate":
        arguments = ["calibrate", "--quick", "--out", str(out)]
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from experiments.cli import main; main()"
    run = [sys.executable, "-c", code, *arguments, "--storage", str(slots)]
    with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            begun = time.monotonic()
            while not list(slots.glob("*.slots") if command == "validate" else slots.parent.glob("*.partial.parquet")):
                assert time.monotonic() - begun < 300, "it did not begin"
                assert process.poll() is None, process.communicate()
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    last = [line for line in said.splitlines() if " left" not in line]  # lines of progress
    expected = f"kvtier: stopped; the same command goes on from {out.with_suffix('.partial.parquet')}"
    assert last == ["kvtier: stopped" if command == "validate" else expected]
    assert list(slots.iterdir()) == []


def test_doctor_prints_json(tmp_path: Path) -> None:
    done = kvtier("doctor", "--storage", str(tmp_path), "--json", "-")
    assert done.exit_code == 0
    assert set(json.loads(done.output)) == {"host", "gpu", "storage", "gds", "nixl", "paths", "advice"}
