"""KV events as rows of integers: the stream that `kvcache.events` and `kvcache.event_queue` make, for whole clusters.

It does not decide what is told. Order, numbers and merging are those of `KVCacheEventManager` (a test compares both): removed
blocks wait until the next Stored of their window or the flush and go out as one event; everything of an iteration becomes
visible at its flush. A block is called by a name that is the same on every worker: a 62-bit hash of its content and all
before it, as TensorRT-LLM's hash is. Only full blocks of the first window have rows; others are counted.

    state.events --collect--> rows [FLUSHED, TAIL) --flush--> [HEAD, FLUSHED), each with its time --router polls--> HEAD moves
"""

from typing import NamedTuple

import numpy as np

from kvcache.compiled import loop
from kvcache.keys import MULTIPLIER, Rows, mix, run_at
from kvcache.tables import (
    C_TOKENS_PER_BLOCK,
    CONTENT,
    EV_LEVEL,
    EV_REMOVED,
    EV_STORED_BLOCK,
    EV_STORED_OPEN,
    N_EVENTS,
    PARENT,
    ROOT,
    RUN_ID,
    RUN_TOKENS,
    SPACE,
    TOKENS,
    Array,
    State,
)

# Columns of `Outbox.rows`. KIND is one of tables' EV_STORED_BLOCK, EV_REMOVED, EV_LEVEL.
KIND, NAME, NUMBER, NEW_LEVEL = range(4)
# Entries of `Outbox.meter`. OVERFLOWN: events that the full buffer dropped, LOST: those that never reached the router.
HEAD, FLUSHED, TAIL, NEXT_NUMBER, N_REMOVED, OVERFLOWN, LOST, SENT = range(8)


class Outbox(NamedTuple):
    """Events of one worker on their way to the router."""

    rows: Array  # int64[entries, 4]
    time_s: Array  # float64[entries]: when the row was flushed
    removed: Array  # int64[entries]: names that wait for the next Stored or the flush
    waits: Array  # int64[window]: removals that wait
    meter: Array  # int64[8]
    names: Array  # int64[node]: 0 = not named yet


def make_outbox(entries: int, windows: int, nodes: int) -> Outbox:
    """An empty one with room for `entries` rows."""
    rows = np.zeros((entries, 4), np.int64)
    return Outbox(
        rows,
        np.zeros(entries),
        np.zeros(entries, np.int64),
        np.zeros(windows, np.int64),
        np.zeros(8, np.int64),
        np.zeros(nodes, np.int64),
    )


@loop
def _name(s: State, above: int, node: int, worker: int) -> int:
    h = mix(above, int(s.nodes[node, SPACE]))
    own = mix(MULTIPLIER, worker + 1)  # far from the small numbers of content that all know
    run, tokens = int(s.nodes[node, CONTENT]), 0
    while tokens < s.nodes[node, TOKENS]:
        known = int(s.runs[run, RUN_ID])
        h = mix(h, known if known >= 0 else mix(own, -known))
        h = mix(h, int(s.runs[run, RUN_TOKENS]))
        tokens += s.runs[run, RUN_TOKENS]
        run += 1
    return max(1, h)


@loop
def name_of(s: State, names: Array, node: int, worker: int) -> int:
    """Name of a node; content that only its request knows is told apart by the worker."""
    while names[node] == 0:
        top = int(node)
        while s.nodes[top, PARENT] != ROOT and names[s.nodes[top, PARENT]] == 0:
            top = int(s.nodes[top, PARENT])
        above = int(s.nodes[top, PARENT])
        names[top] = _name(s, 1 if above == ROOT else int(names[above]), top, worker)
    return int(names[node])


@loop
def prompt_names(rows: Rows, tokens_per_block: int, r: int, names: Array) -> int:
    """Names of the full blocks of request r's prompt, as far as others can know their content; returns how many."""
    n, above = 0, 1
    while (n + 1) * tokens_per_block <= rows.prompt[r]:
        h, t = mix(above, int(rows.space[r])), n * tokens_per_block
        while t < (n + 1) * tokens_per_block:
            known, end = run_at(rows, tokens_per_block, 0, r, t, False)
            if known < 0:
                return n
            h = mix(mix(h, known), end - t)
            t = end
        above = max(1, h)
        names[n] = above
        n += 1
    return n


@loop
def _put(box: Outbox, kind: int, name: int, number: int, level: int) -> None:
    at = int(box.meter[TAIL])
    box.rows[at, KIND] = kind
    box.rows[at, NAME] = name
    box.rows[at, NUMBER] = number
    box.rows[at, NEW_LEVEL] = level
    box.meter[TAIL] = at + 1


@loop
def _number(box: Outbox) -> int:
    box.meter[NEXT_NUMBER] += 1
    return int(box.meter[NEXT_NUMBER] - 1)


@loop
def _release_removed(box: Outbox, w: int) -> None:
    """What waits for window w goes out as one event."""
    if box.waits[w] == 0:
        return
    number = _number(box)
    box.waits[w] = 0
    if w == 0:
        for i in range(box.meter[N_REMOVED]):
            _put(box, EV_REMOVED, int(box.removed[i]), number, 0)
        box.meter[N_REMOVED] = 0


@loop
def has_room(s: State, box: Outbox) -> bool:
    """The rows that wait in the state fit; rows that are gone make room first."""
    need = int(s.tally[N_EVENTS])
    if box.meter[TAIL] + box.meter[N_REMOVED] + need <= len(box.rows):
        return True
    head, tail = int(box.meter[HEAD]), int(box.meter[TAIL])
    for i in range(head, tail):
        for column in range(4):
            box.rows[i - head, column] = box.rows[i, column]
        box.time_s[i - head] = box.time_s[i]
    box.meter[HEAD] = 0
    box.meter[FLUSHED] -= head
    box.meter[TAIL] -= head
    return bool(box.meter[TAIL] + box.meter[N_REMOVED] + need <= len(box.rows))


@loop
def collect(s: State, box: Outbox, worker: int) -> None:
    """Take over the rows that the loops wrote; see `has_room` first."""
    tpb, number = int(s.conf[C_TOKENS_PER_BLOCK]), 0
    for i in range(s.tally[N_EVENTS]):
        kind, w, node = int(s.events[i, 0]), int(s.events[i, 1]), int(s.events[i, 2])
        told = w == 0 and kind != EV_STORED_OPEN and s.nodes[node, TOKENS] == tpb
        if kind == EV_STORED_OPEN:
            _release_removed(box, w)
            number = _number(box)
        elif kind == EV_REMOVED:
            box.waits[w] += 1
            if told:
                box.removed[box.meter[N_REMOVED]] = name_of(s, box.names, node, worker)
                box.meter[N_REMOVED] += 1
        elif kind == EV_STORED_BLOCK:
            if told:
                _put(box, kind, name_of(s, box.names, node, worker), number, int(s.events[i, 3]))
        else:
            changed = _number(box)
            if told and kind == EV_LEVEL:
                _put(box, kind, name_of(s, box.names, node, worker), changed, int(s.events[i, 4]))
    s.tally[N_EVENTS] = 0


@loop
def flush(box: Outbox, now_s: float) -> None:
    """End of an iteration: everything collected is visible from `now_s` on."""
    for w in range(len(box.waits)):
        _release_removed(box, w)
    for i in range(box.meter[FLUSHED], box.meter[TAIL]):
        box.time_s[i] = now_s
    box.meter[FLUSHED] = box.meter[TAIL]
