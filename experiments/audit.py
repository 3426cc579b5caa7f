"""Checks what an engine told about its KV cache: a dump of KV events, or of iteration statistics, against what must hold.

Events (TensorRT-LLM's JSON, an array or one a line; `kvtier replay --events` writes the same):

    faults   numbers that jump or go back; a block stored below a parent nobody told of; removal or update of a block that is not
             there; an old level or priority that is not the one told before
    leaks    blocks that can no longer be reached because one above them went, and blocks beyond what a level has: TensorRT-LLM
             tells no removal of a block taken over in place or below one that went, so a subscriber keeps them. Counted

Statistics (`kvCacheStats` of `/metrics`, one iteration a line): free + used = max, counters that never fall, the hit rate.
It reads and counts; it corrects nothing.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvcache.blockhash import block_hash
from kvcache.router_index import RouterIndex, Window

SHOWN = 20
"""Faults told in full; of the rest only the number is told."""
KINDS = {"created", "stored", "removed", "updated"}
Source = tuple[int | None, int | None]


@dataclass
class Mirror:
    """What one worker (and rank) is believed to hold, and what was found wrong with its story."""

    index: RouterIndex = field(default_factory=RouterIndex)
    children: Counter[tuple[Window, int]] = field(default_factory=Counter)
    sizes: dict[Window, list[int]] = field(default_factory=dict)
    peak: Counter[tuple[Window, int]] = field(default_factory=Counter)
    level: Counter[tuple[Window, int]] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    last_id: int | None = None
    other_hashes: int = 0


@dataclass
class Audit:
    """The findings of a file."""

    path: Path
    faults: list[str] = field(default_factory=list)
    leaks: int = 0
    lines: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"file": str(self.path), "faults": self.faults, "leaked_blocks": self.leaks, "summary": self.lines}


def audit(path: Path) -> Audit:
    """Read the file and check it; ValueError where it is neither of the two."""
    records = list(_records(path))
    if not records:
        raise ValueError(f"{path}: nothing in it; expected KV events or iteration statistics as JSON")
    if any(_stats(record) is not None for _, record in records):
        return _audit_statistics(path, records)
    return _audit_events(path, records)


def _records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each object with where it stands."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start:,} is not UTF-8 text; expected JSON") from None
    if text.lstrip().startswith("["):
        try:
            whole = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None
        named = ((f"{path}, element {i}", record) for i, record in enumerate(whole))
    else:
        named = ((f"{path}:{i}", _line(path, i, line)) for i, line in enumerate(text.splitlines(), 1) if line.strip())
    for where, record in named:
        if not isinstance(record, dict):
            raise ValueError(  # ruff: ignore[type-check-without-type-error]
                f"{where}: {type(record).__name__} found, expected an object"
            )
        yield where, record


def _line(path: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{number}: not JSON: {error.msg}") from None


def _audit_events(path: Path, records: Iterable[tuple[str, Mapping[str, Any]]]) -> Audit:
    result, mirrors = Audit(path), dict[Source, Mirror]()
    for where, event in records:
        data = event.get("data")
        if (
            not isinstance(event.get("event_id"), int)
            or not isinstance(data, dict)
            or str(data.get("type")) not in KINDS
        ):
            raise ValueError(f"{where}: no KV event: it needs an event_id and data of type {', '.join(sorted(KINDS))}")
        told = {**event, "window_size": event.get("window_size"), "data": data}
        try:
            mirror = mirrors.setdefault((event.get("worker_id"), event.get("attention_dp_rank")), Mirror())
            faults = list(_event(mirror, told))
        except KeyError as error:
            raise ValueError(f"{where}: event {event['event_id']} of type {data['type']} lacks {error}") from None
        except (TypeError, AttributeError, ValueError, OverflowError) as error:
            raise ValueError(f"{where}: event {event['event_id']} of type {data['type']}: {error}") from None
        result.faults += [f"event {event['event_id']}{_who(event)}: {fault}" for fault in faults]
    for source, mirror in mirrors.items():
        result.leaks += _unreachable(mirror)
        result.lines += _told(source, mirror)
    return result


def _who(event: Mapping[str, Any]) -> str:
    names = {"worker_id": "worker", "attention_dp_rank": "rank"}
    return "".join(f", {word} {event[key]}" for key, word in names.items() if event.get(key) is not None)


def _event(mirror: Mirror, event: Mapping[str, Any]) -> Iterator[str]:
    """Faults of one event against what was told before; then it is taken in."""
    number, window, data = event["event_id"], event["window_size"], event["data"]
    if mirror.last_id is not None and number != mirror.last_id + 1:
        lost = number - mirror.last_id - 1
        yield f"follows event {mirror.last_id}: {f'{lost} lost' if lost > 0 else 'out of order'}"
    mirror.last_id = number
    mirror.counts[data["type"]] += 1
    yield from {"created": _created, "stored": _stored, "removed": _removed, "updated": _updated}[data["type"]](
        mirror, window, data
    )
    mirror.index.apply([event])


def _created(mirror: Mirror, window: Window, data: Mapping[str, Any]) -> Iterator[str]:
    if window in mirror.sizes:
        yield f"window {window} was created before"
    mirror.sizes[window] = [int(blocks) for blocks in data["num_blocks_per_cache_level"]]


def _stored(mirror: Mirror, window: Window, data: Mapping[str, Any]) -> Iterator[str]:
    known, parent = mirror.index.blocks.setdefault(window, {}), data["parent_hash"]
    if parent is not None and parent not in known:
        yield f"stores below {parent}, which nobody told of in window {window}"
    for block in data["blocks"]:
        name, level = block["block_hash"], int(block["cache_level"])
        if name in known:
            mirror.level[window, known[name].level] -= 1
            mirror.children[window, known[name].parent or 0] -= 1
            mirror.counts["stored again"] += 1
        if block.get("tokens"):
            tokens = [token["token_id"] for token in block["tokens"]]
            made = block_hash(
                tokens, parent=parent or 0, lora_id=block.get("lora_id"), cache_salt=block.get("cache_salt")
            )
            mirror.other_hashes += made != name
        mirror.children[window, parent or 0] += 1
        _more(mirror, window, level)
        parent = name


def _more(mirror: Mirror, window: Window, level: int) -> None:
    """One block more on a level."""
    mirror.level[window, level] += 1
    mirror.peak[window, level] = max(mirror.peak[window, level], mirror.level[window, level])


def _removed(mirror: Mirror, window: Window, data: Mapping[str, Any]) -> Iterator[str]:
    known = mirror.index.blocks.setdefault(window, {})
    for name in data["block_hashes"]:
        if name not in known:
            yield f"removes {name}, which is not there in window {window}"
            continue
        mirror.level[window, known[name].level] -= 1
        mirror.children[window, known[name].parent or 0] -= 1


def _updated(mirror: Mirror, window: Window, data: Mapping[str, Any]) -> Iterator[str]:
    name, known = data["block_hash"], mirror.index.blocks.setdefault(window, {})
    if name not in known:
        yield f"updates {name}, which is not there in window {window}"
        return
    block = known[name]
    for what, now in (("cache_level", block.level), ("priority", block.priority)):
        change = data.get(what)
        if change is not None and change["old_value"] != now:
            yield f"{what} of {name} was {now}, not {change['old_value']}"
    change = data.get("cache_level")
    if change is not None:
        mirror.level[window, block.level] -= 1
        _more(mirror, window, int(change["new_value"]))


def _unreachable(mirror: Mirror) -> int:
    """Blocks that have a missing block between them and the root."""
    lost = 0
    for blocks in mirror.index.blocks.values():
        reached: dict[int, bool] = {}
        for name in blocks:
            chain, at = [], name
            while at not in reached and at in blocks and (parent := blocks[at].parent) is not None and at not in chain:
                chain.append(at)
                at = parent
            end = reached.get(at, at in blocks and blocks[at].parent is None)
            reached |= dict.fromkeys([*chain, at], end)
        lost += sum(not reached[name] for name in blocks)
    return lost


def _told(source: Source, mirror: Mirror) -> Iterator[str]:
    worker, rank = source
    who = "".join(f"{word} {value}: " for word, value in (("worker", worker), ("rank", rank)) if value is not None)
    counts = ", ".join(f"{count:,} {kind}" for kind, count in sorted(mirror.counts.items()))
    yield f"{who}{counts}"
    for window, blocks in mirror.index.blocks.items():
        levels = Counter(block.level for block in blocks.values())
        room = mirror.sizes.get(window, [])
        for level in sorted({*levels, *range(len(room))}):
            of = f" of {room[level]:,}" if level < len(room) else ""
            peak = mirror.peak[window, level]
            beyond = level < len(room) and peak > room[level]
            leak = f", {peak - room[level]:,} more than there are: not every removal was told" if beyond else ""
            yield f"{who}window {window}, level {level}: {levels[level]:,}{of} blocks at the end, {peak:,} at most{leak}"
    if mirror.other_hashes:
        yield f"{who}{mirror.other_hashes:,} hashes are not TensorRT-LLM's of these tokens: another algorithm, or other content"


def _stats(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    found = record.get("kvCacheStats", record.get("kv_cache_stats"))
    return found if isinstance(found, dict) else None


FALLING = ("allocTotalBlocks", "allocNewBlocks", "reusedBlocks", "missedBlocks")
POOL = ("freeNumBlocks", "usedNumBlocks", "maxNumBlocks")
COUNTED = (*FALLING, *POOL, "cacheHitRate")


def _audit_statistics(path: Path, records: Iterable[tuple[str, Mapping[str, Any]]]) -> Audit:
    result, before, iterations = Audit(path), dict[str, Any](), 0
    for where, record in records:
        stats = _stats(record)
        if stats is None:
            continue
        iterations += 1
        wrong = next((name for name in COUNTED if not isinstance(stats.get(name, 0), int | float)), None)
        if wrong is not None:
            raise ValueError(f"{where}: {wrong} is {stats[wrong]!r}; expected a number")
        result.faults += [f"{where}: {fault}" for fault in _iteration(stats, before)]
        before = dict(stats)
    used, room = before.get("usedNumBlocks"), before.get("maxNumBlocks")
    result.lines.append(f"{iterations:,} iterations; {used} of {room} blocks in use at the end")
    return result


def _iteration(stats: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    if all(name in stats for name in POOL):
        free, used, room = (stats[name] for name in POOL)
        if free + used != room:
            yield f"{free} free + {used} used are not {room} blocks"
        if min(free, used) < 0:
            yield f"{min(free, used)} blocks: below zero"
    for name in FALLING:
        if name in stats and stats[name] < before.get(name, 0):
            yield f"{name} fell from {before[name]} to {stats[name]}"
    reused, missed, rate = (stats.get(name) for name in ("reusedBlocks", "missedBlocks", "cacheHitRate"))
    if reused is not None and missed is not None and rate is not None and reused + missed:
        if abs(rate - reused / (reused + missed)) > 1e-3:
            yield f"cacheHitRate {rate} is not {reused} reused of {reused + missed}"


def lines(result: Audit) -> list[str]:
    """What to print."""
    found = [*result.faults[:SHOWN]]
    if len(result.faults) > SHOWN:
        found.append(f"and {len(result.faults) - SHOWN:,} faults more")
    verdict = (
        f"{len(result.faults):,} {'fault' if len(result.faults) == 1 else 'faults'}" if result.faults else "no fault"
    )
    if result.leaks:
        verdict += f"; {result.leaks:,} blocks cannot be reached any more (TensorRT-LLM tells no removal of these)"
    return [*result.lines, *found, f"{result.path}: {verdict}"]
