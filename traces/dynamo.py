"""Reads Dynamo request traces (`dynamo.request.trace.v1`): one event a line, written when a request ended.

It takes the request ends and leaves tool events out. A request arrives when the front end received it; it does not use
the measured times and cached tokens that the events also hold.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from traces import fields
from traces.collect import Collector, collected
from traces.convention import Convention, Row
from traces.errors import Place
from traces.intern import Interner
from traces.options import ReadOptions
from traces.order import FileOrder
from traces.source import Source

SCHEMA = "dynamo.request.trace."
DYNAMO = Convention(time_unit="ms", block_tokens=16, rows_are_in_time_order=False)


def recognises(row: Mapping[str, Any]) -> bool:
    """Whether a row looks like an event of a Dynamo request trace."""
    event = row.get("event")
    return isinstance(event, dict) and str(event.get("schema", "")).startswith(SCHEMA)


def read(source: Source, options: ReadOptions) -> FileOrder:
    """A Dynamo request trace."""
    ids = Interner()

    def rows(value: object, place: Place, to: Collector) -> Iterator[Row]:
        event = fields.inner(fields.fields_of(value, place), "event", place)
        if event.get("event_type") == "request_end":
            yield _row(event, place, to, ids)

    return collected(source, options, DYNAMO, rows)


def _row(event: Mapping[str, Any], place: Place, to: Collector, ids: Interner) -> Row:
    request = fields.inner(event, "request", place)
    replay = fields.inner(request, "replay", place)
    agent = fields.inner(event, "agent_context", place)
    block_size = fields.tokens(replay, ("trace_block_size",), place, at_least=1)
    if block_size is not None:
        to.state_block_size(block_size, place)
    model = fields.label(request, ("model",), place)
    received, took = (fields.number(request, (name,), place) for name in ("request_received_ms", "total_time_ms"))
    worker = fields.label(fields.inner(request, "worker", place), ("decode_worker_id", "prefill_worker_id"), place)
    hashes = fields.sequence(replay, "input_sequence_hashes", place) or []
    return Row(
        prompt_tokens=fields.prompt_tokens(replay, ("input_length",), place),
        output_tokens=fields.output_tokens(request, ("output_tokens",), place, to.options.default_output),
        time=received,
        ended=None if received is None or took is None else received + took,
        ids=ids.dense(hashes, "input_sequence_hashes", place),
        session=fields.label(agent, ("session_id",), place),
        labels={name: text for name, text in (("model", model), ("worker", worker)) if text is not None},
    )
