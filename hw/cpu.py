"""The reference device: pools in host memory, a thread a stream, real files. What runs where there is no GPU.

"GPU" memory is host memory here, and the report says so. Streams are really asynchronous: the compiled loop of
`hw.program` works without Python's lock, and threads wait for each other's tickets only. Disk rows are single
O_DIRECT calls.

    run({offload: rows, onboard: rows})      main thread          threads
                                             hand over       -->  work, wait for tickets, work ...
                                             wait for all    <--  done, or the first failure (it stops the others)
"""

import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.device import STREAMS, Ran, Report
from hw.disk import SlotFile, aligned, check_storage
from hw.errors import HardwareError, StreamStoppedError, classify
from hw.memory import DISK, TIERS, HostMemory, Layout
from hw.program import (
    BYTES,
    CHECK,
    COPY,
    DISK_READ,
    DISK_WRITE,
    END,
    FAILED,
    MUTEX_BYTES,
    OP,
    POOL_A,
    POOL_B,
    RAN,
    SEED,
    SLOT_A,
    SLOT_B,
    STAMP,
    START,
    Program,
    fill,
    first_wrong,
    gather_rows,
    independent,
    publish,
    reached,
    run_rows,
)

Disk = Callable[[Path, Any], SlotFile]
Page = Callable[[int], NDArray[np.uint8]]
STAGING = 16 << 20


class CpuDevice:
    """See the module's text. `disk` opens the file of a pool of the disk tier. `strategy` "rows": a memcpy a block;
    "gather": blocks are brought together in a buffer, and what lies side by side is one memcpy.
    """

    strategies: tuple[str, ...] = ("rows", "gather")

    def __init__(self, layout: Layout, storage: Path | None = None, disk: Disk = SlotFile) -> None:
        self.layout, self.report = layout, Report("cpu")
        self.strategy = "rows"
        self.report.note("device cpu: both the GPU's and the host's pools are host memory")
        self._files: dict[int, SlotFile] = {}
        self._threads: list[_Stream] = []
        in_memory = [i for i, rows in enumerate(layout.rows) if rows.tier != DISK]
        total = sum(layout.rows[i].bytes for i in in_memory)
        self._memory = HostMemory(total, "memory of the gpu and host tiers")
        self._base = np.zeros(len(layout.rows), np.int64)
        self._stride = np.array([rows.stride for rows in layout.rows], np.int64)
        self._blocks = np.array([rows.blocks for rows in layout.rows], np.int64)
        at = 0
        for i in in_memory:
            self._base[i], at = at, at + layout.rows[i].bytes
        self._words = self._memory.array.view(np.int64)
        self._progress = np.zeros(len(STREAMS), np.int64)
        self._flags = np.zeros(1, np.int64)
        self._page = _bounce()
        self._mutexes = np.zeros(MUTEX_BYTES * (len(STREAMS) + 1), np.uint8)  # all zero: an open pthread mutex
        try:
            for i, rows in enumerate(layout.rows):
                if rows.tier == DISK and rows.blocks > 0:
                    self._files[i] = disk(check_storage(storage), rows)
                    if self._files[i].note:
                        self.report.note(self._files[i].note)
            self._threads = [_Stream(self, i, name) for i, name in enumerate(STREAMS)]
        except BaseException:
            self.close()
            raise

    def done(self, stream: int) -> int:
        """Rows that a stream has done in all."""
        return int(reached(self._progress, self._mutexes.ctypes.data, stream))

    def run(self, programs: Mapping[int, Program]) -> dict[int, Ran]:
        """See `hw.device.Device`."""
        if self._flags[FAILED]:
            raise StreamStoppedError(5, "a stream has failed; nothing more is done before recover()")
        for program in programs.values():
            self._check(program)
        for stream, program in programs.items():
            self._threads[stream].give(program)
        answers = {stream: self._threads[stream].answer() for stream in programs}
        failures = [ran for ran in answers.values() if isinstance(ran, BaseException)]
        if failures:
            raise next((f for f in failures if not isinstance(f, StreamStoppedError)), failures[0])
        for program in programs.values():
            self._count(program)
        return {stream: ran for stream, ran in answers.items() if isinstance(ran, Ran)}

    def _check(self, program: Program) -> None:
        """Nothing outside the pools is ever read or written."""
        ops = program[:, OP]
        moves = np.isin(ops, (COPY, DISK_WRITE, DISK_READ))
        for pool, slot, rows in ((POOL_A, SLOT_A, moves | np.isin(ops, (STAMP, CHECK))), (POOL_B, SLOT_B, moves)):
            pools, slots = program[rows, pool], program[rows, slot]
            bad = (slots < 0) | (slots >= self._blocks[pools])
            assert not bad.any(), f"slot {slots[bad][0]} of the {self.layout.rows[pools[bad][0]].name} does not exist"
            long = program[rows, BYTES] > self._stride[pools]
            assert not long.any(), f"{program[rows, BYTES][long][0]} bytes of a row of {self._stride[pools][long][0]}"

    def _count(self, program: Program) -> None:
        moved = program[np.isin(program[:, OP], (COPY, DISK_WRITE, DISK_READ))]
        for a, b in {(int(row[POOL_A]), int(row[POOL_B])) for row in moved}:
            size = int(moved[(moved[:, POOL_A] == a) & (moved[:, POOL_B] == b), BYTES].sum())
            ends = f"{TIERS[self.layout.rows[a].tier]} to {TIERS[self.layout.rows[b].tier]}"
            file = self._files.get(a) or self._files.get(b)
            memory = "memcpy" if self.strategy == "rows" else "gathered, memcpy"
            how = memory if file is None else "O_DIRECT" if file.direct else "buffered file"
            self.report.count(f"{ends}: {how}", size)

    def row(self, pool: int, slot: int) -> Any:
        """A row of memory as bytes."""
        assert pool not in self._files, f"the {self.layout.rows[pool].name} is not in memory"
        first = int(self._base[pool] + slot * self._stride[pool])
        return self._memory.view(first, int(self._stride[pool]))

    def bytes_of(self, pool: int, slot: int) -> NDArray[np.uint8]:
        """See `hw.device.Device`."""
        row: NDArray[np.uint8] = self.row(pool, slot)
        return row

    def put(self, pool: int, slot: int, data: NDArray[np.uint8]) -> None:
        """See `hw.device.Device`."""
        self.row(pool, slot)[: len(data)] = data

    def fill(self, pool: int, slot: int, seed: int) -> None:
        """See `hw.device.Device`."""
        if pool in self._files:
            page = self._page(int(self._stride[pool]))
            fill(page[: self.layout.rows[pool].size].view(np.int64), seed)
            self._files[pool].write(slot, page)
            return
        fill(self.row(pool, slot)[: self.layout.rows[pool].size].view(np.int64), seed)

    def randomize(self, pool: int, seed: int) -> None:
        """See `hw.device.Device`."""
        first, size = int(self._base[pool]), self.layout.rows[pool].bytes
        fill(self._words[first // 8 : (first + size) // 8], seed)

    def first_wrong(self, pool: int, slot: int, seed: int, size: int) -> int:
        """See `hw.device.Device`."""
        if pool in self._files:
            return self.wrong_in_file(pool, slot, seed, size, self._page)
        return int(first_wrong(self.row(pool, slot)[:size].view(np.int64), seed))

    def wrong_in_file(self, pool: int, slot: int, seed: int, size: int, buffer: Page) -> int:
        """`first_wrong` for a row of a file, read back through `buffer`."""
        page = buffer(int(self._stride[pool]))
        self._files[pool].read(slot, page)
        return int(first_wrong(page[:size].view(np.int64), seed))

    def recover(self) -> None:
        """See `hw.device.Device`."""
        self._flags[FAILED] = 0
        for thread in self._threads:
            thread.catch_up()

    def verify(self) -> None:
        """See `hw.device.Device`."""
        for file in self._files.values():
            file.verify()

    def close(self) -> None:
        """See `hw.device.Device`."""
        self._flags[FAILED] = 1
        for thread in self._threads:
            thread.stop()
        self._threads = []
        for file in self._files.values():
            file.close()
        self._words = np.empty(0, np.int64)
        self._memory.close()


class _Stream:
    """One thread that works off programs in order."""

    def __init__(self, device: CpuDevice, number: int, name: str) -> None:
        self._device, self._number, self._name = device, number, name
        self._in: queue.SimpleQueue[Program | None] = queue.SimpleQueue()
        self._out: queue.SimpleQueue[Ran | BaseException] = queue.SimpleQueue()
        self._given = 0
        self._scratch = np.zeros(2, np.int64)
        self.page, self._staging = _bounce(), _bounce()
        self._thread = threading.Thread(target=self._work, name=f"kvtier {name}", daemon=True)
        self._thread.start()

    def give(self, program: Program) -> None:
        self._given += len(program)
        self._in.put(program)

    def answer(self) -> Ran | BaseException:
        return self._out.get()

    def catch_up(self) -> None:
        """Count what was given up as done, so that later tickets mean what they say."""
        self._device._progress[self._number] = self._given

    def stop(self) -> None:
        self._in.put(None)
        self._thread.join(timeout=10)

    def _work(self) -> None:
        while (program := self._in.get()) is not None:
            try:
                self._out.put(self._run(program))
            except BaseException as error:  # goes to whoever waits, and stops the other streams
                self._device._flags[FAILED] = 1
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
                d._words,
                d._memory.address,
                d._base,
                d._stride,
                d._progress,
                d._mutexes.ctypes.data,
                d._flags,
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
        return bool(row[OP] == CHECK and int(row[POOL_A]) in self._device._files)

    def _parts(self, program: Program) -> list[slice]:
        """Stretches for the compiled loop, single rows for files, runs of copies to be gathered."""
        d = self._device
        alone = np.isin(program[:, OP], (DISK_WRITE, DISK_READ))
        alone |= (program[:, OP] == CHECK) & np.isin(program[:, POOL_A], list(d._files))
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
        gather_rows(
            program, d._memory.address, d._base, d._stride, staging.ctypes.data, room, self._scratch, clock, times
        )
        for _ in range(len(program)):
            publish(d._progress, d._mutexes.ctypes.data, self._number)

    def _disk(self, row: Any, times: Any, found: Any) -> None:
        d, op = self._device, int(row[OP])
        if d._flags[FAILED]:
            raise StreamStoppedError(5, f"the {self._name} stream stopped because another one failed")
        times[START] = _now()
        try:  # ruff: ignore[too-many-statements-in-try-clause]
            if op == CHECK:
                found[0] = d.wrong_in_file(
                    int(row[POOL_A]), int(row[SLOT_A]), int(row[SEED]), int(row[BYTES]), self.page
                )
            elif op == DISK_WRITE:
                d._files[int(row[POOL_B])].write(int(row[SLOT_B]), d.row(int(row[POOL_A]), int(row[SLOT_A])))
            else:
                d._files[int(row[POOL_A])].read(int(row[SLOT_A]), d.row(int(row[POOL_B]), int(row[SLOT_B])))
        except HardwareError:
            raise
        except OSError as error:
            raise classify(error, f"the {self._name} stream") from None
        times[END] = _now()
        times[RAN] = times[END] - times[START]
        publish(d._progress, d._mutexes.ctypes.data, self._number)


def _bounce() -> Page:
    """A page-aligned buffer that grows when it has to."""
    kept: list[NDArray[np.uint8]] = []

    def page(size: int) -> NDArray[np.uint8]:
        if not kept or len(kept[-1]) < size:
            kept[:] = [aligned(size)]
        return kept[-1][:size]

    return page


def _now() -> int:
    return time.monotonic_ns()
