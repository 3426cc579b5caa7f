"""Draws predicted against measured times of copies, and the error over a transfer's bytes. It decides nothing."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reports.files import written
from reports.plots import LOOK, STYLES


def picture(transfers: pd.DataFrame, bound: float, title: str, path: Path) -> Path:
    """PNG with two panels from the columns direction, bytes, predicted_s, measured_s."""
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(10, 4.5), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        for (name, mine), (colour, marker, _) in zip(transfers.groupby("direction"), STYLES, strict=False):
            look = {"s": 12, "alpha": 0.5, "color": colour, "marker": marker, "linewidths": 0, "label": str(name)}
            left.scatter(1e3 * mine.measured_s, 1e3 * mine.predicted_s, **look)
            right.scatter(mine.bytes / 2**20, 100 * (mine.predicted_s / mine.measured_s - 1), **look)
        ends = np.array([
            transfers[["measured_s", "predicted_s"]].min().min(),
            transfers[["measured_s", "predicted_s"]].max().max(),
        ])
        left.plot(1e3 * ends, 1e3 * ends, color="0.4", linewidth=1)
        left.set(xscale="log", yscale="log", xlabel="measured (ms)", ylabel="predicted (ms)")
        for edge in (-bound, 0, bound):
            right.axhline(100 * edge, color="0.4", linewidth=1, linestyle="-" if edge == 0 else ":")
        right.set(
            xscale="log", xlabel="bytes of the transfer (MiB)", ylabel="error of the prediction (%)", ylim=(-150, 150)
        )
        left.legend()
        figure.suptitle(title)
        with written(path) as temporary:
            figure.savefig(temporary, format="png")
    return path
