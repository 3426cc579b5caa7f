"""Claims: every file reads and points at what exists, pairs are made of the right runs, the published page is of these files."""

import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from experiments.claim_rates import RateMatch
from experiments.claim_runs import Finding, as_json, judged, pairs_of, run_claim
from experiments.claiming import CONDITIONS, CONFIRMED, SOURCE, Claim, ClaimText, Compare, claims
from experiments.cli import app
from reports.page.claims import write_html, write_markdown

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "reports" / "published" / "claims.json"


def claim_of(compare: Compare, verdict: str = "confirmed") -> Claim:
    text = ClaimText(says="s", source="o", verdict=verdict, because="b", place="p", compare=compare)  # type: ignore[arg-type]
    return Claim("one", text)


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


def test_what_never_holds_is_contradicted_by_the_source_where_the_source_says_so() -> None:
    pairs = pairs_of(claim_of(BLOCKS), FRAME, ["tokens_per_block", "gpu_tokens"])
    never = pairs[~pairs["holds"]]
    assert Finding(claim_of(BLOCKS, SOURCE), never).verdict == SOURCE
    assert Finding(claim_of(BLOCKS, SOURCE), pairs).verdict == CONDITIONS


def test_several_other_values_make_a_pair_each() -> None:
    frame = pd.concat([FRAME, FRAME.iloc[2:].assign(tokens_per_block=512, hit_rate_tokens=[0.7, 0.1])])
    two = BLOCKS.model_copy(update={"other": [128, 512]})
    pairs = pairs_of(claim_of(two), frame, ["tokens_per_block", "gpu_tokens"])
    assert pairs["tokens_per_block"].tolist() == [128, 128, 512, 512]
    assert pairs["other"].tolist() == [0.6, 0.4, 0.7, 0.1]
    assert pairs["holds"].tolist() == [True, False, True, False]


def test_without_a_key_two_figures_of_one_run_are_a_pair() -> None:
    inside = Compare(figure="onboard_blocks", against="offload_blocks", expect="lower", by=0.5)
    pairs = pairs_of(claim_of(inside), FRAME, ["tokens_per_block", "gpu_tokens"])
    # 5 of 10, none of 0, 5 of 5, 1 of 3
    assert pairs["holds"].tolist() == [True, False, False, True]
    with pytest.raises(ValueError, match="not both"):
        Compare(key="k", figure="a", against="b", expect="same")


def test_a_range_is_left_at_both_ends() -> None:
    between = Compare(key="k", base=0, other=1, figure="f", expect="higher", by=0.4, up_to=0.8)
    pairs = judged(pd.DataFrame({"base": [1.0] * 3, "other": [1.3, 1.6, 1.9]}), between)
    assert pairs["holds"].tolist() == [False, True, False]


def test_rate_matched_points_say_the_gain_at_each_pace_both_ways_reach() -> None:
    rates = RateMatch(
        model="llama-3.1-8b", hardware="h100-sxm", weights="bf16", cache="bf16", loads=((2048, 128),), paces=(1, 100, 1e6),
        context=(1,), generation=(1,),
    )  # fmt: skip
    pairs = rates.pairs()
    assert pairs["pace"].tolist() == [1, 100]
    assert (
        pairs["other"].iloc[1] > 1.5 * pairs["base"].iloc[1]
    )  # the faster the pace, the more the prompts are in the way
    assert pairs["other"].iloc[0] / pairs["base"].iloc[0] < pairs["other"].iloc[1] / pairs["base"].iloc[1]


def test_what_a_source_contradicts_names_its_place() -> None:
    with pytest.raises(ValueError, match="needs its place"):
        ClaimText(says="s", source="o", verdict=SOURCE, because="b", see=("docs/claims.md",))
    with pytest.raises(ValueError, match="needs a place, or a test or page"):
        ClaimText(says="s", source="o", verdict=CONFIRMED, because="b")


@pytest.mark.parametrize(
    ("expect", "by", "base", "other", "holds"),
    [
        ("higher", 0.0, 1.0, 1.0, False),
        ("higher", 0.2, 1.0, 1.2, True),
        ("lower", 0.5, 1.0, 0.5, True),
        ("lower", 0.5, 1.0, 0.51, False),
        ("same", 0.01, 1.0, 0.991, True),
        ("same", 0.01, 1.0, 0.98, False),
        ("not lower", 0.01, 1.0, 0.98, False),
        ("not lower", 0.01, 1.0, 1.5, True),
        ("not higher", 0.01, 1.0, 0.5, True),
        ("not higher", 0.01, 1.0, 1.02, False),
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
    assert len(found) > 100
    for claim in found:
        for place in claim.text.see:
            assert (ROOT / place).exists(), f"{claim.name} points at {place}"
        if claim.study is not None or claim.rates is not None:
            assert claim.text.compare is not None, claim.name
        if claim.study is not None:
            assert claim.task(quick=True).design.runs <= claim.task(quick=False).design.runs


def test_unknown_claim_names_the_near_ones() -> None:
    result = CliRunner().invoke(app, ["claims", "run", "block_of_129"])
    assert result.exit_code == 2
    assert "did you mean block_of_128" in result.stderr


PUBLISHED_CLAIMS = {one["name"]: one for one in json.loads(PUBLISHED.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("claim", [one for one in claims() if one.text.compare is not None], ids=lambda one: one.name)
def test_quick_form_of_every_claim_points_where_the_published_runs_do(claim: Claim, tmp_path: Path) -> None:
    # Fewer requests and settings: what holds everywhere may not fail everywhere, and the other way round; what depends on
    # the settings may show either side.
    quick, published = run_claim(claim, tmp_path, quick=True), PUBLISHED_CLAIMS[claim.name]
    assert quick.pairs[["base", "other"]].notna().all().all()
    assert len(quick.pairs) <= len(published["pairs"])
    if published["verdict"] != CONDITIONS:
        assert quick.verdict == published["verdict"]


def test_command_runs_in_quick_form_and_page_and_table_show_it(tmp_path: Path) -> None:
    names = ["fragmentation", "fp8_traffic", "overlap"]
    result = CliRunner().invoke(
        app, ["claims", "run", *names, "--quick", "--out", str(tmp_path), "--json", str(tmp_path / "f.json")]
    )
    assert result.exit_code == 0, result.output
    findings = json.loads((tmp_path / "f.json").read_text(encoding="utf-8"))
    assert [one["verdict"] for one in findings] == ["confirmed", "confirmed", "contradicted by source"]
    page = write_html(findings, tmp_path / "p.html", "kvtier").read_text(encoding="utf-8")
    assert "3 claims: 2 confirmed, 1 contradicted by source." in page
    table = write_markdown(findings, tmp_path / "p.md").read_text(encoding="utf-8")
    assert (
        "(`fp8_traffic`) | confirmed | holds in 2 of 2 settings; moved between GPU and host -71.9 % to -50.0 % |"
        in table
    )
    assert "| architecture essay, KVCacheTransferManager | `overlap` |" in table


def test_picture_of_a_claim_has_a_point_for_each_pair(tmp_path: Path) -> None:
    runner = CliRunner()
    drawn = runner.invoke(app, ["claims", "draw", "disagg_pays", "-o", str(tmp_path / "p.png")])
    assert drawn.exit_code == 0, drawn.output
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    nothing = runner.invoke(app, ["claims", "draw", "overlap", "-o", str(tmp_path / "q.png")])
    assert nothing.exit_code == 2
    assert "no run decides it" in nothing.stderr
    along = runner.invoke(app, ["claims", "draw", "disagg_pays", "--along", "pase", "-o", str(tmp_path / "q.png")])
    assert along.exit_code == 2
    assert "pase is not varied; there are load, pace" in along.stderr
    assert not (tmp_path / "q.png").exists()


def test_published_page_is_of_these_claims_and_its_runs_gave_the_stated_verdicts() -> None:
    published = {one["name"]: one for one in json.loads(PUBLISHED.read_text(encoding="utf-8"))}
    now = {one["name"]: one for one in as_json([Finding(claim, pd.DataFrame()) for claim in claims()])}
    assert published.keys() == now.keys()
    for name, one in published.items():
        assert one["verdict"] == one["stated"] == now[name]["stated"], name
        assert one["says"] == now[name]["says"], name
