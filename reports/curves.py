"""Draws hit rates over cache sizes, one line a policy, the best possible one as an edge that no line crosses.

Rows are plain: policy, capacity_blocks, hit_rate_blocks (0 to 1), perhaps hit_rate_blocks_error. It decides nothing.
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reports.plots import LOOK, STYLES, save

BOUND = "min"


def plot_curves(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    """Write the picture to `path` (PNG, SVG or PDF by its end). Rows without a capacity (no limit) are left out."""
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(8, 5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        styles = itertools.cycle(STYLES)
        for policy in policies:
            mine = [row for row in rows if row["policy"] == policy and row["capacity_blocks"] is not None]
            x = [row["capacity_blocks"] for row in mine]
            y = [100 * row["hit_rate_blocks"] for row in mine]
            error = [100 * row.get("hit_rate_blocks_error", 0.0) for row in mine]
            colour, marker, line = next(styles) if policy != BOUND else ("0.4", "", "-")
            name = "best possible (MIN)" if policy == BOUND else policy
            axes.plot(x, y, color=colour, marker=marker, linestyle=line, markersize=4, label=name)
            if any(error):
                low, high = ([v + sign * e for v, e in zip(y, error, strict=True)] for sign in (-1, 1))
                axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.set_xscale("log")
        axes.set_xlabel("cache size (trace blocks, logarithmic)")
        axes.set_ylabel("block hit rate (% of blocks looked up; higher is better)")
        axes.set_ylim(bottom=0)
        axes.legend()
        save(figure, path)
    return path
