"""What happens to requests of a cluster beyond a worker's own steps: transfers, loads from a store; here, nothing."""

from collections.abc import Callable
from typing import Protocol

from kvcache.engine import Outcome
from kvcache.request import Int64
from sim.feed import Batch, Records

HandOver = Callable[[int, Batch, int, int, int, float], int]
"""Worker, batch, request in it, its number, prompt tokens from elsewhere, time -> serial number on that worker."""


class Reactions(Protocol):
    """Who is told what goes on in a cluster."""

    def arrived(self, batch: Batch, r: int, number: int, worker: int, now_s: float) -> None:
        """A request has been routed to `worker`; hand it over."""

    def signalled(self, worker: int, kind: int, serial: int, now_s: float) -> None:
        """A signal of `sim.fleet`."""

    def ended(self, worker: int, numbers: Int64, outcome: Outcome) -> None:
        """Outcomes of requests that leave a worker's tables."""

    def pinned(self, worker: int) -> list[int]:
        """Serial numbers of ended requests whose blocks are kept for a transfer."""


class Alone:
    """Nothing happens beyond a worker's own steps."""

    def __init__(self, hand_over: HandOver, records: Records) -> None:
        self._hand_over = hand_over
        self._records = records

    def arrived(self, batch: Batch, r: int, number: int, worker: int, now_s: float) -> None:
        """It joins the worker's line."""
        self._hand_over(worker, batch, r, number, 0, now_s)

    def signalled(self, worker: int, kind: int, serial: int, now_s: float) -> None:
        """Nobody gives signals."""
        raise AssertionError(f"signal {kind} of worker {worker}, request {serial}, at {now_s}")

    def ended(self, worker: int, numbers: Int64, outcome: Outcome) -> None:
        """Into the records."""
        self._records.ended(worker, numbers, outcome)

    def pinned(self, _worker: int) -> list[int]:
        """None."""
        return []
