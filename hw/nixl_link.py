"""The link by NIXL: the sender writes straight into the receiver's memory and leaves a note. Between processes, not threads.

The receiver announces its rows over a pipe, the sender writes them with UCX and waits, backing off, because asking NIXL keeps
a processor busy. Rows are host memory, given to NIXL by address, so torch is not needed. Needs `pip install kvtier[nixl]`.
"""

import errno
import importlib
import importlib.util
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.errors import HardwareError, PeerLostError, StorageFaultError

NOTE = b"."  # before every tag: an empty note is not sent
LOST = "the transfer; the sender's blocks are intact"


def need_nixl() -> Any:
    """The nixl module, or how to get it."""
    for name in ("nixl_cu13", "nixl_cu12"):
        if importlib.util.find_spec(name) is not None:
            return importlib.import_module(name)
    raise ValueError("the NIXL link needs NIXL: pip install kvtier[nixl]")


@contextmanager
def _one_family(what: str) -> Generator[None]:
    """NIXL's exceptions share no base but Exception; they are known by their names."""
    try:
        yield
    except Exception as error:
        name = type(error).__name__
        if isinstance(error, HardwareError) or not name.startswith("nixl"):
            raise
        if name in {"nixlRemoteDisconnectError", "nixlCancelledError"}:
            raise PeerLostError(errno.EPIPE, f"the other worker has gone while {what}", lost=LOST) from None
        raise StorageFaultError(errno.EIO, f"NIXL refused {what}: {name} {error}", lost=LOST) from None


class NixlLink:
    """See `hw.link.Link`. `name` is this end's, different from the peer's; `pipe` carries addresses."""

    def __init__(self, name: str, pipe: Any, *, limit_s: float = 30.0, backend: str = "UCX") -> None:
        nixl = need_nixl()
        self._pipe, self._limit_s, self.name = pipe, limit_s, name
        with _one_family(f"its back end {backend}"):
            self._agent = nixl.nixl_agent(name, nixl.nixl_agent_config(backends=[backend]))
        self._notes: list[bytes] = []

    def _described(self, rows: NDArray[np.uint8]) -> Any:
        """One descriptor a row: address, bytes, device."""
        table = np.zeros((len(rows), 3), np.uint64)
        table[:, 0] = rows.ctypes.data + rows.strides[0] * np.arange(len(rows))
        table[:, 1] = rows.shape[1]
        return self._agent.get_xfer_descs(table, "DRAM")

    def _registered(self, rows: NDArray[np.uint8]) -> Any:
        if rows.strides[1] != 1 or rows.strides[0] < rows.shape[1]:
            raise ValueError(f"rows must be whole spans in ascending order; strides are {rows.strides}")
        span = (len(rows) - 1) * rows.strides[0] + rows.shape[1]
        return self._agent.register_memory([(rows.ctypes.data, span, 0, "")], "DRAM")

    def send(self, rows: NDArray[np.uint8], tag: bytes) -> None:
        """See `hw.link.Link`."""
        peer, metadata, described = self._hear()
        agent, handle, registered = self._agent, None, None
        with _one_family("a transfer"):
            agent.add_remote_agent(metadata)
            try:
                registered = self._registered(rows)
                theirs = agent.deserialize_descs(described)
                handle = agent.initialize_xfer("WRITE", self._described(rows), theirs, peer, NOTE + tag)
                self._wait(handle)
            finally:
                if handle is not None:
                    agent.release_xfer_handle(handle)
                if registered is not None:
                    agent.deregister_memory(registered)
                agent.remove_remote_agent(peer)
        self._hear()

    def _wait(self, handle: Any) -> None:
        state, begun, pause = self._agent.transfer(handle), time.monotonic(), 1e-6
        while state not in {"DONE", "ERR"}:
            if time.monotonic() - begun > self._limit_s:
                raise self._lost(f"took more than {self._limit_s:g} s")
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
            state = self._agent.check_xfer_state(handle)
        if state == "ERR":
            raise StorageFaultError(errno.EIO, "NIXL reports a failed transfer", lost=LOST)

    def receive(self, rows: NDArray[np.uint8]) -> bytes:
        """See `hw.link.Link`."""
        agent = self._agent
        with _one_family("to receive"):
            registered = self._registered(rows)
            try:
                mine = agent.get_serialized_descs(self._described(rows))
                self._say((self.name, agent.get_agent_metadata(), mine))
                tag = self._note()
            finally:
                agent.deregister_memory(registered)
        self._say("done")
        return tag

    def _note(self) -> bytes:
        """The sender's note, which comes after its bytes."""
        begun, pause = time.monotonic(), 1e-5
        while time.monotonic() - begun < self._limit_s:
            for notes in self._agent.get_new_notifs().values():
                self._notes += notes
            if self._notes:
                return self._notes.pop(0).removeprefix(NOTE)
            if self._pipe.poll(0):
                self._hear()
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
        raise self._lost(f"has been silent for {self._limit_s:g} s")

    def _say(self, what: Any) -> None:
        try:
            self._pipe.send(what)
        except (BrokenPipeError, ConnectionError):
            raise self._lost("has gone") from None

    def _hear(self) -> Any:
        try:
            if not self._pipe.poll(self._limit_s):
                raise self._lost(f"has been silent for {self._limit_s:g} s")
            return self._pipe.recv()
        except (EOFError, ConnectionError):
            raise self._lost("has gone") from None

    def _lost(self, what: str) -> PeerLostError:
        return PeerLostError(errno.EPIPE, f"the other worker {what}", lost=LOST)

    def close(self) -> None:
        """See `hw.link.Link`."""
        self._agent = None
        self._pipe.close()
