"""The configuration to paste: it says what the run had, can be read back, and a check runs the choice again."""

import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from experiments.cli import app
from experiments.load import load
from experiments.recommend import spec_of, trials
from experiments.trace import Trace
from traces.read import read

TRACE = "mooncake_arxiv_first1000"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweep") / "s"
    grid = ["--grid", "capacity.gpu_blocks=300,400", "--grid", "secondary_offload_min_priority=0,100"]
    settings = ["--set", "tokens_per_block=512", "--set", "capacity.host_blocks=80"]
    made = kvtier("sweep", TRACE, "--limit", 60, *grid, *settings, "--jobs", 1, "--out", out)
    assert made.exit_code == 0, made.output
    return out


def kvtier(*arguments: object):  # type: ignore[no-untyped-def]
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_file_holds_the_runs_options_and_reads_back_as_the_same_cache(sweep: Path, tmp_path: Path) -> None:
    out = tmp_path / "options.yaml"
    result = kvtier(
        "recommend", sweep, "--prefer", "gpu_blocks:min", "--prefer", "secondary_offload_min_priority:max", "-o", out
    )
    assert result.exit_code == 0, result.output
    assert str(out) in result.stdout
    options = yaml.safe_load(out.read_text(encoding="utf-8"))
    specs = [spec_of(sweep, run) for run in range(4)]
    (chosen,) = [s for s in specs if s.capacity.gpu_blocks == 300 and s.kv_cache_config.offload_min_priority == 100]
    assert options["kv_cache_config"]["max_tokens"] == 300 * 512
    assert options["kv_cache_config"]["host_cache_size"] % 80 == 0
    assert options["kv_cache_config"]["secondary_offload_min_priority"] == 100
    read, _ = load(str(out), [])
    assert read.scheduler == chosen.scheduler
    assert read.kv_cache_config.tokens_per_block == 512
    assert read.kv_cache_config.offload_min_priority == 100


def test_file_says_why_and_what_other_engines_call_it(sweep: Path, tmp_path: Path) -> None:
    out = tmp_path / "options.yaml"
    kvtier("recommend", sweep, "-o", out)
    text = out.read_text(encoding="utf-8")
    assert "# How sure:" in text
    assert "# vLLM:   --block-size 512" in text
    assert "# SGLang: --page-size 512" in text


def test_check_runs_the_choice_again_on_the_second_half_and_says_where_a_seed_changes_nothing(
    sweep: Path, tmp_path: Path
) -> None:
    result = kvtier("recommend", sweep, "--slo", "ttft_p99<1h", "--check", "-o", tmp_path / "o.yaml")
    assert result.exit_code == 0, result.output
    assert re.search(
        r"^Again, the second half of the trace, cold: time to first token, p99 [\d.]+ s, \+\d+ % to time to first token,"
        r" p99 < 3600 s\.$",
        result.stdout,
        re.MULTILINE,
    )
    assert "Another seed changes nothing here: the trace is recorded" in result.stdout
    assert "Again, with seed" not in result.stdout


def test_another_seed_of_a_generated_trace_is_another_trace_and_none_of_the_swept_ones() -> None:
    spec = load(None, [])[0]
    generated = Trace("synthetic:multitenant?requests=5&seed=3")
    (name, other, requests), (_, same, half) = trials(spec, generated, [0, 1, 7])
    assert name == "with seed 8"
    assert other.workload.seed == 8
    assert same == spec
    assert requests.prompt_tokens.tolist() == read("synthetic:multitenant?requests=5&seed=8").prompt_tokens.tolist()
    assert requests.prompt_tokens.tolist() != generated.requests().prompt_tokens.tolist()
    assert half.prompt_tokens.tolist() == generated.requests().prompt_tokens[2:].tolist()


def test_check_ends_with_code_1_where_the_second_half_misses_the_limit(sweep: Path, tmp_path: Path) -> None:
    # Half the trace has half the requests, so a limit on their number is one that it must miss.
    found = tmp_path / "found.json"
    result = kvtier("recommend", sweep, "--slo", "requests>=60", "--check", "-o", tmp_path / "o.yaml", "--json", found)
    assert result.exit_code == 1, result.output
    assert (
        "Again, the second half of the trace, cold: requests 30, -50 % to requests >= 60: a limit is MISSED.\n"
        in result.stdout
    )
    told = json.loads(found.read_text(encoding="utf-8"))
    assert told["held"] is False
    assert told["checks"] == [
        {"name": "the second half of the trace, cold", "figures": {"requests": 30.0}, "held": False}
    ]


def test_unknown_figure_is_one_line_and_leaves_no_file(sweep: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.yaml"
    result = kvtier("recommend", sweep, "--slo", "tttft_p99<1s", "-o", out)
    assert result.exit_code == 2
    assert "did you mean" in result.stderr
    assert not out.exists()
