"""Starts a sweep and kills it, over and over: `python killed.py DIR KILLS` prints what became of it as JSON.

A sweep is a process group of its own: the process that keeps the rows and, every fifth time, two workers. All of it is
killed with SIGKILL some milliseconds after a random number of further rows, and the next one goes on. A run that was kept
and is gone, changed or made again is counted.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.design import Design
from experiments.grid import axes
from experiments.jobs import Task
from experiments.load import Draft
from experiments.local import in_processes
from experiments.sweep import sweep
from experiments.trace import Trace
from reports.rows import rows_by_key

LINE = '{"timestamp": 0, "input_length": 600, "output_length": 10, "hash_ids": [0, 1]}\n'
GRID = ["tokens_per_block=16,32,64,128", "gpu_blocks=100:600:100"]
Row = dict[str, Any]


def task(directory: Path) -> Task:
    trace = directory / "trace.jsonl"
    trace.write_text(LINE, encoding="utf-8")
    return Task(Draft(), [], Trace(str(trace)), Design(grid=axes(GRID)))


def run_in(directory: Path) -> Callable[..., Row]:
    def run(spec: Any, requests: Any, *, timing: bool = True) -> Row:
        block, pool = spec.kv_cache_config.tokens_per_block, spec.capacity.gpu_blocks
        time.sleep(0.004)
        return {"hits": block * pool + len(requests), "notes": [], "padding": "x" * 3000}

    return run


def once(work: Task, out: Path, workers: int) -> list[Row]:
    def engine(jobs: Any, make: Any) -> Any:
        return in_processes(jobs, make, workers)

    return sweep(work, out, run_in(out), engine, lambda tally: None)


def lines_in(out: Path) -> int:
    path = out / "rows.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def killed(work: Task, out: Path, workers: int, rows: int, then_s: float) -> None:
    """A sweep that is killed `then_s` seconds after it holds so many rows."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        once(work, out, workers)
        os._exit(0)
    os.setpgid(child, child)
    while lines_in(out) < rows and os.waitpid(child, os.WNOHANG) == (0, 0):
        time.sleep(0.002)
    time.sleep(then_s)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


def main(directory: Path, kills: int) -> None:
    work = task(directory)
    uninterrupted = once(work, directory / "whole", 1)
    kept, lost, amid, done = directory / "kept", 0, 0, 0
    chance = random.Random(1)
    before: dict[str, Row] = {}
    for number in range(kills):
        if len(before) == len(uninterrupted):  # all done: begin again
            kept, before = directory / f"kept{number}", {}
        rows = min(len(before) + chance.randrange(5), len(uninterrupted))
        killed(work, kept, 1 if number % 5 else 2, rows, chance.uniform(0, 0.02))
        after = rows_by_key(kept / "rows.jsonl")
        lost += any(after.get(key) != row for key, row in before.items())
        lost += lines_in(kept) - len(after)
        amid += 0 < len(after) < len(uninterrupted)
        before, done = after, done + 1
    told = {"kills": done, "lost": lost, "amid": amid, "rows": once(work, kept, 2), "uninterrupted": uninterrupted}
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
