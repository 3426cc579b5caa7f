"""The pages of a calibration (what copies and files reached on a machine) and of a validation (how right predictions were)."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from reports.page.sections import Section, facts, lines, listing, plain, source

MOST_POINTS = 1500
WAYS = {"h2d": "host to GPU", "d2h": "GPU to host", "d2d": "inside the GPU", "read": "file read", "write": "file write"}


def calibration(path: Path) -> tuple[str, str, list[Section]]:
    """Title, lead and sections of a hardware file of `kvtier calibrate`, with its samples where they lie beside it."""
    words = path.read_text(encoding="utf-8")
    notes = [line.removeprefix("# ") for line in words.splitlines() if line.startswith("#")]
    samples = path.with_suffix(".samples.parquet")
    parts: list[Section] = []
    if samples.exists():
        frame = pd.read_parquet(samples)
        parts += reached(frame)
    parts.append(source("The hardware file", "unfold", words))
    return path.stem, notes[0] if notes else "A hardware file.", parts


def reached(samples: pd.DataFrame) -> list[Section]:
    """Bandwidth over the bytes of one block for each direction working alone: the best batch's median over repeats."""
    alone = samples[samples["mode"].isin(("alone", "direct"))]
    rate = alone["size"] / alone["seconds"]  # seconds of one block
    cells = alone.assign(rate=rate).groupby(["way", "size", "blocks"])["rate"].median()
    best = cells.groupby(["way", "size"]).max()
    series = [
        {"name": WAYS.get(str(way), str(way)), "points": [(float(size), float(best[way, size])) for size in rows]}
        for way, rows in best.reset_index().groupby("way")["size"]
    ]
    axis, up = plain("bytes of one block", log=True), plain("best batch", "GB/s", 1e9)
    return [lines("What copies reached", axis, up, series)]


def validation(directory: Path) -> tuple[str, str, list[Section]]:
    """Title, lead and sections of what `kvtier validate --out` wrote."""
    figures = json.loads((directory / "validation.json").read_text(encoding="utf-8"))
    parts: list[Section] = []
    transfers = directory / "transfers.parquet"
    if transfers.exists():
        frame = pd.read_parquet(transfers)
        thin = frame.iloc[:: -(-len(frame) // MOST_POINTS)]
        parts += predicted(thin)
    for name, title in (("by_direction", "By direction"), ("by_bytes", "By direction and size")):
        rows = figures.get(name) or {}
        if rows:
            columns = [plain("", number=False), *map(measure, next(iter(rows.values())))]
            parts.append(listing(title, columns, [[words, *row.values()] for words, row in rows.items()]))
    flat = [(name.replace("_", " "), value) for name, value in figures.items() if isinstance(value, str | int | float)]
    parts.append(facts("Figures", flat))
    return f"{figures['trace']} on {figures['device']}", str(figures["verdict"]), parts


def predicted(transfers: pd.DataFrame) -> list[Section]:
    """Predicted over measured seconds, and the error over the bytes of a transfer, a colour for each direction."""
    points, errors = [], []
    for name, rows in transfers.groupby("direction"):
        both = zip(rows["measured_s"].tolist(), rows["predicted_s"].tolist(), strict=True)
        wrong = zip(rows["bytes"].tolist(), (rows["predicted_s"] / rows["measured_s"] - 1).tolist(), strict=True)
        points.append({"name": str(name), "points": list(both), "line": False})
        errors.append({"name": str(name), "points": list(wrong), "line": False})
    most = float(transfers["measured_s"].max())
    points.append({"name": "as predicted", "points": [(0.0, 0.0), (most, most)], "dashed": True})
    size, error = plain("bytes of the transfer", log=True), plain("error of the prediction", "%", 0.01)
    return [
        lines("Predicted over measured", plain("measured", "ms", 1e-3), plain("predicted", "ms", 1e-3), points),
        lines("Error over size", size, error, errors),
    ]


def measure(name: str) -> dict[str, Any]:
    """A column of validate's tables: seconds, shares of the measured time, counts."""
    words = name.removesuffix("_s").replace("_", " ")
    if name.endswith("_s"):
        return plain(words, "s")
    return plain(words, "%", 0.01) if "error" in name or name in {"mape", "bias"} else plain(words)
