"""The essays' claims as files: each says what was claimed, what to run and what would confirm it.

    claim:
      says: one sentence, in our words
      source: where it stands
      compare: {key: tokens_per_block, base: 32, other: [64, 128], figure: hit_rate_tokens, expect: higher, by: 0.1}
      verdict: confirmed under conditions
      because: why, in a sentence or two
      place: class::function                        # where the sources decide it
      see: [tests/..., docs/...]                    # where a rule is pinned
      quick: {limit: 200}                           # a smaller form, for tests
    trace: ...                                      # the rest is a sweep file (`experiments.study`)
    sweep: {grid: {tokens_per_block: [32, 64, 128], ...}}

or, in place of the sweep, `rate_match:` (`experiments.claim_rates`). `statements.yaml` lists the claims that no run decides, by
name. It runs nothing (`experiments.claim_runs`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from experiments.claim_rates import RateMatch
from experiments.complaints import SpecError, complain, near
from experiments.jobs import Task
from experiments.load import Draft, read
from experiments.section import Count, Section
from experiments.study import OWN, Study, study_of

CLAIMS = Path(__file__).parent / "claims"
STATEMENTS = "statements"
CONFIRMED, CONDITIONS, SOURCE, MODEL, UNTESTABLE = (
    "confirmed",
    "confirmed under conditions",
    "contradicted by source",
    "contradicted by model",
    "not testable here",
)
RATES = "rate_match"
Checked = TypeVar("Checked", bound=Section)


class Compare(Section):
    """Which figures are held against each other, and what the claim expects of them."""

    key: str | None = Field(
        default=None, description="the swept key that makes a pair, by its column's name; none: see `against`"
    )
    base: Any = Field(default=None, description="its value in the run to compare with")
    other: Any = Field(default=None, description="its value in the run that the claim is about, or a list of values")
    figure: str = Field(description="column of the result table, or two of them as A/B")
    against: str | None = Field(
        default=None, description="without a key: the figure of the same run that it is held against"
    )
    expect: Literal["higher", "lower", "same", "not lower", "not higher"] = Field(
        description="what the claim says of the figure"
    )
    by: float = Field(default=0.0, ge=0, description="by at least this share (same, not lower, not higher: at most)")
    up_to: float | None = Field(
        default=None, ge=0, description="and by at most this share, where the claim names a range"
    )

    @model_validator(mode="after")
    def _one_way(self) -> "Compare":
        if (self.key is None) == (self.against is None):
            raise ValueError("give key with base and other, or against, and not both")
        return self

    @property
    def others(self) -> list[Any]:
        """The values of the key that the claim is about."""
        return list(self.other) if isinstance(self.other, list | tuple) else [self.other]

    def holds(self, base: float, other: float) -> bool:
        """Whether a pair is as claimed."""
        if self.expect in {"same", "not lower", "not higher"}:
            low = other >= base - self.by * abs(base) or self.expect == "not higher"
            return low and (other <= base + self.by * abs(base) or self.expect == "not lower")
        if self.up_to is not None and abs(other - base) > self.up_to * abs(base):
            return False
        if self.expect == "higher":
            return other > base and other >= base * (1 + self.by)
        return other < base and other <= base * (1 - self.by)


class Quick(Section):
    """What a quick run changes."""

    limit: Count | None = Field(default=None, description="requests")
    grid: dict[str, Any] = Field(default={}, description="fewer values of swept keys")


class ClaimText(Section):
    """The `claim` section of a file, or an entry of statements.yaml."""

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
    place: str | None = Field(default=None, description="where TensorRT-LLM's sources or documents decide it")
    compare: Compare | None = Field(default=None, description="what is compared; none: no run decides it")
    see: tuple[str, ...] = Field(default=(), description="tests and pages that show it")
    quick: Quick = Field(default=Quick(), description="a smaller form")

    @model_validator(mode="after")
    def _decided_somewhere(self) -> "ClaimText":
        if self.verdict == SOURCE and self.place is None:
            raise ValueError("what a source contradicts needs its place")
        if self.compare is None and self.verdict != UNTESTABLE and not self.see and self.place is None:
            raise ValueError("a verdict without a run needs a place, or a test or page in `see`")
        return self


@dataclass(frozen=True)
class Claim:
    """One claim: its name, its text, its runs or its rate-matched points (neither where no run decides it)."""

    name: str
    text: ClaimText
    study: Study | None = None
    rates: RateMatch | None = None

    def task(self, *, quick: bool) -> Task:
        """The runs."""
        assert self.study is not None
        design, trace = self.study.design, self.study.trace
        if quick:
            design = design.with_grid(self.text.quick.grid) if self.text.quick.grid else design
            trace = replace(trace, limit=self.text.quick.limit or trace.limit)
        return Task(self.study.draft, (), trace, design, self.study.timing)


def claims(names: Sequence[str] = ()) -> list[Claim]:
    """The claims of those names, or all of them, in the order of their files, those that no run decides last."""
    paths = {path.stem.partition("-")[2]: path for path in sorted(CLAIMS.glob("*-*.yaml"))}
    said = dict(_statements(read(str(CLAIMS / f"{STATEMENTS}.yaml"))))
    unknown = next((name for name in names if name not in {*paths, *said}), None)
    if unknown is not None:
        raise SpecError(f"no claim is called {unknown}; {near(unknown, [*paths, *said])}")
    found = [read_claim(name, path) for name, path in paths.items() if not names or name in names]
    return [*found, *(Claim(name, text) for name, text in said.items() if not names or name in names)]


def read_claim(name: str, path: Path) -> Claim:
    """One file; what is wrong with it is a SpecError with its line."""
    draft = read(str(path))
    data = dict(draft.data)
    text = _checked(draft, ("claim",), ClaimText, data.pop("claim", None))
    if RATES in data:
        return Claim(name, text, rates=_checked(draft, (RATES,), RateMatch, data[RATES]))
    return Claim(name, text, study_of(replace(draft, data=data)) if set(data) & set(OWN) else None)


def _statements(draft: Draft) -> Iterator[tuple[str, ClaimText]]:
    for name, given in draft.data.items():
        yield str(name), _checked(draft, (str(name),), ClaimText, given)


def _checked(draft: Draft, at: tuple[str, ...], kind: type[Checked], given: Any) -> Checked:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        lines = {where[1:]: line for where, line in draft.lines.items() if where[: len(at)] == at}
        raise complain(error, draft.source, lines, (), kind, at[0]) from None
