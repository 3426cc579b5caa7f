"""Makes a smaller or a different workload of one: a part of its time, some of its sessions or tenants, other rates or lengths.

Numbers of content and sessions stay as they are, so whatever is kept still shares what it shared.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kvcache.request import Int32, Int64, Requests
from traces.errors import TraceError, shown
from traces.fields import INT32_MAX
from traces.stream import Stream, offsets

Bool = NDArray[np.bool_]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Slice:
    """Which requests to keep; everything said must hold."""

    from_s: float = 0.0
    to_s: float = math.inf
    """Arrivals in [from_s, to_s); the first kept one then arrives at its time minus `from_s`."""
    sessions: tuple[int, ...] = ()
    """Session numbers, as `kvtier trace stats` counts them; none: all."""
    labels: tuple[tuple[str, str], ...] = ()
    """(label, value) pairs; of one label any value will do."""
    sample: float = 1.0
    """Share of the groups to keep, whole ones, chosen by hash: the same groups whatever else is asked."""
    sample_by: str = "session"
    """What stays together: `session` (a request without one is its own), or `prefix` (prompts with the same first block)."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.from_s < self.to_s:
            raise TraceError(
                f"--from is {self.from_s} and --until {self.to_s}; they must be 0 or more, and in this order"
            )
        if not 0 < self.sample <= 1:
            raise TraceError(f"--sample is {self.sample}; it must be above 0 and at most 1")
        if self.sample_by not in {"session", "prefix"}:
            raise TraceError(f"--sample-by is {shown(self.sample_by)}; it must be session or prefix")


def sliced(stream: Stream, wanted: Slice) -> Stream:
    """The requests wanted. What lies after `to_s` is not read."""
    return replace(stream, pieces=_sliced(stream, wanted))


def _sliced(stream: Stream, wanted: Slice) -> Iterator[Requests]:
    seen, done, unknown = 0, 0, {label: set[str]() for label, _ in wanted.labels}
    for piece in stream.pieces:
        keep = (piece.arrival_s >= wanted.from_s) & (piece.arrival_s < wanted.to_s)
        if wanted.sessions:
            keep &= np.isin(piece.session, wanted.sessions)
        for label in unknown:
            keep &= _has(piece, label, [value for name, value in wanted.labels if name == label])
            unknown[label] |= set(piece.labels[label].names) if label in piece.labels else set()
        if wanted.sample < 1:
            keep &= _chosen(_groups(piece, wanted.sample_by, seen), wanted)
        seen += len(piece)
        kept = piece.take(np.flatnonzero(keep).astype(np.int64))
        done += len(kept)
        if len(kept):
            yield replace(kept, arrival_s=kept.arrival_s - wanted.from_s)
        if len(piece) and piece.arrival_s[-1] >= wanted.to_s:
            break
    if not done:
        have = "; ".join(
            f"{label} has {', '.join(sorted(values)[:8]) or 'no values'}" for label, values in unknown.items()
        )
        raise TraceError(f"{stream.source}: no request is left{'; ' + have if have else ''}")


def _has(piece: Requests, label: str, values: list[str]) -> Bool:
    if label not in piece.labels:
        return np.zeros(len(piece), np.bool_)
    column = piece.labels[label]
    return np.isin(column.codes, [column.names.index(value) for value in values if value in column.names])


def _groups(piece: Requests, by: str, seen: int) -> Int64:
    """A number that requests which must stay together share."""
    alone = -1 - (seen + np.arange(len(piece)))
    if by == "session":
        return np.where(piece.session >= 0, piece.session, alone).astype(np.int64)
    has = np.diff(piece.unit_offset) > 0
    group = alone.astype(np.int64)
    group[has] = piece.units[piece.unit_offset[:-1][has]]
    return group


def _chosen(group: Int64, wanted: Slice) -> Bool:
    """Groups whose hash lies below the share."""
    x = (group.astype(np.uint64) + np.uint64(wanted.seed) * np.uint64(0xD1B54A32D192ED03)) * GOLDEN
    x ^= x >> np.uint64(29)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(32)
    return np.asarray((x >> np.uint64(11)).astype(np.float64) / 2.0**53 < wanted.sample)


@dataclass(frozen=True)
class Scale:
    """Factors; 1 leaves things as they are."""

    rate: float = 1.0
    """Arrivals come so many times as fast; think times shrink alike."""
    prompt: float = 1.0
    output: float = 1.0

    def __post_init__(self) -> None:
        for name in ("rate", "prompt", "output"):
            if not 0 < getattr(self, name) < math.inf:
                raise TraceError(f"--{name} is {getattr(self, name)}; it must be a finite number above 0")

    def notes(self, stream: Stream) -> list[str]:
        """What scaling lengths does to content."""
        said = []
        if self.prompt != 1:
            block = f"blocks of {stream.unit_tokens} tokens"
            said.append(
                f"prompts x {self.prompt:g}: content is scaled block by block ({block}): a shorter prompt keeps its first"
                " blocks, a longer one repeats each block's number as new content, equal where it was equal"
            )
        if self.output != 1 or self.prompt != 1:
            said.append("content of outputs is left out: with other lengths it is no longer the next turn's prompt")
        return said


def scaled(stream: Stream, by: Scale) -> Stream:
    """The workload at other rates and lengths."""
    return replace(
        stream, pieces=(_scaled(piece, by) for piece in stream.pieces), notes=[*stream.notes, *by.notes(stream)]
    )


def _scaled(piece: Requests, by: Scale) -> Requests:
    piece = replace(piece, arrival_s=piece.arrival_s / by.rate, think_s=piece.think_s / by.rate)
    if by.prompt == 1 and by.output == 1:
        return piece
    output = _lengths(piece.output_tokens, by.output, 0)
    prompt = _lengths(piece.prompt_tokens, by.prompt, 1)
    offset, units = (piece.unit_offset, piece.units) if by.prompt == 1 else _content(piece, prompt, by.prompt)
    return replace(
        piece,
        prompt_tokens=prompt,
        output_tokens=output,
        unit_offset=offset,
        units=units,
        output_offset=None,
        output_units=None,
    )


def _lengths(tokens: Int32, factor: float, least: int) -> Int32:
    longer = np.rint(tokens * factor)
    if longer.max(initial=0) > INT32_MAX:
        raise TraceError(f"lengths x {factor:g} do not fit: the longest would have {longer.max():.0f} tokens")
    whole: Int32 = np.maximum(longer, np.minimum(tokens, least)).astype(np.int32)
    return whole


def _content(piece: Requests, prompt: Int32, factor: float) -> tuple[Int64, Int32]:
    """Block j of the new prompt is piece `j - first` of the old block that begins where it does in proportion.

    A longer prompt has up to ceil(factor) new blocks to an old one: each is (old block, which of them), so equal content
    stays equal content. A shorter one keeps its first blocks.
    """
    old = np.diff(piece.unit_offset)
    whole = prompt // piece.unit_tokens
    if factor < 1:
        n = np.minimum(old, whole)
        place = _place(n)
        return offsets(n), piece.units[np.repeat(piece.unit_offset[:-1], n) + place]
    copies = math.ceil(factor)
    n = np.where(old > 0, np.minimum(whole, np.floor(old * factor).astype(np.int64)), 0)
    place = _place(n)
    source = np.minimum((place / factor).astype(np.int64), np.repeat(np.maximum(old, 1) - 1, n))
    which = place - np.ceil(source * factor).astype(np.int64)
    units = piece.units[np.repeat(piece.unit_offset[:-1], n) + source].astype(np.int64) * (copies + 1) + which
    if units.max(initial=0) > INT32_MAX:
        raise TraceError(f"prompts x {factor:g}: too many different blocks; cut the trace into larger ones first")
    return offsets(n), units.astype(np.int32)


def _place(n: Int64) -> Int64:
    return np.arange(int(n.sum())) - np.repeat(offsets(n)[:-1], n)


def labels_of(where: list[str]) -> tuple[tuple[str, str], ...]:
    """LABEL=VALUE texts as pairs."""
    pairs = [tuple(text.split("=", maxsplit=1)) for text in where]
    wrong = next((text for text, pair in zip(where, pairs, strict=True) if len(pair) != 2), None)
    if wrong is not None:
        raise TraceError(f"--where is {shown(wrong)}; write it as LABEL=VALUE")
    return tuple((pair[0], pair[1]) for pair in pairs)
