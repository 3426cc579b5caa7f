"""Draws the result table: choices against each other (Pareto), figures over a threshold, figures over block sizes.

Series differ in colour, in marker and in line style, so they can be told apart in grey and by the colour-blind. Every
axis says what it shows, in which unit, and which end is better. It writes PNG files and decides nothing.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from numpy.typing import NDArray

from reports import pareto
from reports.columns import Column, column
from reports.files import written
from reports.labels import Label, place
from reports.table import require

STYLES = [
    ("#0072B2", "o", "-"),
    ("#E69F00", "s", "--"),
    ("#000000", "^", ":"),
    ("#CC79A7", "D", "-."),
    ("#D55E00", "v", (0, (5, 1))),
    ("#56B4E9", "X", (0, (1, 1))),
    ("#009E73", "P", (0, (3, 1, 1, 1))),
    ("#999999", "*", (0, (8, 2))),
]
"""Okabe and Ito's colour-blind-safe palette, neighbours far apart in lightness."""
MOST_LABELS = 8
LOOK: Any = {
    "figure.dpi": 150,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "0.9",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "axes.formatter.useoffset": False,  # an axis says its values, not differences from a number in the corner
}


def shown(value: Any) -> str:
    """A configuration value as text: 3000000 → 3M, 32.0 → 32, True → on, nothing → default."""
    if value is None or pd.isna(value):
        return "default"
    if isinstance(value, bool | np.bool_):
        return "on" if value else "off"
    if isinstance(value, str):
        return value
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size and value % (size / 10) == 0):
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def words(rows: pd.DataFrame, keys: Sequence[str]) -> str:
    """The configuration that several rows with equal results have in common, as `block 64, threshold 0 to 30`."""
    parts = []
    for key in keys:
        values = list(dict.fromkeys(rows[key]))
        numbers = all(isinstance(v, int | float | np.number) for v in values)
        text = shown(values[0]) if len(values) == 1 else "/".join(map(shown, values))
        if numbers and len(values) > 2:
            text = f"{shown(min(values))} to {shown(max(values))}"
        parts.append(f"{column(key).short or column(key).label} {text}")
    return ", ".join(parts)


def group_key(keys: Sequence[str]) -> str | None:
    """The configuration key that colours stand for: the block size when it was varied."""
    blocks = [key for key in keys if key.endswith("tokens_per_block")]
    return next(iter([*blocks, *keys]), None)


def _figure(width: float, height: float) -> Figure:
    """An empty page, in inches, that draws to memory only."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _ended(title: Column) -> str:
    return f"{title.title}\n{title.better} is better"


def _series(frame: pd.DataFrame, group: str | None, *more: str) -> Iterator[tuple[str, pd.DataFrame, tuple[Any, ...]]]:
    """The rows of each value of `group` (of each combination, if more are given), in order, with their style."""
    if group is None:
        yield "all runs", frame, STYLES[0]
        return
    if more:
        parts = frame.groupby([group, *more])
        for (_, rows), style in zip(parts, itertools.cycle(STYLES), strict=False):
            yield words(rows, [group, *more]), rows, style
        return
    values = sorted(frame[group].dropna().unique())
    for value, style in zip(values, itertools.cycle(STYLES), strict=False):
        yield shown(value), frame[frame[group] == value], style


def _lines(rows: pd.DataFrame, along: str | None, others: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Rows that differ in `along` alone, in its order: what one line connects."""
    if along is None:
        return
    parts = [part for _, part in rows.groupby(list(others), dropna=False)] if others else [rows]
    yield from (part.sort_values(along) for part in parts)


def pareto_plot(frame: pd.DataFrame, x: str, y: str, keys: Sequence[str], path: Path, title: str = "") -> pd.DataFrame:
    """Every run as a point, the front ringed, the knee named. Returns the front's rows, best x first, with `knee`."""
    x, y = require(frame, x), require(frame, y)
    frame = frame[frame[x].notna() & frame[y].notna()].reset_index(drop=True)
    if frame.empty:
        raise ValueError(f"no run has both {x} and {y}")
    cost = pareto.costs([frame[name].to_numpy(float) for name in (x, y)], [column(name).better for name in (x, y)])
    chosen = pareto.front(cost)
    knee = pareto.knee(cost, chosen)
    with mpl.rc_context(LOOK):
        figure = _figure(8.6, 5.2)
        axes = figure.subplots()
        _draw_runs(axes, frame, x, y, keys)
        _draw_front(axes, frame, x, y, chosen, knee)
        axes.set(xlabel=_ended(column(x)), ylabel=_ended(column(y)), title=title)
        axes.margins(0.09)
        _legend(figure, axes, group_key(keys))
        _label_front(axes, frame, x, y, keys, chosen, knee)
        _save(figure, path)
    rows = frame[chosen].assign(knee=np.flatnonzero(chosen) == knee)
    return rows.iloc[np.argsort(cost[chosen, 0], kind="stable")]


def _points(frame: pd.DataFrame, x: str, y: str) -> NDArray[np.float64]:
    return np.stack([frame[name].to_numpy(float) / column(name).divisor for name in (x, y)], axis=1)


def _draw_runs(axes: Axes, frame: pd.DataFrame, x: str, y: str, keys: Sequence[str]) -> None:
    group = group_key(keys)
    rest = [key for key in keys if key != group]
    along = max(rest, key=lambda key: frame[key].nunique(), default=None)
    others = [key for key in rest if key != along]
    for name, rows, (colour, marker, dashes) in _series(frame, group):
        for part in _lines(rows, along, others):
            axes.plot(*_points(part, x, y).T, color=colour, linestyle=dashes, linewidth=1.1, alpha=0.8, zorder=3)
        # The marker carries the legend entry: its line is drawn above, in pieces.
        axes.plot(*_points(rows, x, y).T, color=colour, marker=marker, markersize=5, linestyle="", zorder=4)
        axes.plot([], [], color=colour, marker=marker, markersize=5, linestyle=dashes, label=name)


def _draw_front(axes: Axes, frame: pd.DataFrame, x: str, y: str, chosen: pareto.Mask, knee: int | None) -> None:
    points = _points(frame, x, y)
    line = points[chosen][np.argsort(points[chosen][:, 0], kind="stable")]
    axes.plot(*line.T, color="0.75", linewidth=6, solid_capstyle="round", solid_joinstyle="round", zorder=1)
    axes.plot(*line.T, "o", markersize=10, markerfacecolor="none", markeredgecolor="0.35", zorder=5)
    axes.plot(
        [], [], "o-", color="0.75", linewidth=6, markersize=9, markerfacecolor="none", markeredgecolor="0.35",
        label="Pareto front",
    )  # fmt: skip
    if knee is not None:
        axes.plot(*points[knee], "o", markersize=15, markerfacecolor="none", markeredgecolor="0", markeredgewidth=2)


def _label_front(
    axes: Axes, frame: pd.DataFrame, x: str, y: str, keys: Sequence[str], chosen: pareto.Mask, knee: int | None
) -> None:
    """Name the knee, then the ends of the front, then some between; runs with equal figures share one label."""
    points = _points(frame, x, y)
    spots = [rows.index.to_numpy() for _, rows in frame[chosen].groupby([x, y])]
    first = [i for i, rows in enumerate(spots) if knee is not None and knee in rows]
    spread = np.unique(np.linspace(0, len(spots) - 1, MOST_LABELS).round().astype(int))
    order = list(dict.fromkeys([*first, 0, len(spots) - 1, *spread]))[:MOST_LABELS]
    labels = []
    for i in order:
        text = words(frame.loc[spots[i]], keys).replace(", ", "\n")
        x_at, y_at = map(float, points[spots[i][0]])
        labels.append(Label(x_at, y_at, f"knee: {text}" if i in first else text, i in first))
    place(axes, [label for label in labels if label.text])


def _legend(figure: Figure, axes: Axes, group: str | None) -> None:
    title = column(group).title if group else None
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", title=title, handlelength=3.2)


def _panels(
    frame: pd.DataFrame, x: str, ys: Sequence[str], groups: Sequence[str], path: Path, title: str, doubling: bool
) -> None:
    """One panel a figure, one line a combination of the `groups`, over the configuration key `x`."""
    x, ys = require(frame, x), [require(frame, y) for y in ys]
    for group in groups:
        if group not in frame.columns:
            raise ValueError(f"no column {group} to draw one line for each value of")
    with mpl.rc_context(LOOK):
        figure = _figure(1.4 + 4.0 * len(ys), 4.0)
        grid = figure.subplots(1, len(ys), squeeze=False)
        for axes, y in zip(grid[0], ys, strict=True):
            known = _readable(column(y), frame[y])
            for name, rows, (colour, marker, dashes) in _series(frame, next(iter(groups), None), *groups[1:]):
                line = rows.groupby(x)[y].mean().sort_index()
                at = line.index.to_numpy(float) / column(x).divisor, line.to_numpy(float) / known.divisor
                axes.plot(*at, color=colour, marker=marker, linestyle=dashes, markersize=5, label=name)
            axes.set(xlabel=column(x).title, ylabel=_ended(known))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            if doubling:
                _doubling(axes, sorted(frame[x].unique() / column(x).divisor))
        figure.suptitle(title)
        if groups:
            _legend(figure, grid[0][0], groups[0] if len(groups) == 1 else None)
        _save(figure, path)


def _readable(known: Column, values: pd.Series) -> Column:
    """Seconds as milliseconds where all are below one."""
    return replace(known, unit="ms", divisor=0.001) if known.unit == "s" and values.max() < 1 else known


def _listed(group: str | Sequence[str] | None) -> Sequence[str]:
    return [group] if isinstance(group, str) else list(group or [])


def _doubling(axes: Axes, values: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def threshold_plot(
    frame: pd.DataFrame, path: Path, ys: Sequence[str] = ("hit_rate_tokens", "offload_bytes"),
    group: str | Sequence[str] | None = "tokens_per_block", title: str = "",
) -> None:  # fmt: skip
    """What the offload threshold changes, one line a block size."""
    _panels(frame, "secondary_offload_min_priority", ys, _listed(group), path, title, doubling=False)


def block_plot(
    frame: pd.DataFrame, path: Path, ys: Sequence[str] = ("hit_rate_tokens", "moved_bytes"),
    group: str | Sequence[str] | None = None, title: str = "",
) -> None:  # fmt: skip
    """What the block size changes, over doublings, one line a value of `group`."""
    _panels(frame, "tokens_per_block", ys, _listed(group), path, title, doubling=True)


def _save(figure: Figure, path: Path) -> None:
    """Write the picture whole or not at all, the same bytes for the same figures."""
    with written(path) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})
