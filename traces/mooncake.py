"""Reads rows of lengths and hash ids: Mooncake JSONL with its aliases and sessions, and Bailian JSONL (chat_id).

It does not read text or tokens. One id stands for 512 tokens (Bailian: 16) unless the rows or the user say otherwise;
times are milliseconds (Bailian: seconds).
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from traces import fields
from traces.collect import Collector, collected
from traces.convention import Convention, Row
from traces.errors import SKIP, Place
from traces.intern import Interner
from traces.options import ReadOptions
from traces.order import FileOrder
from traces.source import Source

TIMESTAMP = ("timestamp", "created_time")
DELAY = ("delay", "delay_ms")
INPUT = ("input_length", "input_tokens", "prompt_tokens", "prompt_length", "prompt_len", "prompt_tokens_count")
OUTPUT = ("output_length", "output_tokens", "completion_tokens", "output_len", "output_tokens_count")
BLOCK_SIZE = ("block_size", "trace_block_size")
LABELS = ("tenant", "type", "model")

MOONCAKE = Convention(time_unit="ms", block_tokens=512)
BAILIAN = Convention(
    time_unit="s", block_tokens=16, time_note="rows have chat_id and parent_chat_id, so timestamps are read as seconds"
)


def recognises(row: Mapping[str, Any]) -> bool:
    """Whether a row looks like a Mooncake request."""
    return any(name in row for name in (*INPUT, "hash_ids"))


def recognises_bailian(row: Mapping[str, Any]) -> bool:
    """Whether a row looks like a Bailian request."""
    return "chat_id" in row and "parent_chat_id" in row


def read(source: Source, options: ReadOptions) -> FileOrder:
    """A Mooncake trace."""
    ids = Interner()
    return collected(source, options, MOONCAKE, lambda value, place, to: _rows(value, place, to, ids))


def read_bailian(source: Source, options: ReadOptions) -> FileOrder:
    """A Bailian trace: a chat and the chats it continues are one session."""
    ids = Interner()
    parent: dict[str, str | None] = {}

    def rows(value: object, place: Place, to: Collector) -> Iterator[Row]:
        row = fields.fields_of(value, place)
        chat = fields.label(row, ("chat_id",), place)
        if chat is None:
            raise place.error(f"chat_id is missing; {SKIP}")
        if chat in parent:
            to.doubts.see("this chat_id stood in a row before", place)
        parent[chat] = fields.label(row, ("parent_chat_id",), place)
        yield from _rows(value, place, to, ids, session=chat)

    first: dict[str, str] = {}

    def sessions(chats: list[Hashable]) -> list[Hashable]:
        find_roots([str(chat) for chat in chats], parent, first)
        return [first[str(chat)] for chat in chats]

    trace = collected(source, options, BAILIAN, rows)
    trace.collector.resolved = sessions
    return trace


def find_roots(chats: Sequence[str], parent: Mapping[str, str | None], found: dict[str, str]) -> None:
    """For each chat the first of its conversation; a parent that is not in the file, or a circle, ends the search."""
    for chat in chats:
        path: dict[str, None] = {}
        at = chat
        while at not in found and at not in path:
            path[at] = None
            above = parent[at]
            at = at if above is None or above not in parent else above
        found.update(dict.fromkeys(path, found.get(at, at)))


def _rows(value: object, place: Place, to: Collector, ids: Interner, session: Hashable = None) -> Iterator[Row]:
    row = fields.fields_of(value, place)
    block_size = fields.tokens(row, BLOCK_SIZE, place, at_least=1)
    prompt = fields.prompt_tokens(row, INPUT, place, to.options.default_prompt)
    output = fields.output_tokens(row, OUTPUT, place, to.options.default_output)
    if block_size is not None:
        to.state_block_size(block_size, place)
    own = ids.dense(fields.sequence(row, "hash_ids", place) or [], "hash_ids", place)
    everything = ids.dense(fields.sequence(row, "all_hash_ids", place) or [], "all_hash_ids", place)
    if everything and everything[: len(own) - 1] != own[:-1]:
        raise place.error("all_hash_ids does not begin with hash_ids; both must name the same prompt blocks")
    yield Row(
        prompt_tokens=prompt,
        output_tokens=output,
        time=fields.moment(row, TIMESTAMP, place, to),
        delay=fields.number(row, DELAY, place),
        ids=own,
        all_ids=everything,
        session=session if session is not None else fields.label(row, ("session_id",), place),
        labels={name: text for name in LABELS if (text := fields.label(row, (name,), place)) is not None},
    )
