"""Reads traces of cache look-ups: Tair's KVCacheManager optimizer, and kvcache-simulator.

They hold what was looked up, in blocks, and no answers of their own; a request without a stated output generates nothing
unless `--default-output` says otherwise.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from traces import fields
from traces.collect import Collector, collected
from traces.convention import Convention, Row
from traces.errors import SKIP, Place, shown
from traces.intern import Interner
from traces.options import ReadOptions
from traces.order import FileOrder
from traces.source import Source

TAIR = Convention(time_unit="us", block_tokens=16, block_tokens_is_guess=True)
SIMULATOR = Convention(time_unit="ms", block_tokens=16, times_are_optional=True)
LOOKUP = ("prefix_match", "batch_get", "reverse_roll_sw_match", None)
LOOKUP_TYPE = ("get", "request")


def recognises_tair(row: Mapping[str, Any]) -> bool:
    """Whether a row looks like a look-up or a turn of Tair's optimizer."""
    return ("timestamp_ns" in row or "timestamp_us" in row) and ("keys" in row or "total_keys" in row)


def recognises_simulator(row: Mapping[str, Any]) -> bool:
    """Whether a row looks like a request of kvcache-simulator."""
    return "block_tokens" in row and "hash_ids" in row


def read_tair(source: Source, options: ReadOptions) -> FileOrder:
    """A trace of Tair's optimizer; writes are left out. Newer ones have `type` and `timestamp_ns`, older ones neither."""
    ids = Interner()

    def rows(value: object, place: Place, to: Collector) -> Iterator[Row]:
        row = fields.fields_of(value, place)
        query = row.get("query_type")
        older = query in LOOKUP and (query is not None or "input_len" in row)
        if row["type"] in LOOKUP_TYPE if "type" in row else older:
            yield _tair_row(row, place, to, ids)
        else:
            to.doubts.see("a row that looks nothing up is left out", place)

    return collected(source, options, TAIR, rows)


def _tair_row(row: Mapping[str, Any], place: Place, to: Collector, ids: Interner) -> Row:
    prompt = fields.prompt_tokens(row, ("input_len",), place, to.options.default_prompt)
    output = _output(row, "output_len", place, to)
    keys = fields.sequence(row, "keys", place) or []
    total = fields.sequence(row, "total_keys", place) or []
    instance = fields.label(row, ("instance_id",), place)
    everything = ids.dense(total, "total_keys", place) if len(total) > len(keys) and output else []
    return Row(
        prompt_tokens=prompt,
        output_tokens=output,
        time=_microseconds(row, place),
        ids=ids.dense(keys, "keys", place),
        all_ids=everything,
        labels={} if instance is None else {"instance": instance},
    )


def _output(row: Mapping[str, Any], field: str, place: Place, to: Collector) -> int:
    output = fields.tokens(row, (field,), place, at_least=0)
    if output is None and to.options.default_output is None:
        to.infer("the row has no output: 0 tokens are generated; --default-output N overrides", place)
    return to.options.default_output or 0 if output is None else output


def _microseconds(row: Mapping[str, Any], place: Place) -> int | float | None:
    nanoseconds = fields.number(row, ("timestamp_ns",), place)
    if nanoseconds is None:
        return fields.number(row, ("timestamp_us",), place)
    return nanoseconds // 1000 if nanoseconds % 1000 == 0 else nanoseconds / 1000


def read_simulator(source: Source, options: ReadOptions) -> FileOrder:
    """A trace of kvcache-simulator."""
    ids = Interner()

    def rows(value: object, place: Place, to: Collector) -> Iterator[Row]:
        row = fields.fields_of(value, place)
        size = fields.tokens(row, ("block_size",), place, at_least=1)
        if size is not None:
            to.state_block_size(size, place)
            _check_blocks(row, size, place)
        yield Row(
            prompt_tokens=fields.prompt_tokens(row, ("input_length",), place, to.options.default_prompt),
            output_tokens=_output(row, "output_length", place, to),
            time=fields.moment(row, ("timestamp",), place, to),
            ids=ids.dense(fields.sequence(row, "hash_ids", place) or [], "hash_ids", place),
            session=fields.label(row, ("session_id",), place),
        )

    return collected(source, options, SIMULATOR, rows)


def _check_blocks(row: Mapping[str, Any], size: int, place: Place) -> None:
    """All blocks but the last must be full: others cannot be told apart by their position."""
    held = fields.sequence(row, "block_tokens", place) or []
    short = [n for n in held[:-1] if n != size]
    if short or (held and not (type(held[-1]) is int and 0 < held[-1] <= size)):
        wrong = short[0] if short else held[-1]
        raise place.error(f"block_tokens holds {shown(wrong)}; all but the last must be {size}, the block size; {SKIP}")
