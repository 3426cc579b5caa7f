"""Calibration: measures this machine's copies, files and kernels and writes a hardware file that simulations can be based on.

`kvtier calibrate --device cpu --out profile.yaml`; then `hardware: profile.yaml` in a spec. Raw samples go beside it,
as Parquet. A run that was stopped goes on where it was.
"""

import itertools
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from experiments.calibration_file import Plain, header, noise, profile
from experiments.calibration_fit import summary
from experiments.calibration_plan import (
    FULL,
    QUICK,
    Plan,
    batches_a_repeat,
    calls_a_repeat,
    copy_cells,
    file_cells,
)
from experiments.progress import progress
from hw.device import open_device
from hw.disk import check_storage
from hw.load import Load
from hw.measure import Cell, Copies, Files, Sample, copy_layout
from hw.memory import available_bytes
from reports.files import written
from sim.hardware import load_hardware

SAVE_EVERY_S = 2.0
COLUMNS = ["way", "size", "blocks", "mode", "repeat", "moved_blocks", "seconds", "work"]
Runs = Iterator[tuple[Cell, Iterator[Sample]]]


@dataclass
class Job:
    """One calibration: what is to be measured on what, and what is known so far."""

    plan: Plan
    device: str
    storage: Path | None
    strategy: str
    others: tuple[str, ...]  # strategies beside the device's own
    known: list[Sample]
    notes: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


def calibrate(
    device: str, storage: Path | None, out: Path, *, quick: bool, base: str = "h100-sxm"
) -> tuple[dict[str, Any], list[str]]:
    """Measure, fit, write `out` and the samples beside it; returns the hardware file's content and what to tell the user."""
    if out.suffix not in {".yaml", ".yml"}:
        raise ValueError(f"--out {out}: a hardware file ends in .yaml")
    load_hardware(base)
    if storage is not None:
        check_storage(storage)
    plan = QUICK if quick else FULL
    settings = {"device": device, "storage": str(storage), "plan": str(plan), "node": platform.node()}
    partial, load = out.with_suffix(".partial.parquet"), Load()
    job = _opened(plan, device, storage, _resume(partial, settings))
    with progress("cells") as report:
        try:
            _measure(job, partial, settings, report)
        except KeyboardInterrupt:
            if not job.known:
                raise
            _save(_frame(job.known), partial, settings)
            raise KeyboardInterrupt(f"stopped; the same command goes on from {partial}") from None
    frame, taken = _frame(job.known), load.taken()
    cells = summary(frame)
    data, lines = profile(out.stem, device, base, cells, job.facts)
    head = header(device, cells, job.notes, taken)
    raw = out.with_suffix(".samples.parquet")
    with written(out) as path:
        path.write_text(head + yaml.dump(data, Dumper=Plain, sort_keys=False), encoding="utf-8")
    _save(frame, raw, settings)
    partial.unlink(missing_ok=True)
    notes = (f"note: {text}" for text in dict.fromkeys(job.notes))
    return data, [*lines, *noise(cells, taken), *notes, str(out), str(raw)]


def _opened(plan: Plan, device: str, storage: Path | None, known: list[Sample]) -> Job:
    """The strategy is chosen once, so that all cells are measured with the same one."""
    with closing(open_device(device, copy_layout(4096, 1 << 16), storage)) as opened:
        own = opened.strategy
        others = tuple(name for name in opened.strategies if name != own)
        return Job(plan, device, storage, own, others, known, [], {**opened.report.facts})


def _measure(job: Job, partial: Path, settings: dict[str, str], report: Callable[[int, int], None]) -> None:
    known = {sample.cell for sample in job.known}
    copies, files = copy_cells(job.plan, job.others), file_cells(job.plan) if job.storage is not None else []
    total, done, saved = len(copies) + len(files), len(known), time.monotonic()  # and some kernels
    sources: list[Runs] = [
        _copy_runs(job, [cell for cell in copies if cell not in known]),
        _file_runs(job, [cell for cell in files if cell not in known]),
        _kernel_runs(job, known),
    ]
    report(done, total)
    for _, made in itertools.chain.from_iterable(sources):
        job.known += list(made)
        done += 1
        if time.monotonic() - saved > SAVE_EVERY_S:
            _save(_frame(job.known), partial, settings)
            saved = time.monotonic()
        report(done, max(done, total))


def _copy_runs(job: Job, cells: list[Cell]) -> Runs:
    for size in dict.fromkeys(cell.size for cell in cells):
        pool = min(job.plan.pool_bytes, available_bytes() // 6)
        with closing(open_device(job.device, copy_layout(size, pool), job.storage)) as opened:
            opened.strategy = job.strategy
            copies = Copies(opened, seed=size)
            for cell in (cell for cell in cells if cell.size == size):
                yield cell, copies.measure(cell, batches_a_repeat(job.plan, cell), job.plan.repeats)
            job.notes += opened.report.notes


def _file_runs(job: Job, cells: list[Cell]) -> Runs:
    for size, direct in dict.fromkeys((cell.size, cell.mode == "direct") for cell in cells):
        assert job.storage is not None, "files are measured only where a directory was given"
        with closing(Files(job.storage, size, job.plan.file_bytes, direct=direct, seed=size)) as files:
            if files.file.note:
                job.notes.append(files.file.note)
            for cell in (cell for cell in cells if (cell.size, cell.mode == "direct") == (size, direct)):
                yield cell, files.measure(cell, calls_a_repeat(job.plan, cell, files.rows.blocks), job.plan.repeats)


def _kernels(job: Job) -> Iterator[tuple[Cell, float, Callable[[int], list[float]]]]:
    if job.device == "cpu":
        from hw.cpu_kernels import kernels

        yield from kernels(job.plan.kernels)
    else:
        from hw.cuda_kernels import kernels as on_gpu

        yield from on_gpu(int(job.device.partition(":")[2] or 0), job.plan.kernels)


def _kernel_runs(job: Job, known: set[Cell]) -> Runs:
    for cell, work, seconds in _kernels(job):
        if cell not in known:
            spent = enumerate(seconds(job.plan.repeats))
            yield cell, (Sample(cell, repeat, 1, one, work) for repeat, one in spent)


def _frame(samples: list[Sample]) -> pd.DataFrame:
    rows = [(*sample.cell, sample.repeat, sample.blocks, sample.seconds, sample.work) for sample in samples]
    return pd.DataFrame(rows, columns=COLUMNS)


def _save(frame: pd.DataFrame, path: Path, settings: dict[str, str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(settings)
    with written(path) as temporary:
        pq.write_table(table, temporary)


def _resume(path: Path, settings: dict[str, str]) -> list[Sample]:
    """Samples of whole cells of a run that was stopped; none if it measured something else."""
    import pyarrow.parquet as pq

    if not path.exists():
        return []
    table = pq.read_table(path)
    kept = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    if {key: kept.get(key) for key in settings} != settings or table.column_names != COLUMNS:
        return []
    rows = table.to_pandas().itertuples(index=False)
    return [Sample(Cell(r.way, r.size, r.blocks, r.mode), r.repeat, r.moved_blocks, r.seconds, r.work) for r in rows]
