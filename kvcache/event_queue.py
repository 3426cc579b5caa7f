"""Order and loss of KV events: numbers, waiting removals, the bounded buffer. It does not know what an event is about.

Models the queue of `KVCacheEventManager` (2026), which both manager versions share: events of one iteration wait in a
queue; removed hashes wait per window until the next Stored of that window or the flush and go out as one event; a full
buffer drops its oldest. Difference: the buffer is filled at the flush itself, without a thread.
"""

from collections import deque
from typing import Any

Event = dict[str, Any]


class EventQueue:
    """`capacity` is `event_buffer_max_size`; a window is named by its size in tokens."""

    def __init__(self, capacity: int, attention_dp_rank: int | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"event_buffer_max_size is {capacity}; an event queue needs room for at least 1")
        self._rank = attention_dp_rank
        self._queue: list[Event] = []
        self._removed: dict[int | None, list[int]] = {}
        self._buffer: deque[Event] = deque(maxlen=capacity)
        self._next_id = 0
        self.dropped = 0

    def add(self, window: int | None, data: Event) -> None:
        """Queue an event; it gets its number now."""
        event: Event = {"event_id": self._next_id, "data": data, "window_size": window}
        if self._rank is not None:
            event["attention_dp_rank"] = self._rank
        self._next_id += 1
        self._queue.append(event)

    def removed(self, window: int | None, block_hash: int) -> None:
        """A block is gone; its hash waits."""
        self._removed.setdefault(window, []).append(block_hash)

    def stored(self, window: int | None, parent_hash: int | None, blocks: list[Event]) -> None:
        """Blocks came in, after whatever waits for the same window."""
        self._release(window)
        self.add(window, {"type": "stored", "parent_hash": parent_hash, "blocks": blocks})

    def updated(self, window: int | None, block_hash: int, field: str, old: int, new: int) -> None:
        """The `cache_level` or the `priority` of a block changed."""
        data: Event = {"type": "updated", "block_hash": block_hash, "cache_level": None, "priority": None}
        data[field] = {"type": "event_diff", "old_value": old, "new_value": new}
        self.add(window, data)

    def _release(self, window: int | None) -> None:
        hashes = self._removed.pop(window, None)
        if hashes:
            self.add(window, {"type": "removed", "block_hashes": hashes})

    def flush(self) -> None:
        """End of an iteration: everything queued reaches the buffer."""
        for window in list(self._removed):
            self._release(window)
        for event in self._queue:
            self.dropped += len(self._buffer) == self._buffer.maxlen
            self._buffer.append(event)
        self._queue.clear()

    def latest(self) -> list[Event]:
        """Drain the buffer (`getLatestEvents`)."""
        events = list(self._buffer)
        self._buffer.clear()
        return events
