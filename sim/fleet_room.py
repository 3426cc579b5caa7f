"""Room in a fleet's tables: made at the start, kept by forgetting finished requests and keys nobody holds, doubled when needed.

It changes no decision: a worker goes on with the same blocks and requests under other row numbers. What is forgotten of a
finished request is handed to whoever collects outcomes, by its number in the whole workload.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcache import keys
from kvcache.engine import Engine
from kvcache.event_rows import FLUSHED, HEAD, TAIL, collect, has_room, make_outbox
from kvcache.line import N_ACTIVE, REQUEST, WAIT_HEAD, WAIT_TAIL, Outcome
from kvcache.recycle import recycle
from kvcache.request import Int64
from kvcache.rules import is_vllm, overlaps
from kvcache.tables import C_RECORD_EVENTS, N_COPIES, N_NODES, N_PRIVATE, N_RUNS, N_TABLE, Array, State
from sim.cost import CostParams
from sim.fleet import S_FULL, S_REQUESTS, S_SERIAL, Fleet
from sim.fleet_steps import publish
from sim.lanes import Lanes

Collector = Callable[[int, Int64, Outcome], None]
"""Called with a worker, the numbers of requests that leave its tables, and what became of them."""

NODES_KEPT_FREE = 64
"""Nodes a worker always has left for what pauses make (one short key a pause)."""


class Start(NamedTuple):
    """What one worker starts as."""

    engine: Engine
    lanes: Lanes
    cost: CostParams


def make_fleet(starts: Sequence[Start], requests: int, key_room: int) -> Fleet:
    """A fleet of idle workers with tables for `requests` requests and `key_room` keys each, to begin with."""
    engines = [start.engine for start in starts]
    if any(overlaps(e) or is_vllm(e) for e in engines):
        raise ValueError(
            "routers that look at workers know TensorRT-LLM's iteration without its overlap scheduler only"
        )
    if any(e.state.shelf is not None or e.state.gate is not None for e in engines):
        raise ValueError(
            "routers that look at workers know policy=priority without offload rules only; others run with round_robin"
        )
    n, batch = len(starts), max(len(e.line.active) for e in engines)
    states = [_with_nodes(e.state, max(len(e.state.nodes) for e in engines)) for e in engines]
    load = _stacked([e.load for e in engines])
    load = load._replace(
        **{name: _wide(getattr(load, name), requests) for name in load._fields if name not in {"keys", "ranges"}},
    )
    load = load._replace(
        key_offset=np.zeros((n, requests + 1), np.int64),
        range_offset=np.zeros((n, requests + 1), np.int64),
        keys=np.full((n, key_room), -1, np.int32),
        ranges=np.zeros((n, max(64, requests), 4), np.int32),
    )
    line = _stacked([e.line for e in engines])
    waits = requests + 2 * batch
    line = line._replace(waiting=_wide(line.waiting, waits), done=_wide(line.done, batch))
    for w in range(n):
        line.meter[w, WAIT_HEAD] = line.meter[w, WAIT_TAIL] = batch
    outcome = Outcome(np.zeros((n, requests), np.int64), *(np.full((n, requests), -1.0) for _ in range(4)))
    entries = [len(s.events) + 1024 if s.conf[C_RECORD_EVENTS] else 1 for s in states]
    boxes = [make_outbox(max(entries), len(s.window), len(s.nodes) if s.conf[C_RECORD_EVENTS] else 1) for s in states]
    return Fleet(
        state=_stacked(states),
        sequences=_stacked([e.sequences for e in engines]),
        matches=_stacked([e.matches for e in engines]),
        load=load,
        line=line,
        outcome=outcome,
        lanes=_stacked([start.lanes for start in starts]),
        outbox=_stacked(boxes),
        cost=_stacked([(start.cost,) for start in starts])[0],
        clock=np.zeros((n, 6)),
        status=np.zeros((n, 6), np.int64),
        number=np.zeros((n, requests), np.int64),
        known=np.zeros((n, requests), np.int64),
        signals=np.zeros((4 * batch + 4, 3), np.int64),
        tally=np.zeros(1, np.int64),
    )


def engine_of(f: Fleet, w: int) -> Engine:
    """Worker w's engine as views, for those who are not compiled."""
    parts = (f.state, f.sequences, f.matches, f.load, f.line, f.outcome)
    return Engine(*(type(part)(*(a if a is None else a[w] for a in part)) for part in parts))  # type: ignore


def _stacked(parts: Sequence[Any]) -> Any:
    """One tuple of tables, each the workers' ones on top of each other, the smaller ones padded with zeros; None stays."""
    columns: list[Array | None] = []
    for arrays in zip(*parts, strict=True):
        if arrays[0] is None:
            columns.append(None)
            continue
        shape = tuple(max(a.shape[axis] for a in arrays) for axis in range(arrays[0].ndim))
        out = np.zeros((len(arrays), *shape), arrays[0].dtype)
        for w, a in enumerate(arrays):
            corner: Any = (w, *(slice(size) for size in a.shape))
            out[corner] = a
        columns.append(out)
    return tuple(columns) if type(parts[0]) is tuple else type(parts[0])(*columns)


def _wide(array: Array, size: int) -> Array:
    """`array` with `size` entries on its second axis, the new ones 0."""
    out = np.zeros((array.shape[0], size, *array.shape[2:]), array.dtype)
    kept = min(size, array.shape[1])
    out[:, :kept] = array[:, :kept]
    return out


def _with_nodes(s: State, nodes: int) -> State:
    return s if len(s.nodes) == nodes else keys.grow(s, nodes - int(s.tally[N_NODES]), 0, nodes - int(s.tally[N_TABLE]))


def _open_requests(f: Fleet, w: int, pinned: Sequence[int]) -> Int64:
    """Requests of worker w that somebody will ask for again: waiting, active, or pinned (serial numbers)."""
    line = f.line
    meter = line.meter[w]
    waiting = line.waiting[w, meter[WAIT_HEAD] : meter[WAIT_TAIL]].astype(np.int64)
    active = line.rows[w, line.active[w, : meter[N_ACTIVE]], REQUEST]
    return np.concatenate([waiting, active, np.array(pinned, np.int64) - f.status[w, S_SERIAL]])


def forget_requests(f: Fleet, w: int, pinned: Sequence[int], collect_outcome: Collector) -> None:
    """Hand over what became of worker w's requests up to the oldest open one, and move the rest to the front.

    Of those that ended behind it only the row stays: one long answer does not keep the content of all that came after it.
    """
    d, line, n = f.load, f.line, int(f.status[w, S_REQUESTS])
    still = _open_requests(f, w, pinned)
    gone = int(still.min(initial=n))
    if gone > 0:
        collect_outcome(w, f.number[w, :gone].copy(), Outcome(*(column[w, :gone].copy() for column in f.outcome)))
    open_ = np.zeros(n - gone, np.bool_)
    open_[still - gone] = True
    _pack(d.key_offset[w], d.keys[w], gone, open_)
    _pack(d.range_offset[w], d.ranges[w], gone, open_)
    for name, array in [*d._asdict().items(), ("number", f.number), ("known", f.known), *f.outcome._asdict().items()]:
        if name not in {"keys", "ranges", "key_offset", "range_offset"}:
            array[w, : n - gone] = array[w, gone:n].copy()
    meter = line.meter[w]
    head, tail, slack = int(meter[WAIT_HEAD]), int(meter[WAIT_TAIL]), line.active.shape[1]
    line.waiting[w, slack : slack + tail - head] = line.waiting[w, head:tail].copy() - gone
    meter[WAIT_HEAD], meter[WAIT_TAIL] = slack, slack + tail - head
    line.rows[w, :, REQUEST] -= gone
    f.status[w, S_SERIAL] += gone
    f.status[w, S_REQUESTS] -= gone


def _pack(offset: Array, content: Array, gone: int, open_: NDArray[np.bool_]) -> None:
    """Of the requests from `gone` on, keep the content of the open ones, end to end; the others have none."""
    lengths = np.diff(offset[gone : gone + len(open_) + 1])
    first, end = int(offset[gone]), int(offset[gone + len(open_)])
    kept = content[first:end][np.repeat(open_, lengths)]
    content[: len(kept)] = kept
    offset[: len(open_) + 1] = np.concatenate([[0], np.cumsum(lengths * open_)])


def forget_keys(f: Fleet, w: int) -> None:
    """Give worker w's tables of content back what no block and no request of its tables needs."""
    e, box = engine_of(f, w), outbox_view(f, w)
    if e.state.conf[C_RECORD_EVENTS]:
        if not has_room(e.state, box):
            return
        collect(e.state, box, w)
    keep, copies = e.load.keys[: int(e.load.key_offset[int(f.status[w, S_REQUESTS])])], int(e.state.tally[N_COPIES])
    e.state.tally[N_COPIES] = 0
    number = recycle(e.state, np.concatenate([keep, e.state.copies[:copies, -1]]))
    e.state.tally[N_COPIES] = copies
    for nodes in (keep, e.state.copies[:copies, -1]):
        nodes[:] = np.where(nodes < 0, nodes, number[nodes])
    if len(box.names) > 1:
        kept = np.flatnonzero(number >= 0)
        box.names[: len(kept)] = box.names[kept]
        box.names[len(kept) :] = 0


def outbox_view(f: Fleet, w: int) -> Any:
    """Worker w's outbox as views."""
    return type(f.outbox)(*(array[w] for array in f.outbox))


def with_more_nodes(f: Fleet) -> Fleet:
    """Twice the nodes and runs for every worker, one worker after the other: only one's tables exist twice."""
    nodes, runs = 2 * f.state.nodes.shape[1], 2 * f.state.runs.shape[1]
    wide: dict[str, Any] = {}
    for w in range(len(f.status)):
        s = engine_of(f, w).state
        grown = keys.grow(s, nodes - int(s.tally[N_NODES]), runs - int(s.tally[N_RUNS]), nodes - int(s.tally[N_TABLE]))
        for name, array in grown._asdict().items():
            if array is not getattr(s, name):
                wide.setdefault(name, np.zeros((len(f.status), *array.shape), array.dtype))[w] = array
    names = f.outbox.names if f.outbox.names.shape[1] == 1 else _wide(f.outbox.names, nodes)
    return f._replace(state=f.state._replace(**wide), outbox=f.outbox._replace(names=names))


def with_more_requests(f: Fleet) -> Fleet:
    """Twice the requests, keys and ranges for every worker."""
    load = f.load._replace(**{name: _wide(a, 2 * a.shape[1]) for name, a in f.load._asdict().items()})
    line = f.line._replace(
        waiting=_wide(f.line.waiting, 2 * f.line.waiting.shape[1]),
    )
    outcome = Outcome(*(_wide(column, 2 * column.shape[1]) for column in f.outcome))
    number, known = (_wide(column, 2 * column.shape[1]) for column in (f.number, f.known))
    return f._replace(load=load, line=line, outcome=outcome, number=number, known=known)


def with_longer_sequences(f: Fleet, positions: int) -> Fleet:
    """Room for sequences of `positions` blocks, and half as much more."""
    more = 3 * positions // 2 - f.sequences.blocks.shape[-1]
    wide = {name: _padded(getattr(f.matches, name), more) for name in ("blocks", "priority", "duration_ms")}
    return f._replace(
        sequences=f.sequences._replace(blocks=_padded(f.sequences.blocks, more)), matches=f.matches._replace(**wide)
    )


def _padded(array: Array, more: int) -> Array:
    """`array` with `more` entries on its last axis, -1 as in new tables."""
    return np.pad(array, [*([(0, 0)] * (array.ndim - 1)), (0, more)], constant_values=-1)


def with_larger_outboxes(f: Fleet) -> Fleet:
    """Twice the room for events on their way; those that waited for it go in."""
    box = f.outbox
    wide = {name: _wide(getattr(box, name), 2 * box.rows.shape[1]) for name in ("rows", "time_s", "removed")}
    f = f._replace(outbox=box._replace(**wide))
    for w in np.flatnonzero(f.status[:, S_FULL]):
        f.status[w, S_FULL] = 0
        publish(f, int(w))
    return f


def last_serial(f: Fleet, w: int) -> int:
    """Serial number of the request that joined worker w's tables last."""
    return int(f.status[w, S_SERIAL] + f.status[w, S_REQUESTS]) - 1


def rows_are_short(f: Fleet, w: int) -> bool:
    """More than half of worker w's room for requests, keys or ranges is taken."""
    n = int(f.status[w, S_REQUESTS])
    d = f.load
    return bool(
        2 * n >= d.prompt.shape[1]
        or 2 * d.key_offset[w, n] > d.keys.shape[1]
        or 2 * d.range_offset[w, n] > d.ranges.shape[1]
    )


def nodes_are_short(f: Fleet, w: int) -> bool:
    """More than half of worker w's room for nodes or runs is taken."""
    tally = f.state.tally[w]
    return bool(2 * tally[N_NODES] > f.state.nodes.shape[1] or 2 * tally[N_RUNS] > f.state.runs.shape[1])


def chill(f: Fleet, w: int, start: Start, collect_outcome: Collector) -> None:
    """Give idle worker w the cache it had before its first request. Its counters go on."""
    forget_requests(f, w, [], collect_outcome)
    assert f.status[w, S_REQUESTS] == 0, f"worker {w} still has {int(f.status[w, S_REQUESTS])} requests"
    fresh, old = start.engine.state, engine_of(f, w).state
    for name in ("value", "kids", "twin", "tables"):
        getattr(old, name)[...] = -1
    old.nodes[0] = fresh.nodes[0]
    for name in ("blocks", "window", "tier", "expiry_us"):
        array = getattr(fresh, name)
        getattr(old, name)[tuple(slice(size) for size in array.shape)] = array
    named = int(old.tally[N_PRIVATE])
    old.tally[:] = fresh.tally
    old.tally[N_PRIVATE] = named
    f.outbox.names[w] = 0
    f.outbox.meter[w, FLUSHED] = f.outbox.meter[w, TAIL] = f.outbox.meter[w, HEAD]
