"""Turns a finished sweep into a choice: the Pareto plot, and the front as a table beside it."""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from reports.columns import column
from reports.files import written
from reports.plots import pareto_plot, words
from reports.table import read_sweep, require


@dataclass(frozen=True)
class Choice:
    """The files written, the front's rows (best x first) and the knee in words."""

    plot: Path
    table: Path
    front: pd.DataFrame
    knee: str


def choose(directory: Path, x: str, y: str, out: Path | None = None) -> Choice:
    """Plot `y` over `x` for every run of a sweep; write the front to a CSV of the same name."""
    frame, about = read_sweep(directory)
    plot = out or directory / f"pareto_{x}_{y}.png"
    if plot.suffix != ".png":
        raise ValueError(f"{plot}: the plot is a PNG; give a name that ends in .png")
    x, y = require(frame, x), require(frame, y)
    keys = [key for key in about.get("grid", {}) if key in frame.columns]
    front = pareto_plot(frame, x, y, keys, plot, title=str(about.get("trace", "")))
    table = plot.with_suffix(".csv")
    shown = front[[*keys, x, y, "knee", *(c for c in front.columns if c not in {*keys, x, y, "knee"})]]
    with written(table) as temporary:
        shown.to_csv(temporary, index=False, lineterminator="\n")
    best = front[front["knee"]]
    return Choice(plot, table, front, words(best, keys) if len(best) and keys else "")


def lines(choice: Choice, x: str, y: str) -> list[str]:
    """What to print: how many runs are in the front, and the knee's figures."""
    count = len(choice.front)
    text = [f"{count} {'run' if count == 1 else 'runs'} in the front"]
    for _, row in choice.front[choice.front["knee"]].iterrows():
        figures = ", ".join(f"{column(c).label} {row[c] / column(c).divisor:.4g} {column(c).unit}" for c in (x, y))
        text.append(f"knee: {choice.knee}: {figures}" if choice.knee else f"knee: {figures}")
    return text
