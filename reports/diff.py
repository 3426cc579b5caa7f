"""Compares two result sets setting by setting: what differs, by how much, and whether that says anything.

With repeats the same seeds are compared with each other (a seed makes the same workload for both), and the mean of these
differences has a 95 % confidence interval by Student's t: a difference is told where 0 lies outside. Without repeats there is no
chance in the runs: counts and bytes are exact, so any difference is one; times come from a model, and a difference smaller
than what that model was off by where it was measured is not told.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from reports.columns import column
from reports.limits import named
from reports.plots import words
from reports.table import SEED, read_sweep

FIGURES = (
    "hit_rate_tokens",
    "moved_bytes",
    "ttft_mean_s",
    "ttft_p99_s",
    "tpot_mean_s",
    "tpot_p99_s",
    "output_tokens_per_s",
)
TIME_ERROR = 0.01
"""Share of a time by which the model was off against a measured engine, at most, in mean and median (docs/vllm-profile.md)."""
T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t, 97.5 %, for 1 to 30 degrees of freedom: any table of it."""


@dataclass(frozen=True)
class Difference:
    """One figure at one setting: mean of A and of B, B - A, half the interval (None without repeats), what to make of it."""

    settings: str
    figure: str
    a: float
    b: float
    repeats: int
    half: float | None
    told: bool

    @property
    def difference(self) -> float:
        """B - A."""
        return self.b - self.a

    def verdict(self) -> str:
        """In words."""
        if self.difference == 0 and not self.half:
            return "same"
        if not self.told:
            return "not told apart" if self.half is not None else "within the model's error"
        return "better" if (self.difference > 0) == (column(self.figure).better == "higher") else "worse"


def compare(a: Path, b: Path, figures: Sequence[str] = ()) -> list[Difference]:
    """Every setting that both directories have, with each figure that both have."""
    left, right, keys, seeded = _paired(a, b)
    names = [named(left, name) for name in figures] or [
        name for name in FIGURES if all(name in f.columns and f[name].notna().any() for f in (left, right))
    ]
    both = left.merge(right, on=[*keys, *([SEED] if seeded else [])], suffixes=("", " of b"))
    if both.empty:
        raise ValueError(f"{a} and {b} have no setting in common ({', '.join(keys) or 'nothing varies'})")
    groups = both.groupby(keys, dropna=False, sort=False) if keys else [((), both)]
    return [
        _difference(words(rows, keys), name, rows[name].to_numpy(float), rows[f"{name} of b"].to_numpy(float))
        for _, rows in groups
        for name in names
    ]


def _paired(a: Path, b: Path) -> tuple[pd.DataFrame, pd.DataFrame, list[str], bool]:
    """The runs of both that did not fail, the settings that pair them, and whether seeds do too."""
    (left, about_a), (right, about_b) = read_sweep(a), read_sweep(b)
    left, right = (f[f["error"].isna()] if "error" in f.columns else f for f in (left, right))
    grids = [set(about.get("grid", {})) for about in (about_a, about_b)]
    for only, where in ((grids[0] - grids[1], a), (grids[1] - grids[0], b)):
        if only - {SEED}:
            raise ValueError(
                f"only {where} varies {', '.join(sorted(only - {SEED}))}; vary the same in both to pair runs"
            )
    keys = [key for key in about_a.get("grid", {}) if key != SEED]
    return left, right, keys, SEED in grids[0] and SEED in grids[1]


def _difference(settings: str, figure: str, a: Any, b: Any) -> Difference:
    valid = ~(np.isnan(a) | np.isnan(b))
    a, b = a[valid], b[valid]
    n = len(a)
    if n == 0:
        return Difference(settings, figure, math.nan, math.nan, 0, None, told=False)
    mean_a, mean_b = float(a.mean()), float(b.mean())
    if n == 1:
        small = column(figure).unit in {"s", "ms", "tokens/s"} and abs(mean_b - mean_a) <= TIME_ERROR * abs(mean_a)
        return Difference(settings, figure, mean_a, mean_b, 1, None, told=mean_a != mean_b and not small)
    half = t_975(n - 1) * float((b - a).std(ddof=1)) / math.sqrt(n)
    return Difference(settings, figure, mean_a, mean_b, n, half, told=abs(mean_b - mean_a) > half)


def t_975(freedom: int) -> float:
    """Student's t beyond which 2.5 % lie; above 30 degrees of freedom by its expansion around the normal's 1.96."""
    z = 1.959964
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def as_json(found: Sequence[Difference]) -> list[dict[str, Any]]:
    """Every difference, figures as stored."""
    return [{**vars(one), "difference": one.difference, "verdict": one.verdict()} for one in found]


def lines(found: Sequence[Difference], every: bool = False) -> Iterator[str]:
    """One line a difference, setting by setting, and what to make of their number. Without `every` only those told apart."""
    shown = [one for one in found if every or one.told]
    for setting in dict.fromkeys(one.settings for one in shown):
        yield f"{setting or 'the one setting'}:"
        yield from (f"    {_line(one)}" for one in shown if one.settings == setting)
    told, repeated = sum(one.told for one in found), [one for one in found if one.half is not None]
    yield f"{told} of {len(found)} differences told apart, in {len(dict.fromkeys(one.settings for one in found))} settings"
    if repeated:
        chance = 0.05 * len(repeated)
        yield f"95 % intervals over repeats: by chance alone {chance:.1f} of {len(repeated)} would be told apart"
    else:
        yield f"no repeats: counts are exact; times that differ by less than {TIME_ERROR:.0%} are not told apart"


def _line(one: Difference) -> str:
    known = column(one.figure)
    a, b, difference = (value / known.divisor for value in (one.a, one.b, one.difference))
    interval = "" if one.half is None else f" +- {one.half / known.divisor:.3g} ({one.repeats} seeds)"
    share = f", {one.difference / abs(one.a):+.1%}" if one.a else ""
    return f"{known.label}: {a:.4g} -> {b:.4g} {known.unit}, {difference:+.3g}{interval}{share}: {one.verdict()}"
