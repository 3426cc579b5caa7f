"""Gathers rows, one a request, and turns them into `Requests`: time order, block size, sessions, labels, notes.

It does not parse files: a reader hands it rows whose ids are dense numbers already. The first request arrives at 0 s.
"""

from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvcache.request import Float64, Int32, Int64, Labels, Requests
from traces import blocks
from traces.errors import Place, TraceError
from traces.options import TICKS_PER_S, ReadOptions
from traces.source import Source


@dataclass(frozen=True, slots=True)
class Row:
    """One request as a reader understood it. Times are in the trace's own unit."""

    prompt_tokens: int
    output_tokens: int
    time: int | float | None = None
    """When it arrives, or None: `delay` after the request before it in its session."""
    delay: int | float | None = None
    ids: Sequence[int] = ()
    """Content of the prompt; empty where it is unknown, which makes the prompt private."""
    all_ids: Sequence[int] = ()
    """Content of the prompt and the output together; empty where it is unknown."""
    session: Hashable = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Convention:
    """What a format says for every file of its kind."""

    time_unit: str
    block_tokens: int
    ids_are_blocks: bool = True
    """False where an id is a token, or where there are no ids: no chain to check, no private prompt to report."""
    rows_are_in_time_order: bool = True
    """False where the format cannot keep them so: sessions with own clocks, rows written when a request ended."""
    time_note: str = ""


class Collector:
    """The rows of one trace so far."""

    def __init__(self, source: Source, options: ReadOptions) -> None:
        self.source, self.options = source, options
        self.places: list[Place] = []
        self.times: list[int | float] = []
        self.prompt, self.output = array("i"), array("i")
        self.ids, self.ids_end = array("i"), array("q", [0])
        self.all_ids, self.all_ids_end = array("i"), array("q", [0])
        self.sessions: list[Hashable] = []
        self.labels: list[Mapping[str, str]] = []
        self.last_time: dict[Hashable, int | float] = {}
        self.n_delayed = 0
        self.skipped: list[TraceError] = []
        self.block_size: int | None = None
        self.notes: list[str] = []

    def add(self, row: Row, place: Place) -> None:
        """Take one more request."""
        time = self._time(row, place)
        self.places.append(place)
        self.times.append(time)
        self.prompt.append(row.prompt_tokens)
        self.output.append(row.output_tokens)
        self.ids.extend(row.ids)
        self.ids_end.append(len(self.ids))
        self.all_ids.extend(row.all_ids)
        self.all_ids_end.append(len(self.all_ids))
        self.sessions.append(row.session)
        self.labels.append(row.labels)

    def state_block_size(self, tokens: int, place: Place) -> None:
        """The file itself says its block size; it must not say two."""
        if self.block_size is None:
            self.block_size = tokens
        if tokens != self.block_size and self.options.trace_block_size is None:
            raise place.error(
                f"block_size is {tokens}, the lines before have {self.block_size}; a trace has one block size: "
                f"split the file, or override it with {blocks.OPTION}"
            )

    def _time(self, row: Row, place: Place) -> int | float:
        time = row.time
        if time is None and row.delay is not None:
            time = self.last_time.get(row.session, 0) + row.delay
            self.n_delayed += 1
        if time is None:
            raise place.error("timestamp is missing, and there is no delay after the request before it in its session")
        if row.session is not None:
            self.last_time[row.session] = time
        return time

    def finish(self, convention: Convention) -> Requests:
        """All rows as one workload, in order of arrival."""
        block = self._block(convention)
        n = len(self.times)
        self._say_what_was_unusual(convention)
        order = self._order(convention)
        offset, units = gathered(_int32(self.ids), _int64(self.ids_end), order)
        output_offset, output_units = self._outputs(block, order)
        if convention.ids_are_blocks and not is_chained(offset, units):
            self.notes.append(f"{self.source.name}: ids are not prefix-chained; chaining them")
        return Requests(
            source=self.source.name,
            unit_tokens=block,
            arrival_s=self._arrival_s(convention)[order],
            prompt_tokens=_int32(self.prompt)[order],
            output_tokens=_int32(self.output)[order],
            unit_offset=offset,
            units=units,
            output_offset=output_offset,
            output_units=output_units,
            session=codes([self.sessions[i] for i in order]),
            labels=self._label_columns(order) if n else {},
            notes=tuple(self.notes),
        )

    def _block(self, convention: Convention) -> int:
        """The block size, after rows that do not fit it were refused or left out."""
        self._refuse_if_empty()
        prompt, n_ids, total, n_all_ids = self._counts()
        if not convention.ids_are_blocks and self.options.trace_block_size is not None:
            raise self.source.error(f"{blocks.OPTION} does not apply: this format has tokens or lengths, no hash ids")
        stated = self.options.trace_block_size or self.block_size
        block = blocks.Block(stated or convention.block_tokens)
        fits = blocks.fitting(prompt, n_ids, block.tokens)
        if not fits.all() and stated is None and convention.ids_are_blocks:
            block = blocks.guessed(prompt, n_ids) or block
            fits = blocks.fitting(prompt, n_ids, block.tokens)
        all_fit = fits & blocks.fitting(total, n_all_ids, block.tokens)
        if not all_fit.all():
            wrong = int(np.argmin(all_fit))
            what = ("all_hash_ids", total, n_all_ids) if fits[wrong] else ("hash_ids", prompt, n_ids)
            error = blocks.misfit(self.places[wrong], what[0], int(what[1][wrong]), int(what[2][wrong]), block.tokens)
            if not self.options.skip_bad_lines:
                raise error
            self._keep(np.flatnonzero(all_fit), error)
        elif block.is_guess:
            self._repaired(
                f"{convention.block_tokens} tokens a block does not fit; {block.tokens} is the only power of two that "
                f"fits all rows and is used; {blocks.OPTION} overrides"
            )
        return block.tokens

    def _counts(self) -> tuple[Int64, Int64, Int64, Int64]:
        """Tokens and ids of each prompt, and of each prompt and output together."""
        prompt = _int32(self.prompt).astype(np.int64)
        return prompt, np.diff(_int64(self.ids_end)), prompt + _int32(self.output), np.diff(_int64(self.all_ids_end))

    def _keep(self, rows: Int64, error: TraceError) -> None:
        self.skipped += [error] * (len(self.places) - len(rows))
        for name in ("places", "times", "sessions", "labels"):
            setattr(self, name, [getattr(self, name)[i] for i in rows])
        self.prompt, self.output = (array("i", _int32(a)[rows].tobytes()) for a in (self.prompt, self.output))
        for values, end in (("ids", "ids_end"), ("all_ids", "all_ids_end")):
            offset, kept = gathered(_int32(getattr(self, values)), _int64(getattr(self, end)), rows)
            setattr(self, values, array("i", kept.tobytes()))
            setattr(self, end, array("q", offset.tobytes()))
        self._refuse_if_empty()

    def _refuse_if_empty(self) -> None:
        if not self.times:
            why = f" ({len(self.skipped)} lines skipped, the first: {self.skipped[0]})" if self.skipped else ""
            raise TraceError(f"no requests in {self.source.name}{why}")

    def _order(self, convention: Convention) -> Int64:
        times = np.array([t - self.times[0] for t in self.times], dtype=np.float64)
        late = int((times < np.maximum.accumulate(times)).sum())
        if late and convention.rows_are_in_time_order:
            self._repaired(f"{late} of {len(times)} rows were out of time order; sorted by time, ties in file order")
        return np.argsort(times, kind="stable")

    def _arrival_s(self, convention: Convention) -> Float64:
        start = min(self.times)
        unit = self.options.time_unit or convention.time_unit
        return np.array([t - start for t in self.times], dtype=np.float64) / TICKS_PER_S[unit]

    def _outputs(self, block: int, order: Int64) -> tuple[Int64 | None, Int32 | None]:
        """The units that hold generated tokens: those after the prompt's whole blocks."""
        if not self.all_ids:
            return None, None
        start, end = _int64(self.all_ids_end)[:-1], _int64(self.all_ids_end)[1:]
        first = np.minimum(start + _int32(self.prompt) // block, end)
        return gathered_spans(_int32(self.all_ids), first, end, order)

    def _say_what_was_unusual(self, convention: Convention) -> None:
        name, n = self.source.name, len(self.times)
        if self.skipped:
            self.notes.append(f"{name}: {len(self.skipped)} lines skipped, the first: {self.skipped[0]}")
        if convention.time_note and self.options.time_unit is None:
            self.notes.append(f"{name}: {convention.time_note}; --time-unit overrides")
        if self.n_delayed:
            self.notes.append(
                f"{name}: {self.n_delayed} of {n} requests have a delay and no timestamp; placed that long after "
                f"the arrival of the request before in their session"
            )
        private = int((np.diff(_int64(self.ids_end)) == 0).sum())
        if convention.ids_are_blocks and private:
            self.notes.append(f"{name}: {private} of {n} requests have no hash_ids; their prompts share nothing")
        silent = int((_int32(self.output) == 0).sum())
        if silent:
            self.notes.append(f"{name}: {silent} of {n} requests generate 0 tokens; they are only prefilled")

    def _repaired(self, what: str) -> None:
        if self.options.strict:
            raise self.source.error(f"{what} (--strict refuses this)")
        self.notes.append(f"{self.source.name}: {what}")

    def _label_columns(self, order: Int64) -> dict[str, Labels]:
        names = sorted({key for labels in self.labels for key in labels})
        columns = {}
        for name in names:
            values = [self.labels[i].get(name) for i in order]
            columns[name] = Labels(codes(values), tuple(dict.fromkeys(v for v in values if v is not None)))
        return columns


def collected(
    source: Source,
    options: ReadOptions,
    rows_of: Callable[[Any, Place, Collector], Iterable[Row]],
    values: Iterable[tuple[Place, Any]] | None = None,
) -> Collector:
    """Every row of a trace; bad lines stop it, or are counted where the user asked for that."""
    collector = Collector(source, options)
    for place, value in source.rows() if values is None else values:
        try:
            if isinstance(value, TraceError):
                raise value
            for row in list(rows_of(value, place, collector)):
                collector.add(row, place)
        except TraceError as error:
            if not options.skip_bad_lines:
                raise
            collector.skipped.append(error)
    return collector


def codes(values: Sequence[Hashable]) -> Int32:
    """Dense numbers in order of first appearance; None is -1."""
    seen: dict[Hashable, int] = {}
    return np.array([-1 if v is None else seen.setdefault(v, len(seen)) for v in values], dtype=np.int32)


def gathered(values: Int32, end: Int64, order: Int64) -> tuple[Int64, Int32]:
    """Ragged rows in another order: their offsets and their values."""
    return gathered_spans(values, end[:-1], end[1:], order)


def gathered_spans(values: Int32, start: Int64, end: Int64, order: Int64) -> tuple[Int64, Int32]:
    """The rows values[start:end], in this order, end to end."""
    offset = np.concatenate(([0], np.cumsum((end - start)[order]))).astype(np.int64)
    pieces = [values[start[i] : end[i]] for i in order]
    return offset, np.concatenate([*pieces, np.empty(0, np.int32)])


def is_chained(offset: Int64, units: Int32) -> bool:
    """Whether every unit always follows the same unit, so that equal ids mean equal prefixes."""
    if not len(units):
        return True
    before = np.concatenate((np.full(1, -1, np.int32), units[:-1]))
    before[offset[:-1][np.diff(offset) > 0]] = -1
    first_seen = np.empty(int(units.max()) + 1, np.int32)
    first_seen[units] = before
    return bool((first_seen[units] == before).all())


def _int32(values: "array[int]") -> Int32:
    return np.frombuffer(values, dtype=np.int32) if values else np.empty(0, np.int32)


def _int64(values: "array[int]") -> Int64:
    return np.frombuffer(values, dtype=np.int64) if values else np.empty(0, np.int64)
