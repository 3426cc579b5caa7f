"""Reads Claude Code sessions (the "weka" traces): one JSON object a session, its requests inside, ids of its own.

A sub-agent's requests are counted from the moment it was spawned; it is a session of its own, since it runs beside the
one that spawned it. The reader does not decide when sessions start: all begin at 0 s, as recorded.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from traces import fields
from traces.collect import Collector, collected
from traces.convention import Convention, Row
from traces.errors import SKIP, Place
from traces.intern import Interner
from traces.options import ReadOptions
from traces.order import FileOrder
from traces.source import Source

CLAUDE_CODE = Convention(time_unit="s", block_tokens=64, rows_are_in_time_order=False)
DEEPEST = 16  # a sub-agent of a sub-agent occurs; more than this is a damaged file


def recognises(row: Mapping[str, Any]) -> bool:
    """Whether a row looks like a session with hash ids."""
    return isinstance(row.get("requests"), list) and ("hash_id_scope" in row or "block_size" in row)


class _Ids:
    """The numbering in force: a fresh one for every session whose ids are local to it."""

    def __init__(self) -> None:
        self.shared = Interner()
        self.next = 0

    def of_session(self, row: Mapping[str, Any]) -> Interner:
        if row.get("hash_id_scope", "local") != "local":
            return self.shared
        return Interner(self.shared.next)

    def keep(self, used: Interner) -> None:
        self.shared.next = used.next


def read(source: Source, options: ReadOptions) -> FileOrder:
    """A trace of Claude Code sessions."""
    numbering = _Ids()

    def rows(value: object, place: Place, to: Collector) -> Iterator[Row]:
        session = fields.fields_of(value, place)
        block_size = fields.tokens(session, ("block_size",), place, at_least=1)
        if block_size is not None:
            to.state_block_size(block_size, place)
        ids = numbering.of_session(session)
        name = fields.label(session, ("id",), place) or str(place)
        yield from sorted(_requests(session, place, to, ids, (name, "main")), key=lambda row: row.time or 0)
        numbering.keep(ids)

    return collected(source, options, CLAUDE_CODE, rows)


def _requests(
    holder: Mapping[str, Any],
    place: Place,
    to: Collector,
    ids: Interner,
    session: tuple[str, ...],
    spawned_at: float = 0,
) -> Iterator[Row]:
    """The requests of a session or sub-agent, and of the sub-agents it spawned."""
    for number, value in enumerate(fields.sequence(holder, "requests", place) or []):
        inner = place._replace(part=f"{place.part}requests[{number}]")
        request = fields.fields_of(value, inner)
        since_start = fields.number(request, ("t",), inner)
        if since_start is None:
            raise inner.error(f"t (seconds since the session began) is missing; {SKIP}")
        if request.get("type") == "subagent" and len(session) > DEEPEST:
            raise inner.error(f"sub-agents are nested more than {DEEPEST} deep; {SKIP}")
        if request.get("type") == "subagent":
            agent = fields.label(request, ("agent_id",), inner) or str(number)
            yield from _requests(request, inner, to, ids, (*session, agent), spawned_at + since_start)
        else:
            yield _request(request, inner, to, ids, session, spawned_at + since_start)


def _request(
    request: Mapping[str, Any], place: Place, to: Collector, ids: Interner, session: tuple[str, ...], time_s: float
) -> Row:
    model = fields.label(request, ("model",), place)
    took_s = fields.number(request, ("api_time",), place)
    labels = {"agent": "main" if len(session) == 2 else "sub-agent"}
    return Row(
        prompt_tokens=fields.prompt_tokens(request, ("in",), place),
        output_tokens=fields.output_tokens(request, ("out",), place, to.options.default_output),
        time=time_s,
        ended=None if took_s is None else time_s + took_s,
        ids=ids.dense(fields.sequence(request, "hash_ids", place) or [], "hash_ids", place),
        session=session,
        labels=labels if model is None else labels | {"model": model},
    )
