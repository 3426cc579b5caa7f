"""A workload ready for the loops: its content as nodes at one block size, its retention as columns.

It is made once a (trace, block size) and never changes; several workers read the same one, each beside its own tables
only if they share the key rows: `Load` belongs to the `State` whose nodes it names.
"""

from typing import NamedTuple

import numpy as np

from kvcache.keys import Rows, check_block_size, grow, intern_all, key_offsets
from kvcache.request import Requests
from kvcache.retention import RetentionColumns
from kvcache.tables import ROOT, Array, Pool, Settings, State, make_state


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
    resumed: Array  # int32 tokens generated before the last pause; the one column that changes


def rows_of(requests: Requests) -> Rows:
    """The content columns, namespaces numbered by (salt, LoRA)."""
    _, space = np.unique((requests.salt.astype(np.int64) << 32) + requests.lora, return_inverse=True)
    nothing64, nothing32 = np.empty(0, np.int64), np.empty(0, np.int32)
    return Rows(
        requests.unit_tokens,
        requests.prompt_tokens,
        requests.output_tokens,
        requests.unit_offset,
        requests.units,
        nothing64 if requests.output_offset is None else requests.output_offset,
        nothing32 if requests.output_units is None else requests.output_units,
        space.astype(np.int32),
    )


def prepare(
    requests: Requests, retention: RetentionColumns, pools: tuple[Pool, ...], settings: Settings
) -> tuple[State, Load]:
    """Tables for `pools` whose key rows hold the whole workload, and the workload in their terms."""
    tpb = settings.tokens_per_block
    check_block_size(requests.unit_tokens, tpb)
    rows = rows_of(requests)
    offset = key_offsets(requests.prompt_tokens, requests.output_tokens, tpb)
    n = len(requests)
    units = len(requests.units) + (0 if requests.output_units is None else len(requests.output_units))
    spare = 8 * n + 1024  # short keys that pauses make
    runs = int(offset[-1]) + units + 4 * n + tpb + spare * min(tpb, -(-tpb // requests.unit_tokens) + 1)
    state = make_state(pools, settings, nodes=int(offset[-1]) + n + 2 + spare, runs=runs, branches=4 * n + spare)
    keys, private = np.full(int(offset[-1]), -1, np.int32), np.zeros(n, np.int64)
    intern_all(state, rows, offset, keys, private)
    if len(rows.space) and int(rows.space.max()) > 0:
        state = _with_twins(state, rows, offset, keys)
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
    )
    return state, load


def _with_twins(state: State, rows: Rows, offset: Array, keys: Array) -> State:
    """Also name every key as if there were one namespace only: a miss can then be told from a new prompt."""
    n, spare = len(rows.prompt), len(rows.units) + len(rows.output_units)
    state = grow(state, int(offset[-1]) + n, int(offset[-1]) + spare + 4 * n)
    plain, private = np.full(len(keys), -1, np.int32), np.zeros(n, np.int64)
    intern_all(state, rows._replace(space=np.full(n, -2, np.int32)), offset, plain, private)
    twin = np.full(len(state.nodes), ROOT, np.int32)
    named = keys >= 0
    twin[keys[named]] = plain[named]
    return state._replace(twin=twin)


def longest_blocks(requests: Requests, tokens_per_block: int) -> int:
    """Positions that the longest request needs."""
    total = requests.prompt_tokens.astype(np.int64) + requests.output_tokens
    return int(-(-total.max(initial=1) // tokens_per_block)) + 2
