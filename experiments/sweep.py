"""Runs every combination of a grid, over all cores, and keeps each result as it comes.

    DIR/about.json     before the first run: version, trace and its SHA-256, grid, cores, command
    DIR/specs.jsonl    before the first run: the full spec of every run
    DIR/rows.jsonl     one line a finished run, appended at once: what a crash leaves
    DIR/sweep.parquet  at the end, also after Ctrl-C: one row a run, columns with units; replaced whole

Settings are checked before anything runs. A run that fails is a row that says why; the others go on.
"""

import json
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.complaints import SpecError
from experiments.grid import points
from experiments.load import Draft, finished
from experiments.progress import Report
from experiments.spec import Spec
from experiments.trace import Trace
from experiments.version import kvtier_version
from reports.columns import flat
from reports.files import written

Run = Callable[..., dict[str, Any]]
"""`experiments.run.run`, or a stand-in: (spec, requests, timing=...) → row."""


@dataclass(frozen=True)
class Job:
    """One run of a sweep: its number, the swept settings, the spec they make."""

    number: int
    settings: dict[str, Any]
    spec: Spec


@dataclass(frozen=True)
class Sweep:
    """What to run and where to keep it."""

    draft: Draft
    settings: Sequence[tuple[str, Any]]
    grid: dict[str, list[Any]]
    trace: Trace
    out: Path
    timing: bool = True
    workers: int | None = None  # processes; None: one a core
    command: Sequence[str] = field(default_factory=tuple)

    def jobs(self) -> list[Job]:
        """Every combination as a checked spec; the first impossible one is an error."""
        jobs = []
        for number, point in enumerate(points(self.grid)):
            spec, _ = finished(self.draft, [*self.settings, *point.items()])
            jobs.append(Job(number, point, spec))
        return jobs


def sweep(task: Sweep, run: Run, report: Report) -> list[dict[str, Any]]:
    """Run them all; the rows in grid order. Ctrl-C keeps what is finished and is passed on, with words."""
    jobs = task.jobs()
    task.trace.requests()  # a trace that cannot be read fails here, before anything is written
    _begin(task, jobs)
    rows: list[dict[str, Any]] = []
    try:
        with (task.out / "rows.jsonl").open("w", encoding="utf-8") as log:
            for row in _rows(task, jobs, run):
                rows.append(row)
                log.write(json.dumps(row) + "\n")
                log.flush()
                report(len(rows), len(jobs))
    except KeyboardInterrupt:
        kept = f"{len(rows)} of {len(jobs)} runs are kept in {task.out}" if rows else "no run had finished"
        raise KeyboardInterrupt(f"stopped; {kept}") from None
    finally:
        rows.sort(key=lambda row: row["run"])
        if rows:
            _write_table(rows, task.out / "sweep.parquet")
    failed = [row for row in rows if row["error"]]
    if len(failed) == len(rows):
        raise SpecError(f"all {len(rows)} runs failed; the first: {failed[0]['error']}")
    return rows


def _begin(task: Sweep, jobs: Sequence[Job]) -> None:
    import joblib

    task.out.mkdir(parents=True, exist_ok=True)
    (task.out / "sweep.parquet").unlink(missing_ok=True)
    about = {
        "version": kvtier_version(),
        **task.trace.about(),
        "grid": {column_name(key, task.grid): values for key, values in task.grid.items()},
        "timing": task.timing,
        "runs": len(jobs),
        "cores": joblib.cpu_count(),
        "command": list(task.command),
    }
    with written(task.out / "about.json") as path:
        path.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    with written(task.out / "specs.jsonl") as path:
        lines = (json.dumps({"run": job.number, "spec": job.spec.shown()}) for job in jobs)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def column_name(key: str, grid: Sequence[str] | dict[str, Any]) -> str:
    """The last part of a swept key, or all of it where another key ends the same way or a number stands in it."""
    last = key.rsplit(".", maxsplit=1)[-1]
    same = [other for other in grid if other.rsplit(".", maxsplit=1)[-1] == last]
    return key if len(same) > 1 or any(part.isdigit() for part in key.split(".")) else last


def _rows(task: Sweep, jobs: Sequence[Job], run: Run) -> Iterator[dict[str, Any]]:
    """Rows as they finish. With one worker everything happens in this process."""
    import joblib

    workers = min(task.workers or joblib.cpu_count(), len(jobs))
    names = {key: column_name(key, task.grid) for key in task.grid}
    if workers == 1:
        return (one(job, names, task.trace, run, task.timing) for job in jobs)
    parallel = joblib.Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=1)
    with _deaf():
        return iter(parallel(joblib.delayed(one)(job, names, task.trace, run, task.timing) for job in jobs))


@contextmanager
def _deaf() -> Generator[None, None, None]:
    """Ignore Ctrl-C for a moment: processes started meanwhile go on ignoring it and leave it to this one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def one(job: Job, names: dict[str, str], trace: Trace, run: Run, timing: bool) -> dict[str, Any]:
    """One run as a flat row; an exception becomes its `error`."""
    head = {"run": job.number, **{names[key]: _cell(value) for key, value in job.settings.items()}, "error": None}
    try:
        row = flat(run(job.spec, trace.requests(), timing=timing))
    except ValueError as error:
        return head | {"error": str(error)}
    except Exception as error:
        return head | {"error": f"{type(error).__name__}: {error}"}
    return head | {name: value for name, value in row.items() if name not in head}


def _cell(value: Any) -> str | float | None:
    """A swept value as a table can hold it."""
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)


def _write_table(rows: Sequence[dict[str, Any]], path: Path) -> None:
    import pandas as pd

    with written(path) as temporary:
        pd.DataFrame(rows).convert_dtypes().to_parquet(temporary, index=False)
