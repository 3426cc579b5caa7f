"""Cuts the content of a stream into blocks of another size. It does not look at times or lengths.

Coarser is exact: a coarse block is the same where its last fine block, with all before it, is the same. Finer is a lower
bound: two requests that part inside a trace block share nothing of it here, whatever they shared in truth.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kvcache.keys import check_block_size
from kvcache.request import Int32, Int64, Requests
from traces.chain import chained
from traces.dense import Dense
from traces.errors import TraceError
from traces.fields import INT32_MAX
from traces.stream import Stream, offsets


def recut(stream: Stream, tokens: int) -> Stream:
    """The same requests in blocks of `tokens` tokens; generated content is left out."""
    if tokens == stream.unit_tokens:
        return stream
    try:
        check_block_size(stream.unit_tokens, tokens)
    except ValueError as error:
        raise TraceError(f"{stream.source}: {error}") from None
    if tokens > stream.unit_tokens:
        return replace(stream, unit_tokens=tokens, pieces=_coarser(stream, tokens // stream.unit_tokens))
    stream.notes.append(
        f"{stream.source}: lower bound: sharing inside a trace block of {stream.unit_tokens} tokens is unknown"
        f" ({tokens} tokens a block is finer)"
    )
    return replace(stream, unit_tokens=tokens, pieces=_finer(stream, stream.unit_tokens // tokens, tokens))


def _coarser(stream: Stream, factor: int) -> Iterator[Requests]:
    numbers = Dense()
    for piece in stream.pieces:
        prefix = numbers.of(chained(piece))
        n_fine = np.diff(piece.unit_offset)
        n = -(-n_fine // factor)
        offset = offsets(n)
        place = np.arange(offset[-1]) - np.repeat(offset[:-1], n)
        end = np.minimum((place + 1) * factor, np.repeat(n_fine, n))
        is_short = (end % factor > 0).astype(np.int32)
        units: Int32 = prefix[np.repeat(piece.unit_offset[:-1], n) + end - 1] * np.int32(2) + is_short
        yield _with(piece, stream.unit_tokens * factor, offset, units)


def _finer(stream: Stream, factor: int, tokens: int) -> Iterator[Requests]:
    for piece in stream.pieces:
        n_coarse = np.diff(piece.unit_offset)
        n = np.minimum(n_coarse * factor, -(-piece.prompt_tokens // tokens))
        offset = offsets(n)
        place = np.arange(offset[-1]) - np.repeat(offset[:-1], n)
        whole = piece.units[np.repeat(piece.unit_offset[:-1], n) + place // factor]
        units = whole.astype(np.int64) * factor + place % factor
        if units.max(initial=0) > INT32_MAX:
            raise TraceError(f"{stream.source}: too many different blocks of {tokens} tokens; measure coarser ones")
        yield _with(piece, tokens, offset, units.astype(np.int32))


def _with(piece: Requests, tokens: int, offset: Int64, units: Int32) -> Requests:
    return replace(piece, unit_tokens=tokens, unit_offset=offset, units=units, output_offset=None, output_units=None)
