"""The three commands: exit codes and what they print."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments import lockstep, validate
from experiments.cli import app

SMALL = ["--set", "tokens_per_block=64", "--set", "dtype=fp8", "--set", "tensor_parallel_size=8", "--limit", "20"]
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


def test_doctor_prints_json(tmp_path: Path) -> None:
    done = kvtier("doctor", "--storage", str(tmp_path), "--json")
    assert done.exit_code == 0
    assert set(json.loads(done.output)) == {"host", "gpu", "storage", "gds", "nixl", "paths", "advice"}
