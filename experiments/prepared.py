"""Keeps what runs of one workload share: the names of all its blocks at one block size, interned once a process.

The tables of a run are used again by the next one when workload and block size are the same; a test compares rows. Only the
last block size is kept: a sweep goes through its settings block size by block size. It prepares nothing by
itself (`kvcache.load` does).
"""

import hashlib
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import numpy as np

from kvcache.categories import note_categories
from kvcache.load import Load, Names, names_of, prepare, renewed, rows_of, with_retention
from kvcache.request import Requests
from kvcache.retention import RetentionColumns
from kvcache.tables import Pool, Settings, State

Prepare = Callable[[Requests, RetentionColumns, tuple[Pool, ...], Settings], tuple[State, Load]]
Key = tuple[str, int]


class Kept(NamedTuple):
    """Tables that a run has left, and how they were before it."""

    state: State
    load: Load
    names: Names


@cache
def left_in(thread: int) -> dict[Key, Kept]:
    """What the last run of this thread of this process left."""
    return {}


@contextmanager
def shared_tables() -> Generator[Prepare, None, None]:
    """`kvcache.load.prepare` for one run: with the tables of the run before where they fit. Each is given out once."""
    here = left_in(threading.get_ident())
    left, mine = dict(here), dict[Key, Kept]()
    here.clear()

    def give(
        requests: Requests, retention: RetentionColumns, pools: tuple[Pool, ...], settings: Settings
    ) -> tuple[State, Load]:
        key = (_content(requests), settings.tokens_per_block)
        old = left.pop(key, None)
        if old is None:
            left.clear()
            state, load = prepare(requests, retention, pools, settings)
            names = names_of(state)
        else:
            names = old.names
            state, load = renewed(old.state, names, pools, settings), with_retention(old.load, retention)
            note_categories(state, requests, load.key_offset, load.keys)
        mine[key] = Kept(state, load, names)
        return state, load

    try:
        yield give
    except BaseException:
        mine.clear()
        raise
    finally:
        here.update(mine)


def _content(requests: Requests) -> str:
    """A hash of everything that names depend on."""
    digest = hashlib.blake2b(digest_size=16)
    for column in rows_of(requests, {}):
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()
