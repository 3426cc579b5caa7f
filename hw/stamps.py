"""What every place should hold: a stamp made of the key and the version of the content computed there.

It follows commands in the order the policy gave them, which is what their order in memory must amount to. Real bytes
are compared with it after moves. A version is new for each computed block, so that old content of the same key shows
too.
"""

import numpy as np

from hw.memory import Layout

WHOLE = 0


class WrongBytesError(AssertionError):
    """A place does not hold what was put there."""


class Stamps:
    """Key node, version and valid tokens (0: all) by place. `tokens` -1: nothing was ever written."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.node = np.full(layout.places, -1, np.int64)
        self.version = np.zeros(layout.places, np.int64)
        self.tokens = np.full(layout.places, -1, np.int64)
        self._next = 1

    def compute(self, place: int, node: int) -> int:
        """New content of key `node`; returns its seed."""
        self.node[place] = node
        self.version[place] = self._next
        self.tokens[place] = WHOLE
        self._next += 1
        return self.seed(place)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """The first `tokens` tokens (0: the whole block) of `source` are now in `target` too."""
        self.node[target] = self.node[source]
        self.version[target] = self.version[source]
        known = int(self.tokens[source])
        if tokens != WHOLE and known >= 0:
            known = tokens if known == WHOLE else min(tokens, known)
        self.tokens[target] = known

    def seed(self, place: int) -> int:
        """First word of the place's pattern."""
        mixed = (int(self.node[place]) * 0x9E3779B1 + int(self.version[place])) * 0xD1B54A32D192ED03
        return (mixed ^ (mixed >> 29)) % (1 << 62)

    def describe(self, place: int) -> str:
        """The content a place should hold, for messages."""
        tokens = int(self.tokens[place])
        part = "" if tokens == WHOLE else f", first {tokens} tokens"
        return f"key node {self.node[place]} version {self.version[place]}{part}"

    def wrong(self, place: int, pool: int, byte: int, after: str) -> WrongBytesError:
        """The failure that names the block."""
        rows = self.layout.rows[pool]
        return WrongBytesError(
            f"after {after}: {self.layout.name(place)} (part {rows.part}) should hold {self.describe(place)}"
            f" and differs from byte {byte} on"
        )
