"""Draws policies side by side, best first: what was found in which tier, what moved, and why blocks were missing.

The bound is a line: the share of lookups that no policy can find. Rows are those of `kvtier compare --json`. It decides
nothing.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reports.plots import LOOK, save

TIERS = {"gpu": ("#0072B2", "GPU"), "host": ("#E69F00", "host"), "disk": ("#999999", "disk")}
MOVES = {"offload_bytes": ("#CC79A7", "out to host"), "onboard_bytes": ("#009E73", "back to GPU")}
LOSSES = {
    "evicted_from_gpu": ("#56B4E9", "pushed out of the GPU"),
    "evicted_from_host": ("#E69F00", "pushed out of the host"),
    "evicted_from_disk": ("#999999", "pushed out of the disk"),
    "dropped_below_threshold": ("#D55E00", "below the threshold"),
    "expired": ("#CC79A7", "expired"),
    "behind_a_gap": ("#000000", "behind a gap"),
}
GIB = 2.0**30


def plot_comparison(rows: Sequence[Mapping[str, Any]], bound: Mapping[str, int] | None, path: Path) -> Path:
    """Write the picture to `path` (PNG, SVG or PDF by its end)."""
    with mpl.rc_context(LOOK):
        tall = 0.42 * len(rows)
        figure = Figure(figsize=(12, 1.9 + tall), layout="constrained")
        FigureCanvasAgg(figure)
        found, moved, lost = figure.subplots(1, 3, sharey=True)
        _bars(
            found, rows, TIERS, lambda row, tier: 100 * row["hit_tokens_by_tier"][tier] / max(1, row["prompt_tokens"])
        )
        found.set_xlabel("prompt tokens found (%; higher is better)")
        if bound is not None:
            best = 100 * bound["all_blocks"] * bound["tokens_per_block"] / max(1, rows[0]["prompt_tokens"])
            scale = max((100 * row["hit_rate_tokens"] for row in rows), default=0.0)
            found.axvline(best, color="0.4", label="best possible (MIN, full blocks)")
            found.set_xlim(0, 1.08 * max(best, scale))
        _bars(moved, rows, MOVES, lambda row, name: row[name] / GIB)
        moved.set_xlabel("moved between GPU and host (GiB; lower is better)")
        _bars(lost, rows, LOSSES, lambda row, cause: row["misses_by_cause"].get(cause, 0))
        lost.set_xlabel("blocks computed again (lower is better)")
        found.set_yticks(range(len(rows)), [_name(row) for row in rows])
        found.invert_yaxis()
        for axes in (found, moved, lost):
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.6 / tall), ncols=3, fontsize=7)
        save(figure, path)
    return path


def _name(row: Mapping[str, Any]) -> str:
    """The policy, with the mean time to first token of a timed run."""
    name = str(row["policy"]).rpartition("/")[2]
    return name if row["ttft_s"] is None else f"{name}\nTTFT {row['ttft_s']['mean']:.3g} s"


def _bars(axes: Axes, rows: Sequence[Mapping[str, Any]], parts: Mapping[str, tuple[str, str]], size: Any) -> None:
    """Stacked horizontal bars, one a row; parts that are nowhere are left out."""
    left = np.zeros(len(rows))
    for name, (colour, label) in parts.items():
        width = np.array([size(row, name) for row in rows], np.float64)
        if width.any():
            axes.barh(np.arange(len(rows)), width, left=left, color=colour, label=label)
            left += width
