"""Which runs are worth choosing between: those that no other run beats in all figures, the bend among them, and how much
of the ground they hold.

Any number of figures. Points with equal figures are equally good: all of them are in the front or none is.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
Mask = NDArray[np.bool_]


def costs(figures: Sequence[Points], better: Sequence[str]) -> Points:
    """Figures turned so that lower is better, one row a point; `better` says of each figure which end is: lower or higher."""
    turned = [-values if end == "higher" else values for values, end in zip(figures, better, strict=True)]
    return np.stack(turned, axis=1).astype(np.float64)


def front(cost: Points) -> Mask:
    """The points no other point beats: at least as good in all figures and better in one. NaN is never in front."""
    keep = np.zeros(len(cost), np.bool_)
    valid = np.flatnonzero(~np.isnan(cost).any(axis=1))
    order = valid[np.lexsort(cost[valid].T[::-1])]  # whoever beats a point comes before it
    best = np.empty((0, cost.shape[1]))
    for i in order:
        at_least_as_good = best[(best <= cost[i]).all(axis=1)]
        if (at_least_as_good == cost[i]).all():
            keep[i] = True
            best = np.vstack([best, cost[i]]) if len(at_least_as_good) == 0 else best
    return keep


def knee(cost: Points, in_front: Mask) -> int | None:
    """The front point farthest from the flat through the ends of the axes, all axes scaled to 0..1; ties: the first.

    With two figures that flat is the straight line between the front's ends. None when the front has no point between
    its ends, or all of them lie on the flat or on its bad side.
    """
    rows = np.flatnonzero(in_front)
    rows = rows[np.argsort(cost[rows, 0], kind="stable")]
    points = cost[rows]
    span = np.ptp(points, axis=0) if len(rows) else np.zeros(1)
    if len(np.unique(points, axis=0)) < 3 or not span.all():
        return None
    scaled = (points - points.min(axis=0)) / span
    distance = 1 - scaled.sum(axis=1)  # from x + y + ... = 1 towards the good corner, times the square root of the axes
    best = int(np.argmax(distance))
    return int(rows[best]) if distance[best] > 1e-12 else None


def hypervolume(cost: Points, corner: Points) -> float:
    """The measure of what the points beat and `corner` is beaten by; points not better than `corner` in all figures add nothing.

    Slices along the last figure, each the hypervolume of the points at its lower side (Zitzler and Thiele 1998 define it).
    """
    cost = cost[(cost < corner).all(axis=1)]
    if len(cost) == 0:
        return 0.0
    if cost.shape[1] == 1:
        return float(corner[0] - cost.min())
    cost = cost[front(cost)]
    cost = cost[np.argsort(cost[:, -1], kind="stable")]
    tops = np.append(cost[1:, -1], corner[-1])
    slices = [
        (top - row[-1]) * hypervolume(cost[: i + 1, :-1], corner[:-1])
        for i, (row, top) in enumerate(zip(cost, tops, strict=True))
        if top > row[-1]
    ]
    return float(sum(slices))


def share_held(cost: Points) -> float | None:
    """The hypervolume as a share of the box from the best to the worst figures of all points; None where it is flat."""
    cost = cost[~np.isnan(cost).any(axis=1)]
    span = np.ptp(cost, axis=0) if len(cost) else np.zeros(1)
    return hypervolume(cost, cost.max(axis=0)) / float(span.prod()) if span.all() else None
