"""Gives every hash id of a trace a dense number, exactly: no rounding, no overflow, no merging of unequal ids.

It does not check whether ids are chained (`traces.collect` does).
"""

from collections.abc import Sequence
from typing import Any

from traces.errors import Place, shown

LONGEST_NUMBER = 20  # digits of 2**64 - 1: longer digit strings are names, not numbers


class Interner(dict[int | str, int]):
    """id -> dense number, counted from `start`. A decimal string and the number it spells ("1" and 1) are one id."""

    def __init__(self, start: int = 0) -> None:
        super().__init__()
        self.next = start

    def __missing__(self, key: int | str) -> int:
        number = self._number(key)
        if isinstance(key, str) and number is not None:
            dense = self[number]
        else:
            dense = self.next
            self.next += 1
        self[key] = dense
        return dense

    def dense(self, ids: Sequence[Any], field: str, place: Place) -> list[int]:
        """The dense numbers of a row's ids."""
        if not set(map(type, ids)) <= {int, str}:
            wrong = next(i for i in ids if type(i) not in {int, str})
            raise place.error(
                f"{field} holds {shown(wrong)}; an id must be a whole number or text "
                f"(a float cannot hold a 64-bit hash exactly)"
            )
        return list(map(self.__getitem__, ids))

    @staticmethod
    def _number(key: int | str) -> int | None:
        if isinstance(key, int):
            return key
        spelled = key.isascii() and key.isdecimal() and len(key) <= LONGEST_NUMBER and str(int(key)) == key
        return int(key) if spelled else None
