"""KV events: what the outside is told about stored, removed and updated blocks, in TensorRT-LLM's JSON shape.

It does not decide what happens to a block, nor in which order events leave (`kvcache.event_queue`). Models
`KVCacheEventManager` of the V1 manager: updates are queued at once, removals wait.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from kvcache.event_queue import Event, EventQueue
from kvcache.tables import (
    EV_LEVEL,
    EV_PRIORITY,
    EV_REMOVED,
    EV_STORED_BLOCK,
    EV_STORED_OPEN,
    N_EVENTS,
    ROOT,
    State,
)

__all__ = ["Event", "EventManager", "Naming", "iterate"]


class Naming(Protocol):
    """What a node is called outside: its hash and the fields of a stored block."""

    def node_hash(self, node: int) -> int: ...

    def stored_block(self, node: int, level: int, priority: int) -> Event: ...


class EventManager:
    """Events of one manager. `capacity` is `event_buffer_max_size`; windows are named by their size in tokens."""

    def __init__(self, capacity: int, windows: list[int], naming: Naming, attention_dp_rank: int | None = None) -> None:
        self._naming = naming
        self._windows = windows
        self._out = EventQueue(capacity, attention_dp_rank)
        self._makers: dict[int, Callable[[State, int, int], int]] = {
            EV_STORED_OPEN: self._stored,
            EV_REMOVED: self._removal,
            EV_LEVEL: self._level,
            EV_PRIORITY: self._priority,
        }

    @property
    def dropped(self) -> int:
        """Events that the full buffer has lost."""
        return self._out.dropped

    def created(self, window: int, blocks_per_level: list[int]) -> None:
        """Announce one window's pools."""
        self._out.add(self._windows[window], {"type": "created", "num_blocks_per_cache_level": blocks_per_level})

    def collect(self, state: State) -> None:
        """Turn the rows that the loops wrote into events and clear them."""
        i, n = 0, int(state.tally[N_EVENTS])
        while i < n:
            i = self._makers[int(state.events[i, 0])](state, i, n)
        state.tally[N_EVENTS] = 0

    def flush(self) -> None:
        """End of an iteration: everything queued reaches the buffer."""
        self._out.flush()

    def latest(self) -> list[Event]:
        """Drain the buffer (`getLatestEvents`)."""
        return self._out.latest()

    def _stored(self, state: State, i: int, n: int) -> int:
        window, parent = int(state.events[i, 1]), int(state.events[i, 2])
        blocks = []
        i += 1
        while i < n and state.events[i, 0] == EV_STORED_BLOCK:
            row = state.events[i]
            blocks.append(self._naming.stored_block(int(row[2]), int(row[3]), int(row[4])))
            i += 1
        self._out.stored(self._windows[window], None if parent == ROOT else self._naming.node_hash(parent), blocks)
        return i

    def _removal(self, state: State, i: int, _n: int) -> int:
        window, node = int(state.events[i, 1]), int(state.events[i, 2])
        self._out.removed(self._windows[window], self._naming.node_hash(node))
        return i + 1

    def _level(self, state: State, i: int, _n: int) -> int:
        self._update(state, i, "cache_level")
        return i + 1

    def _priority(self, state: State, i: int, _n: int) -> int:
        self._update(state, i, "priority")
        return i + 1

    def _update(self, state: State, i: int, field: str) -> None:
        _, window, node, old, new, _ = (int(x) for x in state.events[i])
        self._out.updated(self._windows[window], self._naming.node_hash(node), field, old, new)


def iterate(events: list[Event]) -> Iterator[tuple[str, Event]]:
    """(type, data) of each event."""
    for event in events:
        yield str(event["data"]["type"]), event["data"]
