"""Turns a finished sweep into a choice: the Pareto plot, and the front as a table beside it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from reports.columns import column
from reports.files import written
from reports.front_plot import View, pareto_plot
from reports.limits import limits, named
from reports.plots import check_picture, words
from reports.table import averaged, nearest, read_sweep


@dataclass(frozen=True)
class Wish:
    """Two or three figures to choose by, what colour and shape say, limits; all as the user writes them."""

    x: str
    y: str
    z: str | None = None
    colour: str | None = None
    shape: str | None = None
    limits: Sequence[str] = ()


@dataclass(frozen=True)
class Choice:
    """The files written, the front's rows (best x first), the knee in words, and what is said of the whole."""

    plot: Path
    table: Path
    front: pd.DataFrame
    keys: Sequence[str]
    figures: Sequence[str]
    knee: str
    held: float | None
    within: int
    runs: int


def choose(directory: Path, wish: Wish, out: Path | None = None) -> Choice:
    """Plot the runs of a sweep by the figures of `wish`; write the front to a CSV of the same name."""
    frame, about = read_sweep(directory)
    plot = out or directory / f"pareto_{'_'.join(filter(None, (wish.x, wish.y, wish.z)))}.png"
    check_picture(plot)
    frame, keys = averaged(frame, about)
    view = View(
        named(frame, wish.x), named(frame, wish.y), named(frame, wish.z) if wish.z else None,
        _setting(frame, wish.colour), _setting(frame, wish.shape),
    )  # fmt: skip
    if view.z and view.colour:
        raise ValueError(f"colour shows the third figure, {wish.z}; leave --colour out or use --shape")
    kept = pd.Series(True, frame.index)
    for limit in limits(frame, wish.limits):
        kept &= limit.met(frame)
    if not kept.any():
        raise ValueError(f"none of {len(frame)} runs is within {', '.join(wish.limits)}")
    title = str(about.get("trace", ""))
    front = pareto_plot(frame[kept], view, keys, plot, title, frame[~kept] if wish.limits else None)
    table = plot.with_suffix(".csv")
    first = [*keys, *view.figures, "knee"]
    with written(table) as temporary:
        front.rows[[*first, *(c for c in front.rows.columns if c not in first)]].to_csv(
            temporary, index=False, lineterminator="\n"
        )
    best = front.rows[front.rows["knee"]]
    name = words(best, keys) if len(best) and keys else ""
    return Choice(plot, table, front.rows, keys, view.figures, name, front.held, int(kept.sum()), len(frame))


def _setting(frame: pd.DataFrame, name: str | None) -> str | None:
    if name is None or name in frame.columns:
        return name
    raise ValueError(f"no column {name}; {nearest(name, map(str, frame.columns))}")


def as_json(choice: Choice) -> dict[str, Any]:
    """The front with its settings and figures as stored, the knee, what is said of the whole."""
    names = [*choice.keys, *choice.figures, "knee"]
    rows = choice.front[names].astype(object)
    return {
        "front": rows.where(rows.notna(), None).to_dict("records"),
        "knee": choice.knee or None,
        "hypervolume": choice.held,
        "within": choice.within,
        "runs": choice.runs,
        "plot": str(choice.plot),
        "table": str(choice.table),
    }


def lines(choice: Choice) -> Iterator[str]:
    """What to print: how many runs are in the front and how much it holds, and the knee's figures."""
    count = len(choice.front)
    limited = f" of {choice.within} within the limits, {choice.runs} in all" if choice.within < choice.runs else ""
    yield f"{count} {'run' if count == 1 else 'runs'} in the front{limited}"
    if choice.held is not None:
        yield f"hypervolume: {choice.held:.1%} of the box from the best to the worst figures"
    for _, row in choice.front[choice.front["knee"]].iterrows():
        figures = ", ".join(
            f"{column(c).label} {row[c] / column(c).divisor:.4g} {column(c).unit}" for c in choice.figures
        )
        yield f"knee: {choice.knee}: {figures}" if choice.knee else f"knee: {figures}"
