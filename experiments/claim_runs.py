"""Runs claims and looks at what the runs say: pairs, and the verdict that follows from them.

Two runs that differ in the compared key alone are a pair; without a key, two figures of one run are. The claim holds for a pair
when the second figure is higher (lower, the same) by at least the share that it names. All pairs: confirmed; some: confirmed
under conditions; none: contradicted by model. The verdict in the file must be the one that the runs give (contradicted by source
where the source says so too): nobody can state another, and no parameter was chosen to reach it, because the swept keys
show where the claim holds and where it fails.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.claiming import CONDITIONS, CONFIRMED, MODEL, SOURCE, Claim, Compare, claims
from experiments.complaints import SpecError, near
from experiments.estimate import Estimate
from experiments.local import in_processes
from experiments.sweep import Tally, sweep
from reports.columns import column
from reports.files import written
from reports.limits import named
from reports.table import read_sweep

SHORT_S = 30.0
"""Seconds of one core, as estimated, below which the runs of a claim are not worth processes of their own."""


@dataclass(frozen=True)
class Finding:
    """What the runs say: the pairs, and the verdict that follows."""

    claim: Claim
    pairs: pd.DataFrame
    """The other swept keys, `base` and `other` (figures), `change` (share of base), `holds`."""

    @property
    def verdict(self) -> str:
        """From the pairs; without runs the file's."""
        if self.pairs.empty:
            return self.claim.text.verdict
        held = self.pairs["holds"]
        if not held.any():
            return SOURCE if self.claim.text.verdict == SOURCE else MODEL
        return CONFIRMED if held.all() else CONDITIONS

    @property
    def agrees(self) -> bool:
        """The file says the same."""
        return self.verdict == self.claim.text.verdict

    def found(self) -> str:
        """The result in a sentence."""
        compare = self.claim.text.compare
        if compare is None or self.pairs.empty:
            return self.claim.text.because
        changes = self.pairs["change"].dropna()
        shown = " / ".join(column(part).label for part in compare.figure.split("/"))
        low, high = (f"{100 * value:+.1f} %" for value in (changes.min(), changes.max())) if len(changes) else ("", "")
        span = f"{shown} {low}" if low == high else f"{shown} {low} to {high}"
        return f"holds in {int(self.pairs['holds'].sum())} of {len(self.pairs)} settings; {span}"


def run_claim(claim: Claim, out: Path, *, quick: bool) -> Finding:
    """Make the runs that `out` lacks, and look at them. Short ones are made in this process: to start others takes longer."""
    if claim.study is not None:
        from experiments.run import run

        task = claim.task(quick=quick)
        estimate = Estimate(task.timing)

        def engine(jobs: Any, work: Any) -> Any:
            short = sum(map(estimate.seconds, jobs)) < SHORT_S
            return in_processes(jobs, work, 1 if short else estimate.workers(jobs, None))

        def unheard(tally: Tally) -> None:
            """Nobody looks at the progress of one claim."""

        sweep(task, out / claim.name, run, engine, unheard, ["kvtier", "claims", "run", claim.name])
    return finding(claim, out)


def finding(claim: Claim, out: Path) -> Finding:
    """What the runs in `out` say."""
    compare = claim.text.compare
    if claim.rates is not None:
        assert compare is not None
        return Finding(claim, judged(claim.rates.pairs(), compare))
    if claim.study is None:
        return Finding(claim, pd.DataFrame())
    frame, about = read_sweep(out / claim.name)
    failed = frame[frame["error"].notna()]
    if len(failed):
        raise SpecError(f"claim {claim.name}: {len(failed)} runs failed; the first: {failed['error'].iloc[0]}")
    return Finding(claim, pairs_of(claim, frame, list(about["grid"])))


def pairs_of(claim: Claim, frame: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Runs that differ in the compared key alone (and in what changes with it), side by side."""
    compare = claim.text.compare
    assert compare is not None
    figures = frame.assign(figure=_figure(frame, compare.figure))
    if compare.key is None:
        assert compare.against is not None
        varied = [key for key in keys if frame[key].nunique(dropna=False) > 1]
        pairs = frame[varied].assign(base=_figure(frame, compare.against), other=figures["figure"])
        return judged(pairs.reset_index(drop=True), compare)
    if compare.key not in keys:
        raise SpecError(f"claim {claim.name}: {compare.key} is not swept; {near(compare.key, keys)}")
    alone = frame.groupby(compare.key, dropna=False)
    others = [key for key in keys if key != compare.key and alone[key].nunique(dropna=False).max() > 1]
    parts = []
    for value in compare.others:
        sides = [_side(claim.name, compare, figures, wanted, others) for wanted in (compare.base, value)]
        part = pd.DataFrame({"base": sides[0], "other": sides[1]}).reset_index(drop=not others)
        if len(compare.others) > 1:
            part.insert(0, compare.key, value)
        parts.append(part)
    return judged(pd.concat(parts, ignore_index=True), compare)


def _side(name: str, compare: Compare, figures: pd.DataFrame, wanted: Any, others: Sequence[str]) -> "pd.Series[Any]":
    assert compare.key is not None
    side = figures[figures[compare.key].map(lambda value: _same(value, wanted))]
    if side.empty:
        raise SpecError(f"claim {name}: {compare.key} has no run with {wanted}")
    return side.set_index(list(others))["figure"] if others else side["figure"].reset_index(drop=True)


def judged(pairs: pd.DataFrame, compare: Compare) -> pd.DataFrame:
    """Pairs with what changed, and whether that is as claimed."""
    holds = [compare.holds(float(a), float(b)) for a, b in zip(pairs["base"], pairs["other"], strict=True)]
    change = (pairs["other"] / pairs["base"] - 1).where(pairs["base"] != 0)
    return pairs.assign(change=change, holds=holds)


def _same(value: Any, wanted: Any) -> bool:
    """A swept value as the table holds it; nothing is the same as nothing."""
    if wanted is None or value is None or value is pd.NA:
        return wanted is None and (value is None or bool(pd.isna(value)))
    return bool(value == wanted or str(value) == str(wanted))


def _figure(frame: pd.DataFrame, name: str) -> "pd.Series[float]":
    parts = [frame[named(frame, part)].astype(float) for part in name.split("/")]
    return parts[0] if len(parts) == 1 else parts[0] / parts[1].where(parts[1] != 0)


def lines(findings: Sequence[Finding]) -> Iterator[str]:
    """A claim a paragraph: verdict, sentence, result."""
    for one in findings:
        yield f"{one.claim.name}: {one.verdict}{'' if one.agrees else f' (its file says {one.claim.text.verdict})'}"
        yield f"    claim: {one.claim.text.says}"
        yield f"    found: {one.found()}"


def as_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """For `--json`: text, verdict and every pair."""
    return [
        {
            "name": one.claim.name,
            **one.claim.text.model_dump(mode="json", include={"says", "source", "because", "place", "see"}),
            "verdict": one.verdict,
            "stated": one.claim.text.verdict,
            "found": one.found(),
            "compare": None if one.claim.text.compare is None else one.claim.text.compare.model_dump(mode="json"),
            "pairs": one.pairs.astype(object).where(one.pairs.notna(), None).to_dict("records"),
        }
        for one in findings
    ]


def write_report(directory: Path, page: Path, table: Path | None, made_by: str) -> list[Path]:
    """The page, its data and the table for the documentation, of all claims whose runs are in `directory`."""
    from reports.page.claims import write_html, write_markdown

    findings = as_json([finding(claim, directory) for claim in claims()])
    data = page.with_suffix(".json")
    with written(data) as path:
        path.write_text(json.dumps(findings, indent=1) + "\n", encoding="utf-8")
    made = [write_html(findings, page, made_by), data]
    return made if table is None else [*made, write_markdown(findings, table)]


def draw_claim(claim: Claim, directory: Path, path: Path, along: str | None) -> Path:
    """A picture of where a claim holds, from the runs in `directory`."""
    from reports.claim_plot import plot_claim

    [found] = as_json([finding(claim, directory)])
    if not found["pairs"]:
        raise SpecError(f"claim {claim.name}: no run decides it, so there is nothing to draw")
    return plot_claim(found, path, along)
