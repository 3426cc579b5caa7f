"""Limits on a run's figures, as people write them: `ttft_p99<1s,tpot_p99<40ms,hit_rate_tokens>=30%`.

A figure is a column of the result table; its unit at the end of the name may be left out (`ttft_p99` is `ttft_p99_s`), as may
a dot instead of the underscore (`ttft_s.p99`). A value has a unit of time, size or share, or none: then the column's own.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from reports.columns import column
from reports.table import require

UNITS = {
    "s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3600.0,
    "B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "%": 0.01,
}  # fmt: skip
PATTERN = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(<=|>=|<|>)\s*([-+0-9.eE]+)\s*([A-Za-z%]*)\s*")


@dataclass(frozen=True)
class Limit:
    """One limit: the column's full name, `<`, `<=`, `>` or `>=`, and the value in the column's stored unit."""

    column: str
    sign: str
    value: float

    def met(self, frame: pd.DataFrame) -> "pd.Series[bool]":
        """Which rows keep it; a row without the figure does not."""
        figures = frame[self.column].astype(float)
        kept = {
            "<": figures < self.value,
            "<=": figures <= self.value,
            ">": figures > self.value,
            ">=": figures >= self.value,
        }[self.sign]
        return kept.fillna(False).astype(bool)

    def margin(self, figure: float) -> float:
        """How far on the right side of the limit, as a share of the limit; below 0 on the wrong side."""
        distance = self.value - figure if "<" in self.sign else figure - self.value
        return distance / abs(self.value) if self.value else distance

    def words(self) -> str:
        """The limit as a person reads it: figure, sign, value in the shown unit."""
        shown = column(self.column)
        return f"{shown.label} {self.sign} {self.value / shown.divisor:.4g} {shown.unit}".rstrip()


def limits(frame: pd.DataFrame, words: Sequence[str]) -> list[Limit]:
    """All limits in `words`, each of which may hold several with commas between; unknown columns name the near ones."""
    return [_limit(frame, part) for word in words for part in word.split(",") if part.strip()]


def _limit(frame: pd.DataFrame, text: str) -> Limit:
    found = PATTERN.fullmatch(text)
    if found is None:
        raise ValueError(f"limit {text.strip()!r}: write FIGURE<VALUE with <, <=, > or >=, as in ttft_p99<1s")
    name, sign, number, unit = found.groups()
    try:
        value = float(number)
    except ValueError:
        raise ValueError(f"limit {text.strip()!r}: {number} is no number") from None
    if unit and unit not in UNITS:
        raise ValueError(f"limit {text.strip()!r}: unit {unit} is not known; known units: {', '.join(UNITS)}")
    return Limit(named(frame, name), sign, value * UNITS.get(unit, 1.0))


def named(frame: pd.DataFrame, name: str) -> str:
    """The full name of a numeric column from what people write: `ttft_p99`, `ttft_s.p99`, `ttft_p99_s`."""
    figure, _, which = name.partition(".")
    dotted = f"{figure.removesuffix('_s')}_{which}_s" if which and figure.endswith("_s") else name
    for candidate in (name, dotted, f"{name}_s", f"{name}_bytes"):
        if candidate in frame.columns:
            return require(frame, candidate)
    return require(frame, name)
