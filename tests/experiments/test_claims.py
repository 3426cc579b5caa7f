"""Claims: every file reads and points at what exists, pairs are made of the right runs, the published page is of these files."""

import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from experiments.claiming import Claim, ClaimText, Compare, Finding, as_json, claims, pairs_of
from experiments.cli import app
from reports.page.claims import write_html, write_markdown

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "reports" / "published" / "claims.json"


def claim_of(compare: Compare, verdict: str = "confirmed") -> Claim:
    text = ClaimText(says="s", source="o", verdict=verdict, because="b", compare=compare)  # type: ignore[arg-type]
    return Claim("one", text, None)


FRAME = pd.DataFrame({
    "tokens_per_block": [32, 32, 128, 128],
    "gpu_tokens": [1, 2, 1, 2],
    "hit_rate_tokens": [0.5, 0.4, 0.6, 0.4],
    "offload_blocks": [10, 0, 5, 3],
    "onboard_blocks": [5, 0, 5, 1],
})
BLOCKS = Compare(key="tokens_per_block", base=32, other=128, figure="hit_rate_tokens", expect="higher", by=0.1)


def test_pairs_differ_in_the_compared_key_alone() -> None:
    pairs = pairs_of(claim_of(BLOCKS), FRAME, ["tokens_per_block", "gpu_tokens"])
    # 0.5 to 0.6 is 20 % more, which is enough; 0.4 to 0.4 is nothing.
    assert pairs["gpu_tokens"].tolist() == [1, 2]
    assert pairs["change"].tolist() == pytest.approx([0.2, 0.0])
    assert pairs["holds"].tolist() == [True, False]


def test_some_pairs_make_a_condition_and_none_a_contradiction() -> None:
    pairs = pairs_of(claim_of(BLOCKS), FRAME, ["tokens_per_block", "gpu_tokens"])
    assert Finding(claim_of(BLOCKS), pairs).verdict == "confirmed under conditions"
    assert not Finding(claim_of(BLOCKS), pairs).agrees
    assert Finding(claim_of(BLOCKS), pairs[pairs["holds"]]).verdict == "confirmed"
    assert Finding(claim_of(BLOCKS), pairs[~pairs["holds"]]).verdict == "contradicted by model"


def test_figure_of_two_columns_is_their_ratio() -> None:
    ratio = BLOCKS.model_copy(update={"figure": "onboard_blocks/offload_blocks", "by": 0.5})
    pairs = pairs_of(claim_of(ratio), FRAME, ["tokens_per_block", "gpu_tokens"])
    assert pairs["base"].iloc[0] == pytest.approx(0.5)
    assert pairs["other"].tolist() == pytest.approx([1.0, 1 / 3])
    assert pairs["holds"].tolist() == [True, False]


@pytest.mark.parametrize(
    ("expect", "by", "base", "other", "holds"),
    [
        ("higher", 0.0, 1.0, 1.0, False),
        ("higher", 0.2, 1.0, 1.2, True),
        ("lower", 0.5, 1.0, 0.5, True),
        ("lower", 0.5, 1.0, 0.51, False),
        ("same", 0.01, 1.0, 0.991, True),
        ("same", 0.01, 1.0, 0.98, False),
    ],
)
def test_expectation_counts_from_the_base(expect: str, by: float, base: float, other: float, holds: bool) -> None:
    compare = Compare(key="k", base=0, other=1, figure="f", expect=expect, by=by)  # type: ignore[arg-type]
    assert compare.holds(base, other) is holds


def test_key_that_is_not_swept_or_value_that_did_not_run_is_said() -> None:
    with pytest.raises(ValueError, match="tokens_per_block is not swept"):
        pairs_of(claim_of(BLOCKS), FRAME, ["gpu_tokens"])
    with pytest.raises(ValueError, match="no run with 64"):
        pairs_of(claim_of(BLOCKS.model_copy(update={"base": 64})), FRAME, ["tokens_per_block", "gpu_tokens"])


def test_every_claim_reads_and_what_it_points_at_exists() -> None:
    found = claims()
    assert len(found) >= 25
    for claim in found:
        for place in claim.text.see:
            assert (ROOT / place).exists(), f"{claim.name} points at {place}"
        if claim.study is not None:
            assert claim.text.compare is not None, claim.name
            assert claim.task(quick=True).design.runs <= claim.task(quick=False).design.runs


def test_unknown_claim_names_the_near_ones() -> None:
    result = CliRunner().invoke(app, ["claims", "run", "block_of_129"])
    assert result.exit_code == 2
    assert "did you mean block_of_128" in result.stderr


def test_quick_form_reaches_the_verdict_of_the_file_and_the_page_shows_it(tmp_path: Path) -> None:
    names = ["fragmentation", "fp8_traffic", "reserved_slots"]
    result = CliRunner().invoke(
        app, ["claims", "run", *names, "--quick", "--out", str(tmp_path), "--json", str(tmp_path / "f.json")]
    )
    assert result.exit_code == 0, result.output
    findings = json.loads((tmp_path / "f.json").read_text(encoding="utf-8"))
    assert [one["verdict"] for one in findings] == ["confirmed", "confirmed", "contradicted by source"]
    page = write_html(findings, tmp_path / "p.html", "kvtier").read_text(encoding="utf-8")
    assert "3 claims: 2 confirmed, 1 contradicted by source." in page
    table = write_markdown(findings, tmp_path / "p.md").read_text(encoding="utf-8")
    assert "| An FP8 cache holds" not in table
    assert "(`fp8_traffic`) | confirmed | holds in 1 of 1 settings; moved between GPU and host -50.0 % |" in table


def test_published_page_is_of_these_claims_and_its_runs_gave_the_stated_verdicts() -> None:
    published = {one["name"]: one for one in json.loads(PUBLISHED.read_text(encoding="utf-8"))}
    now = {one["name"]: one for one in as_json([Finding(claim, pd.DataFrame()) for claim in claims()])}
    assert published.keys() == now.keys()
    for name, one in published.items():
        assert one["verdict"] == one["stated"] == now[name]["stated"], name
        assert one["says"] == now[name]["says"], name
