"""Two result sets: what is a difference and what is noise, by hand-made tables."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from reports.diff import compare, lines, t_975

Rows = list[dict[str, Any]]


def kept(directory: Path, rows: Rows, *keys: str) -> Path:
    directory.mkdir()
    pd.DataFrame([{"error": None, **row} for row in rows]).to_parquet(directory / "sweep.parquet")
    grid = {key: [] for key in keys}
    (directory / "about.json").write_text(json.dumps({"trace": "t", "grid": grid, "repeats": 1}), encoding="utf-8")
    return directory


def seeded(values: list[float]) -> Rows:
    return [{"tokens_per_block": 32, "seed": seed, "hit_rate_tokens": value} for seed, value in enumerate(values)]


def test_seeds_that_all_move_the_same_way_are_told_apart_though_the_two_sets_overlap(tmp_path: Path) -> None:
    # Means 0.5 and 0.52; by seed +.01, +.02, +.03: mean .02, standard deviation .01, t(2) = 4.303: half an interval is
    # 4.303 x .01 / sqrt(3) = .0248. Unpaired nobody would tell 0.3, 0.5, 0.7 from 0.31, 0.52, 0.73.
    a = kept(tmp_path / "a", seeded([0.3, 0.5, 0.7]), "tokens_per_block", "seed")
    b = kept(tmp_path / "b", seeded([0.31, 0.52, 0.73]), "tokens_per_block", "seed")
    (one,) = compare(a, b)
    assert (one.repeats, one.settings) == (3, "block 32")
    assert one.difference == pytest.approx(0.02)
    assert one.half == pytest.approx(0.02484, rel=1e-3)
    assert one.verdict() == "not told apart"
    c = kept(tmp_path / "c", seeded([0.315, 0.520, 0.725]), "tokens_per_block", "seed")
    (one,) = compare(a, c)
    assert one.half == pytest.approx(0.01242, rel=1e-3)
    assert one.verdict() == "better"


def test_without_repeats_counts_are_exact_and_small_differences_of_times_say_nothing(tmp_path: Path) -> None:
    same = {"tokens_per_block": 32}
    a = kept(
        tmp_path / "a", [{**same, "moved_bytes": 1000.0, "ttft_mean_s": 1.0, "tpot_mean_s": 0.5}], "tokens_per_block"
    )
    b = kept(
        tmp_path / "b", [{**same, "moved_bytes": 1001.0, "ttft_mean_s": 1.009, "tpot_mean_s": 0.51}], "tokens_per_block"
    )
    verdicts = {one.figure: one.verdict() for one in compare(a, b)}
    assert verdicts == {"moved_bytes": "worse", "ttft_mean_s": "within the model's error", "tpot_mean_s": "worse"}
    assert {one.verdict() for one in compare(a, a)} == {"same"}


def test_settings_are_paired_by_value_and_failed_runs_are_left_out(tmp_path: Path) -> None:
    def rows(*hits: float | None) -> Rows:
        return [
            {"tokens_per_block": block, "hit_rate_tokens": hit, "error": None if hit else "too small"}
            for block, hit in zip((16, 32, 64), hits, strict=False)
        ]

    a = kept(tmp_path / "a", rows(0.1, 0.2, 0.3), "tokens_per_block")
    b = kept(tmp_path / "b", list(reversed(rows(0.1, None, 0.4))), "tokens_per_block")
    assert [(one.settings, one.verdict()) for one in compare(a, b)] == [("block 16", "same"), ("block 64", "better")]
    text = list(lines(compare(a, b)))
    assert text[0] == "block 64:"
    assert text[1] == "    token hit rate: 30 -> 40 % of prompt tokens, +10, +33.3%: better"
    assert text[2] == "1 of 2 differences told apart, in 2 settings"


def test_sets_that_vary_different_settings_or_share_none_are_refused(tmp_path: Path) -> None:
    a = kept(tmp_path / "a", [{"tokens_per_block": 16, "hit_rate_tokens": 1.0}], "tokens_per_block")
    b = kept(tmp_path / "b", [{"workers": 1, "hit_rate_tokens": 1.0}], "workers")
    c = kept(tmp_path / "c", [{"tokens_per_block": 32, "hit_rate_tokens": 1.0}], "tokens_per_block")
    with pytest.raises(ValueError, match=r"only .*a varies tokens_per_block"):
        compare(a, b)
    with pytest.raises(ValueError, match="have no setting in common"):
        compare(a, c)


@pytest.mark.parametrize(("freedom", "value"), [(1, 12.706), (30, 2.042), (40, 2.021), (120, 1.980), (10**6, 1.960)])
def test_students_t_is_that_of_the_tables(freedom: int, value: float) -> None:
    assert t_975(freedom) == pytest.approx(value, abs=6e-4)
