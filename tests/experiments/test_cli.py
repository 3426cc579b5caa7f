"""The command line: what it prints, which exit code, and one line on stderr for every fault of the input."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from experiments import cli

ROOT = Path(__file__).parents[2]
AWKWARD = ROOT / "tests" / "traces" / "awkward"
TRACE = """{"timestamp": 0, "input_length": 600, "output_length": 10, "hash_ids": [0, 1]}
{"timestamp": 1000, "input_length": 700, "output_length": 20, "hash_ids": [0, 2]}
"""


def fake_run(spec: Any, requests: Any, *, timing: bool = True, progress: Any = None) -> dict[str, Any]:
    """A stand-in for the simulator: refuses a pool of one block, is interrupted at 13."""
    if spec.capacity.gpu_blocks == 1:
        raise ValueError("request 0 needs 19 blocks, the GPU pool has 1; raise gpu_blocks or set too_long to drop")
    if spec.capacity.gpu_blocks == 13:
        raise KeyboardInterrupt
    block = spec.kv_cache_config.tokens_per_block
    return {
        "requests": len(requests),
        "prompt_tokens": int(requests.prompt_tokens.sum()),
        "hit_rate_tokens": 0.5 - block / 1000,
        "hit_tokens_by_tier": {"gpu": 10, "host": 5, "disk": 0},
        "offload_bytes": 2**30 * 64 // block,
        "onboard_bytes": 0,
        "ttft_s": {"mean": 1.0, "p50": 0.25, "p90": 2.0, "p99": 3.0} if timing else None,
        "spec": spec.shown(),
        "version": "test",
        "notes": ["a note of the run", "a note of the run"],
    }


def fake_run_pieces(spec: Any, pieces: Any, *, progress: Any = None) -> dict[str, Any]:
    (requests,) = pieces
    return fake_run(spec, requests, timing=False, progress=progress)


@pytest.fixture(autouse=True)
def _fake_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, function in (("run", fake_run), ("untimed", fake_run_pieces)):
        module = ModuleType(f"experiments.{name}")
        setattr(module, function.__name__.removeprefix("fake_"), function)
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE, encoding="utf-8")
    return str(path)


def kvtier(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def complaint(*arguments: object) -> str:
    """The one line on stderr of a command that ends with 2 and prints nothing else."""
    result = kvtier(*arguments)
    assert result.exit_code == 2
    assert not result.stdout
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("kvtier: ")
    return result.stderr


def test_replay_prints_figures_with_units_and_notes_once(trace: str) -> None:
    result = kvtier("replay", trace)
    assert result.exit_code == 0
    assert re.search(r"token hit rate +46\.8 +% of prompt tokens", result.stdout)
    assert re.search(r"offloaded to host +2 +GiB", result.stdout)
    assert re.search(r"time to first token +1 / 0\.25 / 2 / 3 +s \(mean / p50 / p90 / p99\)", result.stdout)
    assert re.search(r"offload threshold +30 +priority", result.stdout)
    assert result.stderr.count("a note of the run") == 1


def test_replay_json_to_stdout_is_nothing_but_json(trace: str) -> None:
    result = kvtier("replay", trace, "--json", "-", "--no-timing")
    row = json.loads(result.stdout)
    assert (row["requests"], row["ttft_s"]) == (2, None)


def test_replay_json_to_a_file_says_where(trace: str, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "row.json"
    result = kvtier("replay", trace, "--json", target)
    assert str(target) in result.stdout.replace("\n", "")
    assert json.loads(target.read_text(encoding="utf-8"))["prompt_tokens"] == 1300
    assert list(target.parent.iterdir()) == [target]


def test_pool_sizes_and_settings_reach_the_spec(trace: str) -> None:
    result = kvtier(
        "replay", trace, "--gpu-tokens", "1e6", "--host-blocks", 5, "--set", "tokens_per_block=64", "--json", "-"
    )
    spec = json.loads(result.stdout)["spec"]
    assert (spec["capacity"]["gpu_tokens"], spec["capacity"]["host_blocks"]) == (1_000_000, 5)
    assert spec["kv_cache_config"]["tokens_per_block"] == 64


def test_limit_keeps_the_first_requests(trace: str) -> None:
    assert json.loads(kvtier("replay", trace, "--limit", 1, "--json", "-").stdout)["requests"] == 1


def test_sweep_then_pareto_leaves_table_plot_and_front(trace: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    swept = kvtier("sweep", trace, "--grid", "tokens_per_block=16,32,64", "--jobs", 1, "--out", out)
    assert swept.exit_code == 0
    assert swept.stdout.strip() == str(out / "sweep.parquet")
    drawn = kvtier("pareto", out, "--x", "offload_bytes", "--y", "hit_rate_tokens", "--out", out / "plot.png")
    assert drawn.exit_code == 0
    assert (out / "plot.png").read_bytes()[:4] == b"\x89PNG"
    front = pd.read_csv(out / "plot.csv")
    assert front["tokens_per_block"].tolist() == [64, 32, 16]
    assert "3 runs in the front" in drawn.stdout


def test_curve_gives_hits_for_every_policy_and_capacity(trace: str) -> None:
    result = kvtier("curve", trace, "--policy", "lru,fifo", "--capacity", "1,inf", "--json", "-")
    rows = json.loads(result.stdout)
    assert [(row["policy"], row["capacity_blocks"]) for row in rows] == [
        ("lru", 1),
        ("lru", None),
        ("fifo", 1),
        ("fifo", None),
    ]
    assert rows[1]["hit_blocks_by_tier"] == {"warm": 1, "cold": 0}  # of 0 1 0 2 only the second 0 is found


def test_version_and_help_work_without_a_trace() -> None:
    assert kvtier("--version").stdout.startswith("kvtier ")
    for command in ("replay", "sweep", "pareto", "curve"):
        assert f"Example: kvtier {command}" in kvtier(command, "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["replay", "no_such.jsonl"], "no_such.jsonl: no such file"),
        (["replay", AWKWARD / "21_empty.jsonl"], "21_empty.jsonl"),
        (["replay", AWKWARD / "22_truncated_last_line.jsonl"], "22_truncated_last_line.jsonl:3: not JSON"),
        (["replay", "TRACE", "--set", "tokens_per_block=0"], "tokens_per_block is 0; it must be at least 1"),
        (["replay", "TRACE", "--set", "token_per_block=1"], "unknown key token_per_block; did you mean tokens_per"),
        (["replay", "TRACE", "--spec", "no_such.yaml"], "no_such.yaml: no such spec file"),
        (["replay", "TRACE", "--gpu-blocks", "1"], "request 0 needs 19 blocks, the GPU pool has 1"),
        (["replay", "TRACE", "--gpu-blocks", "0"], "capacity.gpu_blocks is 0; it must be at least 1"),
        (["replay", "TRACE", "--gpu-blocks", "5", "--gpu-tokens", "5"], "give --gpu-tokens or --gpu-blocks"),
        (["replay", "TRACE", "--time-unit", "h"], "--time-unit is 'h'"),
        (["replay", "TRACE", "--json", "TRACE/row.json"], "trace.jsonl"),
        (["curve", "TRACE", "--capacity", "0"], "--capacity 0: must be a whole number"),
        (["curve", "TRACE", "--capacity", "5", "--policy", "mru"], "policy is 'mru'; known"),
        (["sweep", "TRACE", "--grid", "tokens_per_block=", "--out", "OUT"], "no values"),
        (["sweep", "TRACE", "--grid", "tokens_per_block=32"], "give --out DIR"),
        (["sweep", "TRACE", "--out", "OUT"], "nothing is varied"),
        (
            ["sweep", "TRACE", "--grid", "workload.workers=1,2", "--out", "OUT", "--engine", "ray"],
            "--engine is ray; known: local",
        ),
        (["sweep", "mooncake_hour", "--out", "OUT"], "no sweep section in it"),
        (["sweep", "status", "OUT"], "no sweep in it"),
        (["sweep", "TRACE", "--grid", "tokens_per_block=32,0", "--out", "OUT"], "tokens_per_block is 0"),
        (["pareto", "OUT", "--x", "a", "--y", "b"], "no such directory"),
    ],
)
def test_fault_of_the_input_is_one_line_and_exit_code_two(
    arguments: list[object], words: str, trace: str, tmp_path: Path
) -> None:
    named = [str(argument).replace("TRACE", trace).replace("OUT", str(tmp_path / "out")) for argument in arguments]
    assert words in complaint(*named)


def test_failed_sweep_setting_leaves_no_directory(trace: str, tmp_path: Path) -> None:
    complaint("sweep", trace, "--grid", "tokens_per_block=32,0", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pareto_of_an_empty_directory_says_how_to_fill_it(tmp_path: Path) -> None:
    assert "no sweep.parquet in it; `kvtier sweep" in complaint("pareto", tmp_path, "--x", "a", "--y", "b")


def test_pareto_lists_the_columns_near_a_wrong_name(trace: str, tmp_path: Path) -> None:
    kvtier("sweep", trace, "--grid", "tokens_per_block=16,32", "--jobs", 1, "--out", tmp_path)
    words = complaint("pareto", tmp_path, "--x", "offload_byte", "--y", "hit_rate_tokens")
    assert "no column offload_byte; did you mean offload_bytes" in words
    assert not list(tmp_path.glob("*.png"))


def test_some_failed_runs_are_counted_on_stderr_and_the_rest_is_kept(trace: str, tmp_path: Path) -> None:
    result = kvtier("sweep", trace, "--grid", "gpu_blocks=1,50", "--jobs", 1, "--out", tmp_path)
    assert result.exit_code == 1
    assert "1 of 2 runs failed; the first: request 0 needs 19 blocks" in result.stderr
    assert kvtier("sweep", "status", tmp_path).stdout.splitlines()[1:] == [
        "done 1, failed 1, left 0",
        "computing took 0 s; not running now",
        "failed: request 0 needs 19 blocks, the GPU pool has 1; raise gpu_blocks or set too_long to drop",
        f"to go on: {' '.join([Path(sys.argv[0]).name, *sys.argv[1:]])}",
    ]


def test_sweep_of_failures_only_is_an_error(trace: str, tmp_path: Path) -> None:
    result = kvtier("sweep", trace, "--grid", "gpu_blocks=1", "--jobs", 1, "--out", tmp_path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1].startswith("kvtier: all 1 runs failed; the first: request 0 needs 19 blocks")


def test_dry_run_says_what_would_run_and_writes_nothing(trace: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    grid = ("--grid", "tokens_per_block=16,32", "--grid", "secondary_offload_min_priority=40,50")
    result = kvtier("sweep", trace, *grid, "--jobs", 1, "--out", out, "--dry-run")
    assert result.exit_code == 0
    assert re.fullmatch(
        r"4 settings, 2 different runs\n2 runs on 1 core: about \S+ s, by figures of .*\n", result.stdout
    )
    assert not out.exists()
    kvtier("sweep", trace, *grid, "--jobs", 1, "--out", out)
    result = kvtier("sweep", trace, *grid, "--jobs", 1, "--out", out, "--dry-run")
    assert result.stdout == f"4 settings, 2 different runs, 2 of them in {out}\nnothing is left to run\n"


def test_sweep_file_needs_nothing_else_and_the_command_line_goes_on_top(
    trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(f"trace: {trace}\nsweep:\n  grid: {{tokens_per_block: [16, 32]}}\n", encoding="utf-8")
    result = kvtier("sweep", "mine.yaml", "--jobs", 1)
    assert (result.exit_code, result.stdout) == (0, "mine/sweep.parquet\n")
    kvtier("sweep", "mine.yaml", "--grid", "gpu_blocks=50,60", "--limit", 1, "--jobs", 1, "--out", "more")
    frame = pd.read_parquet("more/sweep.parquet")
    assert frame[["tokens_per_block", "gpu_blocks"]].to_numpy().tolist() == [[16, 50], [16, 60], [32, 50], [32, 60]]
    assert frame["requests"].tolist() == [1] * 4


def test_repeats_of_runs_that_draw_nothing_are_left_out_with_a_note(trace: str, tmp_path: Path) -> None:
    result = kvtier("sweep", trace, "--grid", "workload.workers=1,2", "--repeats", 3, "--jobs", 1, "--out", tmp_path)
    assert "nothing in these runs is random" in result.stderr
    assert len(pd.read_parquet(tmp_path / "sweep.parquet")) == 2
    kvtier(
        "sweep",
        trace,
        "--grid",
        "workload.workers=1,2",
        "--set",
        "workload.router=random",
        "--repeats",
        3,
        "--jobs",
        1,
        "--out",
        tmp_path,
    )
    assert pd.read_parquet(tmp_path / "sweep.parquet")["seed"].tolist() == [0, 1, 2] * 2


@pytest.mark.parametrize("arguments", [["replay"], ["replay", "t", "--nonsense"], ["nonsense"], ["sweep", "t"]])
def test_usage_errors_exit_with_two(arguments: list[str]) -> None:
    assert kvtier(*arguments).exit_code == 2


def test_ctrl_c_is_one_line_and_exit_code_130(trace: str) -> None:
    result = kvtier("replay", trace, "--gpu-blocks", 13)
    assert result.exit_code == 130
    assert result.stderr == "kvtier: stopped\n"


def test_ctrl_c_in_a_sweep_keeps_what_is_finished(trace: str, tmp_path: Path) -> None:
    result = kvtier("sweep", trace, "--grid", "gpu_blocks=11:14:1", "--jobs", 1, "--out", tmp_path)
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == f"kvtier: stopped; 2 of 4 runs are kept in {tmp_path}"
    assert pd.read_parquet(tmp_path / "sweep.parquet")["gpu_blocks"].tolist() == [11, 12]


def test_debug_shows_the_whole_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTIER_DEBUG", "1")
    assert isinstance(kvtier("replay", "no_such.jsonl").exception, ValueError)


def console_script(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", "from experiments.cli import main; main()", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )


def test_console_script_shows_no_traceback_for_a_missing_file() -> None:
    result = console_script("replay", "no_such.jsonl")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("kvtier: no_such.jsonl: no such file")
    assert "Traceback" not in result.stderr


def test_console_script_help_loads_nothing_heavy() -> None:
    heavy = {"pandas", "matplotlib", "numba", "numpy", "pydantic", "joblib"}
    code = f"import sys; from experiments import cli; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"


def test_broken_pipe_is_quiet() -> None:
    trace = ROOT / "tests" / "traces" / "formats" / "mooncake.jsonl"
    command = (
        f"{sys.executable} -c 'from experiments.cli import main; main()' curve {trace} --capacity 1,2,3 --json - | true"
    )
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, cwd=ROOT, timeout=120
    )  # fmt: skip
    assert "Traceback" not in result.stderr


def test_a_curve_over_all_sizes_draws_itself_and_stays_below_the_bound(trace: str, tmp_path: Path) -> None:
    picture = tmp_path / "curve.png"
    result = kvtier("curve", trace, "--policy", "lru,arc,min", "--plot", str(picture), "--json", "-")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout.rpartition("]")[0] + "]")
    rates = {(row["policy"], row["capacity_blocks"]): row["hit_rate_blocks"] for row in rows}
    assert all(rate <= rates["min", size] for (_, size), rate in rates.items())
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--sample", "0.1"], "--sample 0.1: a share of the blocks between 0 and 1, and only with --view flat"),
        (["--policy", "mru"], "policy is 'mru'; known are lru"),
        (["--policy", ","], "--policy needs at least one value"),
        (["--view", "trie"], "view is 'trie'; known are flat, tree"),
    ],
)
def test_a_wrong_curve_is_one_line(trace: str, more: list[str], message: str) -> None:
    result = kvtier("curve", trace, *more)
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def test_sampled_curves_carry_their_error(trace: str) -> None:
    result = kvtier("curve", trace, "--view", "flat", "--policy", "fifo", "--sample", "0.5", "--json", "-")
    assert all(row["hit_rate_blocks_error"] >= 0 and row["sample"] > 0.4 for row in json.loads(result.stdout))
