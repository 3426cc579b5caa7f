"""Prints results: tables with units to stdout, notes to stderr once each, JSON to a file or stdout."""

import itertools
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from reports.columns import BY_PRIORITY, COLUMNS, GROUPS, TIMES, column, flat
from reports.files import written

CONFIG = ("tokens_per_block", "secondary_offload_min_priority")
SPREADS = ("ttft", "tpot", "e2e")
QUANTILES = ("mean", "p50", "p90", "p99")
SPREAD = ("mean", "p50", "p90", "p99", "max")
WIDTH = 104
ALWAYS = ("secondary_offload_min_priority", "hit_rate_tokens", "hit_rate_blocks")
"""Shown even when it is 0."""


def say(text: str) -> None:
    """One line to stdout."""
    Console(soft_wrap=True, highlight=False).print(text, markup=False)


def tell(value: Any, lines: Iterable[object], target: str | None) -> None:
    """A result for people, a line each, and as JSON: to a file beside the lines, or with `-` in their place."""
    if target is not None:
        write_json(without_nan(value), target)
    if target != "-":
        for line in lines:
            sys.stdout.write(f"{line}\n")
    if target not in {None, "-"}:
        sys.stdout.write(f"{target}\n")


def note(notes: Iterable[str]) -> None:
    """Each note once, to stderr."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    for text in dict.fromkeys(notes):
        console.print(f"note: {text}", markup=False)


def number(value: Any, divisor: float = 1) -> str:
    """A figure for people: thousands apart, four digits where it is not whole."""
    if value is None:
        return "none"
    if isinstance(value, bool | str):
        return str(value)
    shown = value / divisor if divisor != 1 else value
    if isinstance(shown, int) or float(shown).is_integer():
        return f"{int(shown):,}"
    return f"{shown:,.1f}" if abs(shown) >= 1000 else f"{shown:.4g}"


def heading(text: str) -> None:
    """A line that begins a part of the output."""
    Console(soft_wrap=True, highlight=False).print(f"\n{text}\n{'-' * len(text)}", markup=False)


def summary(row: Mapping[str, Any]) -> None:
    """One run as groups of figures with units; what was not measured and what never happened is left out."""
    config = row["spec"]["kv_cache_config"]
    line = {**flat(row), **{name: config[name] for name in CONFIG}}
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for justify in ("left", "left", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    for title, wanted in GROUPS.items():
        names = [
            name for want in wanted for name in line if name == want or (want[-1] == "_" and name.startswith(want))
        ]
        lines = dict.fromkeys(_line(name, line) for name in names)
        for group, shown in zip(itertools.chain([title], itertools.repeat("")), filter(None, lines), strict=False):
            table.add_row(group, *shown)
    console = Console()
    console.width = max(console.width, WIDTH)
    console.print(table)


def figures(lines: Sequence[tuple[str, str, str, str]]) -> None:
    """Groups of figures: group, label, figure, unit; a group is named on its first line only."""
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for justify in ("left", "left", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    for line in lines:
        table.add_row(*line)
    console = Console()
    console.width = max(console.width, WIDTH)
    console.print(table)


def spreads(lines: Sequence[tuple[str, Any]]) -> None:
    """Mean, quantiles and largest of some amounts, one line each."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for title in SPREAD:
        table.add_column(title, justify="right", no_wrap=True)
    for label, spread in lines:
        values = (getattr(spread, name) for name in SPREAD)
        table.add_row(label, *(f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values))
    Console().print(table)


def without_nan(value: Any) -> Any:
    """The same with null for figures that do not exist: JSON has no NaN."""
    if isinstance(value, Mapping):
        return {key: without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _line(name: str, line: Mapping[str, Any]) -> tuple[str, str, str] | None:
    """Label, figure and unit. Mean and quantiles of one time share a line, as do the fates of one priority."""
    value = line[name]
    if value is None or isinstance(value, str | list) or (value == 0 and name not in ALWAYS):
        return None
    kind = name.partition("_")[0]
    if kind in SPREADS and name not in COLUMNS:
        values = [line[f"{kind}_{which}_s"] for which in QUANTILES]
        divisor, unit = (0.001, "ms") if values[0] < 1 else (1, "s")
        figures = " / ".join(f"{seconds / divisor:,.3g}" for seconds in values)
        return TIMES[kind], figures, f"{unit} ({' / '.join(QUANTILES)})"
    stem = next((stem for stem in BY_PRIORITY if name.startswith(stem)), None)
    if stem is not None:
        priority = name.removeprefix(stem)
        fates = " / ".join(number(line.get(f"{fate}{priority}", 0)) for fate in BY_PRIORITY)
        return f"priority {priority}: out / back / dropped", fates, "blocks"
    known = column(name)
    if known.unit == "s" and 0 < value < 1:
        return known.label, number(value, 0.001), "ms"
    return known.label.removeprefix("misses, "), number(value, known.divisor), known.unit


def curve_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Hit rates over capacities, one line a point; head-room where a bound is among the rows."""
    table = Table(box=None, pad_edge=False)
    bounded = any("headroom" in row for row in rows)
    tiered = any(row["host_capacity_blocks"] for row in rows)
    titles = ["policy", "capacity (blocks)", "host (blocks)", "hit rate (% of blocks)", "of prompt tokens (%)"]
    titles += ["copied to the host (blocks)", "and back"] * tiered
    for title in titles + ["of LRU's head-room (%)"] * bounded:
        table.add_column(title, justify="left" if title == "policy" else "right")
    for row in rows:
        capacity = "all" if row["capacity_blocks"] is None else number(row["capacity_blocks"])
        known = [(row[name], COLUMNS[name].divisor) for name in ("hit_rate_blocks", "hit_rate_tokens")]
        rates = ["" if value is None else number(value, divisor) for value, divisor in known]
        if "hit_rate_blocks_error" in row:
            rates[0] += f" ± {100 * row['hit_rate_blocks_error']:.2g}"
        used = [number(100 * row["headroom"]) if "headroom" in row else ""] * bounded
        copied = ["" if row["copied_down"] is None else number(value) for value in _copied(row)] if tiered else []
        table.add_row(row["policy"], capacity, number(row["host_capacity_blocks"]), *rates, *copied, *used)
    Console().print(table)


def _copied(row: Mapping[str, Any]) -> tuple[Any, Any]:
    return row["copied_down"], row["hit_blocks_by_tier"]["cold"]


def plain_table(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Columns of text, the first to the left and the others to the right."""
    table = Table(box=None, pad_edge=False)
    for at, title in enumerate(titles):
        table.add_column(title, justify="left" if at == 0 else "right", no_wrap=at == 0)
    for line in lines:
        table.add_row(*line)
    console = Console()
    console.width = max(console.width, WIDTH)
    console.print(table)


def _item(value: Any) -> Any:
    """A number of numpy's as Python's."""
    return value.item()


def check_target(target: str | None) -> None:
    """Refuse a JSON file that could not be written, before a long run rather than after it."""
    if target not in {None, "-"}:
        path = Path(str(target))
        if path.is_dir():
            raise ValueError(f"--json {target}: is a directory; name a file in it")
        path.parent.mkdir(parents=True, exist_ok=True)


def write_json(value: Any, target: str) -> None:
    """As JSON to a file, whole or not at all, or to stdout for `-`."""
    text = json.dumps(value, indent=2, default=_item) + "\n"
    if target == "-":
        sys.stdout.write(text)
        return
    with written(Path(target)) as path:
        path.write_text(text, encoding="utf-8")
