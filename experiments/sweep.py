"""Makes the runs of a task that a directory does not hold yet, and keeps each as it comes.

    DIR/rows.jsonl     every run that ever finished there, appended at once; what a crash leaves
    DIR/specs.jsonl    before the first run: key, settings, trace and full spec of every wanted run
    DIR/about.json     before the first run: version, trace and its SHA-256, what varies, command, machine
    DIR/sweep.parquet  at the end, also after Ctrl-C: one row a wanted run, columns with units; replaced whole

Settings are checked before anything runs. A run that fails is a row that says why; the others go on, and when the sweep is
started again it is tried again. Started again after a crash, or with a longer grid, only what is missing runs.
"""

import json
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.complaints import SpecError
from experiments.estimate import Estimate
from experiments.jobs import Job, Task, key_of
from experiments.local import Work
from experiments.store import store_in
from experiments.unlimited import unlimited_hit_rate
from experiments.version import code_sha256, kvtier_version
from reports.columns import flat
from reports.files import written
from reports.rows import PLAN, ROWS, Row, joined, plan_of, rows_by_key

Run = Callable[..., dict[str, Any]]
"""`experiments.run.run`, or a stand-in: (spec, requests, timing=...) → row."""
Engine = Callable[[Sequence[Job], Work], Iterator[tuple[Job, Row]]]
"""Who makes the runs: jobs with their rows, as they finish."""
TABLE = "sweep.parquet"
MOST_TRACES = 16
"""Of more traces than these (seeds, or a swept trace) the edge is not computed: each has to be read for it."""


@dataclass
class Tally:
    """How far a sweep is. It is handed to whoever shows progress, after every run."""

    wanted: int
    """Rows of the table."""
    runs: int
    """Different runs behind them."""
    kept: int = 0
    """Of these, done before this sweep started."""
    done: int = 0
    """Of these, done since."""
    errors: list[str] = field(default_factory=list)
    """Why runs failed, of those done since."""
    expected_s: float = 0.0
    """Estimated seconds of the runs that were missing, on one core."""
    spent_s: float = 0.0
    """Estimated seconds of those done since."""


Report = Callable[[Tally], None]


@dataclass(frozen=True)
class One:
    """Makes one run of a job, wherever it is sent."""

    run: Run
    timing: bool

    def __call__(self, job: Job) -> Row:
        """The flat row, or why there is none."""
        head = {"key": job.key, "error": None}
        try:
            if key_of(job.spec, job.trace, timing=self.timing) != job.key:
                return head | {"error": "this process has another version of kvtier, or another trace of that name"}
            row = flat(self.run(job.spec, job.trace.requests(), timing=self.timing))
        except ValueError as error:
            return head | {"error": str(error)}
        except Exception as error:
            return head | {"error": f"{type(error).__name__}: {error}"}
        return head | {name: value for name, value in row.items() if name not in head}


def sweep(task: Task, out: Path, run: Run, engine: Engine, report: Report, command: Sequence[str] = ()) -> list[Row]:
    """Make the missing runs; the rows of all wanted ones, in order. Ctrl-C keeps what is finished and is passed on."""
    jobs = task.jobs()
    with store_in(out) as store:
        begin(task, jobs, out, command)
        tally = tally_of(jobs, store.rows)
        estimate = Estimate.learnt(jobs, store.rows, timing=task.timing)
        wanted = missing(jobs, store.rows)
        tally.expected_s = sum(map(estimate.seconds, wanted))
        report(tally)
        try:
            for job, row in engine(wanted, One(run, task.timing)) if wanted else ():
                store.append(row)
                tally.done += 1
                tally.spent_s += estimate.seconds(job)
                tally.errors += [row["error"]] if row["error"] else []
                report(tally)
        except KeyboardInterrupt:
            kept = f"{tally.kept + tally.done} of {tally.runs} runs are kept in {out}"
            raise KeyboardInterrupt(
                f"stopped; {kept}" if tally.kept + tally.done else "stopped; no run had finished"
            ) from None
        finally:
            rows = finish(out)
    failed = [row for row in rows if row["error"]]
    if len(failed) == len(rows):
        raise SpecError(f"all {len(rows)} runs failed; the first: {failed[0]['error']}")
    return rows


def tally_of(jobs: Sequence[Job], rows: dict[str, Row]) -> Tally:
    """What is wanted and what is there already; a run that failed is not there."""
    keys = {job.key for job in jobs}
    return Tally(len(jobs), len(keys), sum(done(rows.get(key)) for key in keys))


def done(row: Row | None) -> bool:
    """Whether a run has its figures."""
    return row is not None and row["error"] is None


def missing(jobs: Sequence[Job], rows: dict[str, Row]) -> list[Job]:
    """The first job of each run that has no figures, small blocks first: they take longest and share their keys."""
    first = {job.key: job for job in reversed(jobs) if not done(rows.get(job.key))}
    return sorted(
        first.values(), key=lambda job: (job.trace.name, job.spec.kv_cache_config.tokens_per_block, job.number)
    )


def begin(task: Task, jobs: Sequence[Job], out: Path, command: Sequence[str]) -> None:
    """Write what the sweep is about; an old table goes, for it may speak of other runs."""
    (out / TABLE).unlink(missing_ok=True)
    names = {key: column_name(key, varied(jobs)) for key in varied(jobs)}
    about = {
        "version": kvtier_version(),
        "code_sha256": code_sha256(),
        **task.trace.about(),
        "grid": {names[key]: [cell(value) for value in values] for key, values in varied(jobs).items()},
        "repeats": task.design.repeats,
        "timing": task.timing,
        "unlimited": unlimited(jobs),
        "runs": len(jobs),
        "machine": _machine(),
        "command": list(command),
    }
    with written(out / "about.json") as path:
        path.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    with written(out / PLAN) as path, path.open("w", encoding="utf-8") as file:
        for job in jobs:
            settings = {names[key]: settled(job, key, value) for key, value in job.settings.items()}
            entry = {"run": job.number, "key": job.key, "settings": settings, "trace": job.trace.name}
            file.write(json.dumps({**entry, "spec": job.spec.shown()}) + "\n")


def unlimited(jobs: Sequence[Job]) -> dict[str, Any] | None:
    """What a cache without limit could find of the trace, at most, and its prompt tokens; with several, of the best."""
    traces = list(dict.fromkeys(job.trace for job in jobs))
    if len(traces) > MOST_TRACES:
        return None
    edges, tokens = [], []
    for trace in traces:
        requests = trace.requests()
        edges.append(unlimited_hit_rate(requests))
        tokens.append(int(requests.prompt_tokens.sum(dtype="int64")))
    known = [edge for edge in edges if edge is not None]
    return {"hit_rate_tokens": max(known), "prompt_tokens": tokens} if len(known) == len(traces) else None


def _machine() -> dict[str, Any]:
    import os

    import numba
    import numpy as np

    libraries = {"python": platform.python_version(), "numpy": np.__version__, "numba": numba.__version__}
    return {
        "node": platform.node(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        **libraries,
    }


def varied(jobs: Sequence[Job]) -> dict[str, list[Any]]:
    """Every key that the jobs set, with its values in the order of their first use."""
    found: dict[str, dict[str, Any]] = {}
    for job in jobs:
        for key, value in job.settings.items():
            found.setdefault(key, {}).setdefault(json.dumps(value), value)
    return {key: list(values.values()) for key, values in found.items()}


def column_name(key: str, keys: Sequence[str] | dict[str, Any]) -> str:
    """The last part of a swept key, or all of it where another key ends the same way or a number stands in it."""
    last = key.rsplit(".", maxsplit=1)[-1]
    same = [other for other in keys if other.rsplit(".", maxsplit=1)[-1] == last]
    return key if len(same) > 1 or any(part.isdigit() for part in key.split(".")) else last


def settled(job: Job, key: str, value: Any) -> str | float | None:
    """A swept value as a table holds it: bytes written as 64GiB become a number, lists text."""
    if isinstance(value, str):
        found: Any = job.spec.shown()
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        value = found if isinstance(found, int | float) else value
    return cell(value)


def cell(value: Any) -> str | float | None:
    """A swept value as a table can hold it."""
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value)


def finish(out: Path) -> list[Row]:
    """Write the table of what is there; its rows."""
    import pandas as pd

    rows = joined(plan_of(out), rows_by_key(out / ROWS))
    if rows:
        with written(out / TABLE) as temporary:
            pd.DataFrame(rows).convert_dtypes().to_parquet(temporary, index=False)
    return rows
