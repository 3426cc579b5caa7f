"""One stream of the cpu device: a thread that works off programs in order, memory by compiled loops, files row by row.

It decides nothing; it waits for other streams' tickets and stops when one of them has failed.
"""

import itertools
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hw.device import Ran
from hw.disk import aligned
from hw.errors import HardwareError, StreamStoppedError, classify
from hw.program import (
    BYTES,
    CHECK,
    COPY,
    DISK_READ,
    DISK_WRITE,
    END,
    FAILED,
    OP,
    POOL_A,
    POOL_B,
    RAN,
    SEED,
    SLOT_A,
    SLOT_B,
    START,
    Program,
    gather_rows,
    independent,
    publish,
    run_rows,
)

if TYPE_CHECKING:
    from hw.cpu import CpuDevice

Page = Callable[[int], NDArray[np.uint8]]
STAGING = 16 << 20


class Stream:
    """One thread that works off programs in order."""

    def __init__(self, device: "CpuDevice", number: int, name: str) -> None:
        self._device, self._number, self._name = device, number, name
        self._in: queue.SimpleQueue[Program | None] = queue.SimpleQueue()
        self._out: queue.SimpleQueue[Ran | BaseException] = queue.SimpleQueue()
        self._given = 0
        self._scratch = np.zeros(2, np.int64)
        self.page, self._staging = bounce(), bounce()
        self._thread = threading.Thread(target=self._work, name=f"kvtier {name}", daemon=True)
        self._thread.start()

    def give(self, program: Program) -> None:
        self._given += len(program)
        self._in.put(program)

    def answer(self) -> Ran | BaseException:
        return self._out.get()

    def catch_up(self) -> None:
        """Count what was given up as done, so that later tickets mean what they say."""
        self._device.progress[self._number] = self._given

    def stop(self) -> None:
        self._in.put(None)
        self._thread.join(timeout=10)

    def _work(self) -> None:
        while (program := self._in.get()) is not None:
            try:
                self._out.put(self._run(program))
            except BaseException as error:  # goes to whoever waits, and stops the other streams
                self._device.flags[FAILED] = 1
                self._out.put(error)

    def _run(self, program: Program) -> Ran:
        d = self._device
        times, found = np.zeros((len(program), 3), np.int64), np.full(len(program), -1, np.int64)
        for part in self._parts(program):
            if program[part.start, OP] in {DISK_WRITE, DISK_READ} or self._is_file_check(program[part.start]):
                self._disk(program[part.start], times[part.start], found[part.start : part.start + 1])
            elif d.strategy == "gather" and program[part.start, OP] == COPY:
                self._gather(program[part], times[part])
            elif not run_rows(
                program[part],
                d.words,
                d.memory.address,
                d.base,
                d.stride,
                d.progress,
                d.mutexes.ctypes.data,
                d.flags,
                self._number,
                self._scratch,
                self._scratch.ctypes.data,
                times[part],
                found[part],
            ):
                raise StreamStoppedError(5, f"the {self._name} stream stopped because another one failed")
        seconds = np.asarray(times * 1e-9, np.float64)
        return Ran(seconds[:, :2], seconds[:, RAN], found)

    def _is_file_check(self, row: Any) -> bool:
        return bool(row[OP] == CHECK and int(row[POOL_A]) in self._device.files)

    def _parts(self, program: Program) -> list[slice]:
        """Stretches for the compiled loop, single rows for files, runs of copies to be gathered."""
        d = self._device
        alone = np.isin(program[:, OP], (DISK_WRITE, DISK_READ))
        alone |= (program[:, OP] == CHECK) & np.isin(program[:, POOL_A], list(d.files))
        edges = {0, len(program), *np.flatnonzero(alone).tolist(), *(np.flatnonzero(alone) + 1).tolist()}
        if d.strategy == "gather":
            at = 0
            while at < len(program):
                end = independent(program, at)
                edges |= {at, max(end, at + 1)} if program[at, OP] == COPY else set()
                at = max(end, at + 1)
        ordered = sorted(edges)
        return [slice(a, b) for a, b in itertools.pairwise(ordered)]

    def _gather(self, program: Program, times: Any) -> None:
        d, room = self._device, max(STAGING, int(program[:, BYTES].max()))
        staging = self._staging(room)
        clock = self._scratch.ctypes.data
        gather_rows(program, d.memory.address, d.base, d.stride, staging.ctypes.data, room, self._scratch, clock, times)
        for _ in range(len(program)):
            publish(d.progress, d.mutexes.ctypes.data, self._number)

    def _disk(self, row: Any, times: Any, found: Any) -> None:
        d, op = self._device, int(row[OP])
        if d.flags[FAILED]:
            raise StreamStoppedError(5, f"the {self._name} stream stopped because another one failed")
        times[START] = _now()
        try:  # ruff: ignore[too-many-statements-in-try-clause]
            if op == CHECK:
                found[0] = d.wrong_in_file(
                    int(row[POOL_A]), int(row[SLOT_A]), int(row[SEED]), int(row[BYTES]), self.page
                )
            elif op == DISK_WRITE:
                d.files[int(row[POOL_B])].write(int(row[SLOT_B]), d.row(int(row[POOL_A]), int(row[SLOT_A])))
            else:
                d.files[int(row[POOL_A])].read(int(row[SLOT_A]), d.row(int(row[POOL_B]), int(row[SLOT_B])))
        except HardwareError:
            raise
        except OSError as error:
            raise classify(error, f"the {self._name} stream") from None
        times[END] = _now()
        times[RAN] = times[END] - times[START]
        publish(d.progress, d.mutexes.ctypes.data, self._number)


def bounce() -> Page:
    """A page-aligned buffer that grows when it has to."""
    kept: list[NDArray[np.uint8]] = []

    def page(size: int) -> NDArray[np.uint8]:
        if not kept or len(kept[-1]) < size:
            kept[:] = [aligned(size)]
        return kept[-1][:size]

    return page


def _now() -> int:
    return time.monotonic_ns()
