"""Calibration: measures this machine's copies and files and writes a hardware file that simulations can be based on.

`kvtier calibrate --device cpu --out profile.yaml`; then `hardware: profile.yaml` in a spec. Raw samples go beside it,
as Parquet. A run that was stopped goes on where it was.
"""

import itertools
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from experiments.calibration_file import Plain, gpu_sections, header, profile
from experiments.calibration_fit import medians
from experiments.progress import progress
from hw.device import open_device
from hw.disk import check_storage
from hw.measure import Cell, Copies, Files, Sample, copy_layout
from hw.memory import available_bytes
from reports.files import written

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SAVE_EVERY_S = 2.0


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    sizes: tuple[int, ...]
    batches: tuple[int, ...]
    file_sizes: tuple[int, ...]
    depths: tuple[int, ...]
    pool_bytes: int
    file_bytes: int
    cell_bytes: int  # moved in one repeat, at least
    repeats: int


FULL = Plan(
    tuple(KIB * n for n in (4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 16384)),
    (1, 16, 256),
    tuple(KIB * n for n in (16, 64, 256, 1024, 4096)),
    (1, 4, 8),
    2 * GIB,
    256 * MIB,
    64 * MIB,
    7,
)
QUICK = Plan(
    tuple(KIB * n for n in (4, 16, 64, 256, 1024, 4096)),
    (1, 256),
    tuple(KIB * n for n in (64, 256, 1024)),
    (1, 8),
    GIB,
    32 * MIB,
    16 * MIB,
    5,
)


def calibrate(device: str, storage: Path | None, out: Path, *, quick: bool, base: str = "h100-sxm") -> list[str]:
    """Measure, fit, write `out` and the samples beside it; returns what to tell the user."""
    if out.suffix not in {".yaml", ".yml"}:
        raise ValueError(f"--out {out}: a hardware file ends in .yaml")
    if storage is not None:
        check_storage(storage)
    plan = QUICK if quick else FULL
    settings = {"device": device, "storage": str(storage), "plan": str(plan), "node": platform.node()}
    partial = out.with_suffix(".partial.parquet")
    have = _resume(partial, settings)
    notes: list[str] = []
    facts: dict[str, Any] = {}
    with progress("cells") as report:
        samples = _measure(plan, device, storage, have, partial, settings, report, notes, facts)
    frame = _frame(samples)
    cells = medians(frame)
    if device.startswith("cuda"):
        facts.update(gpu_sections(device, base, facts))
    data, lines = profile(out.stem, device, base, cells, facts, storage is not None)
    raw = out.with_suffix(".samples.parquet")
    with written(out) as path:
        path.write_text(header(device, cells, notes) + yaml.dump(data, Dumper=Plain, sort_keys=False), encoding="utf-8")
    _save(frame, raw, settings)
    partial.unlink(missing_ok=True)
    return [*lines, *(f"note: {text}" for text in dict.fromkeys(notes)), str(out), str(raw)]


def _measure(
    plan: Plan,
    device: str,
    storage: Path | None,
    have: list[Sample],
    partial: Path,
    settings: dict[str, str],
    report: Callable[[int, int], None],
    notes: list[str],
    facts: dict[str, Any],
) -> list[Sample]:
    samples, known = list(have), {sample.cell for sample in have}
    copies, files = _copy_cells(plan), _file_cells(plan) if storage is not None else []
    total = len(copies) + len(files)
    saved = time.monotonic()
    sources: list[Iterator[tuple[Cell, Iterator[Sample]]]] = [
        _copy_runs(plan, device, storage, [c for c in copies if c not in known], notes, facts)
    ]
    if storage is not None:
        sources.append(_file_runs(plan, storage, [c for c in files if c not in known], notes))
    done = len(known)
    report(done, total)
    for _, made in itertools.chain.from_iterable(sources):
        samples += list(made)
        done += 1
        if time.monotonic() - saved > SAVE_EVERY_S:
            _save(_frame(samples), partial, settings)
            saved = time.monotonic()
        report(done, total)
    return samples


def _copy_cells(plan: Plan) -> list[Cell]:
    """Batches of large blocks are cut to 64 MiB, 8 blocks at least."""
    cells = []
    for size in plan.sizes:
        batches = [min(blocks, max(8, 64 * MIB // size)) for blocks in plan.batches]
        for way, blocks in itertools.product(("d2h", "h2d", "d2d"), dict.fromkeys(batches)):
            cells.append(Cell(way, size, blocks, "alone"))
        cells += [Cell(way, size, batches[-1], "both") for way in ("d2h", "h2d")]
    return cells


def _file_cells(plan: Plan) -> list[Cell]:
    modes = ("direct", "buffered")
    return [
        Cell(way, size, depth, mode)
        for size, mode, depth, way in itertools.product(plan.file_sizes, modes, plan.depths, ("write", "read"))
    ]


def _copy_runs(
    plan: Plan, device: str, storage: Path | None, cells: list[Cell], notes: list[str], facts: dict[str, Any]
) -> Iterator[tuple[Cell, Iterator[Sample]]]:
    for size in dict.fromkeys(cell.size for cell in cells):
        pool = min(plan.pool_bytes, available_bytes() // 6)
        with closing(open_device(device, copy_layout(size, pool), storage)) as opened:
            copies = Copies(opened, seed=size)
            for cell in (cell for cell in cells if cell.size == size):
                batches = max(3, plan.cell_bytes // (size * cell.blocks))
                yield cell, copies.measure(cell, min(batches, 64), plan.repeats)
            notes += opened.report.notes
            facts.update(opened.report.facts)


def _file_runs(
    plan: Plan, storage: Path, cells: list[Cell], notes: list[str]
) -> Iterator[tuple[Cell, Iterator[Sample]]]:
    for size, mode in dict.fromkeys((cell.size, cell.mode) for cell in cells):
        with closing(Files(storage, size, plan.file_bytes, direct=mode == "direct", seed=size)) as files:
            if files.file.note:
                notes.append(files.file.note)
            for cell in (cell for cell in cells if (cell.size, cell.mode) == (size, mode)):
                calls = min(files.rows.blocks, max(cell.blocks * 2, plan.cell_bytes // size // 2))
                yield cell, files.measure(cell, calls, plan.repeats)


def _frame(samples: list[Sample]) -> pd.DataFrame:
    rows = [(*sample.cell, sample.repeat, sample.blocks, sample.seconds) for sample in samples]
    return pd.DataFrame(rows, columns=["way", "size", "blocks", "mode", "repeat", "moved_blocks", "seconds"])


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
    if {key: kept.get(key) for key in settings} != settings:
        return []
    rows = table.to_pandas().itertuples(index=False)
    return [Sample(Cell(r.way, r.size, r.blocks, r.mode), r.repeat, r.moved_blocks, r.seconds) for r in rows]
