"""A workload ready for the loops: its content as nodes at one block size, its retention as columns.

It is made once a (trace, block size) and never changes; several workers read the same one, each beside its own tables
only if they share the key rows: `Load` belongs to the `State` whose nodes it names.
"""

from typing import NamedTuple

import numpy as np

from kvcache.categories import note_categories
from kvcache.gate import gate_for
from kvcache.keys import Rows, check_block_size, grow, intern_all, key_offsets, name_twins
from kvcache.request import Requests
from kvcache.retention import RetentionColumns
from kvcache.shelf import with_contents
from kvcache.tables import (
    C_TOKENS_PER_BLOCK,
    FATE,
    HEAD,
    LIVE,
    N_NODES,
    N_RUNS,
    NEVER_SEEN,
    ROOT,
    Array,
    Pool,
    Settings,
    State,
    make_state,
)


class Load(NamedTuple):
    """Requests as the compiled loops read them. Arrays of one entry a request unless said otherwise."""

    prompt: Array  # int32 tokens
    output: Array  # int32 tokens
    key_offset: Array  # int64[n + 1]
    keys: Array  # int32: per request its full blocks' nodes, the last prompt block's short node, the final short node
    private: Array  # int64: names of content that only this request knows
    range_offset: Array  # int64[n + 1]
    ranges: Array  # int32[m, 4]
    decode_priority: Array  # int32
    decode_duration_ms: Array  # int32
    space: Array  # int32
    resumed: Array  # int32 tokens generated before the last pause; this column changes
    remote: Array  # int32 first tokens of the prompt that come from elsewhere (see `kvcache.remote`); 0: none


Namespaces = dict[tuple[int, int], int]
"""The number of each (salt, LoRA) met so far."""


def rows_of(requests: Requests, namespaces: Namespaces) -> Rows:
    """The content columns; `namespaces` takes in the ones it does not know yet, in the order of salt and LoRA."""
    pairs = (requests.salt.astype(np.int64) << 32) + requests.lora
    known, first, place = np.unique(pairs, return_index=True, return_inverse=True)
    names = zip(requests.salt[first].tolist(), requests.lora[first].tolist(), strict=True)
    space = np.array([namespaces.setdefault(name, len(namespaces)) for name in names], np.int32)
    nothing64, nothing32 = np.empty(0, np.int64), np.empty(0, np.int32)
    return Rows(
        requests.unit_tokens,
        requests.prompt_tokens,
        requests.output_tokens,
        requests.unit_offset,
        requests.units,
        nothing64 if requests.output_offset is None else requests.output_offset,
        nothing32 if requests.output_units is None else requests.output_units,
        space[place] if len(known) else np.empty(0, np.int32),
    )


class Room(NamedTuple):
    """Rows that some requests may need in the tables."""

    nodes: int
    runs: int
    branches: int


def room_for(requests: Requests, tokens_per_block: int) -> Room:
    """The most rows that the keys of `requests` can need."""
    n, tpb = len(requests), tokens_per_block
    total = requests.prompt_tokens.astype(np.int64) + requests.output_tokens
    keys = int((total // tpb).sum()) + 2 * n
    units = len(requests.units) + (0 if requests.output_units is None else len(requests.output_units))
    spare = 8 * n + 1024  # short keys that pauses make
    runs = keys + units + 4 * n + tpb + spare * min(tpb, -(-tpb // requests.unit_tokens) + 1)
    return Room(keys + n + 2 + spare, runs, 4 * n + spare)


def prepare(
    requests: Requests, retention: RetentionColumns, pools: tuple[Pool, ...], settings: Settings
) -> tuple[State, Load]:
    """Tables for `pools` whose key rows hold the whole workload, and the workload in their terms."""
    check_block_size(requests.unit_tokens, settings.tokens_per_block)
    room = room_for(requests, settings.tokens_per_block)
    state = make_state(pools, settings, nodes=room.nodes + 1, runs=room.runs, branches=room.branches)
    return extend(state, requests, retention, {})


def extend(state: State, requests: Requests, retention: RetentionColumns, namespaces: Namespaces) -> tuple[State, Load]:
    """`state` with the keys of some more requests in it, and these requests in its terms.

    `namespaces` are those of the requests before; it takes in new ones.
    """
    tpb = int(state.conf[C_TOKENS_PER_BLOCK])
    _check_names(requests, tpb)
    rows = rows_of(requests, namespaces)
    offset = key_offsets(requests.prompt_tokens, requests.output_tokens, tpb)
    state = grow(state, *room_for(requests, tpb))
    before, n = int(state.tally[N_NODES]), len(requests)
    keys, private = np.full(int(offset[-1]), -1, np.int32), np.zeros(n, np.int64)
    intern_all(state, rows, offset, keys, private)
    note_categories(state, requests, offset, keys, before)
    if len(namespaces) > 1:
        state = _with_twins(state, before)
    load = Load(
        requests.prompt_tokens,
        requests.output_tokens,
        offset,
        keys,
        private,
        retention.range_offset,
        retention.ranges,
        retention.decode_priority,
        retention.decode_duration_ms,
        rows.space,
        np.zeros(n, np.int32),
        np.zeros(n, np.int32),
    )
    return state, load


def with_retention(load: Load, retention: RetentionColumns) -> Load:
    """The same workload before its first request, with other priorities."""
    return load._replace(
        range_offset=retention.range_offset,
        ranges=retention.ranges,
        decode_priority=retention.decode_priority,
        decode_duration_ms=retention.decode_duration_ms,
        resumed=np.zeros_like(load.resumed),
    )


class Names(NamedTuple):
    """Where the key rows of a workload stood before anything ran."""

    tally: Array
    tables: Array


def names_of(state: State) -> Names:
    """To be noted right after `prepare`."""
    return Names(state.tally.copy(), state.tables.copy())


def renewed(state: State, names: Names, pools: tuple[Pool, ...], settings: Settings) -> State:
    """Tables for `pools` with the keys of `state`, whose run is over: its key rows are used again, not copied.

    A fresh copy would cost as much as interning the workload once more: both are bound by touching new memory.
    """
    used, first = int(state.tally[N_NODES]), slice(1, int(names.tally[N_NODES]))
    state.nodes[first, HEAD : LIVE + 1] = (-1, -1, -1, 0)
    state.nodes[first, FATE] = NEVER_SEEN
    state.tables[:] = names.tables
    fresh = make_state(pools, settings, nodes=1, runs=1)
    state.nodes[ROOT] = fresh.nodes[ROOT]
    value, kids = state.value, fresh.kids
    if len(value) == len(pools):
        value[:, :used] = -1
    else:
        value = np.full((len(pools), len(state.nodes)), -1, np.int32)
    if settings.evict_descendants:
        kids = np.full((len(state.nodes), 3), -1, np.int32)
    shelf = fresh.shelf and fresh.shelf._replace(shelf=with_contents(fresh.shelf.shelf, len(state.nodes)))
    return fresh._replace(
        nodes=state.nodes, value=value, kids=kids, twin=state.twin, runs=state.runs, tables=state.tables,
        tally=names.tally.copy(), gate=fresh.gate and gate_for(fresh.gate, len(state.nodes)), shelf=shelf,
    )  # fmt: skip


def _with_twins(state: State, before: int) -> State:
    """Also name every key as if there were one namespace only: a miss can then be told from a new prompt.

    Keys older than row `before` have their twins, if there ever was a second namespace.
    """
    if len(state.twin) == 1:
        state, before = state._replace(twin=np.full(len(state.nodes), ROOT, np.int32)), 1
    nodes, runs = int(state.tally[N_NODES]) - before, int(state.tally[N_RUNS])
    state = grow(state, nodes, runs)
    name_twins(state, before)
    return state


def _check_names(requests: Requests, tokens_per_block: int) -> None:
    """Content is named by 31 bits, a piece of a unit by its own name."""
    pieces = max(1, requests.unit_tokens // tokens_per_block)
    outputs = requests.output_units
    largest = max(int(requests.units.max(initial=0)), 0 if outputs is None else int(outputs.max(initial=0)))
    if (largest + 1) * pieces > 2**31:
        raise ValueError(
            f"tokens_per_block is {tokens_per_block}; a trace of {largest + 1} different blocks of"
            f" {requests.unit_tokens} tokens cannot be cut so finely: use {requests.unit_tokens}"
        )


def longest_blocks(requests: Requests, tokens_per_block: int) -> int:
    """Positions that the longest request needs."""
    total = requests.prompt_tokens.astype(np.int64) + requests.output_tokens
    return int(-(-total.max(initial=1) // tokens_per_block)) + 2
