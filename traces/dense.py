"""Gives every 64-bit name a dense number, in order of first appearance, in about 16 bytes a name.

It does not make names (`traces.chain` does, for prefixes). Names must not be negative.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcache.compiled import compiled
from kvcache.request import Int32, Int64

FREE = -1


class Dense:
    """The names met so far and their numbers."""

    def __init__(self) -> None:
        self.n = 0
        self._names = np.empty(0, np.int64)
        self._table = np.full(16, FREE, np.int32)

    def of(self, names: Int64) -> Int32:
        """The number of each name; new names get the next ones."""
        need = self.n + len(names)
        self._names = longer(self._names, self.n, need)
        if 3 * need > 2 * len(self._table):
            self._table = table_of(self._names, self.n, need)
        numbers = np.empty(len(names), np.int32)
        self.n = _number(self._table, self._names, self.n, names, numbers)
        return numbers


def longer(rows: NDArray[Any], n: int, need: int) -> NDArray[Any]:
    """`rows` with room for `need` entries; the first n are kept."""
    if need <= len(rows):
        return rows
    grown = np.zeros(max(need, len(rows) * 3 // 2), rows.dtype)
    grown[:n] = rows[:n]
    return grown


def table_of(names: Int64, n: int, need: int) -> Int32:
    """A hash table of the first n names, with room for `need`."""
    table = np.full(1 << (3 * need // 2).bit_length(), FREE, np.int32)
    _enter(table, names, n)
    return table


@compiled
def slot(table: Int32, names: Int64, name: int) -> int:
    """Where the number of `name` stands in the table, or the free place where it would."""
    mask = len(table) - 1
    at = (name ^ (name >> 29)) & mask
    while table[at] >= 0 and names[table[at]] != name:
        at = (at + 1) & mask
    return at


@compiled
def _enter(table: Int32, names: Int64, n: int) -> None:
    for i in range(n):
        table[slot(table, names, int(names[i]))] = i


@compiled
def _number(table: Int32, known: Int64, n: int, names: Int64, numbers: Int32) -> int:
    for i in range(len(names)):
        at = slot(table, known, int(names[i]))
        if table[at] < 0:
            table[at] = n
            known[n] = names[i]
            n += 1
        numbers[i] = table[at]
    return n
