"""Draws distributions side by side: what share of the requests took no longer than so much.

One panel a figure, one line a source; colours, line styles and look are those of the other plots.
"""

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from reports.files import written
from reports.plots import LOOK, STYLES

Series = Mapping[str, NDArray[np.float64]]


def cdfs(panels: Mapping[str, Series], title: str, path: Path) -> Path:
    """Write one panel for each entry of `panels`: its axis label, and the values of each source."""
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(4.6 * len(panels), 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for ax, (label, series) in zip(axes, panels.items(), strict=True):
            for (colour, _, line), (name, values) in zip(STYLES, series.items(), strict=False):
                share = np.arange(1, len(values) + 1) / len(values)
                ax.step(np.sort(values), share, where="post", color=colour, linestyle=line, label=name)
            ax.set_xlabel(label)
            ax.set_ylim(0, 1)
        axes[0].set_ylabel("share of requests")
        axes[0].legend(loc="lower right")
        figure.suptitle(title)
        with written(path) as temporary:
            figure.savefig(temporary, format="png", metadata={"Software": None})
    return path
