"""The essays' claims as experiments: each is a file that says what was claimed, what to run and what would confirm it.

    claim:
      says: one sentence, in our words
      source: where it stands
      compare: {key: tokens_per_block, base: 32, other: 128, figure: hit_rate_tokens, expect: higher, by: 0.1}
      verdict: confirmed under conditions
      because: why, in a sentence or two
      see: [tests/..., docs/...]                    # where a rule is pinned, for claims that need no run
      quick: {limit: 200}                           # a smaller form, for tests
    trace: ...                                      # the rest is a sweep file (`experiments.study`)
    sweep: {grid: {tokens_per_block: [32, 128], ...}}

Two runs that differ in the compared key alone are a pair. The claim holds for a pair when `other` has its figure higher
(lower, the same) by at least that share. All pairs: confirmed; some: confirmed under conditions; none: contradicted by model.
The verdict in the file must be the one that the runs give: nobody can state another, and no parameter was chosen to reach it
because every other swept key shows where the claim holds and where it fails.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import Field, ValidationError, model_validator

from experiments.complaints import SpecError, complain, near
from experiments.estimate import Estimate
from experiments.jobs import Task
from experiments.load import read
from experiments.local import in_processes
from experiments.section import Count, Section
from experiments.study import OWN, Study, study_of
from experiments.sweep import Tally, sweep
from reports.columns import column
from reports.files import written
from reports.limits import named
from reports.table import read_sweep

CLAIMS = Path(__file__).parent / "claims"
CONFIRMED, CONDITIONS, SOURCE, MODEL, UNTESTABLE = (
    "confirmed",
    "confirmed under conditions",
    "contradicted by source",
    "contradicted by model",
    "not testable here",
)


class Compare(Section):
    """Which runs are held against each other, and what the claim expects of them."""

    key: str = Field(description="the swept key that makes a pair, by the name of its column")
    base: Any = Field(description="its value in the run to compare with")
    other: Any = Field(description="its value in the run that the claim is about")
    figure: str = Field(description="column of the result table, or two of them as A/B")
    expect: Literal["higher", "lower", "same"] = Field(description="what the claim says of the figure")
    by: float = Field(default=0.0, ge=0, description="by at least this share (same: at most)")

    def holds(self, base: float, other: float) -> bool:
        """Whether a pair is as claimed."""
        if self.expect == "same":
            return abs(other - base) <= self.by * abs(base)
        if self.expect == "higher":
            return other > base and other >= base * (1 + self.by)
        return other < base and other <= base * (1 - self.by)


class Quick(Section):
    """What a quick run changes."""

    limit: Count | None = Field(default=None, description="requests")
    grid: dict[str, Any] = Field(default={}, description="fewer values of swept keys")


class ClaimText(Section):
    """The `claim` section of a file."""

    says: str = Field(description="the claim, in our words")
    source: str = Field(description="where it stands")
    verdict: Literal[
        "confirmed",
        "confirmed under conditions",
        "contradicted by source",
        "contradicted by model",
        "not testable here",
    ] = Field(description="ours")
    because: str = Field(description="why, in a sentence or two")
    compare: Compare | None = Field(default=None, description="what is compared; none: no run decides it")
    see: tuple[str, ...] = Field(default=(), description="tests and pages that show it")
    quick: Quick = Field(default=Quick(), description="a smaller form")

    @model_validator(mode="after")
    def _decided_somewhere(self) -> "ClaimText":
        if self.compare is None and self.verdict != UNTESTABLE and not self.see:
            raise ValueError("a verdict without a run needs a test or a page in `see`")
        return self


@dataclass(frozen=True)
class Claim:
    """One file: its name, its text, its runs (None where no run decides it)."""

    name: str
    text: ClaimText
    study: Study | None

    def task(self, *, quick: bool) -> Task:
        """The runs."""
        assert self.study is not None
        design, trace = self.study.design, self.study.trace
        if quick:
            design = design.with_grid(self.text.quick.grid) if self.text.quick.grid else design
            trace = replace(trace, limit=self.text.quick.limit or trace.limit)
        return Task(self.study.draft, (), trace, design, self.study.timing)


def claims(names: Sequence[str] = ()) -> list[Claim]:
    """The claims of those names, or all of them, in the order of their files."""
    paths = {path.stem.partition("-")[2]: path for path in sorted(CLAIMS.glob("*.yaml"))}
    unknown = next((name for name in names if name not in paths), None)
    if unknown is not None:
        raise SpecError(f"no claim is called {unknown}; {near(unknown, paths)}")
    return [read_claim(name, path) for name, path in paths.items() if not names or name in names]


def read_claim(name: str, path: Path) -> Claim:
    """One file; what is wrong with it is a SpecError with its line."""
    draft = read(str(path))
    data = dict(draft.data)
    try:
        text = ClaimText.model_validate(data.pop("claim", None))
    except ValidationError as error:
        lines = {where[1:]: line for where, line in draft.lines.items() if where[0] == "claim"}
        raise complain(error, draft.source, lines, (), ClaimText, "claim") from None
    return Claim(name, text, study_of(replace(draft, data=data)) if set(data) & set(OWN) else None)


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
        return CONFIRMED if held.all() else CONDITIONS if held.any() else MODEL

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
    """Make the runs that `out` lacks, and look at them."""
    if claim.study is None:
        return Finding(claim, pd.DataFrame())
    from experiments.run import run

    task = claim.task(quick=quick)
    estimate = Estimate(task.timing)

    def engine(jobs: Any, work: Any) -> Any:
        return in_processes(jobs, work, estimate.workers(jobs, None))

    def unheard(tally: Tally) -> None:
        """Nobody looks at the progress of one claim."""

    sweep(task, out / claim.name, run, engine, unheard, ["kvtier", "claims", "run", claim.name])
    return finding(claim, out)


def finding(claim: Claim, out: Path) -> Finding:
    """What the runs in `out` say."""
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
    if compare.key not in keys:
        raise SpecError(f"claim {claim.name}: {compare.key} is not swept; {near(compare.key, keys)}")
    figures = frame.assign(figure=_figure(frame, compare.figure))
    alone = frame.groupby(compare.key, dropna=False)
    others = [key for key in keys if key != compare.key and alone[key].nunique(dropna=False).max() > 1]
    sides = [
        figures[figures[compare.key].map(lambda v, w=wanted: _same(v, w))] for wanted in (compare.base, compare.other)
    ]
    if any(side.empty for side in sides):
        raise SpecError(
            f"claim {claim.name}: {compare.key} has no run with {compare.base} or none with {compare.other}"
        )
    base, other = (
        side.set_index(others)["figure"] if others else side["figure"].reset_index(drop=True) for side in sides
    )
    pairs = pd.DataFrame({"base": base, "other": other}).reset_index(drop=not others)
    pairs["change"] = (pairs["other"] / pairs["base"] - 1).where(pairs["base"] != 0)
    pairs["holds"] = [compare.holds(float(a), float(b)) for a, b in zip(pairs["base"], pairs["other"], strict=True)]
    return pairs


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
            **one.claim.text.model_dump(mode="json", include={"says", "source", "because", "see"}),
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
