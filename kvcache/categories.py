"""Tells the workload-aware policy of which kind each content is: the kind of the first request that has it.

It decides nothing (`kvcache.eviction`). The curve, which sees one request after the other, names a content anew with each
request instead.
"""

import numpy as np

from kvcache.eviction import REUSE
from kvcache.request import Int32, Requests
from kvcache.shelf import CATEGORIES, CATEGORY
from kvcache.tables import Array, State


def categories(requests: Requests) -> Int32:
    """A number for each kind of request, below CATEGORIES: its first label's value, and whether its session is known.

    That is what the workload-aware policy tells apart (request type and turn). Without labels and sessions all are 0.
    """
    later = np.zeros(len(requests), np.int32)
    known = requests.session >= 0
    first = np.unique(requests.session, return_index=True)[1]
    later[known] = 1
    later[first] = 0
    kind = next((column.codes for column in requests.labels.values()), np.zeros(len(requests), np.int32))
    return np.asarray(np.clip(2 * kind + later, 0, CATEGORIES - 1), np.int32)


def note_categories(s: State, requests: Requests, offset: Array, keys: Array, first: int = 1) -> None:
    """Note the kind of every content from row `first` on; `keys[offset[i]:offset[i + 1]]` are request i's (-1: none)."""
    if s.shelf is None or s.shelf.shelf.rule.kind != REUSE:
        return
    kind = np.repeat(categories(requests), np.diff(offset))
    new = np.flatnonzero(keys >= first)[::-1]  # of several requests the first is written last
    s.shelf.shelf.facts[keys[new], CATEGORY] = kind[new]
