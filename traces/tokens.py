"""Reads rows that hold token ids: this project's own token-level JSONL, and LLMServingSim's flat JSONL.

It does not tokenise text. A unit is one token, under the number the tokeniser gave it; own rows are

    {"timestamp": ms, "input_token_ids": [...], "output_token_ids": [...], "session_id": ..., "tenant": ...}

with "output_length": n in the place of "output_token_ids" where the answer's content is not known.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from traces import fields
from traces.collect import Collector, collected
from traces.convention import Convention, Row
from traces.errors import SKIP, Place, shown
from traces.options import ReadOptions
from traces.order import FileOrder
from traces.source import Source

LABELS = ("tenant", "type", "model")


@dataclass(frozen=True)
class Dialect:
    """What the fields of one kind of token trace are called, and the unit of its times."""

    time: tuple[str, ...]
    prompt_ids: str
    output_ids: str
    prompt_length: tuple[str, ...]
    output_length: tuple[str, ...]
    time_unit: str


OWN = Dialect(
    ("timestamp",), "input_token_ids", "output_token_ids", ("input_length",), ("output_length",), time_unit="ms"
)
LLMSERVINGSIM = Dialect(
    ("arrival_time_ns",), "input_tok_ids", "output_tok_ids", ("input_toks",), ("output_toks",), time_unit="ns"
)


def recognises(row: Mapping[str, Any]) -> bool:
    """Whether a row looks like our own token-level request."""
    return OWN.prompt_ids in row


def recognises_llmservingsim(row: Mapping[str, Any]) -> bool:
    """Whether a row looks like a flat LLMServingSim request."""
    return LLMSERVINGSIM.prompt_ids in row or "input_toks" in row


def read(source: Source, options: ReadOptions) -> FileOrder:
    """A token-level trace."""
    return _read(source, options, OWN)


def read_llmservingsim(source: Source, options: ReadOptions) -> FileOrder:
    """A flat LLMServingSim trace."""

    def rows(value: object, place: Place, to: Collector) -> Iterator[Row]:
        yield llmservingsim_row(fields.fields_of(value, place), place, to)

    convention = Convention(LLMSERVINGSIM.time_unit, block_tokens=1, ids_are_blocks=False)
    return collected(source, options, convention, rows)


def _read(source: Source, options: ReadOptions, dialect: Dialect) -> FileOrder:
    def rows(value: object, place: Place, to: Collector) -> Iterator[Row]:
        yield _row(fields.fields_of(value, place), place, to, dialect)

    convention = Convention(dialect.time_unit, block_tokens=1, ids_are_blocks=False)
    return collected(source, options, convention, rows)


def llmservingsim_row(
    row: Mapping[str, Any], place: Place, to: Collector, session: Hashable = None, delay: int | float | None = None
) -> Row:
    """One request of LLMServingSim, with its token ids or only their number."""
    if row.get(LLMSERVINGSIM.prompt_ids):
        known = _row(row, place, to, LLMSERVINGSIM)
        return replace(known, delay=delay, session=known.session if session is None else session)
    return Row(
        prompt_tokens=fields.prompt_tokens(row, LLMSERVINGSIM.prompt_length, place, to.options.default_prompt),
        output_tokens=fields.output_tokens(row, LLMSERVINGSIM.output_length, place, to.options.default_output),
        time=fields.number(row, LLMSERVINGSIM.time, place),
        delay=delay,
        session=session,
    )


def _row(row: Mapping[str, Any], place: Place, to: Collector, dialect: Dialect) -> Row:
    prompt = _token_ids(row, dialect.prompt_ids, place)
    if not prompt:
        raise place.error(f"{dialect.prompt_ids} is missing or empty; every request needs a prompt; {SKIP}")
    _must_agree(fields.tokens(row, dialect.prompt_length, place, at_least=1), prompt, dialect.prompt_ids, place)
    output = _token_ids(row, dialect.output_ids, place)
    if output is None:
        n_output = fields.output_tokens(row, dialect.output_length, place, to.options.default_output)
    else:
        n_output = len(output)
        _must_agree(fields.tokens(row, dialect.output_length, place, at_least=0), output, dialect.output_ids, place)
    return Row(
        prompt_tokens=len(prompt),
        output_tokens=n_output,
        time=fields.number(row, dialect.time, place),
        ids=prompt,
        all_ids=[*prompt, *output] if output else (),
        session=fields.label(row, ("session_id",), place),
        labels={name: text for name in LABELS if (text := fields.label(row, (name,), place)) is not None},
    )


def _token_ids(row: Mapping[str, Any], name: str, place: Place) -> Sequence[int] | None:
    ids = fields.sequence(row, name, place)
    if not ids:
        return ids
    if set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) > fields.INT32_MAX:
        wrong = next(i for i in ids if type(i) is not int or not 0 <= i <= fields.INT32_MAX)
        raise place.error(
            f"{name} holds {shown(wrong)}; a token id is a whole number from 0 to {fields.INT32_MAX}; {SKIP}"
        )
    return ids


def _must_agree(length: int | None, ids: Sequence[int], name: str, place: Place) -> None:
    if length is not None and length != len(ids):
        raise place.error(f"{name} has {len(ids)} ids and the stated length is {length}; they must agree; {SKIP}")
