"""A sweep keeps every result: with failures, with Ctrl-C, over processes, started again; and says what it was made from."""

import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments.complaints import SpecError
from experiments.design import Design
from experiments.grid import axes
from experiments.jobs import Job, Task
from experiments.load import Draft, read
from experiments.local import DIED, Work, in_processes
from experiments.spec import Spec
from experiments.sweep import Run, Tally, column_name
from experiments.sweep import sweep as made
from experiments.trace import Trace
from kvcache.request import Requests
from reports.table import read_sweep

Row = dict[str, Any]
TRACE = """{"timestamp": 0, "input_length": 600, "output_length": 10, "hash_ids": [0, 1]}
{"timestamp": 1000, "input_length": 700, "output_length": 20, "hash_ids": [0, 2]}
"""


def run_like(spec: Spec, requests: Requests, *, timing: bool = True) -> Row:
    """A row such as a run gives, with figures that follow from the spec."""
    block, threshold = spec.kv_cache_config.tokens_per_block, spec.kv_cache_config.offload_min_priority
    times = {"mean": 1.0, "p50": block / 64, "p90": 2.0, "p99": 3.0} if timing else None
    return {
        "requests": len(requests),
        "hit_rate_tokens": 0.5 - block / 1000 - threshold / 1000,
        "hit_tokens_by_tier": {"gpu": 10, "host": 5, "disk": 0},
        "misses_by_cause": {"new": 3, "evicted": 1},
        "offload_bytes": 1000 * (101 - threshold),
        "onboard_bytes": 500,
        "ttft_s": times,
        "spec": spec.shown(),
        "notes": ["a note"],
    }


@dataclass(frozen=True)
class Sweep:
    """A task and its place, so that a test says only what matters to it."""

    task: Task
    out: Path
    workers: int
    command: Sequence[str] = ()

    def engine(self, jobs: Sequence[Job], work: Work) -> Iterator[tuple[Job, Row]]:
        return in_processes(jobs, work, self.workers)


def sweep(work: Sweep, run: Run, report: Callable[[Tally], None]) -> list[Row]:
    return made(work.task, work.out, run, work.engine, report, work.command)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    path = tmp_path / "trace.jsonl"
    path.write_text(TRACE, encoding="utf-8")
    return Trace(str(path))


@pytest.fixture
def task(trace: Trace, tmp_path: Path) -> Callable[..., Sweep]:
    def make(*grid: str, workers: int = 1, command: Sequence[str] = (), **more: Any) -> Sweep:
        rules = {"retention": [{"priority": 50}]}
        task = Task(Draft(rules), [], trace, Design(grid=axes(grid)), **more)
        return Sweep(task, tmp_path / "out", workers, command)

    return make


def nothing(tally: Tally) -> None:
    """Progress nobody watches."""


def test_every_combination_is_a_row_in_grid_order_with_units_in_its_names(task: Callable[..., Sweep]) -> None:
    work = task("tokens_per_block=32,64", "secondary_offload_min_priority=0:100:50")
    sweep(work, run_like, nothing)
    frame = pd.read_parquet(work.out / "sweep.parquet")
    assert frame["run"].tolist() == list(range(6))
    assert frame["tokens_per_block"].tolist() == [32] * 3 + [64] * 3
    assert frame["secondary_offload_min_priority"].tolist() == [0, 50, 100] * 2
    assert frame["ttft_p50_s"].tolist() == [0.5] * 3 + [1.0] * 3
    assert frame["hit_tokens_host"].tolist() == [5] * 6
    assert frame["misses_evicted_blocks"].tolist() == [1] * 6
    assert frame["moved_bytes"].tolist() == [101_500, 51_500, 1500] * 2
    assert "spec" not in frame.columns


def test_the_full_spec_of_every_run_stands_beside_the_rows(task: Callable[..., Sweep]) -> None:
    work = task("tokens_per_block=32,64")
    sweep(work, run_like, nothing)
    specs = [json.loads(line) for line in (work.out / "specs.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [entry["run"] for entry in specs] == [0, 1]
    assert [entry["spec"]["kv_cache_config"]["tokens_per_block"] for entry in specs] == [32, 64]
    assert all(Spec.model_validate(entry["spec"]) for entry in specs)


def test_about_says_which_trace_by_its_sha256_and_what_was_swept(task: Callable[..., Sweep]) -> None:
    work = task("tokens_per_block=32,64", command=["kvtier", "sweep"])
    sweep(work, run_like, nothing)
    about = json.loads((work.out / "about.json").read_text(encoding="utf-8"))
    assert about["sha256"] == hashlib.sha256(TRACE.encode()).hexdigest()
    assert about["grid"] == {"tokens_per_block": [32, 64]}
    assert (about["runs"], about["command"]) == (2, ["kvtier", "sweep"])


def test_two_processes_give_the_rows_of_one(task: Callable[..., Sweep], tmp_path: Path) -> None:
    def stand_in(spec: Any, requests: Any, *, timing: bool = True) -> Row:  # a closure travels to the workers by value
        return {"requests": len(requests), "block": spec.kv_cache_config.tokens_per_block, "notes": []}

    alone = sweep(task("tokens_per_block=16,32,64,128"), stand_in, nothing)
    together = sweep(task("tokens_per_block=16,32,64,128", workers=2), stand_in, nothing)
    assert together == alone


def test_failed_run_is_a_row_with_its_reason_and_the_others_go_on(task: Callable[..., Sweep]) -> None:
    def half(spec: Spec, requests: Requests, *, timing: bool = True) -> Row:
        if spec.kv_cache_config.tokens_per_block == 32:
            raise ValueError("request 0 needs 19 blocks and the pool has 3; raise gpu_blocks")
        return run_like(spec, requests, timing=timing)

    work = task("tokens_per_block=32,64")
    sweep(work, half, nothing)
    frame = pd.read_parquet(work.out / "sweep.parquet")
    assert frame["error"].tolist()[0] == "request 0 needs 19 blocks and the pool has 3; raise gpu_blocks"
    assert pd.isna(frame["error"][1])
    assert pd.isna(frame["hit_rate_tokens"][0])
    assert frame["requests"][1] == 2


def test_sweep_of_failures_only_is_an_error_and_still_keeps_them(task: Callable[..., Sweep]) -> None:
    def broken(spec: Spec, requests: Requests, *, timing: bool = True) -> Row:
        raise RuntimeError("boom")

    work = task("tokens_per_block=32,64")
    with pytest.raises(SpecError, match="all 2 runs failed; the first: RuntimeError: boom"):
        sweep(work, broken, nothing)
    assert len(pd.read_parquet(work.out / "sweep.parquet")) == 2


def test_ctrl_c_keeps_the_finished_rows_and_says_how_many(task: Callable[..., Sweep]) -> None:
    def third_is_stopped(spec: Spec, requests: Requests, *, timing: bool = True) -> Row:
        if spec.kv_cache_config.tokens_per_block == 64:
            raise KeyboardInterrupt
        return run_like(spec, requests, timing=timing)

    work = task("tokens_per_block=16,32,64,128")
    with pytest.raises(KeyboardInterrupt, match="stopped; 2 of 4 runs are kept in"):
        sweep(work, third_is_stopped, nothing)
    assert pd.read_parquet(work.out / "sweep.parquet")["tokens_per_block"].tolist() == [16, 32]
    assert len((work.out / "rows.jsonl").read_text(encoding="utf-8").splitlines()) == 2


def test_rows_are_on_disk_before_the_next_run_starts(task: Callable[..., Sweep]) -> None:
    work = task("tokens_per_block=16,32,64")
    seen = []

    def looking(spec: Spec, requests: Requests, *, timing: bool = True) -> Row:
        seen.append(len((work.out / "rows.jsonl").read_text(encoding="utf-8").splitlines()))
        return run_like(spec, requests, timing=timing)

    sweep(work, looking, nothing)
    assert seen == [0, 1, 2]


def test_impossible_grid_value_stops_before_anything_is_written(task: Callable[..., Sweep]) -> None:
    work = task("tokens_per_block=32,0")
    with pytest.raises(SpecError, match="tokens_per_block is 0; it must be at least 1"):
        sweep(work, run_like, nothing)
    assert not work.out.exists()


def test_unreadable_trace_stops_before_anything_is_written(tmp_path: Path) -> None:
    work = Sweep(Task(Draft(), [], Trace("no_such_trace")), tmp_path / "out", 1)
    with pytest.raises(ValueError, match="no_such_trace: no such file"):
        sweep(work, run_like, nothing)
    assert not work.out.exists()


def test_without_timing_the_time_columns_are_empty(task: Callable[..., Sweep]) -> None:
    work = task("tokens_per_block=32", timing=False)
    rows = sweep(work, run_like, nothing)
    assert rows[0]["ttft_s"] is None


def test_grid_goes_on_top_of_the_spec_file(trace: Trace, tmp_path: Path) -> None:
    design = Design(grid=axes(["retention.0.priority=40,90"]))
    specs = [job.spec for job in Task(read("essay_retention"), [("gpu_tokens", 64)], trace, design).jobs()]
    assert [spec.retention[0].priority for spec in specs] == [40, 90]
    assert {spec.capacity.gpu_tokens for spec in specs} == {64}


def test_progress_is_told_after_every_run(task: Callable[..., Sweep]) -> None:
    told: list[tuple[int, int]] = []
    sweep(task("tokens_per_block=16,32,64"), run_like, lambda tally: told.append((tally.done, tally.runs)))
    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_swept_column_is_named_by_its_last_part_unless_that_is_unclear() -> None:
    assert column_name("kv_cache_config.tokens_per_block", ["kv_cache_config.tokens_per_block"]) == "tokens_per_block"
    assert column_name("retention.0.priority", ["retention.0.priority"]) == "retention.0.priority"


def counting(calls: list[int]) -> Run:
    def run(spec: Spec, requests: Requests, *, timing: bool = True) -> Row:
        calls.append(spec.kv_cache_config.tokens_per_block)
        return run_like(spec, requests, timing=timing)

    return run


def test_started_again_it_runs_nothing_and_has_the_same_table(task: Callable[..., Sweep]) -> None:
    calls: list[int] = []
    work = task("tokens_per_block=16,32")
    first = sweep(work, counting(calls), nothing)
    assert sweep(work, counting(calls), nothing) == first
    assert calls == [16, 32]


def test_longer_grid_runs_only_what_is_new_and_a_shorter_one_shows_only_what_it_wants(
    task: Callable[..., Sweep],
) -> None:
    calls: list[int] = []
    sweep(task("tokens_per_block=16,32"), counting(calls), nothing)
    rows = sweep(task("tokens_per_block=64,32,16"), counting(calls), nothing)
    assert calls == [16, 32, 64]
    assert [(row["run"], row["tokens_per_block"]) for row in rows] == [(0, 64), (1, 32), (2, 16)]
    assert [row["tokens_per_block"] for row in sweep(task("tokens_per_block=32"), counting(calls), nothing)] == [32]
    assert calls == [16, 32, 64]


def test_failed_run_is_made_again_and_its_new_row_counts(task: Callable[..., Sweep]) -> None:
    def broken(spec: Spec, requests: Requests, *, timing: bool = True) -> Row:
        if spec.kv_cache_config.tokens_per_block == 32:
            raise MemoryError("no room")
        return run_like(spec, requests, timing=timing)

    work = task("tokens_per_block=16,32")
    assert sweep(work, broken, nothing)[1]["error"] == "MemoryError: no room"
    calls: list[int] = []
    assert [row["error"] for row in sweep(work, counting(calls), nothing)] == [None, None]
    assert calls == [32]


def test_thresholds_between_two_priorities_in_use_are_one_run(task: Callable[..., Sweep]) -> None:
    # Blocks have 0 and 35 (TensorRT-LLM's own) or 50 (the rule). A block goes to the host when its priority is at least
    # the threshold: 1, 20 and 35 keep 35 and 50; 36 and 50 keep 50 only; 51 and 100 keep nothing; 0 keeps everything.
    made_for = []

    def run(spec: Spec, requests: Requests, *, timing: bool = True) -> Row:
        made_for.append(spec.kv_cache_config.offload_min_priority)
        return {"requests": len(made_for), "notes": []}

    rows = sweep(task("secondary_offload_min_priority=0,1,20,35,36,50,51,100"), run, nothing)
    assert made_for == [0, 1, 36, 51]
    assert [row["requests"] for row in rows] == [1, 2, 2, 2, 3, 3, 4, 4]
    assert [row["secondary_offload_min_priority"] for row in rows] == [0, 1, 20, 35, 36, 50, 51, 100]


def test_two_sweeps_cannot_write_to_one_directory(task: Callable[..., Sweep]) -> None:
    work = task("tokens_per_block=16,32")

    def second(spec: Spec, requests: Requests, *, timing: bool = True) -> Row:
        with pytest.raises(SpecError, match="another sweep is writing there"):
            sweep(work, run_like, nothing)
        return run_like(spec, requests, timing=timing)

    assert len(sweep(work, second, nothing)) == 2


def test_killed_process_costs_no_run_and_the_run_that_always_kills_gets_a_row(
    task: Callable[..., Sweep], tmp_path: Path
) -> None:
    once = tmp_path / "once"

    def deadly(spec: Any, requests: Any, *, timing: bool = True) -> Row:
        block = spec.kv_cache_config.tokens_per_block
        if block == 64 or (block == 16 and not once.exists()):
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"requests": block, "notes": []}

    rows = sweep(task("tokens_per_block=16,32,64,128", workers=2), deadly, nothing)
    assert [row["requests"] for row in rows if row["error"] is None] == [16, 32, 128]
    assert rows[2]["error"] == DIED


def test_killed_sweep_without_a_table_is_read_from_its_rows(task: Callable[..., Sweep]) -> None:
    work = task("tokens_per_block=16,32")
    sweep(work, run_like, nothing)
    whole, _ = read_sweep(work.out)
    (work.out / "sweep.parquet").unlink()
    frame, about = read_sweep(work.out)
    pd.testing.assert_frame_equal(frame, whole)
    assert about["grid"] == {"tokens_per_block": [16, 32]}


def test_run_elsewhere_with_another_trace_of_that_name_is_refused(task: Callable[..., Sweep]) -> None:
    work = task("tokens_per_block=16,32")

    def other(jobs: Sequence[Job], make: Work) -> Iterator[tuple[Job, Row]]:
        longer = Path(work.task.trace.name).with_name("longer.jsonl")
        longer.write_text(TRACE + TRACE.splitlines()[1].replace("1000", "2000") + "\n", encoding="utf-8")
        return ((job, make(replace(job, trace=Trace(str(longer))))) for job in jobs)

    with pytest.raises(SpecError, match="another version of kvtier, or another trace of that name"):
        made(work.task, work.out, run_like, other, nothing)


def test_sizes_with_units_become_numbers_in_the_table(task: Callable[..., Sweep]) -> None:
    rows = sweep(task("host_cache_size=0,1GiB"), run_like, nothing)
    assert [row["host_cache_size"] for row in rows] == [0, 2**30]
