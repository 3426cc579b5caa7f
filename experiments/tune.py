"""Searches a sweep's space for the settings worth choosing between, run by run, and keeps every run as a sweep does.

Each run is told to the search (`experiments.search`) and kept with the point it belongs to; started again, the search is told
what is there and goes on. The budget counts different runs, those found in the directory included: a point that a sweep
has already run there costs nothing. The best settings are those no other run beats in all objectives, limits kept.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.complaints import SpecError
from experiments.design import Point
from experiments.jobs import Job, Task
from experiments.search import Search, axes_of
from experiments.store import Store, store_in
from experiments.sweep import Engine, One, Report, Run, Tally, begin, done, finish
from reports.columns import column
from reports.limits import limits, named
from reports.pareto import front, share_held
from reports.rows import Row

Made = Callable[[Sequence[Job]], Iterator[tuple[Job, Row]]]
POINT = "point"
"""The field of a kept row that says which point of the search it is. Tables leave it out."""


@dataclass(frozen=True)
class Objective:
    """A figure to make small or large, under the name that the user gave it."""

    figure: str
    sign: int  # 1: small, -1: large

    @classmethod
    def read(cls, text: str) -> "Objective":
        """`ttft_p99:min`, `hit_rate_tokens:max`; without an end, the better one of the figure."""
        figure, _, end = text.partition(":")
        if not figure or end not in {"", "min", "max"}:
            raise SpecError(f"--objective {text!r}: write FIGURE:min or FIGURE:max, as ttft_s.p99:min")
        end = end or {"lower": "min", "higher": "max"}[column(figure).better]
        return cls(figure, 1 if end == "min" else -1)


@dataclass(frozen=True)
class Aim:
    """What is wanted: objectives, limits as text, how many runs it may cost, the seed of the search."""

    objectives: Sequence[Objective]
    limits: Sequence[str]
    budget: int
    seed: int = 0

    def figures(self, row: Row) -> list[float] | None:
        """The objectives of a run; None where it failed."""
        if not done(row):
            return None
        frame = pd.DataFrame([row])
        return [float(frame[named(frame, objective.figure)].iloc[0]) for objective in self.objectives]

    def violations(self, row: Row) -> dict[str, float]:
        """How far a run is beyond each limit, as a share of it; 0 or less within."""
        if not done(row):
            return {}
        frame = pd.DataFrame([row])
        return {limit.words(): -limit.margin(float(row[limit.column])) for limit in limits(frame, self.limits)}


@dataclass(frozen=True)
class Found:
    """The outcome: rows in the order they were tried, which of them are the front, and the share of the box it holds."""

    rows: Sequence[Row]
    front: Sequence[Row]
    held: float | None


def tune(task: Task, aim: Aim, out: Path, run: Run, engine: Engine, report: Report, at_once: int,
         command: Sequence[str] = ()) -> Found:  # fmt: skip
    """Search until the budget is spent or nothing is left. Ctrl-C keeps what is finished and is passed on."""
    search = Search(axes_of(task.design), [objective.sign for objective in aim.objectives], aim.budget, aim.seed)
    work = One(run, task.timing)
    task.job(0, search.settings(search.first()))  # what cannot be read or meant fails here, before anything is written
    with store_in(out) as store:
        tally = Tally(aim.budget, aim.budget, expected_s=aim.budget)
        jobs = _told_again(task, aim, search, store)
        tally.kept = len(jobs)
        report(tally)
        try:
            for row in _searched(task, aim, search, store, lambda wanted: engine(wanted, work), jobs, at_once):
                tally.done += 1
                tally.spent_s += 1
                tally.errors += [row["error"]] if row["error"] else []
                report(tally)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"stopped; {len(jobs)} of {aim.budget} runs are kept in {out}") from None
        finally:
            begin(task, [Job(i, j.key, j.settings, j.spec, j.trace) for i, j in enumerate(jobs)], out, command)
            rows = finish(out)
    return found(rows, aim)


def _searched(
    task: Task, aim: Aim, search: Search, store: Store, made: Made, jobs: list[Job], at_once: int
) -> Iterator[Row]:
    """Rows of runs that were not known, as they come; `jobs` grows with them to the budget, or to the end of the space."""
    keys = {job.key for job in jobs}
    while len(jobs) < aim.budget:
        batch = _batch(task, search, jobs, min(at_once, aim.budget - len(jobs)))
        if not batch:
            return
        for params, job, row in _rows_of(batch, store, made):
            search.tell(params, aim.figures(row), aim.violations(row))
            if job.key not in keys:
                keys.add(job.key)
                jobs.append(job)
                yield row


def _told_again(task: Task, aim: Aim, search: Search, store: Store) -> list[Job]:
    """Tell the search what it tried before, as far as the runs are still the same ones; their jobs."""
    jobs: list[Job] = []
    for row in list(store.rows.values()):
        params = row.get(POINT)
        if params is not None and search.knows(params):
            job = task.job(len(jobs), search.settings(params))
            if job.key == row["key"]:
                search.tell(params, aim.figures(row), aim.violations(row))
                jobs.append(job)
    return jobs


def _batch(task: Task, search: Search, jobs: Sequence[Job], count: int) -> list[tuple[Point, Job]]:
    points = [params for params in (search.next() for _ in range(count)) if params is not None]
    return [(params, task.job(len(jobs) + i, search.settings(params))) for i, params in enumerate(points)]


def _rows_of(batch: Sequence[tuple[Point, Job]], store: Store, made: Made) -> Iterator[tuple[Point, Job, Row]]:
    """The rows of some points: those that are there, then those that had to be run, each kept before it is handed on."""
    wanted = {job.key: job for _, job in batch if not done(store.rows.get(job.key))}
    points = {job.key: params for params, job in batch}
    if wanted:
        for job, row in made(list(wanted.values())):
            store.append({**row, POINT: points[job.key]})
    for params, job in batch:
        row = store.rows[job.key]
        if POINT not in row:
            store.append({**row, POINT: params})
        yield params, job, row


def found(rows: Sequence[Row], aim: Aim) -> Found:
    """Front and held share of rows; runs that failed or break a limit are in neither."""
    good = [row for row in rows if done(row) and all(value <= 0 for value in aim.violations(row).values())]
    if not good:
        return Found(rows, [], None)
    signs = np.array([objective.sign for objective in aim.objectives])
    cost = np.array([aim.figures(row) for row in good], np.float64) * signs
    chosen = np.flatnonzero(front(cost))
    order = chosen[np.argsort(cost[chosen, 0], kind="stable")]
    return Found(rows, [good[i] for i in order], share_held(cost))
