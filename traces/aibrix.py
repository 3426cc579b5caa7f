"""Reads AIBrix workloads: one instant a line, with the requests that are sent then.

It does not use the stated prompt length where there is the prompt's text: content and length must fit each other.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from traces import fields
from traces.collect import Collector, collected
from traces.convention import Convention, Row
from traces.errors import SKIP, Place
from traces.options import ReadOptions
from traces.order import FileOrder
from traces.source import Source
from traces.texts import Texts, say_how_cut

PROMPT, OUTPUT = ("prompt_length", "Prompt Length"), ("output_length", "Output Length")
AIBRIX = Convention(time_unit="ms", block_tokens=1, ids_are_blocks=False)


def recognises(row: Mapping[str, Any]) -> bool:
    """Whether a row looks like an instant of an AIBrix workload."""
    return "timestamp" in row and isinstance(row.get("requests"), list)


def read(source: Source, options: ReadOptions) -> FileOrder:
    """An AIBrix workload."""
    texts = Texts(options)

    def rows(value: object, place: Place, to: Collector) -> Iterator[Row]:
        instant = fields.fields_of(value, place)
        time = fields.moment(instant, ("timestamp",), place, to)
        for number, request in enumerate(fields.sequence(instant, "requests", place) or []):
            inner = place._replace(part=f"requests[{number}]")
            yield _row(fields.fields_of(request, inner), inner, to, texts, time)

    return say_how_cut(collected(source, options, AIBRIX, rows), texts)


def _row(row: Mapping[str, Any], place: Place, to: Collector, texts: Texts, time: int | float | None) -> Row:
    text = row.get("prompt")
    ids = texts.content(text, place)
    if isinstance(text, str) and not text:
        raise place.error(f"the prompt is empty; {SKIP}")
    stated = fields.tokens(row, PROMPT, place, at_least=1)
    if ids and stated not in {None, len(ids)}:
        to.infer("the prompt's text decides its length, not the length stated; see --tokenizer", place)
    completion = row.get("completion")
    answer = texts.content(completion, place)
    return Row(
        prompt_tokens=len(ids) or fields.prompt_tokens(row, PROMPT, place, to.options.default_prompt),
        output_tokens=len(answer) or fields.output_tokens(row, OUTPUT, place, to.options.default_output),
        time=time,
        ids=ids,
        all_ids=[*ids, *answer] if ids and answer else (),
        session=fields.label(row, ("session_id",), place),
    )
