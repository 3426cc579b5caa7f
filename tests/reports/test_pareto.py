"""The front holds exactly the runs no other run beats; the knee is its bend."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.pareto import costs, front, hypervolume, knee, share_held


def front_of(*points: tuple[float, float]) -> list[bool]:
    found: list[bool] = front(np.array(points, np.float64).reshape(-1, 2)).tolist()
    return found


def test_beaten_point_is_out_and_the_trade_off_stays() -> None:
    assert front_of((1, 3), (2, 2), (3, 1), (3, 3)) == [True, True, True, False]


def test_equal_points_are_all_in_or_all_out() -> None:
    assert front_of((1, 1), (1, 1), (2, 2), (2, 2)) == [True, True, False, False]


def test_point_equal_in_one_figure_and_worse_in_the_other_is_out() -> None:
    assert front_of((1, 2), (1, 3), (2, 2), (0, 5)) == [True, False, False, True]


def test_nan_is_never_in_front_and_beats_nobody() -> None:
    assert front_of((np.nan, 0), (1, np.nan), (5, 5)) == [False, False, True]


def test_no_points_make_an_empty_front() -> None:
    assert front_of() == []


def test_higher_is_better_turns_an_axis_round() -> None:
    cost = costs([np.array([1.0, 2.0]), np.array([10.0, 20.0])], ["lower", "higher"])
    assert cost.tolist() == [[1, -10], [2, -20]]
    assert front(cost).all()
    assert front(costs([np.array([1.0, 2.0]), np.array([20.0, 10.0])], ["lower", "higher"])).tolist() == [True, False]


SMALL = st.integers(0, 4)
CLOUDS = st.one_of(
    st.lists(st.tuples(SMALL, SMALL), max_size=12), st.lists(st.tuples(SMALL, SMALL, SMALL), max_size=12)
)


@given(CLOUDS)
def test_front_agrees_with_comparing_every_pair(points: list[tuple[int, ...]]) -> None:
    def beaten(a: tuple[int, ...]) -> bool:
        return any(all(x <= y for x, y in zip(b, a, strict=True)) and b != a for b in points)

    cost = np.array(points, np.float64).reshape(-1, len(points[0]) if points else 2)
    assert front(cost).tolist() == [not beaten(point) for point in points]


@given(CLOUDS.filter(bool))
def test_hypervolume_agrees_with_counting_unit_cells(points: list[tuple[int, ...]]) -> None:
    axes = len(points[0])
    cells = itertools.product(range(4), repeat=axes)
    held = sum(any(all(x <= c for x, c in zip(p, cell, strict=True)) for p in points) for cell in cells)
    assert hypervolume(np.array(points, np.float64), np.full(axes, 4.0)) == held


def test_share_of_the_box_is_the_same_in_all_units_and_unknown_where_a_figure_does_not_vary() -> None:
    # The box is 10 x 10; (1, 2) holds 9 x 8, (0, 10) and (10, 0) nothing: they lie on the far sides.
    cost = np.array([(0, 10), (1, 2), (10, 0), (10, 10), (np.nan, 0)], np.float64)
    assert share_held(cost) == pytest.approx(0.72)
    assert share_held(cost * [1e9, 1e-3]) == pytest.approx(0.72)
    assert share_held(cost * [1, 0]) is None


def test_knee_of_three_figures_is_the_point_nearest_to_the_good_corner() -> None:
    cost = np.array([(0, 10, 10), (10, 0, 10), (10, 10, 0), (4, 4, 4), (2, 2, 3)], np.float64)
    # (4, 4, 4) is beaten; of the rest (2, 2, 3) is short of the flat x + y + z = 1 by 0.3, the corners are beyond it by 1
    assert knee(cost, front(cost)) == 4


def test_knee_is_the_point_farthest_from_the_line_between_the_ends() -> None:
    cost = np.array([(0, 10), (1, 2), (5, 1), (10, 0)], np.float64)
    # scaled: (0,1) (.1,.2) (.5,.1) (1,0); short of the line x+y=1 by 0, .7, .4, 0
    assert knee(cost, front(cost)) == 1


def test_knee_does_not_depend_on_the_units_of_the_axes() -> None:
    cost = np.array([(0, 10), (1, 2), (5, 1), (10, 0)], np.float64)
    assert knee(cost * [1e9, 1e-3], front(cost)) == 1


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(1, 1)],
        [(0, 1), (1, 0)],
        [(0, 2), (1, 1), (2, 0)],
        [(0, 1), (0, 1), (1, 0)],
        [(0, 10), (8, 9), (10, 0)],
    ],
)
def test_straight_short_or_outward_front_has_no_knee(points: list[tuple[float, float]]) -> None:
    cost = np.array(points, np.float64).reshape(-1, 2)
    assert knee(cost, front(cost)) is None


def test_points_behind_the_front_do_not_move_the_knee() -> None:
    points = [(0, 10), (1, 2), (5, 1), (10, 0)]
    cost = np.array([*points, (100, 100), (5, 50)], np.float64)
    assert knee(cost, front(cost)) == 1
