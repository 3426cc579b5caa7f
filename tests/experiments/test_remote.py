"""Runs made elsewhere: two processes of a real Dask cluster, and submitit's stand-in for Slurm, give the table of one process."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments.complaints import SpecError
from experiments.design import Design
from experiments.grid import axes
from experiments.jobs import Job, Task
from experiments.load import Draft
from experiments.local import Work, in_processes
from experiments.remote import on_dask, on_slurm
from experiments.sweep import Engine, sweep
from experiments.trace import Trace

LINE = '{"timestamp": 0, "input_length": 600, "output_length": 10, "hash_ids": [0, 1]}\n'
Row = dict[str, Any]


GRID = ["tokens_per_block=16,32,64", "gpu_blocks=50,60"]


def task(directory: Path, grid: list[str]) -> Task:
    trace = directory / "trace.jsonl"
    trace.write_text(LINE, encoding="utf-8")
    return Task(Draft(), [], Trace(str(trace)), Design(grid=axes(grid)))


def run_in(directory: Path) -> Callable[..., Row]:
    """A run that kills its own process once, when it is the third of six."""
    fatal = directory / "fatal"

    def run(spec: Any, requests: Any, *, timing: bool = True) -> Row:
        block, pool = spec.kv_cache_config.tokens_per_block, spec.capacity.gpu_blocks
        if block == 32 and pool == 50 and fatal.exists():
            fatal.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"hits": block * pool, "process": os.getpid(), "notes": []}

    return run


def rows(directory: Path, name: str, engine: Engine, grid: list[str] = GRID) -> list[Row]:
    return sweep(task(directory, grid), directory / name, run_in(directory), engine, lambda tally: None)


def without_process(found: list[Row]) -> list[Row]:
    return [{name: value for name, value in row.items() if name != "process"} for row in found]


@pytest.mark.filterwarnings("ignore")
def test_two_dask_processes_give_the_same_table_also_when_one_is_killed_amid_a_run(tmp_path: Path) -> None:
    alone = rows(tmp_path, "alone", lambda jobs, work: in_processes(jobs, work, 1))
    (tmp_path / "fatal").touch()
    dask = rows(tmp_path, "dask", lambda jobs, work: on_dask(jobs, work, None, 2))
    assert not (tmp_path / "fatal").exists(), "no worker was killed"
    assert without_process(dask) == without_process(alone)
    assert os.getpid() not in {row["process"] for row in dask}


def test_array_of_tasks_gives_the_same_table_and_a_dead_task_costs_its_own_runs_only(tmp_path: Path) -> None:
    def engine(jobs: Sequence[Job], work: Work) -> Iterator[tuple[Job, Row]]:
        return on_slurm(jobs, work, tmp_path / "tasks", 1, cluster="local")

    grid = ["tokens_per_block=16,32", "gpu_blocks=50"]
    alone = rows(tmp_path, "alone", lambda jobs, work: in_processes(jobs, work, 1), grid)
    (tmp_path / "fatal").touch()
    assert [row["error"] is None for row in rows(tmp_path, "array", engine, grid)] == [True, False]
    assert without_process(rows(tmp_path, "array", engine, grid)) == without_process(alone)


def test_engine_whose_package_is_not_there_says_which_extra_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(SpecError, match=r"pip install 'kvtier\[dask\]'"):
        rows(tmp_path, "out", lambda jobs, work: on_dask(jobs, work, None, 2))
    with pytest.raises(SpecError, match=r"pip install 'kvtier\[slurm\]'"):
        rows(tmp_path, "out", lambda jobs, work: on_slurm(jobs, work, tmp_path, 2))


def test_slurm_where_there_is_none_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SpecError, match="no sbatch on this machine"):
        rows(tmp_path, "out", lambda jobs, work: on_slurm(jobs, work, tmp_path, 2))
