"""Reads traces whose requests wait for others: Dynamo's agentic Mooncake rows (both versions), LLMServingSim sessions.

A row with a recorded time keeps it. Others are placed after the arrival of what they wait for, since the trace does not
know how long an answer takes; `workload.wait_for_turns` in a spec makes turns wait for the simulated end instead. Time
in a tool and other delays add up. Ids of a versioned trace are local to a play.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from traces import fields, tokens
from traces.collect import Collector, collected
from traces.convention import Convention, Row
from traces.errors import SKIP, Place
from traces.intern import Interner
from traces.mooncake import BLOCK_SIZE, DELAY, INPUT, OUTPUT, TIMESTAMP
from traces.options import ReadOptions
from traces.order import FileOrder
from traces.source import Source

MARKS = ("wait_for", "tool_wait_ms", "prefix_reset", "branches", "dependencies", "not_before_ms")
AGENTIC = Convention(time_unit="ms", block_tokens=512, rows_are_in_time_order=False)
LLMSERVINGSIM = Convention("ns", 1, ids_are_blocks=False, rows_are_in_time_order=False)


def recognises(row: Mapping[str, Any]) -> bool:
    """Whether a row looks like an agentic Mooncake request, or the header of such a trace."""
    is_header = "hash_id_scope" in row and "version" in row and "requests" not in row
    return is_header or ("request_id" in row and any(name in row for name in MARKS))


def recognises_llmservingsim(row: Mapping[str, Any]) -> bool:
    """Whether a row looks like a session of LLMServingSim."""
    return isinstance(row.get("sub_requests"), list)


def read(source: Source, options: ReadOptions) -> FileOrder:
    """An agentic Mooncake trace."""
    ids = Interner()

    def rows(value: object, place: Place, to: Collector) -> Iterator[Row]:
        row = fields.fields_of(value, place)
        block_size = fields.tokens(row, BLOCK_SIZE, place, at_least=1)
        if block_size is not None:
            to.state_block_size(block_size, place)
        if "request_id" in row or "version" not in row:
            yield _row(row, place, to, ids)

    return collected(source, options, AGENTIC, rows)


def _row(row: Mapping[str, Any], place: Place, to: Collector, ids: Interner) -> Row:
    play = fields.label(row, ("play_id",), place)
    name = fields.label(row, ("request_id",), place)
    if name is None:
        raise place.error(f"request_id is missing; {SKIP}")
    if to.knows((play, name)):
        to.doubts.see("this request_id stood in a row before", place)
    after, delay = _waits(row, place)
    time = fields.number(row, TIMESTAMP, place)
    not_before = fields.number(row, ("not_before_ms",), place)
    hashes = fields.sequence(row, "hash_ids", place) or []
    model = fields.label(row, ("model",), place)
    return Row(
        prompt_tokens=fields.prompt_tokens(row, INPUT, place, to.options.default_prompt),
        output_tokens=fields.output_tokens(row, OUTPUT, place, to.options.default_output),
        time=time if time is not None or after else not_before,
        delay=delay if after else None,
        after=[(play, other) for other in after],
        name=(play, name),
        ids=ids.dense(hashes if play is None else _local(hashes, play), "hash_ids", place),
        session=(play, fields.label(row, ("session_id",), place) or name),
        labels={} if model is None else {"model": model},
    )


def _waits(row: Mapping[str, Any], place: Place) -> tuple[list[str], int | float]:
    """Whom a row waits for, and how long after the last of them it comes."""
    named = [{"request_id": other} for other in fields.sequence(row, "wait_for", place) or []]
    inner = [fields.fields_of(d, place) for d in fields.sequence(row, "dependencies", place) or []]
    others = [fields.label(one, ("request_id",), place) for one in (*named, *inner)]
    delay = (fields.number(row, DELAY, place) or 0) + (fields.number(row, ("tool_wait_ms",), place) or 0)
    delays = [fields.number(one, ("delay_ms",), place) or 0 for one in inner]
    return [other for other in others if other is not None], max([delay, *delays])


def _local(hashes: Sequence[Any], play: str) -> list[Any]:
    """Ids that mean something inside one play only. What is no id stays, to be refused."""
    return [f"{play}\n{one}" if type(one) in {int, str} else one for one in hashes]


def read_llmservingsim(source: Source, options: ReadOptions) -> FileOrder:
    """LLMServingSim sessions; flat rows may stand among them."""

    def rows(value: object, place: Place, to: Collector) -> Iterator[Row]:
        row = fields.fields_of(value, place)
        if not recognises_llmservingsim(row):
            yield tokens.llmservingsim_row(row, place, to)
            return
        session: Hashable = (fields.label(row, ("session_id",), place), place)
        start = fields.number(row, ("arrival_time_ns",), place)
        wait: int | float = 0
        for number, sub in enumerate(row["sub_requests"]):
            inner = place._replace(part=f"sub_requests[{number}]")
            one = fields.fields_of(sub, inner)
            yield tokens.llmservingsim_row(
                {**one, "arrival_time_ns": start if number == 0 else None},
                inner,
                to,
                session,
                None if number == 0 else wait,
            )
            wait = fields.number(one, ("tool_duration_ns",), inner) or 0

    return collected(source, options, LLMSERVINGSIM, rows)
