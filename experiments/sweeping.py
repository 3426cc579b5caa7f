"""What `kvtier sweep` and `kvtier sweep status` do once their options are read: task, plan in words, engine, outcome."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from experiments import console
from experiments.complaints import SpecError
from experiments.design import Design
from experiments.estimate import Estimate, free_bytes
from experiments.grid import axes
from experiments.jobs import Task
from experiments.load import finished, read, split, value_of
from experiments.local import in_processes
from experiments.progress import duration, sweep_progress
from experiments.ready import draws
from experiments.remote import SLURM_TASKS, on_dask, on_slurm
from experiments.store import is_open
from experiments.study import is_study, study
from experiments.sweep import TABLE, Engine, done, missing, sweep, tally_of
from experiments.trace import Trace
from reports.rows import PLAN, ROWS, Row, plan_of, rows_by_key
from traces.workloads import PREFIX

ENGINES = ("local", "dask", "slurm")


@dataclass(frozen=True)
class Wish:
    """A sweep as the command line says it."""

    trace: Trace
    spec: str | None = None
    settings: Sequence[str] = ()
    grid: Sequence[str] = ()
    repeats: int | None = None
    timing: bool | None = None

    def task(self) -> Task:
        """What to run. A sweep file in the trace's place brings all of it; what the command line says goes on top."""
        pairs = [(key, value_of(text)) for key, text in map(split, self.settings)]
        grid = axes(self.grid)
        if is_study(self.trace.name):
            if self.spec is not None:
                raise SpecError(f"{self.trace.name} is a spec itself; leave --spec out")
            told = study(self.trace.name)
            timing = told.timing if self.timing is None else self.timing
            task = Task(told.draft, pairs, _on_top(told.trace, self.trace), told.design, timing)
        else:
            task = Task(read(self.spec), pairs, self.trace, Design(), self.timing is not False)
        design = task.design.with_grid(grid) if grid else task.design
        if self.repeats is not None:
            design = Design.model_validate({**dict(design), "repeats": self.repeats})
        if design.runs == 1 and not grid:
            raise SpecError("nothing is varied; give --grid KEY=VALUES, or a sweep section in the file")
        return _without_idle_repeats(replace(task, design=design))


def _without_idle_repeats(task: Task) -> Task:
    """Without repeats where nothing is random: they would only say the same again."""
    once = replace(task, design=Design.model_validate({**dict(task.design), "repeats": 1}))
    if task.design.repeats == 1 or any(draws(job.spec) or job.trace.name.startswith(PREFIX) for job in once.jobs()):
        return task
    console.note(["nothing in these runs is random, so each runs once and not with several seeds"])
    return once


def _on_top(trace: Trace, said: Trace) -> Trace:
    """The trace of a file, with what the command line says about reading it."""
    given = {f.name: getattr(said, f.name) for f in fields(Trace) if getattr(said, f.name) != f.default}
    del given["name"]
    if "options" in given:
        own = {f.name: getattr(said.options, f.name) for f in fields(said.options)}
        given["options"] = replace(trace.options, **{name: value for name, value in own.items() if value})
    return replace(trace, **given)


def place_of(trace: str, out: Path | None) -> Path:
    """Where results go: where the command line says, or for a sweep file its name in the current directory."""
    if out is None and not is_study(trace):
        raise SpecError("give --out DIR, where the results go")
    return out or Path(Path(trace).stem)


def plan_lines(task: Task, out: Path, workers: int | None) -> Iterator[str]:
    """What would run and about how long it takes; where and from what is said with it."""
    jobs = task.jobs()
    rows = rows_by_key(out / ROWS)
    tally, wanted = tally_of(jobs, rows), missing(jobs, rows)
    estimate = Estimate.learnt(jobs, rows, timing=task.timing)
    processes = estimate.workers(wanted, workers)
    yield f"{_counted(tally.wanted, 'setting')}, {_counted(tally.runs, 'different run')}" + (
        f", {tally.kept} of them in {out}" if tally.kept else ""
    )
    if not wanted:
        yield "nothing is left to run"
        return
    seconds = sum(map(estimate.seconds, wanted)) / processes
    source = f"as {estimate.known} runs took here" if estimate.known else "by figures of another machine"
    yield f"{_counted(len(wanted), 'run')} on {_counted(processes, 'core')}: about {duration(seconds)}, {source}"
    largest = max(map(estimate.bytes, wanted), default=0.0)
    if largest * processes > free_bytes():
        yield f"the largest run needs about {largest / 2**30:.1f} GiB, and {free_bytes() / 2**30:.1f} GiB are free"
    if task.design.repeats > 1:
        yield f"each setting runs with {task.design.repeats} seeds"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def engine_of(name: str, workers: int | None, address: str | None, out: Path, task: Task) -> Engine:
    """Who makes the runs, by name."""
    processes = Estimate(task.timing).workers
    if address is not None and name != "dask":
        raise SpecError(f"--address is a Dask scheduler's; it does not go with --engine {name}")
    if name == "local":
        return lambda jobs, work: in_processes(jobs, work, processes(jobs, workers))
    if name == "dask":
        return lambda jobs, work: on_dask(jobs, work, address, processes(jobs, workers))
    if name == "slurm":
        return lambda jobs, work: on_slurm(jobs, work, out / "slurm", workers or SLURM_TASKS)
    raise SpecError(f"--engine is {name}; known: {', '.join(ENGINES)}")


def swept(task: Task, out: Path, engine: Engine, command: Sequence[str]) -> list[Row]:
    """Make a sweep; its rows. Notes and the number of failed runs go to stderr."""
    from experiments.run import run

    notes = finished(task.draft, task.settings)[1]
    with sweep_progress() as report:
        rows = sweep(task, out, run, engine, report, [Path(command[0]).name, *command[1:]])
    failed = [row["error"] for row in rows if row["error"]]
    some = [f"{len(failed)} of {len(rows)} runs failed; the first: {failed[0]}"] if failed else []
    console.note([*notes, *task.trace.requests().notes, *some])
    return rows


def status(directory: Path) -> dict[str, Any]:
    """How far the sweep in a directory is, from what lies there."""
    if not (directory / PLAN).exists():
        raise SpecError(f"{directory}: no sweep in it; `kvtier sweep TRACE --grid ... --out {directory}` makes one")
    about = json.loads((directory / "about.json").read_text(encoding="utf-8"))
    rows = rows_by_key(directory / ROWS)
    keys = list(dict.fromkeys(entry["key"] for entry in plan_of(directory)))
    errors = [rows[key]["error"] for key in keys if key in rows and rows[key]["error"]]
    made = [rows[key] for key in keys if done(rows.get(key))]
    return {
        "trace": about["trace"],
        "grid": about["grid"],
        "rows": about["runs"],
        "runs": len(keys),
        "done": len(made),
        "failed": len(errors),
        "other": len(rows.keys() - set(keys)),
        "running": is_open(directory),
        "seconds": sum(row.get("wall_s") or 0.0 for row in made),
        "errors": list(dict.fromkeys(errors)),
        "command": about["command"],
        "table": (directory / TABLE).exists(),
    }


def status_lines(found: dict[str, Any]) -> Iterator[str]:
    """The same for people."""
    varied = ", ".join(f"{len(values)} {name}" for name, values in found["grid"].items())
    yield f"{found['trace']}: {found['rows']} settings ({varied}), {found['runs']} different runs"
    yield f"done {found['done']}, failed {found['failed']}, left {found['runs'] - found['done'] - found['failed']}"
    yield f"computing took {duration(found['seconds'])}; " + ("running now" if found["running"] else "not running now")
    for error in found["errors"][:3]:
        yield f"failed: {error}"
    if found["other"]:
        yield f"{found['other']} more runs are kept that this sweep does not want (other settings, or another version)"
    if not found["running"] and found["done"] < found["runs"]:
        yield f"to go on: {' '.join(found['command'])}"
