"""A store of blocks in another process, reached over a link: the connector of `kvcache.connector` with real bytes.

It decides nothing. One thread of the worker talks over the link, so loads and saves go on beside the engine's steps; what was
asked first is done first. A store that is lost is an error at the next question: nothing of it can be loaded any more, and
what the worker holds is untouched.

    word row:  operation, request, number of blocks         then the nodes [blocks, 8], then for LOAD and SAVE the rows
"""

import queue
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hw.device import Device
from hw.link import Link
from hw.memory import GPU

FIND, LOAD, SAVE, END = range(4)
WORDS = 8


class _Ask(NamedTuple):
    operation: int
    request: int
    nodes: NDArray[np.int64]
    slots: tuple[int, ...]
    answer: "Future[int]"


class StoreConnector:
    """Both sides of `kvcache.connector`, for one window (`window`) of `device`. It owns its end of the link."""

    def __init__(self, device: Device, link: Link, *, window: int = 0) -> None:
        self._device, self._link = device, link
        self._pools = device.layout.parts[window, GPU]
        self._tokens = device.layout.tokens_per_block
        self._asks: queue.SimpleQueue[_Ask | None] = queue.SimpleQueue()
        self._going: list[_Ask] = []
        self._thread = threading.Thread(target=self._work, name="kvtier store", daemon=True)
        self._thread.start()

    def get_num_new_matched_tokens(self, nodes: Sequence[int], num_computed_tokens: int) -> tuple[int, bool]:
        """See `kvcache.connector.ConnectorScheduler`; whole blocks, from the first one on."""
        found = self._ask(FIND, -1, nodes, ()).answer.result()
        return max(0, found * self._tokens - num_computed_tokens), True

    def start_load(self, request: int, nodes: Sequence[int], slots: Sequence[int]) -> None:
        """See `kvcache.connector.ConnectorWorker`."""
        self._going.append(self._ask(LOAD, request, nodes, tuple(slots)))

    def start_save(self, request: int, nodes: Sequence[int], slots: Sequence[int]) -> None:
        """See `kvcache.connector.ConnectorWorker`."""
        self._going.append(self._ask(SAVE, request, nodes, tuple(slots)))

    def get_finished(self) -> tuple[list[int], list[int]]:
        """See `kvcache.connector.ConnectorWorker`; a failure of any of them is raised here, once."""
        ended = [ask for ask in self._going if ask.answer.done()]
        self._going = [ask for ask in self._going if not ask.answer.done()]
        for ask in ended:
            ask.answer.result()
        return ([a.request for a in ended if a.operation == SAVE], [a.request for a in ended if a.operation == LOAD])

    def _ask(self, operation: int, request: int, nodes: Sequence[int], slots: tuple[int, ...]) -> _Ask:
        ask = _Ask(operation, request, np.array(nodes, np.int64), slots, Future())
        if operation != FIND and len(nodes) != len(slots):
            raise ValueError(f"request {request}: {len(nodes)} blocks for {len(slots)} slots")
        if len(nodes) == 0:
            ask.answer.set_result(0)
        else:
            self._asks.put(ask)
        return ask

    def _work(self) -> None:
        while (ask := self._asks.get()) is not None:
            try:
                ask.answer.set_result(self._done(ask))
            except Exception as error:  # goes to whoever asks
                ask.answer.set_exception(error)

    def _done(self, ask: _Ask) -> int:
        _say(self._link, ask.operation, ask.request, ask.nodes)
        if ask.operation == FIND:
            words = np.zeros((1, 8 * WORDS), np.uint8)
            self._link.receive(words)
            return int(words.view(np.int64)[0, 0])
        sizes = [self._device.layout.rows[pool].size for pool in self._pools]
        rows = np.zeros((len(ask.slots), sum(sizes)), np.uint8)
        if ask.operation == LOAD:
            self._link.receive(rows)
        for row, slot in zip(rows, ask.slots, strict=True):
            at = 0
            for pool, size in zip(self._pools, sizes, strict=True):
                if ask.operation == LOAD:
                    self._device.put(pool, slot, row[at : at + size])
                else:
                    row[at : at + size] = self._device.bytes_of(pool, slot)[:size]
                at += size
        if ask.operation == SAVE:
            self._link.send(rows, b"")
        return len(rows)

    def close(self) -> None:
        """Let what was asked end, say good-bye, give the link back."""
        self._asks.put(None)
        self._thread.join(timeout=60)
        try:
            _say(self._link, END, -1, np.zeros(0, np.int64))
        except OSError:  # it has gone before
            return
        finally:
            self._link.close()


def _say(link: Link, operation: int, request: int, nodes: NDArray[np.int64]) -> None:
    words = np.zeros((1, WORDS), np.int64)
    words[0, :3] = operation, request, len(nodes)
    link.send(words.view(np.uint8), b"")
    if len(nodes):
        link.send(nodes.reshape(-1, 1).view(np.uint8), b"")


def serve(link: Link, row_bytes: int, most_blocks: int) -> None:
    """The store: keeps the newest `most_blocks` blocks by their nodes until the worker says good-bye or is gone."""
    kept: dict[int, NDArray[Any]] = {}
    words = np.zeros((1, 8 * WORDS), np.uint8)
    while True:
        link.receive(words)
        operation, _, n = words.view(np.int64)[0, :3].tolist()
        if operation == END:
            return
        nodes = np.zeros((n, 8), np.uint8)
        link.receive(nodes)
        keys = nodes.view(np.int64)[:, 0].tolist()
        if operation == FIND:
            answer = np.zeros((1, WORDS), np.int64)
            answer[0, 0] = next((i for i, key in enumerate(keys) if key not in kept), n)
            link.send(answer.view(np.uint8), b"")
        elif operation == LOAD:
            link.send(np.stack([kept[key] for key in keys]), b"")
        else:
            rows = np.zeros((n, row_bytes), np.uint8)
            link.receive(rows)
            for key, row in zip(keys, rows, strict=True):
                kept.pop(key, None)
                kept[key] = row
            while len(kept) > most_blocks:
                del kept[next(iter(kept))]
