"""Generated requests as rows of numbers, put in order of arrival, and turned into `Requests`.

It draws nothing. The content of a prompt is whole blocks: some runs of shared ones (system prompt, documents), then those
of its own conversation, numbered on through all its turns and answers. A part-filled last block has no identity.

    prompt   | shared run | shared run | own block 0, 1, 2 ...   | tail, nameless
    answer                                          ... goes on  |  own blocks, named up to the last whole one
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcache.request import Int32, Int64, Labels, Requests
from traces.errors import TraceError
from traces.fields import INT32_MAX
from traces.stream import Stream, offsets

BATCH = 32_768
"""Requests made at once, about."""


Column = NDArray[Any]


class Rows(NamedTuple):
    """One entry a request. Numbers of blocks are int64 here; they must fit int32 in the end."""

    arrival_s: Column
    prompt_tokens: Column
    output_tokens: Column
    session: Column
    think_s: Column
    shared: Column  # [n, k]: first block of each shared run
    shared_blocks: Column  # [n, k]
    own: Column  # number of its conversation's block 0
    owner: Column  # code of its tenant


class Numbers:
    """Hands out numbers for content that belongs to one conversation, and for conversations."""

    def __init__(self, first: int) -> None:
        self.next, self.sessions = first, 0

    def blocks(self, needed: Int64) -> Int64:
        """The first number of each of these lots."""
        starts = self.next + offsets(needed)
        self.next = int(starts[-1])
        if self.next > INT32_MAX:
            raise TraceError(f"more than {INT32_MAX} different blocks: raise block_tokens or ask for fewer requests")
        return starts[:-1]

    def session_numbers(self, n: int) -> Int64:
        """Numbers of n new sessions."""
        self.sessions += n
        return np.arange(self.sessions - n, self.sessions)


def stream_of(
    source: str, batches: Iterable[tuple[Rows, float]], requests: int, block_tokens: int, owners: tuple[str, ...]
) -> Stream:
    """The first `requests` of them as a stream; see `in_order` for `batches`."""
    pieces = (as_requests(source, rows, block_tokens, owners) for rows in first_rows(in_order(batches), requests))
    return Stream(source, block_tokens, pieces)


def in_order(batches: Iterable[tuple[Rows, float]]) -> Iterator[Rows]:
    """Rows by time. A batch comes with the time before which no later batch has anything."""
    waiting: Rows | None = None
    for rows, until_s in batches:
        waiting = rows if waiting is None else joined_rows(waiting, rows)
        order = np.lexsort((waiting.session, waiting.arrival_s))
        n = int(np.searchsorted(waiting.arrival_s[order], until_s))
        if n:
            yield taken(waiting, order[:n])
        waiting = taken(waiting, order[n:])
    if waiting is not None and len(waiting.arrival_s):
        yield waiting


def first_rows(pieces: Iterable[Rows], n: int) -> Iterator[Rows]:
    """The first n rows; no more than needed are made."""
    for rows in pieces:
        yield Rows(*(column[:n] for column in rows))
        n -= len(rows.arrival_s)
        if n <= 0:
            return


def joined_rows(one: Rows, other: Rows) -> Rows:
    """Both, one after the other."""
    return Rows(*(np.concatenate(pair) for pair in zip(one, other, strict=True)))


def taken(rows: Rows, which: Int64) -> Rows:
    """These rows, in this order."""
    return Rows(*(column[which] for column in rows))


def as_requests(source: str, rows: Rows, block_tokens: int, owners: tuple[str, ...]) -> Requests:
    """Rows in order of arrival as columns; a label says whose they are."""
    whole = rows.prompt_tokens // block_tokens
    shared = rows.shared_blocks.sum(axis=1)
    own, end = whole - shared, (rows.prompt_tokens + rows.output_tokens) // block_tokens
    starts = np.column_stack((rows.shared, rows.own)).ravel()
    lengths = np.column_stack((rows.shared_blocks, own)).ravel()
    return Requests(
        source=source,
        unit_tokens=block_tokens,
        arrival_s=rows.arrival_s,
        prompt_tokens=rows.prompt_tokens.astype(np.int32),
        output_tokens=rows.output_tokens.astype(np.int32),
        unit_offset=offsets(whole),
        units=ranges(starts, lengths),
        output_offset=offsets(end - whole),
        output_units=ranges(rows.own + own, end - whole),
        session=rows.session.astype(np.int32),
        think_s=rows.think_s,
        labels={"tenant": Labels(rows.owner.astype(np.int32), owners)},
    )


def ranges(starts: Int64, lengths: Int64) -> Int32:
    """start, start + 1, ... for each start, end to end."""
    begin = offsets(lengths)
    return (np.repeat((starts - begin[:-1]).astype(np.int32), lengths) + np.arange(begin[-1], dtype=np.int32)).astype(
        np.int32
    )


def unnumbered(arrival_s: Column, prompt: Column, output: Column, session: Column, think_s: Column) -> Rows:
    """Rows whose content has no numbers yet."""
    none = np.zeros(len(prompt), np.int64)
    return Rows(arrival_s, prompt.astype(np.int64), output, session, think_s, none[:, None], none[:, None], none, none)


def turn_sums(values: Column, first: Int64) -> Column:
    """Within each conversation the sum of the values before each turn; `first` are the rows of first turns."""
    before = np.cumsum(values) - values
    return np.asarray(before - np.repeat(before[first], np.diff(np.append(first, len(values)))))
