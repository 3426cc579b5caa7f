"""Looks at the ids of a trace: whether equal ids mean equal prefixes, and which prompts leave a short last block out.

It does not number ids (`traces.intern` does) nor decide the block size (`traces.blocks` does).
"""

import numpy as np

from kvcache.request import Int64, Requests


class Chain:
    """Whether every unit so far always followed the same unit, so that equal ids mean equal prefixes."""

    def __init__(self) -> None:
        self.holds = True
        self._before = np.empty(0, np.int32)

    def follow(self, piece: Requests) -> int | None:
        """Go on with the units of one more piece; returns the first row that breaks the chain."""
        units, offset = piece.units, piece.unit_offset
        if not len(units) or not self.holds:
            return None
        before = np.concatenate((np.full(1, -1, np.int32), units[:-1]))
        before[offset[:-1][np.diff(offset) > 0]] = -1
        n_known, n = len(self._before), max(len(self._before), int(units.max()) + 1)
        grown = np.full(max(n, 2 * n_known if n > n_known else 0), -2, np.int32)
        grown[:n_known] = self._before
        new = grown[units] == -2
        grown[units[new]] = before[new]
        self._before = grown
        wrong = np.flatnonzero(grown[units] != before)
        self.holds = not len(wrong)
        return None if self.holds else int(np.searchsorted(offset, wrong[0], side="right") - 1)


def tailless(piece: Requests) -> Int64:
    """The rows whose ids leave a short last block out, if any has ids at all."""
    n_ids = np.diff(piece.unit_offset)
    return np.flatnonzero((n_ids > 0) & (n_ids * piece.unit_tokens < piece.prompt_tokens))
