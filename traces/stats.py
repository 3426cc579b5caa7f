"""Measures a workload, piece by piece: how many requests, how long, how much of it could be reused by a cache without limit.

It does not model any engine: a block is a unit of the trace, requests are taken in their order, and a block is hit when
the whole prefix up to it was in the prompt of an earlier request. Generated tokens are not counted as content.

What it keeps does not grow with the workload, but for 8 bytes a session: beyond two million different prefixes it follows a
sample of them (`traces.prefixes`). A cache without limit misses a block exactly once, at its first use, so hits are all
blocks less the different ones, and how often a block comes again does not blur them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcache.request import Float64, Int32, Int64, Requests
from traces.prefixes import MOST, N_BUCKETS, PER_OCTAVE, Prefixes
from traces.stream import Stream, in_pieces

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Quantiles:
    """How an amount is spread. Of lengths exactly; of reuse distances and ages to an eighth of an octave (9 %)."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True)
class Timeline:
    """What happened in each of some equal stretches of time."""

    start_s: list[float]
    requests: list[int]
    prompt_tokens: list[int]
    hit_tokens: list[int]
    unique_blocks: list[int]
    """Different blocks seen up to the end of the stretch: what a cache without limit holds."""
    working_set_blocks: list[int]
    """Blocks that were used before its end and will be used again after it: the least that finds every hit."""


@dataclass(frozen=True)
class Stats:
    """What a workload asks for."""

    source: str
    format: str
    """Which reader it came through; empty for a generated workload."""
    requests: int
    span_s: float
    """From the first arrival to the last."""
    request_rate_rps: float
    """Arrivals a second over the span; nan when all arrive at once."""
    prompt_rate_tokens_per_s: float
    output_rate_tokens_per_s: float
    gap_cv: float
    """Standard deviation of the times between arrivals over their mean: 1 for Poisson, more for bursts."""
    input_tokens: int
    output_tokens: int
    prompt_tokens: Quantiles
    generated_tokens: Quantiles
    sessions: int
    requests_with_session: int
    turns: Quantiles
    """Requests of a session."""
    unit_tokens: int
    """Tokens of a block in the counts below."""
    total_blocks: int
    """Blocks of all prompts that have an identity."""
    followed_share: float
    """The part of new prefixes that was followed at the end; 1: all of them, and every figure below is exact."""
    unique_blocks: int
    """Different prefixes among them, which is also the number of blocks that a cache without limit would hold."""
    unique_blocks_error: float
    """With a chance of 95 % `unique_blocks` and `hit_blocks` are that close to the truth; 0: exact."""
    hit_tokens_error: float
    """The same for `hit_tokens`."""
    blocks_used_once: int
    hit_blocks: int
    hit_tokens: int
    """Tokens of hit blocks, at most the prompt's length for each request."""
    hit_blocks_of_other_sessions: int
    """Blocks hit whose first user was another session, or had none."""
    reuse_distance_blocks: Quantiles
    """Different blocks that requests touched between two uses of a block."""
    reuse_age_s: Quantiles
    """Seconds between two uses of a block."""
    requests_with_known_output: int
    """Requests whose generated content has an identity, so that a later turn can hit it."""
    timeline: Timeline
    notes: list[str]

    @property
    def hit_block_share(self) -> float:
        """The part of all blocks that a cache without limit would find."""
        return self.hit_blocks / self.total_blocks if self.total_blocks else 0.0

    @property
    def hit_token_share(self) -> float:
        """The part of all prompt tokens that a cache without limit would not compute."""
        return self.hit_tokens / self.input_tokens if self.input_tokens else 0.0


def measure(requests: Requests) -> Stats:
    """The statistics of a workload that is in memory."""
    return measured(in_pieces(requests))


def measured(stream: Stream, most: int | None = MOST) -> Stats:
    """The statistics of a stream, which is read to its end. `most`: prefixes to follow at once; None: all, exactly."""
    sums = _Sums(stream.unit_tokens, most)
    for piece in stream.pieces:
        sums.see(piece)
    return sums.stats(stream)


def hits(requests: Requests) -> Int64:
    """For each request, how many blocks from the front of its prompt an earlier request had too."""
    hit: Int64 = np.diff(requests.unit_offset) - Prefixes(most=None).follow(requests).missed
    return hit


class _Lengths:
    """How often each length occurred."""

    def __init__(self) -> None:
        self.values, self.counts = np.empty(0, np.int64), np.empty(0, np.int64)

    def see(self, values: Int32) -> None:
        new, counts = np.unique(values, return_counts=True)
        self.values, place = np.unique(np.concatenate((self.values, new)), return_inverse=True)
        self.counts = np.bincount(place, np.concatenate((self.counts, counts)), len(self.values)).astype(np.int64)

    def total(self) -> int:
        return sum(v * c for v, c in zip(self.values.tolist(), self.counts.tolist(), strict=True))

    def quantiles(self) -> Quantiles:
        return _quantiles(self.values.astype(np.float64), self.counts)


class _Sums:
    def __init__(self, unit_tokens: int, most: int | None) -> None:
        self.unit_tokens = unit_tokens
        self.prefixes = Prefixes(most)
        self.prompt, self.output = _Lengths(), _Lengths()
        self.turns = np.zeros(0, np.int64)
        self.n = self.total = self.missed = self.hit_tokens = self.own = self.known_output = 0
        self.first_s = self.last_s = float("nan")
        self.gap_sum = self.gap_squares = 0.0
        self.rows = np.zeros((3, N_BUCKETS), np.int64)
        self.row_bucket_s = self.prefixes.bucket_s

    def see(self, piece: Requests) -> None:
        if not len(piece):
            return
        found = self.prefixes.follow(piece)
        named_tokens = np.minimum(np.diff(piece.unit_offset) * self.unit_tokens, piece.prompt_tokens)
        hit_tokens = named_tokens - found.missed_tokens
        self.prompt.see(piece.prompt_tokens)
        self.output.see(piece.output_tokens)
        named = piece.session[piece.session >= 0]
        turns = np.bincount(named, minlength=len(self.turns)) if len(named) else np.zeros(len(self.turns), np.int64)
        turns[: len(self.turns)] += self.turns
        self.turns = turns
        self.total += int(piece.unit_offset[-1] - piece.unit_offset[0])
        self.missed += int(found.missed.sum())
        self.own += int(found.own.sum())
        self.hit_tokens += int(hit_tokens.sum())
        if piece.output_offset is not None:
            self.known_output += int((np.diff(piece.output_offset) > 0).sum())
        self._see_times(piece, hit_tokens)
        self.n += len(piece)

    def _see_times(self, piece: Requests, hit_tokens: Int64) -> None:
        times = piece.arrival_s if self.n == 0 else np.concatenate(([self.last_s], piece.arrival_s))
        gaps = np.diff(times)
        self.gap_sum += float(gaps.sum())
        self.gap_squares += float((gaps**2).sum())
        self.first_s = float(times[0]) if self.n == 0 else self.first_s
        self.last_s = float(times[-1])
        while self.row_bucket_s < self.prefixes.bucket_s:
            self.row_bucket_s *= 2
            merged = self.rows.reshape(3, -1, 2).sum(axis=2)
            self.rows = np.concatenate((merged, np.zeros_like(merged)), axis=1)
        bucket = (piece.arrival_s / self.row_bucket_s).astype(np.int64)
        columns: tuple[NDArray[Any], ...] = (np.ones(len(piece)), piece.prompt_tokens, hit_tokens)
        for row, weights in enumerate(columns):
            self.rows[row] += np.bincount(bucket, weights, N_BUCKETS).astype(np.int64)

    def stats(self, stream: Stream) -> Stats:
        span_s = self.last_s - self.first_s if self.n else 0.0
        input_tokens, output_tokens = self.prompt.total(), self.output.total()
        turns = self.turns[self.turns > 0]
        hit = max(0, self.total - self.missed)
        errors = 1.96 * np.sqrt(self.prefixes.variance)
        return Stats(
            source=stream.source,
            format=stream.format,
            requests=self.n,
            span_s=span_s,
            request_rate_rps=_rate(self.n, span_s),
            prompt_rate_tokens_per_s=_rate(input_tokens, span_s),
            output_rate_tokens_per_s=_rate(output_tokens, span_s),
            gap_cv=self._gap_cv(),
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            prompt_tokens=self.prompt.quantiles(),
            generated_tokens=self.output.quantiles(),
            sessions=len(turns),
            requests_with_session=int(turns.sum()),
            turns=_quantiles(*_counted(turns)),
            unit_tokens=self.unit_tokens,
            total_blocks=self.total,
            followed_share=self.prefixes.share,
            unique_blocks=self.missed,
            unique_blocks_error=float(errors[0]),
            hit_tokens_error=float(errors[1]),
            blocks_used_once=self.prefixes.used_once,
            hit_blocks=hit,
            hit_tokens=max(0, self.hit_tokens),
            hit_blocks_of_other_sessions=max(0, hit - self.own),
            reuse_distance_blocks=_quantiles(_class_values(self.prefixes.distances), self.prefixes.distances),
            reuse_age_s=_quantiles(_class_values(self.prefixes.ages) / 1000, self.prefixes.ages),
            requests_with_known_output=self.known_output,
            timeline=self._timeline(),
            notes=list(stream.notes),
        )

    def _gap_cv(self) -> float:
        n = self.n - 1
        if n < 1 or not self.gap_sum:
            return float("nan")
        mean = self.gap_sum / n
        return float(np.sqrt(max(0.0, self.gap_squares / n - mean**2)) / mean)

    def _timeline(self) -> Timeline:
        used = slice(0, int(self.last_s / self.row_bucket_s) + 1 if self.n else 0)
        return Timeline(
            start_s=(np.arange(N_BUCKETS) * self.row_bucket_s)[used].tolist(),
            requests=self.rows[0][used].tolist(),
            prompt_tokens=self.rows[1][used].tolist(),
            hit_tokens=np.clip(self.rows[2], 0, self.rows[1])[used].tolist(),
            unique_blocks=np.cumsum(self.prefixes.new)[used].tolist(),
            working_set_blocks=np.cumsum(self.prefixes.spans)[used].tolist(),
        )


def _rate(amount: int, span_s: float) -> float:
    return amount / span_s if span_s > 0 else float("nan")


def _class_values(counts: Int64) -> Float64:
    """The middle of each class of an eighth of an octave; class 0 is 0."""
    middle = 2.0 ** ((np.arange(len(counts)) - 0.5) / PER_OCTAVE)
    middle[0] = 0
    return middle


def _counted(values: Int64) -> tuple[Float64, Int64]:
    different, counts = np.unique(values, return_counts=True)
    return different.astype(np.float64), counts.astype(np.int64)


def _quantiles(values: Float64, counts: Int64) -> Quantiles:
    """Of ascending values and how often each occurs; between two values a quantile lies on the line from one to the other."""
    n = int(counts.sum())
    if not n:
        return Quantiles(0.0, 0.0, 0.0, 0.0, 0.0)
    last = np.cumsum(counts)

    def at(rank: NDArray[np.int64]) -> Float64:
        found: Float64 = values[np.searchsorted(last, rank, side="right")]
        return found

    rank = np.array(QUANTILES) * (n - 1)
    low = np.floor(rank).astype(np.int64)
    between = at(low) + (rank - low) * (at(np.minimum(low + 1, n - 1)) - at(low))
    most = float(values[np.flatnonzero(counts)[-1]])
    p50, p90, p99 = (float(q) for q in between)
    return Quantiles(float((values * counts).sum() / n), p50, p90, p99, most)
