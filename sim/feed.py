"""The workload as a cluster takes it, batch by batch, and what became of each request.

It routes nothing and keeps no clock; requests are numbered through the whole workload.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from kvcache.engine import Outcome
from kvcache.keys import Rows
from kvcache.request import Float64, Int32, Int64
from kvcache.retention import RetentionColumns
from kvcache.tables import Array

INFINITE = float("inf")


class Batch(NamedTuple):
    """Requests of a feed. `rows.space` numbers namespaces the same way in all batches."""

    arrival_s: Float64
    rows: Rows
    session: Int32
    retention: RetentionColumns


class Feed:
    """Requests in order of arrival, batch by batch."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches = batches
        self._base = -1
        self.at = 0
        self.batch: Batch | None = None
        self._more()

    def _more(self) -> None:
        passed = 0 if self.batch is None else len(self.batch.arrival_s)
        self.batch = next((b for b in self._batches if len(b.arrival_s)), None)
        self._base = max(0, self._base) + passed
        self.at = 0

    @property
    def due_s(self) -> float:
        """When the next request arrives; infinite after the last."""
        return INFINITE if self.batch is None else float(self.batch.arrival_s[self.at])

    @property
    def number(self) -> int:
        """Number of the next request in the whole workload."""
        return self._base + self.at

    def step(self) -> None:
        """The next request has been taken."""
        self.at += 1
        if self.batch is not None and self.at == len(self.batch.arrival_s):
            self._more()


class Records:
    """What became of each request, by its number; grows as they come."""

    def __init__(self, requests: int = 1024) -> None:
        self._size = 0
        self.worker = np.full(requests, -1, np.int32)
        self.reused = np.zeros(requests, np.int64)
        self.sent_s, self.start_s, self.first_token_s, self.finish_s = (np.full(requests, -1.0) for _ in range(4))

    NAMES = ("worker", "reused", "sent_s", "start_s", "first_token_s", "finish_s")

    def routed(self, number: int, worker: int) -> None:
        """Request `number` goes to `worker`."""
        if number >= len(self.worker):
            for name in self.NAMES:
                old = getattr(self, name)
                setattr(self, name, np.concatenate([old, np.full(len(old), 0 if name == "reused" else -1, old.dtype)]))
        self._size = max(self._size, number + 1)
        self.worker[number] = worker

    def ended(self, _worker: int, numbers: Int64, outcome: Outcome) -> None:
        """Outcomes of requests that leave a worker's tables."""
        for name in self.NAMES[1:]:
            getattr(self, name)[numbers] = getattr(outcome, name)

    def column(self, name: str) -> Array:
        """One column, one entry a request."""
        values: Array = getattr(self, name)[: self._size]
        return values
