"""Brings a trace that came in file order into replay order: by time, ties in file order, the first request at 0 s.

It does not read files. Three ways: whole, in memory; through a window, for a stream that is nearly in order; through
temporary files, for formats that cannot be in order, such as sessions one after the other.
"""

from collections.abc import Iterator
from dataclasses import replace
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np

from kvcache.request import Float64, Int32, Int64, Requests
from traces.errors import Place
from traces.stream import PIECE_REQUESTS, Stream, joined, offsets

if TYPE_CHECKING:
    from traces.collect import Collector

Pieces = Iterator[tuple[Requests, list[Place]]]


class FileOrder(NamedTuple):
    """A trace as it stands in its file. `arrival_s` of its pieces still counts ticks since the first row."""

    collector: "Collector"
    ticks_per_s: int
    pieces: Pieces


class _Lateness:
    """Counts the rows that come after a later one, and says so at the end."""

    def __init__(self, trace: FileOrder) -> None:
        self.collector, self.latest, self.late, self.n = trace.collector, -np.inf, 0, 0

    def see(self, times: Float64, places: list[Place]) -> None:
        running = np.maximum.accumulate(np.concatenate(([self.latest], times)))[1:]
        late = np.flatnonzero(times < running)
        self.late += len(late)
        if self.collector.convention.rows_are_in_time_order:
            self.collector.doubt("earlier than a row before it", places, late)
        self.latest = float(running[-1])
        self.n += len(times)
        if self.late and self.collector.options.strict and self.collector.convention.rows_are_in_time_order:
            self.say()

    def say(self) -> None:
        if self.late and self.collector.convention.rows_are_in_time_order:
            self.collector.repaired(
                f"{self.late} of {self.n} rows were out of time order; sorted by time, ties in file order"
            )


def whole(trace: FileOrder) -> Requests:
    """All of it, in memory."""
    lateness, pieces = _Lateness(trace), []
    for piece, places in trace.pieces:
        lateness.see(piece.arrival_s, places)
        pieces.append(piece)
    lateness.say()
    requests = joined(Stream(pieces[0].source, pieces[0].unit_tokens, iter(pieces), trace.collector.notes))
    start = float(requests.arrival_s.min())
    return replace(_sorted(requests), arrival_s=_seconds(np.sort(requests.arrival_s), start, trace))


def streamed(trace: FileOrder) -> Stream:
    """The same in pieces, without holding it."""
    first = next(trace.pieces)
    trace = trace._replace(pieces=_again(first, trace.pieces))
    ordered = _windowed(trace) if trace.collector.convention.rows_are_in_time_order else _spooled(trace)
    return Stream(first[0].source, first[0].unit_tokens, ordered, trace.collector.notes, trace.collector.doubts)


def _again(first: tuple[Requests, list[Place]], others: Pieces) -> Pieces:
    yield first
    yield from others


def _windowed(trace: FileOrder) -> Iterator[Requests]:
    """One piece is held back, so that rows of the next may still go before it."""
    lateness, held, start, passed = _Lateness(trace), None, None, -np.inf
    for piece, places in trace.pieces:
        lateness.see(piece.arrival_s, places)
        if float(piece.arrival_s.min()) < passed:
            place = places[int(np.argmax(piece.arrival_s < passed))]
            raise place.error(
                f"this row is out of time order by more than {PIECE_REQUESTS} rows, too far for a trace that is read "
                f"piece by piece: sort it first, with `kvtier trace convert`"
            )
        held = _sorted(piece if held is None else joined(_of([held, piece])))
        start = float(held.arrival_s[0]) if start is None else start
        ready = len(held) - PIECE_REQUESTS
        if ready > 0:
            passed = float(held.arrival_s[ready - 1])
            done = held.head(ready)
            yield replace(done, arrival_s=_seconds(done.arrival_s, start, trace))
            held = held.take(np.arange(ready, len(held)))
    lateness.say()
    if held is not None and start is not None and len(held):
        yield replace(held, arrival_s=_seconds(held.arrival_s, start, trace))


def _spooled(trace: FileOrder) -> Iterator[Requests]:
    """Everything but times and lengths of lists goes through temporary files; rows come out sorted by time."""
    with TemporaryFile() as units_file, TemporaryFile() as output_file:
        pieces = []
        for piece, _ in trace.pieces:
            piece.units.tofile(units_file)
            if piece.output_units is not None:
                piece.output_units.tofile(output_file)
            empty = np.empty(0, np.int32)
            pieces.append(replace(piece, units=empty, output_units=None if piece.output_units is None else empty))
        units_file.flush()
        output_file.flush()
        everything = joined(_of(pieces))
        order = np.argsort(everything.arrival_s, kind="stable")
        start = float(everything.arrival_s[order[0]])
        for at in range(0, len(order), PIECE_REQUESTS):
            rows = order[at : at + PIECE_REQUESTS]
            yield replace(
                _filled(everything, rows, units_file, output_file),
                arrival_s=_seconds(everything.arrival_s[rows], start, trace),
            )


def _filled(everything: Requests, rows: Int64, units_file: IO[bytes], output_file: IO[bytes]) -> Requests:
    """These rows, with their content read back."""
    bare = replace(
        everything, unit_offset=np.zeros(len(everything) + 1, np.int64), output_offset=None, output_units=None
    )
    offset, units = _read_back(units_file, everything.unit_offset, rows)
    taken = replace(bare.take(rows), unit_offset=offset, units=units)
    if everything.output_offset is None:
        return taken
    offset, units = _read_back(output_file, everything.output_offset, rows)
    return replace(taken, output_offset=offset, output_units=units)


def _read_back(file: IO[bytes], offset: Int64, rows: Int64) -> tuple[Int64, Int32]:
    if not offset[-1]:
        return np.zeros(len(rows) + 1, np.int64), np.empty(0, np.int32)
    values = np.memmap(file, dtype=np.int32, mode="r")
    pieces = [values[offset[i] : offset[i + 1]] for i in rows]
    return offsets(offset[rows + 1] - offset[rows]), np.concatenate(pieces)


def _sorted(requests: Requests) -> Requests:
    order = np.argsort(requests.arrival_s, kind="stable").astype(np.int64)
    return requests if (np.diff(order) == 1).all() else requests.take(order)


def _of(pieces: list[Requests]) -> Stream:
    return Stream(pieces[0].source, pieces[0].unit_tokens, iter(pieces), list(pieces[0].notes))


def _seconds(ticks: Float64, start: float, trace: FileOrder) -> Float64:
    seconds: Float64 = (ticks - start) / trace.ticks_per_s
    return seconds
