"""A shared store in a disaggregated cluster: both kinds of workers load from it, and prompts it nearly holds need no context
worker.

It decides no block and moves nothing (`sim.store` and `sim.disagg` do); it says which of the two a request, or a signal, goes to.

    prompt lacks few tokens in the store   generation worker: load, compute the rest, answer, save
    any other prompt                       context worker: load, compute the rest, save and transfer  -->  generation worker

A prompt that is both saved and transferred is pinned twice and unpinned by whoever is done with it.
"""

from kvcache.engine import Outcome
from kvcache.request import Int64
from sim.disagg import Disaggregated
from sim.feed import Batch
from sim.fleet import S_PINS, STARTED, pinned_again, unpinned
from sim.routing import Cluster
from sim.store import SharedStore


class Bypass:
    """The reactions of a disaggregated cluster with a store."""

    def __init__(self, cluster: Cluster, both: Disaggregated, store: SharedStore, most_tokens: int) -> None:
        """`most_tokens`: what a prompt may lack to go to a generation worker at once; 0: none does."""
        self.bypassed = 0
        self._cluster = cluster
        self._both = both
        self._store = store
        self._most = most_tokens
        cluster.reactions = self
        cluster.fleet.status[:, S_PINS] = 1

    def arrived(self, batch: Batch, r: int, number: int, worker: int, now_s: float) -> None:
        """Ask the store; what it lacks decides the way."""
        names, tokens = self._store.matched(batch, r)
        if int(batch.rows.prompt[r]) - tokens <= self._most:
            self.bypassed += 1
            worker = self._both.receiver()
            self._cluster.records.routed(number, worker)
            serial = self._cluster.hand_over(worker, batch, r, number, tokens, now_s)
        else:
            serial = self._both.compute(batch, r, number, worker, tokens, now_s)
        self._store.asked(worker, serial, names, tokens)

    def signalled(self, worker: int, kind: int, serial: int, now_s: float) -> None:
        """A request has its blocks and waits for their content, or a prompt or a request is done."""
        stored = self._store.knows(worker, serial)
        if kind == STARTED:
            (self._store if stored else self._both).signalled(worker, kind, serial, now_s)
        elif worker in self._both.context:
            pinned_again(self._cluster.fleet, worker, serial)
            self._store.signalled(worker, kind, serial, now_s)
            self._both.signalled(worker, kind, serial, now_s)
        elif stored:
            self._store.signalled(worker, kind, serial, now_s)
        else:
            unpinned(self._cluster.fleet, worker, serial, now_s)

    def ended(self, worker: int, numbers: Int64, outcome: Outcome) -> None:
        """As without a store."""
        self._both.ended(worker, numbers, outcome)

    def pinned(self, worker: int) -> list[int]:
        """Requests whose blocks are being saved or whose transfer is not over."""
        return sorted({*self._store.pinned(worker), *self._both.pinned(worker)})
