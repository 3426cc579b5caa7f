"""The effective configuration: every key, the threshold that replaces a null, YAML that reads back as the same spec."""

from pathlib import Path

import yaml
from typer.testing import CliRunner

from experiments.cli import app
from experiments.load import load


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["config", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_unset_threshold_is_shown_as_the_30_that_the_engine_takes() -> None:
    assert yaml.safe_load(shown())["kv_cache_config"]["secondary_offload_min_priority"] == 30


def test_threshold_of_0_stays_0() -> None:
    line = next(
        line for line in shown("--set", "secondary_offload_min_priority=0").splitlines() if "offload_min" in line
    )
    assert line.split("#")[0].strip() == "secondary_offload_min_priority: 0"
    assert "# set: evicted blocks below this priority are dropped" in line


def test_shown_configuration_reads_back_as_the_same_spec(tmp_path: Path) -> None:
    arguments = ["--spec", "mooncake_hour", "--set", "tokens_per_block=64", "--set", "profile=trtllm-2025"]
    path = tmp_path / "spec.yaml"
    path.write_text(shown(*arguments), encoding="utf-8")
    spec, _ = load("mooncake_hour", ["tokens_per_block=64", "profile=trtllm-2025"])
    assert load(str(path), [])[0].shown() == spec.shown()


def test_wrong_key_is_one_line() -> None:
    result = CliRunner().invoke(app, ["config", "--set", "token_per_block=64"])
    assert result.exit_code == 2
    assert "did you mean tokens_per_block" in result.stderr
