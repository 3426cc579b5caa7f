"""Draws the result table: figures over a threshold, figures over block sizes. Choices against each other: `front_plot`.

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

from reports.columns import Column, column
from reports.files import written
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
FORMATS: dict[str, dict[str, Any]] = {
    ".png": {"metadata": {"Software": None}, "pil_kwargs": {"optimize": True}},
    ".svg": {"metadata": {"Date": None}},
    ".pdf": {"metadata": {"CreationDate": None}},
}
"""What pictures are written as, with what keeps a date and a version out of them."""
LOOK: Any = {
    "svg.hashsalt": "kvtier",  # the same names inside an SVG each time
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
        known = column(key)
        if numbers and known.divisor != 1:
            values = [value / known.divisor for value in values]
        text = shown(values[0]) if len(values) == 1 else "/".join(map(shown, values))
        if numbers and len(values) > 2:
            text = f"{shown(min(values))} to {shown(max(values))}"
        unit = f" {known.unit.split()[0]}" if numbers and known.divisor != 1 else ""
        parts.append(f"{known.short or known.label} {text}{unit}")
    return ", ".join(parts)


def group_key(keys: Sequence[str]) -> str | None:
    """The configuration key that colours stand for: block size or context workers when they were varied."""
    first = [key for key in keys if key.endswith(("tokens_per_block", "context.workers"))]
    return next(iter([*first, *keys]), None)


def new_page(width: float, height: float) -> Figure:
    """An empty page, in inches, that draws to memory only."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def ended(title: Column) -> str:
    return f"{title.title}\n{title.better} is better"


def series(frame: pd.DataFrame, group: str | None, *more: str) -> Iterator[tuple[str, pd.DataFrame, tuple[Any, ...]]]:
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


def lines(rows: pd.DataFrame, along: str | None, others: Sequence[str]) -> Iterator[pd.DataFrame]:
    """Rows that differ in `along` alone, in its order: what one line connects."""
    if along is None:
        return
    parts = [part for _, part in rows.groupby(list(others), dropna=False)] if others else [rows]
    yield from (part.sort_values(along) for part in parts)


def legend(figure: Figure, axes: Axes, group: str | None) -> None:
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
        page = new_page(1.4 + 4.0 * len(ys), 4.0)
        grid = page.subplots(1, len(ys), squeeze=False)
        for axes, y in zip(grid[0], ys, strict=True):
            known = _readable(column(y), frame[y])
            for name, rows, (colour, marker, dashes) in series(frame, next(iter(groups), None), *groups[1:]):
                line = rows.groupby(x)[y].mean().sort_index()
                at = line.index.to_numpy(float) / column(x).divisor, line.to_numpy(float) / known.divisor
                axes.plot(*at, color=colour, marker=marker, linestyle=dashes, markersize=5, label=name)
            axes.set(xlabel=column(x).title, ylabel=ended(known))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
            if doubling:
                _doubling(axes, sorted(frame[x].unique() / column(x).divisor))
        page.suptitle(title)
        if groups:
            legend(page, grid[0][0], groups[0] if len(groups) == 1 else None)
        save(page, path)


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


def save(figure: Figure, path: Path) -> None:
    """Write the picture whole or not at all, in the format that its name says, the same bytes for the same figures."""
    check_picture(path)
    with written(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], **FORMATS[path.suffix])


def check_picture(path: Path) -> None:
    """Refuse a name that says no format, before anything is computed for it."""
    if path.suffix not in FORMATS:
        raise ValueError(f"{path}: a picture is PNG, SVG or PDF; give a name that ends in {', '.join(FORMATS)}")
