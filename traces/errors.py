"""Says what is wrong with a trace in one line: `FILE:LINE: what, value, what was expected, which option changes it`.

It does not decide what is wrong; the readers do. A `TraceError` is the only exception that reading a trace may raise
for a fault of the file.
"""

from typing import Any, NamedTuple

SHOWN_CHARACTERS = 40
SKIP = "--skip-bad-lines leaves such lines out"


class TraceError(ValueError):
    """A trace that cannot be used as it is; `str(error)` is one line for the user.

    A fault of one line also says where it is and what is wrong there.
    """

    place: "Place | None" = None
    what: str = ""


class Place(NamedTuple):
    """Where a value stands: the trace's name as the user gave it, and the line (or the item of a JSON array) from 1."""

    name: str
    line: int
    is_item: bool = False
    part: str = ""
    """Which part of the line, where a line holds many requests."""

    def __str__(self) -> str:
        where = f"{self.name}:item {self.line}" if self.is_item else f"{self.name}:{self.line}"
        return f"{where}: {self.part}" if self.part else where

    def error(self, what: str) -> TraceError:
        """The error to raise for a fault found here."""
        error = TraceError(f"{self}: {what}")
        error.place, error.what = self, what
        return error


def shown(value: Any) -> str:
    """The value as it may stand in a message: on one line, its first 40 characters."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS + 2 else f"{text[: SHOWN_CHARACTERS + 1]}{text[0]}..."
