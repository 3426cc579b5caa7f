"""The sections that pages are made of, as plain data. Each `kind` has a function of that name in assets/*.js."""

from collections.abc import Mapping, Sequence
from typing import Any

from reports.columns import GROUPS, Column, column

Section = dict[str, Any]


def described(name: str, *, number: bool = True) -> dict[str, Any]:
    """One column as the page's code reads it."""
    shown = column(name)
    return {
        "name": name,
        "label": shown.label,
        "short": shown.short or shown.label,
        "unit": shown.unit,
        "divisor": shown.divisor,
        "better": shown.better,
        "group": heading(name),
        "number": number,
    }


def plain(label: str, unit: str = "", divisor: float = 1, *, number: bool = True, log: bool = False) -> dict[str, Any]:
    """A column that is not one of a run's figures."""
    shown = Column(label, unit, divisor)
    return {"label": shown.label, "unit": unit, "divisor": divisor, "number": number, "log": log}


def heading(name: str) -> str:
    """Under which heading of a run's table a column stands; "" for a setting."""
    for group, members in GROUPS.items():
        if any(name == member or (member.endswith("_") and name.startswith(member)) for member in members):
            return group
    return "traffic" if name == "moved_bytes" else ""


def facts(title: str, pairs: Mapping[str, Any] | Sequence[tuple[str, Any]], lead: str = "") -> Section:
    """Two columns: what, and its value."""
    rows = list(pairs.items()) if isinstance(pairs, Mapping) else list(pairs)
    return {"kind": "facts", "title": title, "lead": lead, "rows": rows}


def listing(title: str, columns: Sequence[Mapping[str, Any]], rows: Sequence[Sequence[Any]], lead: str = "") -> Section:
    """A table."""
    return {"kind": "listing", "title": title, "lead": lead, "columns": columns, "rows": rows}


def text(title: str, lines: Sequence[str]) -> Section:
    """Paragraphs."""
    return {"kind": "text", "title": title, "lines": lines}


def source(title: str, summary: str, words: str) -> Section:
    """A text to unfold: a specification, a configuration."""
    return {"kind": "source", "title": title, "summary": summary, "text": words}


def lines(
    title: str, x: Mapping[str, Any], y: Mapping[str, Any], series: Sequence[Mapping[str, Any]], lead: str = ""
) -> Section:
    """Curves or points: `series` have a `name` and `points`, pairs of numbers in stored units."""
    return {"kind": "lines", "title": title, "lead": lead, "x": x, "y": y, "series": series}


def bars(
    title: str,
    shown: Mapping[str, Any],
    parts: Sequence[str],
    rows: Sequence[tuple[str, Sequence[float]]],
    bound: tuple[str, float] | None = None,
    note: str = "",
) -> Section:
    """Stacked bars, one a row; `bound` is a line across them."""
    return {
        "kind": "bars",
        "title": title,
        "column": shown,
        "parts": parts,
        "rows": [{"name": name, "parts": list(values)} for name, values in rows],
        "bound": bound and {"label": bound[0], "value": bound[1]},
        "note": note,
    }


def dotted(tree: Any, prefix: str = "") -> dict[str, Any]:
    """A nested specification as one level of `a.b.c` names; lists stay values."""
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    flat: dict[str, Any] = {}
    for name, inner in tree.items():
        flat |= dotted(inner, f"{prefix}.{name}" if prefix else str(name))
    return flat
