"""Draws one page about a trace: load, lengths, what is found again, and what a cache has to hold for it.

It takes the figures of `kvtier trace stats --json` and computes nothing. Every axis says what it shows and in which unit.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from reports.plots import LOOK, save

BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "0.6"
QUANTILES = ("p50", "p90", "p99", "max")


def draw(row: Mapping[str, Any], path: Path) -> None:
    """One page as PNG; `row` is what `trace stats` measured."""
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(11, 8.5), layout="constrained")
        FigureCanvasAgg(figure)
        share = 100 * row["hit_token_share"]
        figure.suptitle(
            f"{row['source']}: {row['requests']:,} requests, {row['input_tokens']:,} prompt tokens; "
            f"a cache without limit finds {share:.1f} % of them",
            fontsize=12,
        )
        axes = figure.subplots(2, 2)
        line = row["timeline"]
        x, unit = _times(line["start_s"])
        _load(axes[0, 0], x, unit, line)
        _lengths(axes[0, 1], row)
        _found(axes[1, 0], x, unit, line)
        _held(axes[1, 1], x, unit, line, row["unit_tokens"])
        save(figure, path)


def _times(start_s: list[float]) -> tuple[np.ndarray[Any, np.dtype[np.float64]], str]:
    """Middles of the stretches in a unit that suits their span."""
    starts = np.array(start_s)
    width = starts[1] - starts[0] if len(starts) > 1 else 1.0
    middles = starts + width / 2
    for seconds, name in ((2 * 86_400, "days"), (2 * 3_600, "hours"), (120, "minutes")):
        if len(starts) and starts[-1] > seconds:
            return middles / {"days": 86_400, "hours": 3_600, "minutes": 60}[name], name
    return middles, "seconds"


def _axis(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(bottom=0)


def _load(axes: Axes, x: Any, unit: str, line: Mapping[str, Any]) -> None:
    width_s = line["start_s"][1] - line["start_s"][0] if len(line["start_s"]) > 1 else 1.0
    axes.step(x, np.array(line["prompt_tokens"]) / width_s, where="mid", color=BLUE)
    _axis(axes, "Load", f"time ({unit})", "prompt tokens per second")
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))


def _lengths(axes: Axes, row: Mapping[str, Any]) -> None:
    place = np.arange(len(QUANTILES))
    for shift, name, label, color in (
        (-0.2, "prompt_tokens", "prompt", BLUE),
        (0.2, "generated_tokens", "output", ORANGE),
    ):
        values = [row[name][q] for q in QUANTILES]
        bars = axes.bar(place + shift, values, 0.38, color=color, label=label)
        axes.bar_label(bars, [f"{v:,.0f}" for v in values], fontsize=8, padding=1)
    axes.set_xticks(place, ["half", "90 %", "99 %", "all"])
    axes.set_yscale("symlog", linthresh=1)
    axes.set_title("Lengths", loc="left", fontsize=11)
    axes.set_xlabel("of the requests are no longer than")
    axes.set_ylabel("tokens (log scale)")
    axes.margins(y=0.12)
    axes.legend(loc="upper left")


def _found(axes: Axes, x: Any, unit: str, line: Mapping[str, Any]) -> None:
    prompt, hit = np.array(line["prompt_tokens"], float), np.array(line["hit_tokens"], float)
    some = prompt > 0
    axes.plot(x[some], 100 * hit[some] / prompt[some], color=BLUE, marker=".", linewidth=1, label="in each stretch")
    whole = 100 * np.cumsum(hit) / np.maximum(np.cumsum(prompt), 1)
    axes.plot(x[some], whole[some], color=ORANGE, linestyle="--", label="since the start")
    _axis(axes, "Found again by a cache without limit", f"time ({unit})", "% of prompt tokens (more is better)")
    axes.set_ylim(0, 100)
    axes.legend(loc="best")


def _held(axes: Axes, x: Any, unit: str, line: Mapping[str, Any], block_tokens: int) -> None:
    axes.plot(x, line["unique_blocks"], color=GREY, linestyle="--", label="everything seen so far")
    axes.plot(x, line["working_set_blocks"], color=BLUE, label="used before and used again later")
    _axis(axes, "What the cache has to hold", f"time ({unit})", f"blocks of {block_tokens} tokens")
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.legend(loc="best")
