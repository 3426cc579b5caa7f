"""Blocks from one worker process to another: shared memory, which the receiver copies out of. The default link.

It does not decide what is sent. A link is two ends made from one description that can be sent to another process; `send` puts
rows into a ring of the shared memory and says so, `receive` copies them out and answers. A peer that has gone is an error
within the time limit, never a hang.

    sender                                    receiver
    rows -> ring slot, "n rows, tag"  ----->  copy out of the ring slot
    slot is free again                <-----  "done"
"""

import errno
from dataclasses import dataclass
from multiprocessing import connection, shared_memory
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hw.errors import OutOfMemoryError, PeerLostError


class Link(Protocol):
    """One end of a connection between two workers."""

    def send(self, rows: NDArray[np.uint8], tag: bytes) -> None:
        """All rows [n, bytes] to the other end; returns when they have arrived there."""

    def receive(self, rows: NDArray[np.uint8]) -> bytes:
        """Fill `rows` with what the other end sends next; returns its tag."""

    def close(self) -> None:
        """Give memory back."""


@dataclass(frozen=True)
class Ring:
    """Name and size of the shared memory."""

    name: str
    bytes: int


def make_ring(size: int) -> tuple[Ring, shared_memory.SharedMemory]:
    """Shared memory for `size` bytes; whoever made it unlinks it."""
    try:
        memory = shared_memory.SharedMemory(create=True, size=size)
    except OSError as error:
        raise OutOfMemoryError(error.errno or errno.ENOMEM, f"{size} bytes of shared memory were refused") from None
    return Ring(memory.name, size), memory


class SharedMemoryLink:
    """See `Link`. `pipe` carries the words, the ring the bytes; `limit_s` is how long the peer may be silent."""

    def __init__(self, ring: Ring, pipe: "connection.Connection[Any, Any]", *, limit_s: float = 30.0) -> None:
        self._memory = shared_memory.SharedMemory(name=ring.name)
        self._bytes: NDArray[np.uint8] = np.ndarray(ring.bytes, np.uint8, self._memory.buf)
        self._pipe, self._limit_s = pipe, limit_s

    def send(self, rows: NDArray[np.uint8], tag: bytes) -> None:
        """See `Link`. More rows than the ring holds go in several turns."""
        room = max(1, len(self._bytes) // rows.shape[1])
        if rows.shape[1] > len(self._bytes):
            raise ValueError(f"a row of {rows.shape[1]} bytes does not fit into a ring of {len(self._bytes)}")
        for first in range(0, len(rows), room):
            part = rows[first : first + room]
            self._bytes[: part.size].reshape(part.shape)[:] = part
            self._say((len(part), rows.shape[1], first + len(part) == len(rows), tag))
            self._hear("the receiver")

    def receive(self, rows: NDArray[np.uint8]) -> bytes:
        """See `Link`."""
        got = 0
        while True:
            n, size, last, tag = self._hear("the sender")
            if size != rows.shape[1] or got + n > len(rows):
                raise ValueError(f"{got + n} rows of {size} bytes come, {len(rows)} of {rows.shape[1]} were expected")
            rows[got : got + n] = self._bytes[: n * size].reshape(n, size)
            got += n
            self._say("done")
            if last:
                return bytes(tag)

    def _say(self, what: Any) -> None:
        try:
            self._pipe.send(what)
        except (BrokenPipeError, ConnectionError):
            raise self._lost("has gone") from None

    def _hear(self, who: str) -> Any:
        try:
            if not self._pipe.poll(self._limit_s):
                raise self._lost(f"({who}) has been silent for {self._limit_s:g} s")
            return self._pipe.recv()
        except (EOFError, ConnectionError):
            raise self._lost(f"({who}) has gone") from None

    def _lost(self, what: str) -> PeerLostError:
        return PeerLostError(
            errno.EPIPE, f"the other worker {what}", lost="the transfer; the sender's blocks are intact"
        )

    def close(self) -> None:
        """See `Link`."""
        self._bytes = np.empty(0, np.uint8)
        self._memory.close()
        self._pipe.close()


def open_pair(size: int) -> tuple[Ring, shared_memory.SharedMemory, Any, Any]:
    """A ring and both ends of a pipe, for two processes of one parent."""
    ring, memory = make_ring(size)
    here, there = connection.Pipe()
    return ring, memory, here, there
