"""From samples to a hardware file: seconds of a block by its size and by the bytes of the whole batch; how well both fit.

It measures nothing. A cell's figure is the lower quartile of its repeats: what disturbs a copy only ever adds to its time.

    seconds of a block = table(bytes of a block) x burst(bytes of the batch)

Both are piecewise linear in logs, fitted together by least squares; burst is 1 for the smallest batch. Caches swallow what a
short batch writes (a long one waits for memory), and what starts a batch is shared by its blocks: both show in burst.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

QUARTILE = 0.25
STEP = 4  # knots of burst lie this factor apart
SMOOTH = 0.2  # weight of the bends of burst against the cells' errors


@dataclass(frozen=True)
class Line:
    """Seconds of one block in the smallest batches: roughly latency_s + bytes / bytes_per_s, better by `table` (bytes, bytes
    per second); `burst` (bytes of a batch, factor) holds for both.
    """

    latency_s: float
    bytes_per_s: float
    table: tuple[tuple[int, float], ...]
    burst: tuple[tuple[int, float], ...]
    r2: float  # of the straight line, over the cells, in log seconds
    worst_line: float  # largest relative error of the line over the cells
    worst_table: float  # largest relative error of table x burst over the cells
    worst_cell: str
    spread: float  # median over the cells of (90 % - 10 % quantile) / median of the repeats

    def seconds(self, size: float) -> float:
        """By the straight line."""
        return self.latency_s + size / self.bytes_per_s


def summary(samples: pd.DataFrame) -> pd.DataFrame:
    """One row a cell: typical seconds of a block, quantiles, number of repeats, work in these seconds."""
    groups = samples.groupby(["way", "size", "blocks", "mode"], sort=True)
    seconds = groups["seconds"]
    cells = seconds.quantile(np.array([0.1, QUARTILE, 0.5, 0.9])).unstack().reset_index()
    cells.columns = ["way", "size", "blocks", "mode", "low_s", "typical_s", "median_s", "high_s"]
    cells["repeats"] = seconds.count().to_numpy()
    cells["spread"] = (cells.high_s - cells.low_s) / cells.median_s
    cells["work"] = groups["work"].first().to_numpy()
    return cells


def fit(cells: pd.DataFrame, way: str, modes: Sequence[str] = ("alone",)) -> Line:
    """The line and the tables of one direction."""
    mine = cells[(cells.way == way) & cells["mode"].isin(list(modes))]
    if len(mine) == 0:
        raise ValueError(f"no samples of {way} {'/'.join(modes)}")
    size, seconds = mine["size"].to_numpy(float), mine["typical_s"].to_numpy(float)
    batch = size * mine["blocks"].to_numpy(float)
    logs, knots, factors = _tables(size, batch, np.log(seconds))
    each: list[tuple[int, float]] = []
    for one, log in zip(np.unique(size), logs, strict=True):  # a larger block never takes less time
        at = max(float(np.exp(log)), each[-1][0] / each[-1][1] if each else 0.0)
        each.append((int(one), one / at))
    latency, per_byte = _line(np.array([s for s, _ in each], float), np.array([s / rate for s, rate in each]))
    stretch = np.exp(np.interp(np.log(batch), np.log(knots), np.log(factors)))
    by_line = (latency + size * per_byte) * stretch
    by_table = size / np.array([dict(each)[int(s)] for s in size]) * stretch
    off_line, off_table = np.abs(by_line / seconds - 1), np.abs(by_table / seconds - 1)
    worst = mine.iloc[int(np.argmax(off_table))]
    return Line(
        latency,
        1 / per_byte,
        tuple(each),
        tuple((int(knot), float(factor)) for knot, factor in zip(knots, factors, strict=True)),
        _r2(np.log(by_line), np.log(seconds)),
        float(off_line.max()),
        float(off_table.max()),
        f"{worst['size']} B x {worst['blocks']} {worst['mode']}",
        float(mine["spread"].median()),
    )


def _r2(predicted: Any, seen: Any) -> float:
    total = float(((seen - seen.mean()) ** 2).sum())
    return 1 - float(((predicted - seen) ** 2).sum()) / total if total > 0 else 1.0


def _line(size: Any, seconds: Any) -> tuple[float, float]:
    """Latency and seconds a byte that make the relative errors' squares smallest; neither is negative."""
    rows = np.stack([1 / seconds, size / seconds], axis=1)
    latency, per_byte = np.linalg.lstsq(rows, np.ones(len(size)), rcond=None)[0]
    if latency < 0 or per_byte <= 0:
        latency, per_byte = 0.0, float(1 / np.mean(size / seconds)) if per_byte <= 0 else float(per_byte)
    return float(latency), float(per_byte)


def _tables(size: Any, batch: Any, logs: Any) -> tuple[Any, Any, Any]:
    """Log seconds by size; knots of the batches' bytes and the factors there. One batch a size: nothing to tell apart."""
    sizes = np.unique(size)
    columns = (size[:, None] == sizes[None, :]).astype(float)
    low, high = float(batch.min()), float(batch.max())
    count = 1 + int(np.ceil(np.log(high / low) / np.log(STEP) - 1e-9)) if len(batch) > len(sizes) else 1
    knots = low * float(STEP) ** np.arange(count)
    if count > 1:
        hats = np.stack([np.interp(np.log(batch), np.log(knots), row) for row in np.eye(count)], axis=1)[:, 1:]
        bends = SMOOTH * np.diff(np.eye(count), n=2, axis=0)[:, 1:]
        held = np.concatenate([np.zeros((len(bends), len(sizes))), bends], axis=1)
        rows = np.concatenate([np.concatenate([columns, hats], axis=1), held])
        found = np.linalg.lstsq(rows, np.concatenate([logs, np.zeros(len(bends))]), rcond=None)[0]
        return found[: len(sizes)], knots, np.exp(np.concatenate([[0.0], found[len(sizes) :]]))
    return np.linalg.lstsq(columns, logs, rcond=None)[0], knots, np.ones(1)


def slowdown(cells: pd.DataFrame, mode: str, ways: Sequence[str] = ("d2h", "h2d")) -> float:
    """Share of its speed a direction keeps in `mode`, against alone in the same batch; the median over sizes and `ways`."""
    mine = cells[cells.way.isin(list(ways))]
    alone = mine[mine["mode"] == "alone"].set_index(["way", "size", "blocks"])["typical_s"]
    beside = mine[mine["mode"] == mode].set_index(["way", "size", "blocks"])["typical_s"]
    shares = (alone / beside).dropna().to_numpy(float)
    return float(np.clip(np.median(shares), 0.05, 1.0)) if len(shares) else 1.0


def direction(line: Line, source: str) -> dict[str, Any]:
    """One direction of a link as hardware files hold it."""
    return {
        "latency_s": short(line.latency_s),
        "bandwidth_bytes_per_s": short(line.bytes_per_s),
        "table": [[size, short(rate)] for size, rate in line.table],
        **({"burst": [[size, short(factor)] for size, factor in line.burst]} if len(line.burst) > 1 else {}),
        "source": f"{source}; line: R2 {line.r2:.4f}, worst cell {100 * line.worst_line:.0f} % off; tables: worst cell"
        f" {100 * line.worst_table:.0f} % off ({line.worst_cell}); repeats spread {100 * line.spread:.0f} %",
    }


def rates(cells: pd.DataFrame, kernel: str) -> list[list[float]]:
    """Rows [size, work per second] of a kernel, as `compute.measured` holds them."""
    mine = cells[cells.way == kernel].sort_values("size")
    pairs = zip(mine["size"].tolist(), (mine["work"] / mine["typical_s"]).tolist(), strict=True)
    return [[size, short(rate)] for size, rate in pairs]


def short(value: float) -> float:
    """Five figures."""
    return float(f"{value:.5g}")
