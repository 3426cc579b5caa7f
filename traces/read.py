"""Decides which reader a trace needs, by its content, and reads it into `Requests`.

It does not read rows itself: one module a format does, and `FORMATS` is the table of them, one line a format.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from kvcache.request import Requests
from traces import (
    agentic,
    aibrix,
    claude_code,
    dynamo,
    fields,
    kv_events,
    lengths,
    lookups,
    mooncake,
    parquet,
    servegen_trace,
    sharegpt,
    text_log,
    tokens,
)
from traces.errors import TraceError, shown
from traces.link import linked
from traces.options import ReadOptions
from traces.order import FileOrder, streamed, whole
from traces.source import PARQUET_MAGIC, Source, located
from traces.stream import PIECE_REQUESTS, Stream, joined
from traces.workloads import PREFIX, generated

LOOKED_AT = 5
"""Rows by which a format is found out: some formats show their own fields only in later rows."""
SAMPLE_SUFFIX = ".jsonl.gz"
SAMPLE_BLOCK_TOKENS = {
    "llmservingsim_sharegpt300_blk8": 8,
    "llmservingsim_sharegpt300_blk16": 16,
    "miniswe_hashed_blk16": 16,
}


@dataclass(frozen=True)
class Format:
    """One kind of trace: how its first row is recognised, and its reader."""

    recognises: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Source, ReadOptions], FileOrder | Stream]


FORMATS: dict[str, Format] = {
    "parquet": Format(parquet.recognises, parquet.read),
    "claude-code": Format(claude_code.recognises, claude_code.read),
    "dynamo": Format(dynamo.recognises, dynamo.read),
    "trtllm-kv-events": Format(kv_events.recognises, kv_events.read),
    "tokens": Format(tokens.recognises, tokens.read),
    "llmservingsim-sessions": Format(agentic.recognises_llmservingsim, agentic.read_llmservingsim),
    "llmservingsim": Format(tokens.recognises_llmservingsim, tokens.read_llmservingsim),
    "agentic-mooncake": Format(agentic.recognises, agentic.read),
    "bailian": Format(mooncake.recognises_bailian, mooncake.read_bailian),
    "kvcache-simulator": Format(lookups.recognises_simulator, lookups.read_simulator),
    "tair": Format(lookups.recognises_tair, lookups.read_tair),
    "aibrix": Format(aibrix.recognises, aibrix.read),
    "mooncake": Format(mooncake.recognises, mooncake.read),
    "azure": Format(lengths.AZURE.named_in, lengths.read_azure),
    "burstgpt": Format(lengths.BURSTGPT.named_in, lengths.read_burstgpt),
    "vidur": Format(lengths.VIDUR.named_in, lengths.read_vidur),
    "servegen": Format(servegen_trace.recognises, servegen_trace.read),
    "sharegpt": Format(sharegpt.recognises, sharegpt.read),
    "text-log": Format(text_log.recognises, text_log.read),
}


def samples() -> dict[str, Path]:
    """The bundled traces: name and file."""
    folder = Path(__file__).parent / "samples"
    return {path.name.removesuffix(SAMPLE_SUFFIX): path for path in sorted(folder.glob(f"*{SAMPLE_SUFFIX}"))}


def read(trace: str | Path, *, format: str | None = None, options: ReadOptions = ReadOptions()) -> Requests:
    """The workload in a file, a bundled sample (by its bare name) or a generator (`synthetic:NAME?seed=1`)."""
    found, _ = _found(trace, format, options)
    if isinstance(found, Stream):
        return joined(found)
    requests, n = linked(whole(found)) if options.link_outputs else (whole(found), 0)
    _say_linked(found, n, len(requests))
    return replace(requests, notes=tuple(found.collector.notes))


def opened(trace: str | Path, *, format: str | None = None, options: ReadOptions = ReadOptions()) -> Stream:
    """The same workload in pieces, for what need not hold it whole; answers are linked to turns in the same piece or the next."""
    found, name = _found(trace, format, options)
    if isinstance(found, Stream):
        return replace(found, format=name)
    stream = streamed(found)
    return replace(stream, format=name, pieces=_linked(stream.pieces, found) if options.link_outputs else stream.pieces)


def _linked(pieces: Iterator[Requests], trace: FileOrder) -> Iterator[Requests]:
    n = total = 0
    for piece, following in _with_next(pieces):
        both = [piece] if following is None else [piece, following]
        requests = linked(joined(Stream(piece.source, piece.unit_tokens, iter(both))))[0].head(len(piece))
        if requests.output_offset is not None:
            n += int((np.diff(requests.output_offset) > 0).sum())
        total += len(requests)
        yield replace(requests, notes=piece.notes)
    _say_linked(trace, n, total, within=f" (looked for in the {PIECE_REQUESTS:,} requests after it)")


def _with_next(pieces: Iterator[Requests]) -> Iterator[tuple[Requests, Requests | None]]:
    """Each piece beside the one after it."""
    held = next(pieces, None)
    for piece in pieces:
        assert held is not None
        yield held, piece
        held = piece
    if held is not None:
        yield held, None


def _say_linked(trace: FileOrder, n: int, total: int, within: str = "") -> None:
    if n:
        trace.collector.repaired(
            f"{n:,} of {total:,} answers are taken to be what the next turn's prompt{within if total > PIECE_REQUESTS else ''} "
            f"has in their place; "
            f"--no-link-outputs leaves them private"
        )


def _found(trace: str | Path, format: str | None, options: ReadOptions) -> tuple[FileOrder | Stream, str]:
    """The trace, and the name of its format."""
    if format is not None and format not in FORMATS:
        raise TraceError(f"--format is {shown(format)}; known formats: {', '.join(FORMATS)}")
    if str(trace).startswith(PREFIX):
        options.refuse_for(str(trace))
        return generated(str(trace), opened), ""
    source = located(trace, samples())
    name = format or detected(source, options)
    known_block = SAMPLE_BLOCK_TOKENS.get(source.sample)
    if options.trace_block_size is None and known_block is not None:
        options = replace(options, trace_block_size=known_block)
    return FORMATS[name].read(source, options), name


def detected(source: Source, options: ReadOptions) -> str:
    """The name of the first format of the table that recognises the first row."""
    row = first_row(source, options)
    for name, candidate in FORMATS.items():
        if candidate.recognises(row):
            return name
    known = ", ".join(FORMATS)
    raise source.error(f"no known format has the fields {shown(', '.join(row))}; name one with --format: {known}")


def first_row(source: Source, options: ReadOptions) -> Mapping[str, Any]:
    """The fields by which a trace is recognised: of its first JSON rows, or of its CSV header."""
    if source.is_parquet:
        return {PARQUET_MAGIC.decode(): None}
    _, text = next(source.lines(), (None, ""))
    if text and text[0] not in "[{" and "," in text:
        return dict.fromkeys(name.strip().strip('"') for name in text.split(","))
    if text and text[0] not in "[{" and any(mark in text for mark in ";\t"):
        raise source.error(f"line 1 is {shown(text)}; cells of a CSV trace must be separated by commas")
    fields_: dict[str, Any] = {}
    for place, value in islice(source.rows(), LOOKED_AT):
        if isinstance(value, dict):
            fields_ = {**value, **fields_}
        elif not fields_ and not options.skip_bad_lines:
            raise value if isinstance(value, TraceError) else fields.not_a_row(value, place)
    if fields_:
        return fields_
    raise TraceError(f"no requests in {source.name}")
