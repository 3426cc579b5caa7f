"""Draws clusters: what a GPU gives against what each user gets, and what late KV events do to a router.

It decides nothing and writes PNG files, as `reports.plots` does, in the same colours.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reports.plots import LOOK, STYLES, save

Curve = Sequence[tuple[float, float]]


def pace_plot(curves: Mapping[str, Curve], path: Path, title: str = "") -> None:
    """Tokens a second and GPU over tokens a second and user, one line a way of serving; up and right is better."""
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for (name, curve), (colour, marker, line) in zip(curves.items(), STYLES, strict=False):
            axes.plot(*zip(*sorted(curve), strict=True), color=colour, marker=marker, linestyle=line, label=name)
        axes.set_xlabel("for each user (tokens/s), higher is better")
        axes.set_ylabel("for each GPU (tokens/s), higher is better")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_title(title)
        axes.legend()
        save(figure, path)


def delay_plot(rows: Sequence[Mapping[str, Any]], path: Path, title: str = "") -> None:
    """Hit rate and mean time to first token over the delay of KV events, one line a router.

    `rows`: router, delay_s, hit_rate_tokens, ttft_mean_s. A router with one row, which reads no events, is a level line.
    """
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(8.4, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(1, 2)
        wanted = (
            ("hit_rate_tokens", 100.0, "found in a cache (% of prompt tokens),\nhigher is better"),
            ("ttft_mean_s", 1.0, "mean time to first token (s),\nlower is better"),
        )
        routers = list(dict.fromkeys(str(row["router"]) for row in rows))
        for axes, (column, factor, words) in zip(panels, wanted, strict=True):
            for router, (colour, marker, line) in zip(routers, STYLES, strict=False):
                mine = sorted((row["delay_s"], row[column] * factor) for row in rows if row["router"] == router)
                if len(mine) == 1 and len(rows) > len(routers):
                    axes.axhline(mine[0][1], color=colour, linestyle=line, label=router)
                else:
                    axes.plot(*zip(*mine, strict=True), color=colour, marker=marker, linestyle=line, label=router)
            axes.set_xscale("symlog", linthresh=0.1)
            axes.set_ylim(0, 1.05 * max(row[column] * factor for row in rows) or 1)
            axes.set_xlabel("KV events are late by (s)")
            axes.set_ylabel(words)
        panels[0].legend()
        figure.suptitle(title)
        save(figure, path)
