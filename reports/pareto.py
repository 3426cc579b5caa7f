"""Which runs are worth choosing between: those that no other run beats in both figures, and the bend among them.

Points with equal figures are equally good: all of them are in the front or none is.
"""

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
Mask = NDArray[np.bool_]


def costs(x: Points, y: Points, x_better: str, y_better: str) -> Points:
    """Both figures turned so that lower is better, as rows (x, y)."""
    signs = [-1.0 if better == "higher" else 1.0 for better in (x_better, y_better)]
    return np.stack([x * signs[0], y * signs[1]], axis=1).astype(np.float64)


def front(cost: Points) -> Mask:
    """The points no other point beats: at least as good in both figures and better in one. NaN is never in front."""
    keep = np.zeros(len(cost), np.bool_)
    valid = np.flatnonzero(~np.isnan(cost).any(axis=1))
    order = valid[np.lexsort((cost[valid, 1], cost[valid, 0]))]
    best, best_x = np.inf, np.inf
    for i in order:
        x, y = cost[i]
        if y < best or (y == best and x == best_x):
            keep[i] = True
            best, best_x = y, x
    return keep


def knee(cost: Points, in_front: Mask) -> int | None:
    """The front point farthest from the straight line between the front's ends, both axes scaled to 0..1.

    None when the front has no point between its ends, or all of them lie on the line or on its bad side.
    """
    rows = np.flatnonzero(in_front)
    rows = rows[np.argsort(cost[rows, 0], kind="stable")]
    points = cost[rows]
    span = np.ptp(points, axis=0) if len(rows) else np.zeros(2)
    if len(np.unique(points, axis=0)) < 3 or not span.all():
        return None
    scaled = (points - points.min(axis=0)) / span
    distance = (1 - scaled.sum(axis=1)) / np.sqrt(2)  # from the chord (0, 1)..(1, 0), towards the good corner (0, 0)
    best = int(np.argmax(distance))
    return int(rows[best]) if distance[best] > 1e-12 else None
