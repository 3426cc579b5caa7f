"""Frees the rows of keys that nothing refers to any more, so that tables follow the blocks and not the trace.

It does not decide when (`kvcache.feed`). TensorRT-LLM deletes a trie node with its last value; here a node that has lost
its block still says why (`misses_by_cause`), so it stays until its row is wanted. Kept are the nodes that exist, those
whose content some block's memory holds, those an unfinished request still names, and what these refer to: parents,
representatives of their groups, twins. The rest is forgotten: such content counts as never seen if it comes again.

    before   0  1  2  3  4  5  6  7        rows keep their order, so a parent stays in front of its children and a
    kept     x     x        x  x           first child that followed its parent still follows it
    after    0  .  1  .  .  2  3  .
"""

import numpy as np

from kvcache.compiled import loop
from kvcache.gate import renumber_gate
from kvcache.keys import SHORT, key_hash, rebuild, runs_of
from kvcache.shelf import renumber
from kvcache.tables import (
    C_BLOCKS,
    C_EVICT_DESCENDANTS,
    CONTENT,
    GNEXT,
    GPREV,
    GROUP,
    HASH_HIGH,
    HASH_LOW,
    HEAD,
    KEY,
    LIVE,
    N_COPIES,
    N_EVENTS,
    N_NODES,
    N_RUNS,
    NODE,
    PARENT,
    ROOT,
    RUN_ID,
    RUN_TOKENS,
    SPACE,
    Array,
    State,
)


def recycle(s: State, held: Array) -> Array:
    """Free every row that neither the tables nor `held` (int32 node numbers; negative ones are passed over) refer to.

    Returns the new number of each old node (int32; -1 = forgotten), by which the caller renumbers what it holds. Copies and
    events must have been read: they name nodes. Keys with multimodal items cannot be recycled.
    """
    for waiting in (N_EVENTS, N_COPIES):
        assert s.tally[waiting] == 0, f"{s.tally[waiting]} events or copies were not read before keys are recycled"
    before, blocks = int(s.tally[N_NODES]), int(s.conf[C_BLOCKS])
    kept = np.zeros(before, np.int32)
    kept[held[held >= 0]] = 1
    mark_kept(s, kept)
    old = np.flatnonzero(kept)
    number = np.where(kept > 0, np.cumsum(kept) - 1, -1).astype(np.int32)
    s.nodes[: len(old)] = s.nodes[old]
    _renumber(s.nodes[: len(old)], (PARENT, GROUP, HEAD, GNEXT, GPREV), number)
    _renumber(s.blocks[:blocks], (KEY, NODE), number)
    s.value[:, : len(old)] = s.value[:, old]
    s.value[:, len(old) : before] = -1
    if s.conf[C_EVICT_DESCENDANTS]:
        s.kids[: len(old)] = s.kids[old]
        s.kids[len(old) : before] = -1
        _renumber(s.kids[: len(old)], (0, 1, 2), number)
    if len(s.twin) > 1:
        s.twin[: len(old)] = number[s.twin[old]]
        s.twin[len(old) : before] = ROOT
    if s.gate is not None:
        renumber_gate(s.gate, number)
    if s.shelf is not None:
        renumber(s.shelf.shelf, number)
    s.tally[N_NODES] = len(old)
    pack_runs(s)
    s.tables[:] = -1
    rebuild(s)
    return number


def _renumber(rows: Array, columns: tuple[int, ...], number: Array) -> None:
    for column in columns:
        rows[:, column] = np.where(rows[:, column] < 0, -1, number[rows[:, column]])


@loop
def pack_runs(s: State) -> None:
    """Move the content of all keys to the front, in order, and hash each key anew: a hash counts the parent's number."""
    s.tally[N_RUNS] = 0
    for node in range(1, s.tally[N_NODES]):
        runs, first, old = runs_of(s, node), int(s.tally[N_RUNS]), int(s.nodes[node, CONTENT])
        for i in range(runs):
            s.runs[first + i, RUN_ID] = s.runs[old + i, RUN_ID]
            s.runs[first + i, RUN_TOKENS] = s.runs[old + i, RUN_TOKENS]
        h = key_hash(s, int(s.nodes[node, PARENT]), int(s.nodes[node, SPACE]), -1, first, runs)
        s.nodes[node, CONTENT] = first
        s.nodes[node, HASH_LOW] = h & (SHORT - 1)
        s.nodes[node, HASH_HIGH] = h >> 31
        s.tally[N_RUNS] = first + runs


@loop
def mark_kept(s: State, kept: Array) -> None:
    """Set `kept` for whatever the tables refer to, and for what kept nodes refer to."""
    kept[ROOT] = 1
    for block in range(s.conf[C_BLOCKS]):
        if s.blocks[block, KEY] >= 0:
            kept[s.blocks[block, KEY]] = 1
    _mark_above(s, kept)
    if len(s.twin) > 1:
        for node in range(len(kept)):
            if kept[node] == 1:
                kept[s.twin[node]] = 1
        _mark_above(s, kept)


@loop
def _mark_above(s: State, kept: Array) -> None:
    """Parents and representatives have lower numbers, so one pass downward reaches them all."""
    for node in range(len(kept) - 1, 0, -1):
        if kept[node] == 1 or s.nodes[node, LIVE] > 0:
            kept[node] = 1
            kept[s.nodes[node, PARENT]] = 1
            kept[s.nodes[node, GROUP]] = 1
