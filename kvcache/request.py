"""Requests as columns: who asks when, for how many tokens, of which content.

It does not know about files (the `traces` room reads them) nor about block sizes (`kvcache.index` cuts the content into
blocks of `tokens_per_block`). Content is a sequence of *units*: dense integers, each of which stands for `unit_tokens`
tokens. A unit is one token where the trace has tokens (`unit_tokens` = 1) and one trace block where it has only hashes
(512 in the Mooncake traces). Two units with the same number hold the same tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "session", "salt", "lora", "think_s")
"""The columns of `Requests` that have one number a request."""


@dataclass(frozen=True)
class Labels:
    """One categorical column (tenant, type, model, ...): `codes` int32[n] into `names`; -1 means unknown."""

    codes: Int32
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Requests:
    """A workload, one row a request, in replay order (by arrival, ties in file order).

    Arrays of length n: `arrival_s` (seconds from the start, float64, not decreasing), `prompt_tokens`, `output_tokens`
    (int32), `session` (dense session number, -1 = none known), `salt` and `lora` (namespace ids, -1 = none), `think_s`
    (float64, from the end of the session's previous request to this one; NaN where it is not known).

    `units[unit_offset[i]:unit_offset[i + 1]]` are the prompt's content units in order. Their number is
    ceil(prompt_tokens / unit_tokens), in which case the last unit may be short, or floor, in which case the tail of the
    prompt has no identity and is never shared.

    `output_units`/`output_offset` (optional) name the content from unit number prompt_tokens // unit_tokens on, i.e. the
    units that hold generated tokens (the first of them also holds the short tail of the prompt). With token content they
    are exactly the generated tokens. Without them generated content is private to its request.
    """

    source: str
    unit_tokens: int
    arrival_s: Float64
    prompt_tokens: Int32
    output_tokens: Int32
    unit_offset: Int64
    units: Int32
    output_offset: Int64 | None = None
    output_units: Int32 | None = None
    session: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    salt: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    lora: Int32 = field(default_factory=lambda: np.empty(0, np.int32))
    think_s: Float64 = field(default_factory=lambda: np.empty(0, np.float64))
    labels: Mapping[str, Labels] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.arrival_s)
        for name in ("session", "salt", "lora"):
            if len(getattr(self, name)) == 0 and n:
                object.__setattr__(self, name, np.full(n, -1, np.int32))
        if len(self.think_s) == 0 and n:
            object.__setattr__(self, "think_s", np.full(n, np.nan))
        if self.unit_tokens < 1:
            raise ValueError(f"unit_tokens is {self.unit_tokens}; it must be at least 1")
        if len(self.unit_offset) != n + 1:
            raise ValueError(f"unit_offset has {len(self.unit_offset)} entries for {n} requests; it needs {n + 1}")
        if (self.output_offset is None) != (self.output_units is None):
            raise ValueError("output_offset and output_units come together or not at all")

    def __len__(self) -> int:
        return len(self.arrival_s)

    def prompt_units(self, i: int) -> Int32:
        """The content units of request i's prompt."""
        return self.units[self.unit_offset[i] : self.unit_offset[i + 1]]

    def head(self, n: int) -> Self:
        """The first n requests as a workload of their own (arrays are views)."""
        n = min(n, len(self))
        rows: dict[str, Any] = {name: getattr(self, name)[:n] for name in COLUMNS}
        rows["unit_offset"] = self.unit_offset[: n + 1]
        rows["units"] = self.units[: self.unit_offset[n]]
        if self.output_offset is not None and self.output_units is not None:
            rows["output_offset"] = self.output_offset[: n + 1]
            rows["output_units"] = self.output_units[: self.output_offset[n]]
        rows["labels"] = {k: Labels(v.codes[:n], v.names) for k, v in self.labels.items()}
        return replace(self, **rows)

    def take(self, rows: Int64) -> Self:
        """The requests of these row numbers (ascending), as a workload of their own."""
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in COLUMNS}
        columns["unit_offset"], columns["units"] = _gathered(self.unit_offset, self.units, rows)
        if self.output_offset is not None and self.output_units is not None:
            columns["output_offset"], columns["output_units"] = _gathered(self.output_offset, self.output_units, rows)
        columns["labels"] = {k: Labels(v.codes[rows], v.names) for k, v in self.labels.items()}
        return replace(self, **columns)


def _gathered(offset: Int64, values: Int32, rows: Int64) -> tuple[Int64, Int32]:
    """The slices of `rows`, one after the other, and where each starts."""
    length = offset[rows + 1] - offset[rows]
    start = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    at = np.repeat(offset[rows] - start[:-1], length) + np.arange(start[-1])
    return start, values[at]
