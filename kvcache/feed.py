"""Feeds a workload that comes in pieces to the tables of one cache, and decides when rows of forgotten keys are used again.

It serves nothing (`kvcache.serve`). A whole workload (`kvcache.load.prepare`) is the case of one piece.
"""

from collections.abc import Sequence

import numpy as np

from kvcache.keys import check_block_size
from kvcache.load import Load, Namespaces, Room, extend, room_for
from kvcache.recycle import recycle
from kvcache.request import Requests
from kvcache.retention import RetentionColumns
from kvcache.tables import C_TOKENS_PER_BLOCK, N_NODES, Array, Pool, Settings, State, make_state

REMEMBERED = 1 << 23  # rows; with everything that belongs to one about 70 bytes


class Feed:
    """The tables of one cache, and the pieces of a workload in their terms. `state` is new after each piece."""

    def __init__(self, pools: tuple[Pool, ...], settings: Settings, *, remembered: int = REMEMBERED) -> None:
        """`remembered`: key rows to fill before those without a block are used again. More rows are made where one piece
        or what is cached needs them."""
        self.state: State = make_state(pools, settings)
        self._made_of: tuple[tuple[Pool, ...], Settings] | None = (pools, settings)
        self.forgotten = 0
        """Keys whose rows were used again: should their content come back, it counts as never seen."""
        self._remembered = remembered
        self._namespaces: Namespaces = {}

    def load(self, requests: Requests, retention: RetentionColumns, held: Sequence[Array] = ()) -> tuple[State, Load]:
        """`state` with the next piece in it, and the piece in its terms.

        `held` are node numbers that somebody still needs, such as keys of unfinished requests; they are renumbered in place.
        """
        tpb = int(self.state.conf[C_TOKENS_PER_BLOCK])
        check_block_size(requests.unit_tokens, tpb)
        room = room_for(requests, tpb)
        need = room.nodes
        if int(self.state.tally[N_NODES]) + need > self._remembered:
            self._recycle(held)
            self._remembered = max(self._remembered, 2 * (int(self.state.tally[N_NODES]) + need))
        if self._made_of is not None:
            ample = self._ample(room)
            self.state = make_state(*self._made_of, nodes=ample.nodes + 1, runs=ample.runs, branches=ample.branches)
            self._made_of = None
        self.state, load = extend(self.state, requests, retention, self._namespaces)
        return self.state, load

    def _ample(self, first: Room) -> Room:
        """Room for some more pieces like the first, at most for as many rows as are filled before some are used again, so that
        tables need not be copied as they fill. Untouched room is no memory yet."""
        times = max(1.0, min(16.0, self._remembered / first.nodes))
        return Room(*(int(times * rows) + 1 for rows in first))

    def _recycle(self, held: Sequence[Array]) -> None:
        number = recycle(self.state, np.concatenate([np.empty(0, np.int32), *held]))
        self.forgotten += int((number < 0).sum())
        for nodes in held:
            nodes[:] = np.where(nodes < 0, nodes, number[nodes])
