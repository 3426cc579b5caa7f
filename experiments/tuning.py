"""What `kvtier tune` does once its options are read: the aim, the search with its progress, the front in words and as a table."""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import console
from experiments.complaints import SpecError
from experiments.jobs import Job, Task
from experiments.local import Work, in_processes
from experiments.progress import sweep_progress
from experiments.search import axes_of
from experiments.sweep import column_name
from experiments.tune import Aim, Found, Objective, tune
from reports.columns import column
from reports.files import written
from reports.limits import named
from reports.plots import words
from reports.rows import Row

FRONT = "front.csv"


def aim_of(objectives: Sequence[str], limits: Sequence[str], budget: int, seed: int) -> Aim:
    """The checked aim."""
    if not objectives:
        raise SpecError("give at least one --objective FIGURE:min or FIGURE:max, as ttft_s.p99:min")
    return Aim([Objective.read(text) for text in objectives], limits, budget, seed)


def tuned(task: Task, aim: Aim, out: Path, jobs: int, command: Sequence[str]) -> tuple[Found, list[dict[str, Any]]]:
    """Search; the outcome and its front as plain rows, which are also written to a CSV."""
    if find_spec("optuna") is None:
        raise SpecError("kvtier tune needs Optuna: pip install 'kvtier[tune]'")
    from experiments.run import run

    def engine(wanted: Sequence[Job], work: Work) -> Iterator[tuple[Job, Row]]:
        return in_processes(wanted, work, min(jobs, len(wanted)))

    with sweep_progress() as report:
        found = tune(task, aim, out, run, engine, report, jobs, [Path(command[0]).name, *command[1:]])
    failed = [row["error"] for row in found.rows if row["error"]]
    console.note([f"{len(failed)} of {len(found.rows)} runs failed; the first: {failed[0]}"] if failed else [])
    keys = [key for axis in axes_of(task.design) for key in axis.keys]
    front = [_plain(row, aim, [column_name(key, keys) for key in keys]) for row in found.front]
    with written(out / FRONT) as path:
        pd.DataFrame(front).to_csv(path, index=False, lineterminator="\n")
    return found, front


def _plain(row: dict[str, Any], aim: Aim, keys: Sequence[str]) -> dict[str, Any]:
    names = [objective.figure for objective in aim.objectives]
    return {key: row[key] for key in keys} | dict(zip(names, aim.figures(row) or (), strict=True))


def lines(found: Found, front: Sequence[dict[str, Any]], aim: Aim) -> Iterator[str]:
    """How much was tried and what came of it; one line a run of the front, settings before figures."""
    within = " within the limits" if aim.limits else ""
    yield f"{len(found.rows)} runs tried, {len(front)} that none beats{within}"
    if found.held is not None:
        yield f"the front holds {found.held:.1%} of the ground between the best and the worst figures tried"
    for row, full in zip(front, found.front, strict=True):
        frame = pd.DataFrame([full])
        figures = [named(frame, objective.figure) for objective in aim.objectives]
        settings = [name for name in row if name not in {objective.figure for objective in aim.objectives}]
        yield f"{words(frame, settings)}: {', '.join(_figure(name, full[name]) for name in figures)}"


def _figure(name: str, value: float) -> str:
    known = column(name)
    return f"{known.label} {value / known.divisor:.4g} {known.unit}".rstrip()
