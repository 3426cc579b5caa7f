"""Draws runs against each other in two figures, or three: every run a point, the front ringed, the knee named.

Without further wishes colour, marker and line style stand for one setting and lines connect runs that differ in one other.
With a third figure, or a colour or shape asked for, points stand alone: colour says the one, marker the other.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from reports import pareto
from reports.columns import column
from reports.labels import Label, place
from reports.plots import LOOK, STYLES, ended, group_key, legend, lines, new_page, save, series, shown, words

MOST_LABELS = 8
MOST_NAMES = 8
"""More values of a setting than this are shades, not names of a legend."""
OUTSIDE: dict[str, Any] = {"color": "0.8", "marker": "x", "markersize": 4, "linestyle": "", "zorder": 2}


@dataclass(frozen=True)
class View:
    """What to draw: full column names. `z` is a third figure to choose by; it is drawn as colour."""

    x: str
    y: str
    z: str | None = None
    colour: str | None = None
    shape: str | None = None

    @property
    def figures(self) -> list[str]:
        """What the front is about."""
        return [self.x, self.y, *([self.z] if self.z else [])]

    @property
    def shade(self) -> str | None:
        """What colour stands for, if something was asked for."""
        return self.z or self.colour


@dataclass(frozen=True)
class Front:
    """Rows that no other row beats, best x first, with `knee`; and the share of the box from best to worst they hold."""

    rows: pd.DataFrame
    held: float | None


def pareto_plot(
    frame: pd.DataFrame,
    view: View,
    keys: Sequence[str],
    path: Path,
    title: str = "",
    outside: pd.DataFrame | None = None,
) -> Front:
    """Draw and choose. `outside` are runs that may not be chosen, drawn as grey crosses."""
    frame = frame[frame[view.figures].notna().all(axis=1)].reset_index(drop=True)
    if frame.empty:
        raise ValueError(f"no run has {' and '.join(view.figures)}")
    cost = pareto.costs([frame[c].to_numpy(float) for c in view.figures], [column(c).better for c in view.figures])
    chosen = pareto.front(cost)
    knee = pareto.knee(cost, chosen)
    with mpl.rc_context(LOOK):
        page = new_page(8.6, 5.2)
        axes = page.subplots()
        if outside is not None and len(outside):
            axes.plot(*_points(outside, view).T, label="beyond a limit", **OUTSIDE)
        group = (
            _draw_marked(page, axes, frame, view) if view.shade or view.shape else _draw_lines(axes, frame, view, keys)
        )
        _draw_front(axes, frame, view, chosen, knee)
        axes.set(xlabel=ended(column(view.x)), ylabel=ended(column(view.y)), title=title)
        axes.margins(0.09)
        legend(page, axes, group)
        _label_front(axes, frame, view, keys, chosen, knee)
        save(page, path)
    rows = frame[chosen].assign(knee=np.flatnonzero(chosen) == knee)
    return Front(rows.iloc[np.argsort(cost[chosen, 0], kind="stable")], pareto.share_held(cost))


def _points(frame: pd.DataFrame, view: View) -> NDArray[np.float64]:
    return np.stack([frame[name].to_numpy(float) / column(name).divisor for name in (view.x, view.y)], axis=1)


def _draw_lines(axes: Axes, frame: pd.DataFrame, view: View, keys: Sequence[str]) -> str | None:
    """Runs in the style of their group, connected along the setting with most values; returns what the legend is about."""
    group = group_key(keys)
    rest = [key for key in keys if key != group]
    along = max(rest, key=lambda key: frame[key].nunique(), default=None)
    others = [key for key in rest if key != along]
    for name, rows, (colour, marker, dashes) in series(frame, group):
        for part in lines(rows, along, others):
            axes.plot(*_points(part, view).T, color=colour, linestyle=dashes, linewidth=1.1, alpha=0.8, zorder=3)
        # The marker carries the legend entry: its line is drawn above, in pieces.
        axes.plot(*_points(rows, view).T, color=colour, marker=marker, markersize=5, linestyle="", zorder=4)
        axes.plot([], [], color=colour, marker=marker, markersize=5, linestyle=dashes, label=name)
    return group


def _draw_marked(page: Figure, axes: Axes, frame: pd.DataFrame, view: View) -> str | None:
    """Runs by colour and marker; returns what the legend is about, where it is about one thing."""
    shade, names = view.shade, _names(frame, None if view.z else view.colour)
    markers = {
        value: style[1] for value, style in zip(_names(frame, view.shape), itertools.cycle(STYLES), strict=False)
    }
    hues = {value: style[0] for value, style in zip(names, itertools.cycle(STYLES), strict=False)}
    values = frame[shade].to_numpy(float) / column(shade).divisor if shade and not names else None
    axes.plot(*_points(frame, view).T, "o", markersize=6, alpha=0)  # labels keep away from lines and their points
    for value, rows in frame.groupby(view.shape, dropna=False) if view.shape else [(None, frame)]:
        look: dict[str, Any] = {"marker": markers.get(value, "o"), "s": 34, "zorder": 4, "linewidths": 0}
        if values is not None:
            look |= {"c": values[rows.index], "cmap": "viridis", "vmin": values.min(), "vmax": values.max()}
        else:
            look |= {"c": [hues.get(v, STYLES[0][0]) for v in rows[shade]] if shade else STYLES[0][0]}
        drawn = axes.scatter(*_points(rows, view).T, **look)
    if values is not None and shade:
        page.colorbar(drawn, ax=axes, label=ended(column(shade)) if view.z else column(shade).title)
    both = bool(names) and view.shape not in {None, shade}

    def told(key: str | None, value: Any) -> str:
        return f"{column(str(key)).short or key} {shown(value)}" if both else shown(value)

    for value, hue in hues.items():
        axes.add_line(_key(told(shade, value), hue, markers.get(value, "o") if view.shape == shade else "o"))
    for value, marker in markers.items():
        if view.shape != shade:
            axes.add_line(_key(told(view.shape, value), "0.4", marker))
    return None if both else view.shape or (shade if names else None)


def _key(name: str, colour: str, marker: str) -> Line2D:
    """A legend entry."""
    return Line2D([], [], color=colour, marker=marker, linestyle="", markersize=6, label=name)


def _names(frame: pd.DataFrame, key: str | None) -> list[Any]:
    """The values of a setting that are told apart by name; none where they are many numbers, which are shades."""
    if key is None:
        return []
    values = sorted(frame[key].dropna().unique())
    few = len(values) <= MOST_NAMES
    return values if few or not pd.api.types.is_numeric_dtype(frame[key]) else []


def _draw_front(axes: Axes, frame: pd.DataFrame, view: View, chosen: pareto.Mask, knee: int | None) -> None:
    points = _points(frame, view)
    line = points[chosen][np.argsort(points[chosen][:, 0], kind="stable")]
    width = 0 if view.z else 6  # a front in three figures is no line on this page
    axes.plot(*line.T, color="0.75", linewidth=width, solid_capstyle="round", solid_joinstyle="round", zorder=1)
    axes.plot(*line.T, "o", markersize=10, markerfacecolor="none", markeredgecolor="0.35", zorder=5)
    axes.plot(
        [], [], "o-", color="0.75", linewidth=width, markersize=9, markerfacecolor="none", markeredgecolor="0.35",
        label="Pareto front",
    )  # fmt: skip
    if knee is not None:
        axes.plot(*points[knee], "o", markersize=15, markerfacecolor="none", markeredgecolor="0", markeredgewidth=2)


def _label_front(
    axes: Axes, frame: pd.DataFrame, view: View, keys: Sequence[str], chosen: pareto.Mask, knee: int | None
) -> None:
    """Name the knee, then the ends of the front, then some between; runs with equal figures share one label."""
    points = _points(frame, view)
    spots = [rows.index.to_numpy() for _, rows in frame[chosen].groupby([view.x, view.y])]
    first = [i for i, rows in enumerate(spots) if knee is not None and knee in rows]
    spread = np.unique(np.linspace(0, len(spots) - 1, MOST_LABELS).round().astype(int))
    order = list(dict.fromkeys([*first, 0, len(spots) - 1, *spread]))[:MOST_LABELS]
    labels = []
    for i in order:
        text = words(frame.loc[spots[i]], keys).replace(", ", "\n")
        x_at, y_at = map(float, points[spots[i][0]])
        labels.append(Label(x_at, y_at, f"knee: {text}" if i in first else text, i in first))
    place(axes, [label for label in labels if label.text])
