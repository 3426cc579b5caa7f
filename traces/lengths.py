"""Reads CSV traces that hold lengths only: Azure 2023, 2024 and multimodal 2025, BurstGPT, vidur.

It does not invent content: every prompt has no units and shares nothing with anyone, so no cache can hit.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from traces import fields
from traces.collect import Collector, collected
from traces.convention import Convention, Row
from traces.errors import SKIP, Place, shown
from traces.options import ReadOptions
from traces.order import FileOrder
from traces.source import Source

NOTE = "the trace has lengths and no content; every prompt is private, so nothing can be reused"


@dataclass(frozen=True)
class Columns:
    """What the columns of one kind of CSV are called."""

    time: str
    prompt: str
    output: str
    session: str | None = None
    model: str | None = None
    time_is_date: bool = False

    def named_in(self, row: Mapping[str, Any]) -> bool:
        """Whether a header has the columns that every row needs."""
        return {self.time.lower(), self.prompt.lower(), self.output.lower()} <= {name.lower() for name in row}

    def spelled(self, name: str) -> str:
        """A column's name as it stands here, whatever its case in the file."""
        ours = (self.time, self.prompt, self.output, self.session, self.model)
        return next((own for own in ours if own is not None and own.lower() == name.lower()), name)


AZURE = Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", time_is_date=True)
BURSTGPT = Columns("Timestamp", "Request tokens", "Response tokens", session="Session ID", model="Model")
VIDUR = Columns("arrived_at", "num_prefill_tokens", "num_decode_tokens")


def read_azure(source: Source, options: ReadOptions) -> FileOrder:
    """An Azure LLM inference trace: dates with up to nine digits of a second."""
    if options.time_unit is not None:
        raise source.error("--time-unit does not apply: the TIMESTAMP column holds dates")
    return _read(source, options, AZURE, "ns")


def read_burstgpt(source: Source, options: ReadOptions) -> FileOrder:
    """A BurstGPT trace: seconds."""
    return _read(source, options, BURSTGPT, "s")


def read_vidur(source: Source, options: ReadOptions) -> FileOrder:
    """A vidur (Splitwise) trace: seconds."""
    return _read(source, options, VIDUR, "s")


def _read(source: Source, options: ReadOptions, columns: Columns, time_unit: str) -> FileOrder:
    def rows(value: Any, place: Place, to: Collector) -> Iterator[Row]:
        yield _row(value, place, to, columns)

    convention = Convention(time_unit, block_tokens=1, ids_are_blocks=False)
    trace = collected(source, options, convention, rows, _values(source, columns))
    trace.collector.notes.append(f"{source.name}: {NOTE}")
    return trace


def _values(source: Source, columns: Columns) -> Iterator[tuple[Place, Any]]:
    """Every row below the header as column -> text."""
    lines = source.lines()
    header_place, header_text = next(lines, (None, ""))
    header = [columns.spelled(name.strip()) for name in cells_of(header_text)]
    if header_place is not None and not columns.named_in(dict.fromkeys(header)):
        needed = ", ".join((columns.time, columns.prompt, columns.output))
        raise header_place.error(f"the header is {shown(header_text)}; this format needs the columns {needed}")
    twice = next((name for name in header if name and header.count(name) > 1), None)
    if header_place is not None and twice is not None:
        raise header_place.error(f"the column {twice} stands in the header twice")
    for place, text in lines:
        cells = cells_of(text)
        if len(cells) == len(header):
            yield place, dict(zip(header, cells, strict=True))
        else:
            yield place, place.error(f"{len(cells)} columns, the header has {len(header)}; {SKIP}")


def cells_of(text: str) -> list[str]:
    """The cells of one line; none where it is no CSV at all."""
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return []


def _row(cells: Mapping[str, str], place: Place, to: Collector, columns: Columns) -> Row:
    numbers = {name: _as_number(cells[name]) for name in (columns.time, columns.prompt, columns.output)}
    if columns.time_is_date:
        time: int | float | None = fields.nanoseconds(cells[columns.time], place)
    else:
        time = fields.number(numbers, (columns.time,), place)
    session = cells.get(columns.session or "", "")
    model = cells.get(columns.model or "", "")
    return Row(
        prompt_tokens=fields.prompt_tokens(numbers, (columns.prompt,), place),
        output_tokens=fields.output_tokens(numbers, (columns.output,), place, to.options.default_output),
        time=time,
        session=session or None,
        labels={"model": model} if model else {},
    )


def _as_number(text: str) -> int | float | str | None:
    number: int | float | str = fields.as_number(text.strip())
    return number if number or number == 0 else None
