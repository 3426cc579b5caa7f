"""Puts the sections of a page, its style and its drawing code into one HTML file. It knows nothing of what they show."""

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from reports.files import written

SCRIPTS = ("draw.js", "explore.js", "sections.js")
DIGITS = 6
"""Significant digits of a number on a page; the tables that a page was made from have all of them."""
Section = Mapping[str, Any]


def write_page(path: Path, title: str, lead: str, sections: Sequence[Section], made_by: str) -> Path:
    """Write the page, whole or not at all."""
    data = {"title": title, "lead": lead, "sections": sections, "made_by": made_by}
    assets = files("reports.page") / "assets"
    parts = {
        "title": escape(title),
        "style": assets.joinpath("page.css").read_text(encoding="utf-8"),
        "data": as_json(data),
        "script": "\n".join(assets.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS),
    }
    html = assets.joinpath("page.html").read_text(encoding="utf-8")
    for name, text in parts.items():
        before, _, after = html.partition(f"{{{name}}}")
        html = before + text + after
    with written(path) as temporary:
        temporary.write_text(html, encoding="utf-8")
    return path


def as_json(data: Any) -> str:
    """Compact JSON that may stand inside a script element: numbers rounded, no NaN, no `</`."""
    return (
        json.dumps(_plain(data), separators=(",", ":"), allow_nan=False).replace("</", "<\\/").replace("<!--", "<\\!--")
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if hasattr(value, "item"):  # a numpy scalar
        value = value.item()
    if isinstance(value, float):
        return _rounded(value) if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | bool) else str(value)


def _rounded(value: float) -> float | int:
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short
