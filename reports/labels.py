"""Puts words beside points so that no two labels overlap, none covers a point or a line, and none leaves the axes.
A leader passes no other point.

A label that finds no free place is left out, except one that must be there: it takes the place that covers least.
Positions are in pixels, so place labels last, when the axes no longer change.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

ANGLES = np.deg2rad([35, 145, -35, -145, 90, -90, 0, 180, 60, 120, -60, -120, 15, 165, -15, -165])
DISTANCES = (10, 20, 34, 50, 70, 95, 125)
POINT_RADIUS = 7
RING_RADIUS = 17
LINE_STEP = 6
LEADER_FROM = 14

Pixels = NDArray[np.float64]


class Label(NamedTuple):
    """Words for a point in data coordinates; a label that `must` be there is bold."""

    x: float
    y: float
    text: str
    must: bool = False


def place(axes: Axes, labels: Sequence[Label]) -> int:
    """Write each label near its point, in order, around all that is drawn; returns how many found a place."""
    canvas = cast("FigureCanvasAgg", axes.figure.canvas)
    canvas.draw()  # type: ignore[no-untyped-call]
    renderer = canvas.get_renderer()  # type: ignore[no-untyped-call]
    frame = axes.get_window_extent(renderer)
    points, drawn = _obstacles(axes)
    placed: list[Bbox] = []
    for label in labels:
        weight = "bold" if label.must else "normal"
        at = (label.x, label.y)
        note = axes.annotate(label.text, at, xytext=(0, 0), textcoords="offset pixels", fontsize=8.5, fontweight=weight)
        note.set(ha="center", va="center", zorder=6, linespacing=1.0)
        size = note.get_window_extent(renderer)
        centre = np.asarray(axes.transData.transform(at))
        box = _free(centre, np.array([size.width + 6, size.height + 4]), frame, placed, points, drawn, label.must)
        if box is None:
            note.remove()
            continue
        note.set_position((float((box.x0 + box.x1) / 2 - centre[0]), float((box.y0 + box.y1) / 2 - centre[1])))
        placed.append(box)
        _leader(axes, centre, box)
    return len(placed)


def _obstacles(axes: Axes) -> tuple[Pixels, Pixels]:
    """The pixels of every point, and those with every line that is drawn, step by step."""
    dots, parts = [np.empty((0, 2))], [np.empty((0, 2))]
    for line in axes.get_lines():
        points = axes.transData.transform(np.asarray(line.get_xydata()))
        points = points[np.isfinite(points).all(axis=1)]
        dots.append(points)
        if line.get_linestyle() != "None":
            for start, end in itertools.pairwise(points):
                steps = int(np.hypot(*(end - start)) // LINE_STEP) + 1
                parts.append(start + (end - start) * np.linspace(0, 1, steps)[:, None])
    return np.concatenate(dots), np.concatenate([*dots, *parts])


def _free(
    centre: Pixels, size: Pixels, frame: Bbox, placed: Sequence[Bbox], points: Pixels, drawn: Pixels, must: bool
) -> Bbox | None:
    """The nearest place for a box of that size that touches nothing; if it must be, the one that touches least."""
    best, least = None, np.inf
    for distance in DISTANCES:
        for angle in ANGLES:
            middle = centre + np.array([np.cos(angle), np.sin(angle)]) * (distance + size / 2)
            box = Bbox([middle - size / 2, middle + size / 2])
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if not inside or box.count_overlaps(placed):
                continue
            touched = int((np.abs(drawn - middle) < size / 2 + POINT_RADIUS).all(axis=1).sum())
            touched += _passed(points, centre, _edge(centre, box))
            if touched == 0:
                return box
            if must and touched < least:
                best, least = box, touched
    return best


def _edge(centre: Pixels, box: Bbox) -> Pixels:
    """The spot of a label's edge that is nearest to its point."""
    return np.array([np.clip(centre[0], box.x0, box.x1), np.clip(centre[1], box.y0, box.y1)])


def _passed(points: Pixels, start: Pixels, end: Pixels) -> int:
    """How many other points a leader from `start` to `end` runs through."""
    length = np.hypot(*(end - start))
    other = points[np.hypot(*(points - start).T) > 1]
    if length < LEADER_FROM or not len(other):
        return 0
    along = np.clip((other - start) @ (end - start) / length**2, 0, 1)
    away = np.hypot(*(other - start - along[:, None] * (end - start)).T)
    return int((away < RING_RADIUS).sum())


def _leader(axes: Axes, centre: Pixels, box: Bbox) -> None:
    """A thin line from the point to the nearest edge of its label, when the label is not right beside it."""
    end = _edge(centre, box)
    if np.hypot(*(end - centre)) > LEADER_FROM:
        (x0, y0), (x1, y1) = axes.transData.inverted().transform([centre, end])
        axes.plot([x0, x1], [y0, y1], color="0.45", linewidth=0.7, zorder=2, scalex=False, scaley=False)
