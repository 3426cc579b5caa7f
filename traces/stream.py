"""A workload in pieces, in replay order, so that a trace can be measured or converted without being held whole.

It does not read files (`traces.read.opened` does). A piece is a `Requests` of its own, but arrivals count from the start
of the whole trace, and a unit, session or label code means the same in all pieces; a label's names may grow from piece
to piece.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from kvcache.request import COLUMNS, Int32, Int64, Labels, Requests
from traces.doubts import Doubts

PIECE_REQUESTS = 65_536


@dataclass(frozen=True)
class Stream:
    """Requests that come as they are asked for. `pieces` can be gone through once."""

    source: str
    unit_tokens: int
    pieces: Iterator[Requests]
    notes: list[str] = field(default_factory=list)
    """What was inferred or repaired; complete when `pieces` is at its end."""
    doubts: Doubts = field(default_factory=Doubts)
    """The same and more, with the lines; see `kvtier trace check`."""
    format: str = ""
    """Which reader it comes from."""


def in_pieces(requests: Requests, n: int = PIECE_REQUESTS) -> Stream:
    """A workload that is in memory already, as a stream of pieces of n requests."""
    starts = range(0, len(requests), n)
    pieces = (requests.take(np.arange(start, min(start + n, len(requests)))) for start in starts)
    return Stream(requests.source, requests.unit_tokens, pieces, list(requests.notes))


def first(stream: Stream, n: int) -> Stream:
    """The first n requests of a stream; what comes after them is not read."""
    return replace(stream, pieces=_up_to(stream.pieces, n))


def _up_to(pieces: Iterator[Requests], n: int) -> Iterator[Requests]:
    for piece in pieces:
        yield piece.head(n)
        n -= len(piece)
        if n <= 0:
            return


def joined(stream: Stream) -> Requests:
    """The whole workload in memory."""
    pieces = list(stream.pieces)
    if len(pieces) == 1:
        return replace(pieces[0], notes=tuple(stream.notes))
    unit_offset, units = _ragged(pieces, lambda piece: (piece.unit_offset, piece.units))
    output_offset, output_units = None, None
    if any(piece.output_units is not None for piece in pieces):
        output_offset, output_units = _ragged(pieces, _output)
    return Requests(
        source=stream.source,
        unit_tokens=stream.unit_tokens,
        unit_offset=unit_offset,
        units=units,
        output_offset=output_offset,
        output_units=output_units,
        labels=_labels(pieces),
        notes=tuple(stream.notes),
        **{
            name: np.concatenate([np.empty(0, np.int32), *(getattr(piece, name) for piece in pieces)])
            for name in COLUMNS
        },
    )


def offsets(lengths: Int64) -> Int64:
    """Where each row of these lengths begins, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int64)


def _output(piece: Requests) -> tuple[Int64, Int32]:
    if piece.output_offset is None or piece.output_units is None:
        return np.zeros(len(piece) + 1, np.int64), np.empty(0, np.int32)
    return piece.output_offset, piece.output_units


def _ragged(pieces: list[Requests], of: Callable[[Requests], tuple[Int64, Int32]]) -> tuple[Int64, Int32]:
    lengths = [np.diff(of(piece)[0]) for piece in pieces]
    return offsets(np.concatenate([np.empty(0, np.int64), *lengths])), np.concatenate([
        np.empty(0, np.int32),
        *(of(piece)[1] for piece in pieces),
    ])


def _labels(pieces: list[Requests]) -> dict[str, Labels]:
    """Codes end to end; the longest list of names, which begins with all others, holds for all."""
    columns = {}
    for name in dict.fromkeys(name for piece in pieces for name in piece.labels):
        names = max((piece.labels[name].names for piece in pieces if name in piece.labels), key=len)
        unknown = [np.full(len(piece), -1, np.int32) for piece in pieces]
        codes = [
            piece.labels[name].codes if name in piece.labels else u for piece, u in zip(pieces, unknown, strict=True)
        ]
        columns[name] = Labels(np.concatenate(codes), names)
    return columns
