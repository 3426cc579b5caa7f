"""`kvtier trace stats` and `kvtier trace check`: what they print, write and answer with their exit code."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from experiments import cli

ROWS = """{"timestamp": 0, "input_length": 1100, "output_length": 10, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 1500, "output_length": 0, "hash_ids": [0, 1, 3]}
{"timestamp": 1000, "input_length": 100, "output_length": 5, "hash_ids": []}
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text(ROWS, encoding="utf-8")
    return path


def kvtier(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["trace", *map(str, arguments)])


def test_stats_prints_the_figures_with_units(trace: Path) -> None:
    out = kvtier("stats", trace).stdout
    # 0 s: three blocks, 1 s: none, 3 s: three blocks of which two come again: 1,024 of 2,700 tokens.
    for label, figure in (("number", "3"), ("in prompts", "2,700"), ("different ones", "4"), ("found again", "33.33")):
        assert any(label in line and figure in line for line in out.splitlines()), (label, out)
    assert "37.93 % of prompt tokens" in " ".join(out.split())


def test_stats_as_json_and_as_a_page(trace: Path, tmp_path: Path) -> None:
    result = kvtier("stats", trace, "--json", tmp_path / "s.json", "--plot", tmp_path / "s.png")
    row = json.loads((tmp_path / "s.json").read_text())
    assert (row["format"], row["requests"], row["hit_blocks"], row["prompt_tokens"]["max"]) == ("mooncake", 3, 2, 1500)
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    assert result.stdout.splitlines()[-2:] == [str(tmp_path / "s.json"), str(tmp_path / "s.png")]


def test_stats_at_one_instant_have_null_for_what_does_not_exist(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(ROWS.splitlines()[0])
    row = json.loads(kvtier("stats", path, "--json", "-").stdout)
    assert row["request_rate_rps"] is None
    assert row["gap_cv"] is None


def test_stats_in_other_blocks_are_exact_refused_or_a_lower_bound(trace: Path) -> None:
    assert json.loads(kvtier("stats", trace, "--tokens-per-block", 1024, "--json", "-").stdout)["hit_tokens"] == 1024
    assert "sizes that work" in kvtier("stats", trace, "--tokens-per-block", 500).stderr
    assert "lower bound" in kvtier("stats", trace, "--tokens-per-block", 256).stderr


def test_stats_say_when_they_are_estimates_and_by_how_much_and_exact_ones_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("experiments.trace_stats.MOST", 1000)
    monkeypatch.setattr("traces.prefixes.PART_BLOCKS", 500)
    some, every = (kvtier("stats", "mooncake_arxiv_first1000", *more) for more in ([], ["--exact"]))
    assert "--exact follows all" in some.stderr
    assert "blocks, ± " in some.stdout
    assert "tokens, ± " in some.stdout
    assert "±" not in every.stdout + every.stderr
    assert "12,207" in every.stdout


def test_check_lists_what_is_doubtful_with_its_lines(trace: Path) -> None:
    result = kvtier("check", trace)
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0] == f"{trace} (mooncake): 3 requests, content known in blocks of 512 tokens"
    assert f"{trace}:2: generates 0 tokens: only prefilled" in lines
    assert f"{trace}:3: no hash ids: this prompt shares nothing" in lines
    assert f"{trace}:3: earlier than a row before it" in lines
    assert kvtier("check", trace, "--strict").exit_code == 1


def test_check_names_lines_that_cannot_be_read_and_goes_on(trace: Path) -> None:
    trace.write_text(
        ROWS + '{"timestamp": 9\n{"timestamp": 9, "input_length": -1, "output_length": 1}\n', encoding="utf-8"
    )
    lines = kvtier("check", trace).stdout.splitlines()
    assert any(line.startswith(f"{trace}:4: left out: not JSON") for line in lines)
    assert any(line.startswith(f"{trace}:5: left out: input_length is -1") for line in lines)


def test_check_of_a_clean_trace_says_so() -> None:
    result = kvtier("check", "mooncake_arxiv_first1000", "--strict")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "nothing doubtful"


def test_check_of_no_trace_at_all_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("404: Not Found")
    result = kvtier("check", path)
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
