"""Picks one configuration of a sweep: it keeps the limits, costs least, and the words say why, what else there was, how sure.

    runs that keep every limit  →  the cheapest by the first preference, ties (within 1 %) by the next  →  one
    without limits and preferences: the knee of hit rate against traffic, where more traffic begins to buy little

It reads the table only. Rows that differ in their seed alone are one configuration: it keeps a limit if all of them do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from reports import pareto
from reports.columns import column
from reports.limits import Limit, limits, named
from reports.plots import words

SEED = "seed"
EQUAL = 0.01
"""Figures that differ by less than this share count as equal when the cheapest is looked for."""
WITHOUT_LIMITS = ("moved_bytes", "hit_rate_tokens")


@dataclass(frozen=True)
class Preference:
    """A figure to have low or high."""

    column: str
    high: bool

    def words(self) -> str:
        """As in `lowest moved between GPU and host`."""
        return f"{'highest' if self.high else 'lowest'} {column(self.column).label}"


@dataclass(frozen=True)
class Advice:
    """The chosen configuration and what it was chosen from. Rows are means over seeds; `spread` is over them."""

    frame: pd.DataFrame
    keys: list[str]
    limits: list[Limit]
    prefer: list[Preference]
    chosen: "pd.Series[float]"
    next: "pd.Series[float] | None"
    keeping: int
    nearest: "pd.Series[float] | None"
    seeds: int

    def margins(self, known_error: float) -> list[tuple[float, float]]:
        """For each limit: the distance to it and how much the figure may be off, both as shares of the limit.

        `known_error` is that of modelled times; counts are exact, so their doubt is the range over seeds.
        """
        pairs = []
        for limit in self.limits:
            timed = limit.column.endswith("_s")
            spread = float(self.chosen[f"spread {limit.column}"])
            doubt = max(known_error, spread) if timed else spread
            pairs.append((limit.margin(float(self.chosen[f"worst {limit.column}"])), doubt))
        return pairs

    @property
    def spread(self) -> float:
        """The widest range over seeds of a figure with a limit, as a share of its mean."""
        return max((float(self.chosen[f"spread {limit.column}"]) for limit in self.limits), default=0.0)


def recommend(frame: pd.DataFrame, keys: Sequence[str], slo: Sequence[str], prefer: Sequence[str]) -> Advice:
    """The choice; ValueError naming the nearest run where none keeps the limits."""
    rows = frame[frame["error"].isna()] if "error" in frame.columns else frame
    if {"host_blocks", "block_bytes"} <= set(rows.columns):
        rows = rows.assign(host_bytes=rows["host_blocks"] * rows["block_bytes"])
    wanted = limits(rows, slo)
    configurations = _over_seeds(rows, [key for key in keys if key != SEED], wanted)
    varied = [key for key in keys if key != SEED]
    kept = np.ones(len(configurations), bool)
    for limit in wanted:
        kept &= limit.met(configurations.assign(**{limit.column: configurations[f"worst {limit.column}"]})).to_numpy()
    if not kept.any():
        raise ValueError(_nobody(configurations, wanted, varied))
    preferences = [_preference(rows, text) for text in prefer] or _default(rows, bool(wanted))
    order = _ordered(configurations[kept], preferences, wanted)
    chosen = order[0]
    other = next((row for row in order[1:] if not _same(row, chosen, preferences, wanted)), None)
    failing = configurations[~kept]
    cheaper = [row for row in _ordered(failing, preferences, wanted) if _cheaper(row, chosen, preferences)]
    nearest = max(cheaper, key=lambda row: _least_margin(row, wanted), default=None)
    seeds = int(rows[SEED].nunique()) if SEED in keys else 1
    return Advice(configurations, varied, wanted, preferences, chosen, other, int(kept.sum()), nearest, seeds)


def _over_seeds(rows: pd.DataFrame, keys: list[str], wanted: Sequence[Limit]) -> pd.DataFrame:
    """One row a configuration: the mean of each figure, and of those with limits the worst and the spread."""
    numbers = [str(name) for name in rows.select_dtypes("number").columns if name not in keys]
    parts = [rows] if not keys else [part for _, part in rows.groupby(keys, dropna=False, sort=False)]
    made = []
    for part in parts:
        one: dict[str, Any] = {key: part[key].iloc[0] for key in keys}
        one |= dict(part[numbers].mean()) | {"run": int(part["run"].iloc[0])}
        for limit in wanted:
            figures = part[limit.column].astype(float)
            one[f"worst {limit.column}"] = figures.max() if "<" in limit.sign else figures.min()
            one[f"spread {limit.column}"] = (
                (figures.max() - figures.min()) / abs(figures.mean()) if len(part) > 1 else 0.0
            )
        made.append(one)
    return pd.DataFrame(made)


def _preference(frame: pd.DataFrame, text: str) -> Preference:
    name, _, end = text.partition(":")
    full = named(frame, name.strip())
    if end not in {"", "min", "max"}:
        raise ValueError(f"preference {text!r}: write FIGURE:min or FIGURE:max")
    return Preference(full, end == "max" or (not end and column(full).better == "higher"))


def _default(frame: pd.DataFrame, limited: bool) -> list[Preference]:
    """With limits: the least pinned host memory, then the least traffic, then the best hit rate. Without: the knee."""
    if not limited:
        return []
    costs = [name for name in ("host_bytes", "moved_bytes") if name in frame.columns and _varies(frame[name])]
    return [*(Preference(name, high=False) for name in costs), Preference("hit_rate_tokens", high=True)]


def _varies(figures: "pd.Series[float]") -> bool:
    return bool(figures.max() - figures.min() > EQUAL * abs(figures.max()))


def _ordered(
    rows: pd.DataFrame, preferences: Sequence[Preference], wanted: Sequence[Limit]
) -> list["pd.Series[float]"]:
    """Best first. Without preferences the knee comes first, then the front's others by their distance to it."""
    if rows.empty:
        return []
    if not preferences:
        return _by_knee(rows)
    left, order = rows, []
    while len(left):
        candidates = left
        for preference in preferences:
            figures = candidates[preference.column].astype(float)
            best = figures.max() if preference.high else figures.min()
            candidates = candidates[(figures - best).abs() <= EQUAL * max(abs(best), 1e-12)]
        margins = [_least_margin(row, wanted) for _, row in candidates.iterrows()]
        order.append(candidates.iloc[int(np.argmax(margins))])
        left = left.drop(index=order[-1].name)
    return order


def _by_knee(rows: pd.DataFrame) -> list["pd.Series[float]"]:
    x, y = (rows[named(rows, name)].to_numpy(dtype=np.float64) for name in WITHOUT_LIMITS)
    costs = pareto.costs([x, y], [column(name).better for name in WITHOUT_LIMITS])
    front = pareto.front(costs)
    bend = pareto.knee(costs, front)
    best = bend if bend is not None else int(np.flatnonzero(front)[np.argmin(costs[front, 1])])
    span = np.ptp(costs, axis=0)
    distance = np.abs((costs - costs[best]) / np.where(span > 0, span, 1)).sum(axis=1) + 10.0 * ~front
    return [rows.iloc[int(i)] for i in np.argsort(distance, kind="stable")]


def _least_margin(row: "pd.Series[float]", wanted: Sequence[Limit]) -> float:
    return min((limit.margin(float(row[f"worst {limit.column}"])) for limit in wanted), default=0.0)


def _same(
    row: "pd.Series[float]", other: "pd.Series[float]", preferences: Sequence[Preference], wanted: Sequence[Limit]
) -> bool:
    """Both have the same figures in all that matters."""
    names = [
        *(p.column for p in preferences),
        *(limit.column for limit in wanted),
        *(() if preferences else WITHOUT_LIMITS),
    ]
    return all(bool(np.isclose(row[name], other[name], rtol=1e-9)) for name in names)


def _cheaper(row: "pd.Series[float]", chosen: "pd.Series[float]", preferences: Sequence[Preference]) -> bool:
    if not preferences:
        return False
    first = preferences[0]
    gain = float(row[first.column]) - float(chosen[first.column])
    return (gain if first.high else -gain) > EQUAL * abs(float(chosen[first.column]))


def _nobody(rows: pd.DataFrame, wanted: Sequence[Limit], keys: list[str]) -> str:
    margins = [_least_margin(row, wanted) for _, row in rows.iterrows()]
    best = rows.iloc[int(np.argmax(margins))]
    worst = min(wanted, key=lambda limit: limit.margin(float(best[f"worst {limit.column}"])))
    figure = float(best[f"worst {worst.column}"]) / column(worst.column).divisor
    return (
        f"no run keeps {', '.join(limit.words() for limit in wanted)}; the nearest, {_named(best, keys)},"
        f" has {column(worst.column).label} {figure:.4g} {column(worst.column).unit}:"
        " relax the limit, or sweep more memory, more workers or a lower rate"
    )


def _named(row: "pd.Series[float]", keys: Sequence[str]) -> str:
    return words(pd.DataFrame([row]), list(keys)) or f"run {int(row['run'])}"


def _figure(row: "pd.Series[float]", name: str) -> str:
    shown = column(name)
    return f"{shown.label} {float(row[name]) / shown.divisor:.4g} {shown.unit}".rstrip()


def sentences(advice: Advice, known_error: float) -> list[str]:
    """Why this one, what the runner-up loses, what cheaper ones miss, how sure it is."""
    chosen, keys = advice.chosen, advice.keys
    names = [p.column for p in advice.prefer] or list(WITHOUT_LIMITS)
    shown = dict.fromkeys([*names, *(limit.column for limit in advice.limits)])
    said = [f"{_named(chosen, keys)}: {', '.join(_figure(chosen, name) for name in shown)}.", _why(advice)]
    if advice.next is not None:
        compared = ", ".join(_against(advice.next, chosen, name) for name in names)
        said.append(f"The runner-up, {_named(advice.next, keys)}, has {compared}.")
    if advice.nearest is not None:
        row = advice.nearest
        missed = min(advice.limits, key=lambda limit: limit.margin(float(row[f"worst {limit.column}"])))
        figure = _figure(row, missed.column)
        said.append(f"The cheaper {_named(row, keys)} misses {missed.words()}: {figure}.")
    return [*said, how_sure(advice, known_error)]


def _why(advice: Advice) -> str:
    count, wish = len(advice.frame), ", then ".join(p.words() for p in advice.prefer)
    if advice.limits:
        kept = ", ".join(limit.words() for limit in advice.limits)
        return f"{advice.keeping} of {count} configurations keep {kept}; of these it has the {wish}."
    if advice.prefer:
        return f"Of {count} configurations it has the {wish}."
    return f"Of {count} configurations it is the knee: beyond it more traffic buys few hits."


def _against(row: "pd.Series[float]", chosen: "pd.Series[float]", name: str) -> str:
    """One figure of a row beside the chosen one's: in percent of it, or as it is where that one is 0."""
    mine, base = float(row[name]), float(chosen[name])
    if mine == base:
        return f"the same {column(name).label}"
    if base == 0:
        return _figure(row, name)
    return f"{100 * (mine / base - 1):+.1f} % {column(name).label}"


def how_sure(advice: Advice, known_error: float) -> str:
    """The distance to the nearest limit beside the spread over seeds and the model's own error."""
    over = "one seed, so its spread is unknown"
    if advice.seeds > 1:
        over = f"{advice.seeds} seeds spread its figures by {100 * advice.spread:.1f} %"
    times = f"times in this model are good to about {100 * known_error:.0f} %"
    if not advice.limits:
        return f"How sure: no limit to miss; {over}; {times}."
    margins = advice.margins(known_error)
    nearest = min(margin for margin, _ in margins)
    safe = all(margin > doubt for margin, doubt in margins)
    verdict = "NOT enough: treat it as a coin toss, or sweep closer"
    if safe:
        verdict = "enough" if advice.seeds > 1 else "enough for this very trace; --check tries others"
    return f"How sure: {100 * nearest:.0f} % to the nearest limit; {over}; {times}: {verdict}."
