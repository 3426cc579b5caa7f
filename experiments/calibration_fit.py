"""From samples to a hardware file: latency and bandwidth by least squares, a table by size, how well both fit.

It measures nothing. A batch's blocks cost the same each; what a batch costs beyond that shows as a cell's error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Line:
    """Seconds of one block: latency_s + bytes / bytes_per_s; `table` holds (bytes, bytes per second)."""

    latency_s: float
    bytes_per_s: float
    table: tuple[tuple[int, float], ...]
    r2: float  # of the straight line, over the cells' medians, in log seconds
    worst_line: float  # largest relative error of the line over the cells
    worst_table: float  # largest relative error of the table over the cells
    worst_cell: str
    spread: float  # median over the cells of (90 % - 10 % quantile) / median of the repeats

    def seconds(self, size: float) -> float:
        """By the straight line."""
        return self.latency_s + size / self.bytes_per_s


def medians(samples: pd.DataFrame) -> pd.DataFrame:
    """One row a cell: median seconds of a block, quantiles, number of repeats."""
    groups = samples.groupby(["way", "size", "blocks", "mode"], sort=True)["seconds"]
    cells = groups.quantile(np.array([0.1, 0.5, 0.9])).unstack().reset_index()
    cells.columns = ["way", "size", "blocks", "mode", "low_s", "median_s", "high_s"]
    cells["repeats"] = groups.count().to_numpy()
    cells["spread"] = (cells.high_s - cells.low_s) / cells.median_s
    return cells


def fit(cells: pd.DataFrame, way: str, modes: Sequence[str] = ("alone",)) -> Line:
    """The line and table of one direction."""
    mine = cells[(cells.way == way) & cells["mode"].isin(list(modes))]
    if len(mine) == 0:
        raise ValueError(f"no samples of {way} {'/'.join(modes)}")
    size, seconds = mine["size"].to_numpy(float), mine["median_s"].to_numpy(float)
    latency, per_byte = _line(size, seconds)
    table: list[tuple[int, float]] = []
    for one in np.unique(size):
        at = float(np.exp(np.mean(np.log(seconds[size == one]))))
        if table:  # a larger block never takes less time
            at = max(at, table[-1][0] / table[-1][1])
        table.append((int(one), one / at))
    by_line = latency + size * per_byte
    by_table = np.array([dict(table)[int(s)] for s in size])
    off_line, off_table = np.abs(by_line / seconds - 1), np.abs(size / by_table / seconds - 1)
    logs = np.log(seconds)
    total = float(((logs - logs.mean()) ** 2).sum())
    r2 = 1 - float(((np.log(by_line) - logs) ** 2).sum()) / total if total > 0 else 1.0
    worst = mine.iloc[int(np.argmax(off_table))]
    return Line(
        latency,
        1 / per_byte,
        tuple(table),
        r2,
        float(off_line.max()),
        float(off_table.max()),
        f"{worst['size']} B x {worst['blocks']} {worst['mode']}",
        float(mine["spread"].median()),
    )


def _line(size: Any, seconds: Any) -> tuple[float, float]:
    """Latency and seconds a byte that make the relative errors' squares smallest; neither is negative."""
    rows = np.stack([1 / seconds, size / seconds], axis=1)
    latency, per_byte = np.linalg.lstsq(rows, np.ones(len(size)), rcond=None)[0]
    if latency < 0 or per_byte <= 0:
        latency, per_byte = 0.0, float(1 / np.mean(size / seconds)) if per_byte <= 0 else float(per_byte)
    return float(latency), float(per_byte)


def duplex_factor(cells: pd.DataFrame) -> float:
    """Share of its speed a direction keeps while the other one works, both ways and all sizes."""
    alone = cells[cells["mode"] == "alone"].set_index(["way", "size", "blocks"])["median_s"]
    both = cells[cells["mode"] == "both"].set_index(["way", "size", "blocks"])["median_s"]
    shares = (alone / both).dropna().to_numpy(float)
    return float(np.clip(np.median(shares), 0.05, 1.0)) if len(shares) else 1.0


def direction(line: Line, source: str) -> dict[str, Any]:
    """One direction of a link as hardware files hold it."""
    return {
        "latency_s": _short(line.latency_s),
        "bandwidth_bytes_per_s": _short(line.bytes_per_s),
        "table": [[size, _short(rate)] for size, rate in line.table],
        "source": f"{source}; line: R2 {line.r2:.4f}, worst cell {100 * line.worst_line:.0f} % off; table: worst cell"
        f" {100 * line.worst_table:.0f} % off ({line.worst_cell}); repeats spread {100 * line.spread:.0f} %",
    }


def _short(value: float) -> float:
    return float(f"{value:.5g}")
