"""Draws one claim: how much the figure changes along a swept setting, filled where it is as claimed, hollow where not.

It reads a finding as `kvtier claims run --json` writes it and decides nothing.
"""

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator
from PIL import Image

from reports.columns import column, place_name
from reports.files import written
from reports.plots import LOOK, STYLES, new_page, shown

SIDES = ("base", "other", "change", "holds")
MOST_LINES = len(STYLES)


def plot_claim(finding: Mapping[str, Any], path: Path, along: str | None = None) -> Path:
    """Write the picture (PNG). `along`: the setting on the axis, by its name or the last part of it."""
    if path.suffix != ".png":
        raise ValueError(f"{path}: the plot is a PNG; give a name that ends in .png")
    pairs = pd.DataFrame(finding["pairs"]).dropna(subset=["change"])
    keys = [str(key) for key in pairs.columns if key not in SIDES]
    x = _axis(pairs, keys, along)
    lines = [key for key in keys if key != x]
    panel = _panel_key(pairs, lines)
    lines = [key for key in lines if key != panel]
    panels = [(None, pairs)] if panel is None else list(pairs.groupby(panel, sort=False))
    with mpl.rc_context(LOOK | {"figure.dpi": 110}):
        page = new_page(2.4 + 3.4 * len(panels), 4.4)
        grid = page.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, (value, rows) in zip(grid, panels, strict=True):
            _draw(axes, rows, x, lines)
            _marked(axes, finding["compare"])
            axes.set_xlabel(column(x).title)
            axes.set_title("" if value is None else setting(str(panel), value), fontsize=10)
        grid[0].set_ylabel(axis_words(finding))
        handles, labels = grid[0].get_legend_handles_labels()
        if any(labels):
            page.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
        page.suptitle(
            f"{_wrapped(str(finding['says']), 34 + 36 * len(panels))}\nfilled: as claimed; hollow: not", fontsize=10
        )
        _save(page, path)
    return path


def _save(page: Figure, path: Path) -> None:
    """In 64 colours: a third of the size, and no difference to see."""
    drawn = BytesIO()
    page.savefig(drawn, format="png")
    with Image.open(drawn) as picture, written(path) as temporary:
        picture.convert("RGB").quantize(64).save(temporary, format="PNG", optimize=True)


def axis_words(finding: Mapping[str, Any]) -> str:
    """What the change is of, and between which values."""
    compare = finding["compare"]
    figure = " / ".join(column(part).label for part in str(compare["figure"]).split("/"))
    if compare["key"] is None:
        return f"{figure} against {column(str(compare['against'])).label} (%)"
    key = column(str(compare["key"]))
    others = compare["other"] if isinstance(compare["other"], list) else [compare["other"]]
    other = shown(others[0]) if len(others) == 1 else "as drawn"
    return f"change of {figure} (%)\n{key.short or key.label} {other} against {words(compare['base'])}"


def words(value: Any) -> str:
    """A value of the compared key; what is not there is called so."""
    return "none" if value is None else shown(value)


def setting(key: str, value: Any) -> str:
    """One setting in words; a name speaks for itself."""
    if key in {"trace", "hardware", "model", "load"}:
        return place_name(key, str(value))
    return f"{column(key).short or column(key).label} {shown(value)}"


def _axis(pairs: pd.DataFrame, keys: Sequence[str], along: str | None) -> str:
    if along is not None:
        found = next((key for key in keys if along in {key, key.rsplit(".", maxsplit=1)[-1]}), None)
        if found is None:
            raise ValueError(f"{along} is not varied; there are {', '.join(keys)}")
        return found
    if not keys:
        raise ValueError("nothing is varied beside what is compared, so there is nothing to draw along")
    numbers = [key for key in keys if pd.api.types.is_numeric_dtype(pairs[key]) and pairs[key].dtype != bool]
    return max(numbers or keys, key=lambda key: pairs[key].nunique())


def _panel_key(pairs: pd.DataFrame, lines: Sequence[str]) -> str | None:
    """The setting that gets a panel a value, where one picture would hold too many lines: a numeric one if there is one."""
    count = pairs.groupby(list(lines), dropna=False).ngroups if lines else 1
    few = [key for key in lines if 1 < pairs[key].nunique() <= 4]
    if count <= MOST_LINES - 2 or not few:
        return None
    return max(few, key=lambda key: (pd.api.types.is_numeric_dtype(pairs[key]), pairs[key].nunique()))


def _draw(axes: Axes, rows: pd.DataFrame, x: str, lines: Sequence[str]) -> None:
    numeric = pd.api.types.is_numeric_dtype(rows[x]) and rows[x].dtype != bool
    places = sorted(rows[x].unique()) if numeric else list(dict.fromkeys(rows[x]))
    at = {value: (value if numeric else i) for i, value in enumerate(places)}
    parts = rows.groupby(list(lines), sort=False, dropna=False) if lines else [((), rows)]
    for (values, unsorted), (colour, marker, dashes) in zip(parts, itertools.cycle(STYLES), strict=False):
        part = unsorted.sort_values(x) if numeric else unsorted
        xs, ys = [at[value] for value in part[x]], (100 * part["change"]).to_list()
        name = ", ".join(setting(key, value) for key, value in zip(lines, values, strict=True))
        axes.plot(xs, ys, color=colour, linestyle=dashes, linewidth=1.2)
        axes.plot([], [], color=colour, marker=marker, linestyle=dashes, label=name or None)
        for a, b, holds in zip(xs, ys, part["holds"], strict=True):
            axes.plot(a, b, color=colour, marker=marker, markersize=7, markerfacecolor=colour if holds else "white")
    if numeric and min(places) > 0 and max(places) >= 8 * min(places):
        axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(at.values())))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
    names = {place: place_name(x, shown(value)) for value, place in at.items()}
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: names.get(value, f"{value:g}")))
    axes.tick_params(axis="x", labelrotation=0 if numeric and len(places) < 7 else 30)


def _marked(axes: Axes, compare: Mapping[str, Any]) -> None:
    """Where the claim begins to hold, and no change at all."""
    axes.axhline(0, color="0.5", linewidth=0.8)
    signs = {"higher": (1,), "not higher": (1,), "lower": (-1,), "not lower": (-1,), "same": (1, -1)}[compare["expect"]]
    bounds = {sign * compare["by"] for sign in signs}
    if compare["up_to"] is not None:
        bounds.add(signs[0] * compare["up_to"])
    for bound in bounds - {0}:
        axes.axhline(100 * bound, color="0.5", linewidth=0.8, linestyle=":")


def _wrapped(words: str, width: int) -> str:
    return "\n".join(textwrap.wrap(words, width))
