"""Gathers rows, one a request, into pieces of columns in file order: block size, sessions, labels, notes.

It does not parse files: a reader hands it rows whose ids are dense numbers already. It does not sort either
(`traces.order` does). What it keeps from piece to piece grows with what is different in a trace (ids, sessions, labels),
not with its length.
"""

import math
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kvcache.request import Int32, Int64, Labels, Requests
from traces import blocks
from traces.chained import Chain, tailless
from traces.convention import Convention, Row
from traces.doubts import SHOWN, Doubts
from traces.errors import Place, TraceError
from traces.options import TICKS_PER_S, ReadOptions
from traces.order import FileOrder
from traces.source import Source
from traces.stream import PIECE_REQUESTS, offsets

PIECE_IDS = 4_000_000
MOST_KINDS = 40


class Codes(dict[Hashable, int]):
    """value -> dense number in order of first appearance; None is -1."""

    def __missing__(self, value: Hashable) -> int:
        self[value] = -1 if value is None else len(self) - (None in self)
        return self[value]


class Collector:
    """The rows of one trace since the last piece, and what holds for all of it."""

    def __init__(self, source: Source, options: ReadOptions, convention: Convention) -> None:
        self.source, self.options, self.convention = source, options, convention
        self.notes: list[str] = []
        self.doubts = Doubts()
        self.block_size: int | None = None
        self.resolved: Callable[[list[Hashable]], list[Hashable]] = lambda sessions: sessions
        self.at_end: Callable[[], str] = lambda: ""
        """What the reader has to say about the whole trace once it is read."""
        self._block: blocks.Block | None = None
        self._first_time: int | float | None = None
        self._last_time: dict[Hashable, int | float] = {}
        self._last_end: dict[Hashable, int | float | None] = {}
        self.ticks_per_s = TICKS_PER_S[options.time_unit or convention.time_unit]
        self._sessions, self._labels = Codes(), dict[str, Codes]()
        self._chain = Chain()
        self._n, self._n_delayed, self._n_untimed, self._n_orphans, self._n_private, self._n_silent = 0, 0, 0, 0, 0, 0
        self._time_is_date: bool | None = None
        self._n_skipped = 0
        self._inferred: dict[str, int] = {}
        self._first_skipped: TraceError | None = None
        self._clear()

    def _clear(self) -> None:
        self._places: list[Place] = []
        self._times, self._think_s = array("d"), array("d")
        self._prompt, self._output = array("i"), array("i")
        self._ids, self._ids_end = array("i"), array("q", [0])
        self._all_ids, self._all_ids_end = array("i"), array("q", [0])
        self._session_of: list[Hashable] = []
        self._labels_of: list[Mapping[str, str]] = []

    @property
    def is_full(self) -> bool:
        """Whether the rows make up a piece."""
        return len(self._places) >= PIECE_REQUESTS or len(self._ids) + len(self._all_ids) >= PIECE_IDS

    def add(self, row: Row, place: Place) -> None:
        """Take one more request."""
        time = self._time(row, place)
        if self._first_time is None:
            self._first_time = time
        self._places.append(place)
        self._times.append(time - self._first_time)
        self._think_s.append(self._thought(row, time) / self.ticks_per_s)
        self._prompt.append(row.prompt_tokens)
        self._output.append(row.output_tokens)
        self._ids.extend(row.ids)
        self._ids_end.append(len(self._ids))
        self._all_ids.extend(row.all_ids)
        self._all_ids_end.append(len(self._all_ids))
        self._session_of.append(row.session)
        self._labels_of.append(row.labels)

    def knows(self, name: Hashable) -> bool:
        """Whether a row of this name, or session, came before."""
        return name in self._last_time

    def skip(self, error: TraceError) -> None:
        """Leave a bad line out, where the user wants that; otherwise it stops the reading."""
        if not self.options.skip_bad_lines:
            raise error
        self._first_skipped = self._first_skipped or error
        if error.place is not None and len(self.doubts) < MOST_KINDS:
            self.doubts.see(f"left out: {error.what}", error.place)
        else:
            self.doubts.see("more lines left out")
        self._n_skipped += 1

    def state_block_size(self, tokens: int, place: Place) -> None:
        """The file itself says its block size; it must not say two."""
        if self.block_size is None:
            self.block_size = tokens
        if tokens != self.block_size and self.options.trace_block_size is None:
            raise place.error(
                f"block_size is {tokens}, the lines before have {self.block_size}; a trace has one block size: "
                f"split the file, or override it with {blocks.OPTION}"
            )

    def state_time_is_date(self, is_date: bool, place: Place) -> None:
        """Times of a trace are all dates or all numbers."""
        if self._time_is_date is None:
            self._time_is_date = is_date
        if is_date != self._time_is_date:
            kinds = ("a number", "dates") if self._time_is_date else ("a date", "numbers")
            raise place.error(f"the time is {kinds[0]}, those before are {kinds[1]}; a trace has one kind of times")

    def repaired(self, what: str) -> None:
        """Note what had to be inferred; `--strict` refuses it."""
        if self.options.strict:
            raise self.source.error(f"{what} (--strict refuses this)")
        self.notes.append(f"{self.source.name}: {what}")

    def infer(self, what: str, place: Place) -> None:
        """Note what was inferred for one row; the notes count such rows, and `--strict` refuses the first."""
        if self.options.strict:
            raise place.error(f"{what} (--strict refuses this)")
        self._inferred[what] = self._inferred.get(what, 0) + 1
        self.doubts.see(what, place)

    def doubt(self, what: str, places: Sequence[Place], rows: Int64) -> None:
        """Remember what is doubtful about some rows."""
        for row in rows[:SHOWN].tolist():
            self.doubts.see(what, places[row])
        if len(rows) > SHOWN:
            self.doubts.see(what, count=len(rows) - SHOWN)

    def _time(self, row: Row, place: Place) -> int | float:
        time = row.time
        if time is None and row.delay is not None:
            before = [self._last_time[name] for name in row.after or (row.session,) if name in self._last_time]
            if row.after and len(before) < len(row.after):
                self._n_orphans += 1
                self.doubts.see("waits for a request that is not in the file before it", place)
            time = max(before, default=0) + row.delay
            self._n_delayed += 1
        if time is None and self.convention.times_are_optional:
            time = 0
            self._n_untimed += 1
        if time is None:
            raise place.error("timestamp is missing, and there is no delay after the request before it in its session")
        for name in (row.session, row.name):
            if name is not None:
                self._last_time[name] = time
        return time

    def _thought(self, row: Row, time: int | float) -> float:
        """Ticks from the end of the request before it in its session; NaN where that is not known."""
        before = None if row.session is None else self._last_end.get(row.session)
        self._last_end[row.session] = row.ended
        if row.delay is not None:
            return float(row.delay)
        return math.nan if before is None else max(0.0, float(time - before))

    def pieces(self, rows: Iterable[object]) -> Iterator[tuple[Requests, list[Place]]]:
        """The rows that come in, piece by piece, each with the places of its rows."""
        for _ in rows:
            if self.is_full:
                yield from self._piece()
        if self._places:
            yield from self._piece()
        self._refuse_if_empty()
        self._say_what_was_unusual()

    def _piece(self) -> Iterator[tuple[Requests, list[Place]]]:
        """What the rows make up, if the block size fits any of them."""
        prompt, output = _int32(self._prompt), _int32(self._output)
        ids_end, all_end = _int64(self._ids_end), _int64(self._all_ids_end)
        block = self._decided(prompt, np.diff(ids_end))
        ids, places = _int32(self._ids), self._places
        output_offset, output_units = self._outputs(prompt, all_end, block)
        piece = Requests(
            source=self.source.name,
            unit_tokens=block,
            arrival_s=np.frombuffer(self._times, np.float64),
            think_s=np.frombuffer(self._think_s, np.float64),
            prompt_tokens=prompt,
            output_tokens=output,
            unit_offset=ids_end,
            units=ids,
            output_offset=output_offset,
            output_units=output_units,
            session=np.array([self._sessions[name] for name in self.resolved(self._session_of)], np.int32),
            labels=self._label_columns(),
        )
        fits = self._fitting(piece, np.diff(all_end))
        self._clear()
        if not fits.all():
            rows = np.flatnonzero(fits).astype(np.int64)
            piece, places = piece.take(rows), [places[i] for i in rows]
        self._n += len(piece)
        private, silent = np.flatnonzero(np.diff(piece.unit_offset) == 0), np.flatnonzero(piece.output_tokens == 0)
        self._n_private += len(private)
        self._n_silent += len(silent)
        if self.convention.ids_are_blocks:
            self.doubt("no hash ids: this prompt shares nothing", places, private)
            self.doubt("the short last block has no id: its tokens are never shared", places, tailless(piece))
        self.doubt("generates 0 tokens: only prefilled", places, silent)
        other = self._chain.follow(piece) if self.convention.ids_are_blocks else None
        if other is not None:
            self.doubts.see("an id that followed another id before: ids are not prefix-chained", places[other])
        if len(piece):
            yield piece, places

    def _decided(self, prompt: Int32, n_ids: Int64) -> int:
        """The block size: stated, the format's, or guessed from the first piece."""
        if self._block is not None:
            return self.block_size if self._block.is_stated and self.block_size else self._block.tokens
        form = self.convention
        if not form.ids_are_blocks and self.options.trace_block_size is not None:
            raise self.source.error(f"{blocks.OPTION} does not apply: this format has tokens or lengths, no hash ids")
        stated = self.options.trace_block_size or self.block_size
        self._block = blocks.Block(stated or form.block_tokens, is_stated=stated is not None)
        if stated is None and form.ids_are_blocks:
            fits = blocks.fitting(prompt.astype(np.int64), n_ids, self._block.tokens).all()
            guess = None if fits and not form.block_tokens_is_guess else blocks.guessed(prompt.astype(np.int64), n_ids)
            self._block = guess or self._block
            if not fits and guess:
                self.repaired(
                    f"{form.block_tokens} tokens a block does not fit; {guess.tokens} is the only power of two that "
                    f"fits all rows and is used; {blocks.OPTION} overrides"
                )
            elif form.block_tokens_is_guess and len(n_ids) and n_ids.any():
                self.repaired(
                    f"the file does not say its block size; {self._block.tokens} tokens is used; {blocks.OPTION} overrides"
                )
        return self._block.tokens

    def _fitting(self, piece: Requests, n_all_ids: Int64) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which rows have as many ids as the block size asks for; others are refused or skipped."""
        block, prompt, n_ids = piece.unit_tokens, piece.prompt_tokens.astype(np.int64), np.diff(piece.unit_offset)
        total = prompt + piece.output_tokens
        fits = blocks.fitting(prompt, n_ids, block)
        all_fit = fits & blocks.fitting(total, n_all_ids, block)
        for wrong in np.flatnonzero(~all_fit).tolist():
            what = ("all_hash_ids", total, n_all_ids) if fits[wrong] else ("hash_ids", prompt, n_ids)
            self.skip(blocks.misfit(self._places[wrong], what[0], int(what[1][wrong]), int(what[2][wrong]), block))
        return all_fit

    def _outputs(self, prompt: Int32, end: Int64, block: int) -> tuple[Int64 | None, Int32 | None]:
        """The units that hold generated tokens: those after the prompt's whole blocks."""
        if not self._all_ids:
            return None, None
        first = np.minimum(end[:-1] + prompt // block, end[1:])
        length = end[1:] - first
        offset = offsets(length)
        at = np.repeat(first, length) + np.arange(offset[-1]) - np.repeat(offset[:-1], length)
        return offset, _int32(self._all_ids)[at]

    def _label_columns(self) -> dict[str, Labels]:
        for name in {key for labels in self._labels_of for key in labels}:
            self._labels.setdefault(name, Codes())
        return {
            name: Labels(
                np.array([codes[labels.get(name)] for labels in self._labels_of], np.int32),
                tuple(str(value) for value in codes if value is not None),
            )
            for name, codes in sorted(self._labels.items())
        }

    def _refuse_if_empty(self) -> None:
        if not self._n:
            skipped = f" ({self._n_skipped} lines skipped, the first: {self._first_skipped})" if self._n_skipped else ""
            raise TraceError(f"no requests in {self.source.name}{skipped}")

    def _say_what_was_unusual(self) -> None:
        form, n = self.convention, self._n
        inferred = {
            f"{form.time_note}; --time-unit overrides": form.time_note and self.options.time_unit is None,
            f"{self._n_delayed} of {n} requests have a delay and no timestamp; placed that long after "
            f"the arrival of the request before in their session": self._n_delayed,
            f"{self._n_orphans} of {n} requests wait for requests that are not in the file before them; "
            f"they wait for the others only": self._n_orphans,
            f"{self._n_untimed} of {n} requests have no time; they arrive at 0 s": self._n_untimed,
            f"{self._n_private} of {n} requests have no hash_ids; their prompts share nothing": form.ids_are_blocks
            and self._n_private,
            "ids are not prefix-chained; chaining them": form.ids_are_blocks and not self._chain.holds,
        }
        said = {
            self.at_end(): True,
            f"{self._n_skipped} lines skipped, the first: {self._first_skipped}": self._n_skipped,
            f"{self._n_silent} of {n} requests generate 0 tokens; they are only prefilled": self._n_silent,
        }
        self.notes += [f"{self.source.name}: {what}" for what, count in said.items() if count and what]
        self.notes += [f"{self.source.name}: {count} of {n} requests: {what}" for what, count in self._inferred.items()]
        for what in [what for what, count in inferred.items() if count]:
            self.repaired(what)


def collected(
    source: Source,
    options: ReadOptions,
    convention: Convention,
    rows_of: Callable[[Any, Place, Collector], Iterable[Row]],
    values: Iterable[tuple[Place, Any]] | None = None,
) -> FileOrder:
    """A trace in file order; bad lines stop it, or are counted where the user asked for that."""
    collector = Collector(source, options, convention)
    rows = _added(collector, rows_of, source.rows() if values is None else values)
    return FileOrder(collector, collector.ticks_per_s, collector.pieces(rows))


def _added(
    collector: Collector, rows_of: Callable[[Any, Place, Collector], Iterable[Row]], values: Iterable[tuple[Place, Any]]
) -> Iterator[None]:
    for place, value in values:
        try:
            if isinstance(value, TraceError):
                raise value
            for row in list(rows_of(value, place, collector)):
                collector.add(row, place)
        except TraceError as error:
            collector.skip(error)
        yield


def _int32(values: "array[int]") -> Int32:
    return np.frombuffer(values, dtype=np.int32) if values else np.empty(0, np.int32)


def _int64(values: "array[int]") -> Int64:
    return np.frombuffer(values, dtype=np.int64)
