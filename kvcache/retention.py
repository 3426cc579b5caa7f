"""Retention: which priority a block gets, for how long. Says nothing about which block goes first (`kvcache.queues`).

Models `KvCacheRetentionConfig`: token ranges with priority and duration, a priority and duration for generated blocks, and
the probe rule: a block takes the range that holds its first token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from kvcache.compiled import loop
from kvcache.request import Int32, Int64
from kvcache.tables import DEFAULT_PRIORITY, Array

TRANSFER_MODES = ("DRAM", "GDS", "POSIX_DEBUG_FALLBACK")


def _check_priority(name: str, priority: int) -> None:
    if not 0 <= priority <= 100:
        raise ValueError(f"{name} is {priority}; priorities run from 0 to 100")


@dataclass(frozen=True)
class TokenRangeRetentionConfig:
    """Tokens [token_start, token_end) get `priority` for `duration_ms` after each release (None = for ever)."""

    token_start: int
    token_end: int | None  # None = to the end of the sequence
    priority: int
    duration_ms: int | None = None

    def __post_init__(self) -> None:
        _check_priority("priority", self.priority)
        if self.token_start < 0:
            raise ValueError(f"token_start is {self.token_start}; it must be at least 0")
        if self.token_end is not None and self.token_end <= self.token_start:
            raise ValueError(f"token_end is {self.token_end}; it must be greater than token_start {self.token_start}")


@dataclass(frozen=True)
class KvCacheRetentionConfig:
    """Retention of one request; ranges are kept sorted and must not overlap."""

    token_range_retention_configs: Sequence[TokenRangeRetentionConfig] = ()
    decode_retention_priority: int = DEFAULT_PRIORITY
    decode_duration_ms: int | None = None
    transfer_mode: str = "DRAM"
    directory: str = ""
    ranges: tuple[TokenRangeRetentionConfig, ...] = field(init=False)

    def __post_init__(self) -> None:
        _check_priority("decode_retention_priority", self.decode_retention_priority)
        if self.transfer_mode not in TRANSFER_MODES:
            raise ValueError(f"transfer_mode is {self.transfer_mode!r}; known modes: {', '.join(TRANSFER_MODES)}")
        ranges = tuple(sorted(self.token_range_retention_configs, key=lambda r: r.token_start))
        for left, right in pairwise(ranges):
            if left.token_end is None or left.token_end > right.token_start:
                raise ValueError(
                    f"token ranges overlap: [{left.token_start}, {left.token_end}) and the one from {right.token_start}"
                )
        object.__setattr__(self, "ranges", ranges)

    def per_block(self, tokens_per_block: int, sequence_tokens: int) -> tuple[Int32, Int32]:
        """Priority and duration (ms) of each block of a sequence, -1 where no range holds the block's first token."""
        columns = RetentionColumns.of([self])
        n = -(-sequence_tokens // tokens_per_block)
        priority, duration = np.empty(n, np.int32), np.empty(n, np.int32)
        fill_blocks(columns.ranges, tokens_per_block, priority, duration)
        return priority, duration


@dataclass(frozen=True, eq=False)
class RetentionColumns:
    """Retention of a whole workload: request i has rows ranges[range_offset[i]:range_offset[i + 1]], sorted, disjoint."""

    range_offset: Int64  # int64[n + 1]
    ranges: Int32  # int32[m, 4]: start token, end token (-1 = open), priority, duration in ms (-1 = for ever)
    decode_priority: Int32  # int32[n]
    decode_duration_ms: Int32  # int32[n], -1 = for ever

    @classmethod
    def none(cls, n: int) -> "RetentionColumns":
        """No request says anything: priority 35, for ever."""
        return cls(
            np.zeros(n + 1, np.int64),
            np.empty((0, 4), np.int32),
            np.full(n, DEFAULT_PRIORITY, np.int32),
            np.full(n, -1, np.int32),
        )

    @classmethod
    def of(cls, configs: Sequence[KvCacheRetentionConfig | None]) -> "RetentionColumns":
        """Columns of one configuration a request (None = says nothing)."""
        rows: list[tuple[int, int, int, int]] = []
        offset = [0]
        decode = [(DEFAULT_PRIORITY, -1)] * len(configs)
        for i, config in enumerate(configs):
            if config is not None:
                rows += [(r.token_start, _open(r.token_end), r.priority, _open(r.duration_ms)) for r in config.ranges]
                decode[i] = (config.decode_retention_priority, _open(config.decode_duration_ms))
            offset.append(len(rows))
        pairs = np.array(decode, np.int32).reshape(-1, 2)
        return cls(
            np.array(offset, np.int64),
            np.array(rows, np.int32).reshape(-1, 4),
            pairs[:, 0].copy(),
            pairs[:, 1].copy(),
        )

    def take(self, rows: Int64) -> "RetentionColumns":
        """The columns of these requests (ascending row numbers)."""
        length = self.range_offset[rows + 1] - self.range_offset[rows]
        start = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
        at = np.repeat(self.range_offset[rows] - start[:-1], length) + np.arange(start[-1])
        return RetentionColumns(start, self.ranges[at], self.decode_priority[rows], self.decode_duration_ms[rows])


def _open(value: int | None) -> int:
    return -1 if value is None else value


@loop
def fill_blocks(ranges: Array, tokens_per_block: int, priority: Array, duration_ms: Array) -> None:
    """Give each block the range that holds its first token; -1 where none does."""
    at = 0
    for i in range(len(priority)):
        probe = i * tokens_per_block
        priority[i] = -1
        duration_ms[i] = -1
        while at < len(ranges) and ranges[at, 1] != -1 and ranges[at, 1] <= probe:
            at += 1
        if at < len(ranges) and ranges[at, 0] <= probe:
            priority[i] = ranges[at, 2]
            duration_ms[i] = ranges[at, 3]
