"""KV events: what the outside is told about stored, removed and updated blocks, in TensorRT-LLM's JSON shape.

It does not decide what happens to a block. Models `KVCacheEventManager` (2026): events of one iteration wait in a queue;
removed hashes wait per window until the next Stored of that window or the flush and go out as one event; updates are
queued at once; a full buffer drops its oldest. Differences: the buffer is filled at the flush itself, without a thread.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

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

Event = dict[str, Any]


class Naming(Protocol):
    """What a node is called outside: its hash and the fields of a stored block."""

    def node_hash(self, node: int) -> int: ...

    def stored_block(self, node: int, level: int, priority: int) -> Event: ...


class EventManager:
    """Event queue of one manager. `capacity` is `event_buffer_max_size`; windows are named by their size in tokens."""

    def __init__(self, capacity: int, windows: list[int], naming: Naming, attention_dp_rank: int | None = None) -> None:
        self._naming = naming
        self._windows = windows
        self._rank = attention_dp_rank
        self._queue: list[Event] = []
        self._removed: dict[int, list[int]] = {}
        self._buffer: deque[Event] = deque(maxlen=capacity)
        self._next_id = 0
        self.dropped = 0
        self._makers: dict[int, Callable[[State, int, int], int]] = {
            EV_STORED_OPEN: self._stored,
            EV_REMOVED: self._removal,
            EV_LEVEL: self._level,
            EV_PRIORITY: self._priority,
        }

    def created(self, window: int, blocks_per_level: list[int]) -> None:
        """Announce one window's pools."""
        self._add(window, {"type": "created", "num_blocks_per_cache_level": blocks_per_level})

    def collect(self, state: State) -> None:
        """Turn the rows that the loops wrote into events and clear them."""
        i, n = 0, int(state.tally[N_EVENTS])
        while i < n:
            i = self._makers[int(state.events[i, 0])](state, i, n)
        state.tally[N_EVENTS] = 0

    def flush(self) -> None:
        """End of an iteration: everything queued reaches the buffer."""
        for window in list(self._removed):
            self._release_removed(window)
        for event in self._queue:
            self.dropped += len(self._buffer) == self._buffer.maxlen
            self._buffer.append(event)
        self._queue.clear()

    def latest(self) -> list[Event]:
        """Drain the buffer (`getLatestEvents`)."""
        events = list(self._buffer)
        self._buffer.clear()
        return events

    def _add(self, window: int, data: Event) -> None:
        event: Event = {"event_id": self._next_id, "data": data, "window_size": self._windows[window]}
        if self._rank is not None:
            event["attention_dp_rank"] = self._rank
        self._next_id += 1
        self._queue.append(event)

    def _release_removed(self, window: int) -> None:
        hashes = self._removed.pop(window, None)
        if hashes:
            self._add(window, {"type": "removed", "block_hashes": hashes})

    def _stored(self, state: State, i: int, n: int) -> int:
        window, parent = int(state.events[i, 1]), int(state.events[i, 2])
        self._release_removed(window)
        blocks = []
        i += 1
        while i < n and state.events[i, 0] == EV_STORED_BLOCK:
            row = state.events[i]
            blocks.append(self._naming.stored_block(int(row[2]), int(row[3]), int(row[4])))
            i += 1
        parent_hash = None if parent == ROOT else self._naming.node_hash(parent)
        self._add(window, {"type": "stored", "parent_hash": parent_hash, "blocks": blocks})
        return i

    def _removal(self, state: State, i: int, _n: int) -> int:
        window, node = int(state.events[i, 1]), int(state.events[i, 2])
        self._removed.setdefault(window, []).append(self._naming.node_hash(node))
        return i + 1

    def _level(self, state: State, i: int, _n: int) -> int:
        self._update(state, i, "cache_level")
        return i + 1

    def _priority(self, state: State, i: int, _n: int) -> int:
        self._update(state, i, "priority")
        return i + 1

    def _update(self, state: State, i: int, field: str) -> None:
        _, window, node, old, new, _ = (int(x) for x in state.events[i])
        data: Event = {
            "type": "updated",
            "block_hash": self._naming.node_hash(node),
            "cache_level": None,
            "priority": None,
        }
        data[field] = {"type": "event_diff", "old_value": old, "new_value": new}
        self._add(window, data)


def iterate(events: list[Event]) -> Iterator[tuple[str, Event]]:
    """(type, data) of each event."""
    for event in events:
        yield str(event["data"]["type"]), event["data"]
