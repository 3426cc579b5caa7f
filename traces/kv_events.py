"""Rebuilds what a TensorRT-LLM engine's cache went through from a dump of its KV events.

Every `stored` event becomes a request: its prompt is the chain of blocks from the root to the last one stored. Times are
the order of events (one second each), since events carry none. It does not know requests that stored nothing new, nor
what was generated: shares of hits are those of the storing requests only. Events of the largest window count.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from traces import fields
from traces.collect import Collector, collected
from traces.convention import Convention, Row
from traces.errors import SKIP, Place, shown
from traces.options import ReadOptions
from traces.order import FileOrder
from traces.source import Source

EVENTS = Convention(time_unit="s", block_tokens=1, ids_are_blocks=False)
TYPES = ("created", "stored", "removed", "updated")


@dataclass
class _Cache:
    """The blocks of one rank: hash -> (parent's hash, tokens)."""

    blocks: dict[int, tuple[int | None, tuple[int, ...]]] = field(default_factory=dict)
    removed: dict[int, tuple[int | None, tuple[int, ...]]] = field(default_factory=dict)


def recognises(row: Mapping[str, Any]) -> bool:
    """Whether a row looks like a KV event."""
    data = row.get("data")
    return "event_id" in row and isinstance(data, dict) and data.get("type") in TYPES


def read(source: Source, options: ReadOptions) -> FileOrder:
    """A dump of KV events."""
    caches: dict[str, _Cache] = {}
    window = max((_window(value) for _, value in source.rows()), default=-1)
    counts = dict.fromkeys(TYPES, 0)
    last = [-1, -1]  # the event before, and the highest so far: ranks may count for themselves

    def rows(value: object, place: Place, to: Collector) -> Iterator[Row]:
        event = fields.fields_of(value, place)
        rank = fields.label(event, ("attention_dp_rank",), place) or "0"
        cache = caches.setdefault(rank, _Cache())
        number = fields.number(event, ("event_id",), place)
        if number is None:
            raise place.error(f"event_id is missing; {SKIP}")
        missing = int(number) - max(last) - 1
        if last[0] >= 0 and missing > 0:
            to.infer(f"events are missing before this one ({missing}): what is held is unsure", place)
        last[:] = [int(number), max(last)]
        if _window(event) == window:
            yield from _row(fields.inner(event, "data", place), place, to, cache, rank, int(number), counts)

    trace = collected(source, options, EVENTS, rows)
    trace.collector.at_end = lambda: _summary(counts, caches)
    return trace


def _window(value: Any) -> int:
    window = value.get("window_size") if isinstance(value, dict) else None
    return window if type(window) is int else -1


def _summary(counts: Mapping[str, int], caches: Mapping[str, _Cache]) -> str:
    held = sum(len(cache.blocks) for cache in caches.values())
    return (
        f"{counts['stored']} blocks stored, {counts['removed']} removed, {counts['updated']} changed tier or priority, "
        f"{held} held at the end; requests that stored nothing are not in the events"
    )


def _row(
    data: Mapping[str, Any],
    place: Place,
    to: Collector,
    cache: _Cache,
    rank: str,
    number: int,
    counts: dict[str, int],
) -> Iterator[Row]:
    kind = data.get("type")
    if kind == "stored":
        tokens, n = _stored(data, place, to, cache)
        counts["stored"] += n
        if tokens:
            yield Row(len(tokens), 0, time=number, ids=tokens, labels={"rank": rank})
    elif kind == "removed":
        for name in fields.sequence(data, "block_hashes", place) or []:
            counts["removed"] += 1
            _gone(_hash(name, place), place, to, cache)
    elif kind == "updated":
        counts["updated"] += 1
        if _hash(data.get("block_hash"), place) not in cache.blocks:
            to.doubts.see("an update of a block that is not known to be stored", place)
    elif kind != "created":
        raise place.error(f"an event of type {shown(kind)}; known are {', '.join(TYPES)}; {SKIP}")


def _stored(data: Mapping[str, Any], place: Place, to: Collector, cache: _Cache) -> tuple[list[int], int]:
    """Tokens from the root to the last block of the event, and how many blocks it stores."""
    parent = data.get("parent_hash")
    parent = None if parent is None else _hash(parent, place)
    if parent is not None and parent not in cache.blocks and parent not in cache.removed:
        to.infer("the parent of the stored blocks is not known: their prompt begins with them", place)
        parent = None
    above = parent
    blocks = fields.sequence(data, "blocks", place) or []
    path: list[int] = []
    at = parent
    chain: list[tuple[int, ...]] = []
    while at is not None and len(chain) <= len(cache.blocks) + len(cache.removed):
        at_parent, tokens = cache.blocks.get(at) or cache.removed.get(at) or (None, ())
        chain.append(tokens)
        at = at_parent
    for tokens in reversed(chain):
        path.extend(tokens)
    for value in blocks:
        block = fields.fields_of(value, place)
        name, tokens = _hash(block.get("block_hash"), place), _tokens(block, place)
        cache.blocks[name] = (above, tokens)
        cache.removed.pop(name, None)
        path.extend(tokens)
        above = name
    return path, len(blocks)


def _gone(name: int, place: Place, to: Collector, cache: _Cache) -> None:
    block = cache.blocks.pop(name, None)
    if block is None:
        to.doubts.see("a removal of a block that is not known to be stored", place)
    else:
        cache.removed[name] = block


def _tokens(block: Mapping[str, Any], place: Place) -> tuple[int, ...]:
    tokens = []
    for value in fields.sequence(block, "tokens", place) or []:
        token = fields.tokens(fields.fields_of(value, place), ("token_id",), place, at_least=0)
        if token is None:
            raise place.error(f"token_id is missing; {SKIP}")
        tokens.append(token)
    return tuple(tokens)


def _hash(value: Any, place: Place) -> int:
    if type(value) is int:
        return value
    raise place.error(f"a block's hash is {shown(value)}; it must be a whole number; {SKIP}")
