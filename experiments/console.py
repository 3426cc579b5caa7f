"""Prints results: tables with units to stdout, notes to stderr once each, JSON to a file or stdout."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from reports.columns import COLUMNS, column, flat
from reports.files import written

CONFIG = ("tokens_per_block", "secondary_offload_min_priority")
FIRST = ("requests", "prompt_tokens", "output_tokens")
LAST = ("events_per_s", "wall_s")
HIDDEN = ("notes", "version", "worker", "hit_tokens", "moved_bytes")


def say(text: str) -> None:
    """One line to stdout."""
    Console(soft_wrap=True, highlight=False).print(text, markup=False)


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


def summary(row: Mapping[str, Any]) -> None:
    """One run as a table: every figure with its unit; figures that were not measured are left out."""
    config = row["spec"]["kv_cache_config"]
    line = {**flat(row), **{name: config[name] for name in CONFIG}}
    names = [*CONFIG, *FIRST, *(name for name in line if name not in {*CONFIG, *FIRST, *LAST, *HIDDEN}), *LAST]
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for name in names:
        if line.get(name) is not None and not isinstance(line[name], str | list):
            known = column(name)
            table.add_row(known.label, number(line[name], known.divisor), known.unit)
    Console().print(table)


def curve_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Hit rates over capacities, one line a point."""
    table = Table(box=None, pad_edge=False)
    for title in ("policy", "capacity (blocks)", "host (blocks)", "hit rate (% of blocks)", "of prompt tokens (%)"):
        table.add_column(title, justify="left" if title == "policy" else "right")
    for row in rows:
        capacity = "all" if row["capacity_blocks"] is None else number(row["capacity_blocks"])
        rates = (number(row[name], COLUMNS[name].divisor) for name in ("hit_rate_blocks", "hit_rate_tokens"))
        table.add_row(row["policy"], capacity, number(row["host_capacity_blocks"]), *rates)
    Console().print(table)


def check_target(target: str | None) -> None:
    """Refuse a JSON file that could not be written, before a long run rather than after it."""
    if target not in {None, "-"}:
        path = Path(str(target))
        if path.is_dir():
            raise ValueError(f"--json {target}: is a directory; name a file in it")
        path.parent.mkdir(parents=True, exist_ok=True)


def write_json(value: Any, target: str) -> None:
    """As JSON to a file, whole or not at all, or to stdout for `-`."""
    text = json.dumps(value, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
        return
    with written(Path(target)) as path:
        path.write_text(text, encoding="utf-8")
