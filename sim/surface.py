"""A table over one or two sizes inside a flat array: read in logs between its points, and at its edge beyond them.

It knows no unit and no kernel (`sim.cost` does). In the array stand, from place `at` on: rows, columns, the log sizes of
the rows, those of the columns, then the log values row by row. One column: the second size does not matter.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvcache.compiled import loop

Numbers = NDArray[np.float64]


def surface(rows: Sequence[float], columns: Sequence[float], values: Numbers) -> Numbers:
    """The array of a table; sizes ascend, everything is above 0; `values` has the shape (rows, columns)."""
    table = np.asarray(values, np.float64).reshape(len(rows), len(columns))
    sizes = [np.asarray(size, np.float64) for size in (rows, columns)]
    if any((np.diff(size) <= 0).any() for size in sizes) or min(*(size.min() for size in sizes), table.min()) <= 0:
        raise ValueError("a table's sizes must ascend, and its sizes and values be above 0")
    return np.concatenate([[len(rows), len(columns)], *(np.log(size) for size in sizes), np.log(table).reshape(-1)])


@loop
def surface_value(array: Numbers, at: int, row: float, column: float) -> float:
    """The value at these sizes."""
    rows, columns = int(array[at]), int(array[at + 1])
    first_row = at + 2
    first_column = first_row + rows
    values = first_column + columns
    y, x = math.log(max(row, 1e-9)), math.log(max(column, 1e-9))
    i, j = _below(array, first_row, rows, y), _below(array, first_column, columns, x)
    v = _share(array, first_row + i, rows - i, y)
    u = _share(array, first_column + j, columns - j, x)
    low = values + i * columns + j
    high = low + columns if v > 0.0 else low
    right = 1 if u > 0.0 else 0
    at_low = array[low] + u * (array[low + right] - array[low])
    at_high = array[high] + u * (array[high + right] - array[high])
    return math.exp(at_low + v * (at_high - at_low))


@loop
def beyond(array: Numbers, at: int, row: float, column: float) -> bool:
    """Whether these sizes lie outside the table; one column holds for all."""
    rows, columns = int(array[at]), int(array[at + 1])
    y, x = math.log(max(row, 1e-9)), math.log(max(column, 1e-9))
    if y < array[at + 2] - 1e-9 or y > array[at + 1 + rows] + 1e-9:
        return True
    return columns > 1 and (x < array[at + 2 + rows] - 1e-9 or x > array[at + 1 + rows + columns] + 1e-9)


@loop
def _below(array: Numbers, first: int, count: int, size: float) -> int:
    """The last point that is not above `size`; the first one if all are."""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high + 1) // 2
        if array[first + middle] <= size:
            low = middle
        else:
            high = middle - 1
    return low


@loop
def _share(array: Numbers, at: int, left: int, size: float) -> float:
    """How far `size` lies on the way from the point at `at` to the next one, 0 to 1; 0 at the edges."""
    if left < 2 or size <= array[at]:
        return 0.0
    return float((size - array[at]) / (array[at + 1] - array[at]))
