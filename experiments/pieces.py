"""A workload on its way into a cluster, piece after piece: one piece is in memory at a time, of the others only lengths.

It checks and prepares nothing itself (`experiments.ready` does) and serves nothing.
"""

import itertools
from collections.abc import Iterable, Iterator

import numpy as np

from experiments.outcome import Lengths
from experiments.ready import Ready, check_timed, ready_pieces
from experiments.spec import Spec
from kvcache.load import rows_of
from kvcache.request import Int32, Requests
from sim.feed import Batch


class Pieces:
    """Batches of a workload, made as they are asked for. Can be gone through once."""

    def __init__(self, spec: Spec, pieces: Iterable[Requests]) -> None:
        self._works = ready_pieces(spec, pieces)
        self.first = self._checked(next(self._works))
        """The first piece; its pools are those of the whole run."""
        self.last = self.first
        """The piece asked for last; its notes speak of all before it too."""
        self._lengths: list[tuple[Int32, Int32]] = []

    @staticmethod
    def _checked(work: Ready) -> Ready:
        check_timed(work.spec, work.requests, work.plan)
        return work

    def batches(self) -> Iterator[Batch]:
        """What a cluster is fed with."""
        namespaces: dict[tuple[int, int], int] = {}
        for work in itertools.chain([self.first], map(self._checked, self._works)):
            self.last, requests = work, work.requests
            self._lengths.append((requests.prompt_tokens.copy(), requests.output_tokens.copy()))
            yield Batch(requests.arrival_s, rows_of(requests, namespaces), requests.session, work.retention)

    def lengths(self) -> Lengths:
        """Of all requests that were fed."""
        prompt, output = zip(*self._lengths, strict=True)
        return Lengths(np.concatenate(prompt), np.concatenate(output))
