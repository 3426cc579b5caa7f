"""The search on a recorded grid of 480 real runs (`tuned/record.py`): how much of the front a small budget finds."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.complaints import SpecError
from experiments.design import Design
from experiments.search import Search, axes_of
from experiments.study import study
from reports.pareto import front, hypervolume

TABLE = Path(__file__).parent / "tuned" / "grid.csv"
OBJECTIVES = ["ttft_mean_s", "host_cache_gib"]
BUDGET = 72  # 15 % of 480


@cache
def problem() -> tuple[pd.DataFrame, Design]:
    return pd.read_csv(TABLE), study("tune_multitenant").design


def row_of(settings: dict[str, object]) -> int:
    """The row of the table for some settings: the grid's order is the table's, the last key changing fastest."""
    at = 0
    for key, values in problem()[1].grid.items():
        at = at * len(values) + values.index(settings[key])
    return at


def held(rows: Sequence[int]) -> float:
    """The hypervolume of some runs as a share of the whole grid's; the corner is the worst of the grid."""
    cost = problem()[0][OBJECTIVES].to_numpy(np.float64)
    corner = cost.max(axis=0)
    return hypervolume(cost[list(rows)], corner) / hypervolume(cost, corner)


def searched(seed: int) -> list[int]:
    frame, design = problem()
    search = Search(axes_of(design), [1, 1], BUDGET, seed)
    rows = []
    while len(rows) < BUDGET and (params := search.next()) is not None:
        rows.append(row_of(search.settings(params)))
        search.tell(params, frame.loc[rows[-1], OBJECTIVES].tolist(), {})
    return rows


def by_lot(seed: int) -> list[int]:
    return np.random.default_rng(seed).permutation(len(problem()[0]))[:BUDGET].tolist()


def mean_held(way: Callable[[int], Sequence[int]]) -> float:
    return float(np.mean([held(way(seed)) for seed in range(10)]))


def test_table_is_the_grid_of_the_bundled_problem_and_a_real_trade_off() -> None:
    frame, design = problem()
    assert len(frame) == design.runs == 480
    assert front(frame[OBJECTIVES].to_numpy(np.float64)).sum() >= 8


def test_fifteen_percent_of_the_runs_find_95_percent_of_the_hypervolume_and_more_than_chance_does() -> None:
    found, chance = mean_held(searched), mean_held(by_lot)
    assert found >= 0.95
    assert 1 - found < (1 - chance) / 2, "it leaves at most half of what chance leaves"


def test_no_point_is_tried_twice_and_a_small_space_ends() -> None:
    design = Design.model_validate({"grid": {"workload.workers": [1, 2, 3], "workload.router": ["random", "session"]}})
    search = Search(axes_of(design), [1], 100, 0)
    points = []
    while (params := search.next()) is not None:
        points.append(tuple(search.settings(params).items()))
        search.tell(params, [1.0], {})
    assert len(points) == len(set(points)) == 6


def test_stopped_search_that_is_told_its_points_again_goes_on_as_it_would_have() -> None:
    frame, design = problem()

    def tell(search: Search, params: dict[str, object]) -> None:
        search.tell(params, frame.loc[row_of(search.settings(params)), OBJECTIVES].tolist(), {})

    whole, first = Search(axes_of(design), [1, 1], 36, 3), []
    for _ in range(20):
        first.append(whole.next() or {})
        tell(whole, first[-1])
    again = Search(axes_of(design), [1, 1], 36, 3)
    for params in first:
        tell(again, params)
    assert again.next() == whole.next()


def test_points_that_break_a_limit_are_left_and_points_within_it_are_sought() -> None:
    frame, design = problem()
    search = Search(axes_of(design), [1], 60, 0)
    found = []
    for _ in range(60):
        params = search.next() or {}
        row = frame.loc[row_of(search.settings(params))]
        found.append(float(row["ttft_mean_s"]))
        search.tell(params, [float(row["host_cache_gib"])], {"ttft": float(row["ttft_mean_s"]) - 0.4})
    assert np.mean(np.array(found[30:]) <= 0.4) > 2 * (frame["ttft_mean_s"] <= 0.4).mean()


def test_failed_runs_are_passed_over_and_the_search_goes_on() -> None:
    search = Search(axes_of(Design.model_validate({"grid": {"workload.workers": [1, 2, 3]}})), [1], 3, 0)
    for _ in range(3):
        search.tell(search.next() or {}, None, {})
    assert search.next() is None


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"grid": {"workload.workers": [1]}}, "nothing varies"),
        ({"grid": {"workload.workers": [1, 2]}, "repeats": 2}, "repeats do not go"),
    ],
)
def test_space_that_cannot_be_searched_is_refused(section: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        axes_of(Design.model_validate(section))
