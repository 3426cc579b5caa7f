"""Tables read between and beyond their points."""

import math

import numpy as np
import pytest

from sim.surface import beyond, surface, surface_value

SQUARES = surface((1.0, 2.0, 8.0), (10.0, 1000.0), np.array([[1.0, 1.0], [4.0, 40.0], [64.0, 64.0]]))


def test_a_power_law_between_the_points_is_met_exactly() -> None:
    # in the first column values are squares of the rows
    assert surface_value(SQUARES, 0, 4.0, 10.0) == pytest.approx(16.0)
    # half way in logs from 10 to 1,000 lies 100, from 4 to 40 their geometric mean
    assert surface_value(SQUARES, 0, 2.0, 100.0) == pytest.approx(math.sqrt(4.0 * 40.0))
    # between both: rows 2 and 8 at 100 are sqrt(160) and 64, half way in logs at 4
    assert surface_value(SQUARES, 0, 4.0, 100.0) == pytest.approx(math.sqrt(math.sqrt(160.0) * 64.0))


def test_the_points_themselves_are_met() -> None:
    assert [round(surface_value(SQUARES, 0, row, 1000.0), 9) for row in (1.0, 2.0, 8.0)] == [1.0, 40.0, 64.0]


def test_beyond_the_edge_the_edge_holds_and_that_is_known() -> None:
    assert surface_value(SQUARES, 0, 100.0, 1.0) == pytest.approx(64.0)
    assert surface_value(SQUARES, 0, 0.0, 1e9) == pytest.approx(1.0)
    assert [bool(beyond(SQUARES, 0, row, 10.0)) for row in (0.9, 1.0, 8.0, 8.1)] == [True, False, False, True]
    assert [bool(beyond(SQUARES, 0, 2.0, column)) for column in (9.0, 10.0, 1000.0, 1001.0)] == [
        True,
        False,
        False,
        True,
    ]


def test_one_column_holds_for_every_second_size() -> None:
    line = surface((1.0, 4.0), (1.0,), np.array([2.0, 8.0]))
    assert surface_value(line, 0, 2.0, 12345.0) == pytest.approx(4.0)
    assert not beyond(line, 0, 2.0, 12345.0)


def test_a_table_behind_others_is_read_from_its_place() -> None:
    both = np.concatenate([np.zeros(3), SQUARES])
    assert surface_value(both, 3, 4.0, 10.0) == pytest.approx(16.0)


@pytest.mark.parametrize(
    ("rows", "values"),
    [((2.0, 1.0), [1.0, 1.0]), ((1.0, 1.0), [1.0, 1.0]), ((0.0, 1.0), [1.0, 1.0]), ((1.0, 2.0), [1.0, 0.0])],
)
def test_sizes_that_do_not_ascend_and_zeros_are_refused(rows: tuple[float, ...], values: list[float]) -> None:
    with pytest.raises(ValueError, match="must ascend"):
        surface(rows, (1.0,), np.array(values))
