"""The reference device: pools in host memory, a thread a stream, real files. What runs where there is no GPU.

"GPU" memory is host memory here, and the report says so. Streams are really asynchronous: the compiled loop of
`hw.program` works without Python's lock, and threads wait for each other's tickets only. Disk rows are single
O_DIRECT calls.

    run({offload: rows, onboard: rows})      main thread          threads
                                             hand over       -->  work, wait for tickets, work ...
                                             wait for all    <--  done, or the first failure (it stops the others)
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.cpu_stream import Page, Stream, bounce
from hw.device import STREAMS, Ran, Report
from hw.disk import SlotFile, check_storage
from hw.errors import StreamStoppedError
from hw.memory import DISK, TIERS, HostMemory, Layout
from hw.program import (
    BYTES,
    CHECK,
    COPY,
    DISK_READ,
    DISK_WRITE,
    FAILED,
    MUTEX_BYTES,
    OP,
    POOL_A,
    POOL_B,
    SLOT_A,
    SLOT_B,
    STAMP,
    Program,
    fill,
    first_wrong,
    reached,
)

Disk = Callable[[Path, Any], SlotFile]


class CpuDevice:
    """See the module's text. `disk` opens the file of a pool of the disk tier. `strategy` "rows": a memcpy a block;
    "gather": blocks are brought together in a buffer, and what lies side by side is one memcpy.
    """

    strategies: tuple[str, ...] = ("rows", "gather")

    def __init__(self, layout: Layout, storage: Path | None = None, disk: Disk = SlotFile) -> None:
        self.layout, self.report = layout, Report("cpu")
        self.strategy = "rows"
        self.report.note("device cpu: both the GPU's and the host's pools are host memory")
        self.files: dict[int, SlotFile] = {}
        self._threads: list[Stream] = []
        in_memory = [i for i, rows in enumerate(layout.rows) if rows.tier != DISK]
        total = sum(layout.rows[i].bytes for i in in_memory)
        self.memory = HostMemory(total, "memory of the gpu and host tiers")
        self.base = np.zeros(len(layout.rows), np.int64)
        self.stride = np.array([rows.stride for rows in layout.rows], np.int64)
        self._blocks = np.array([rows.blocks for rows in layout.rows], np.int64)
        at = 0
        for i in in_memory:
            self.base[i], at = at, at + layout.rows[i].bytes
        self.words = self.memory.array.view(np.int64)
        self.progress = np.zeros(len(STREAMS), np.int64)
        self.flags = np.zeros(1, np.int64)
        self._page = bounce()
        self.mutexes = np.zeros(MUTEX_BYTES * (len(STREAMS) + 1), np.uint8)  # all zero: an open pthread mutex
        try:
            for i, rows in enumerate(layout.rows):
                if rows.tier == DISK and rows.blocks > 0:
                    self.files[i] = disk(check_storage(storage), rows)
                    if self.files[i].note:
                        self.report.note(self.files[i].note)
            self._threads = [Stream(self, i, name) for i, name in enumerate(STREAMS)]
        except BaseException:
            self.close()
            raise

    def done(self, stream: int) -> int:
        """Rows that a stream has done in all."""
        return int(reached(self.progress, self.mutexes.ctypes.data, stream))

    def run(self, programs: Mapping[int, Program]) -> dict[int, Ran]:
        """See `hw.device.Device`."""
        if self.flags[FAILED]:
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
            long = program[rows, BYTES] > self.stride[pools]
            assert not long.any(), f"{program[rows, BYTES][long][0]} bytes of a row of {self.stride[pools][long][0]}"

    def _count(self, program: Program) -> None:
        moved = program[np.isin(program[:, OP], (COPY, DISK_WRITE, DISK_READ))]
        for a, b in {(int(row[POOL_A]), int(row[POOL_B])) for row in moved}:
            size = int(moved[(moved[:, POOL_A] == a) & (moved[:, POOL_B] == b), BYTES].sum())
            ends = f"{TIERS[self.layout.rows[a].tier]} to {TIERS[self.layout.rows[b].tier]}"
            file = self.files.get(a) or self.files.get(b)
            memory = "memcpy" if self.strategy == "rows" else "gathered, memcpy"
            how = memory if file is None else "O_DIRECT" if file.direct else "buffered file"
            self.report.count(f"{ends}: {how}", size)

    def row(self, pool: int, slot: int) -> Any:
        """A row of memory as bytes."""
        assert pool not in self.files, f"the {self.layout.rows[pool].name} is not in memory"
        first = int(self.base[pool] + slot * self.stride[pool])
        return self.memory.view(first, int(self.stride[pool]))

    def bytes_of(self, pool: int, slot: int) -> NDArray[np.uint8]:
        """See `hw.device.Device`."""
        row: NDArray[np.uint8] = self.row(pool, slot)
        return row

    def put(self, pool: int, slot: int, data: NDArray[np.uint8]) -> None:
        """See `hw.device.Device`."""
        self.row(pool, slot)[: len(data)] = data

    def fill(self, pool: int, slot: int, seed: int) -> None:
        """See `hw.device.Device`."""
        if pool in self.files:
            page = self._page(int(self.stride[pool]))
            fill(page[: self.layout.rows[pool].size].view(np.int64), seed)
            self.files[pool].write(slot, page)
            return
        fill(self.row(pool, slot)[: self.layout.rows[pool].size].view(np.int64), seed)

    def randomize(self, pool: int, seed: int) -> None:
        """See `hw.device.Device`."""
        first, size = int(self.base[pool]), self.layout.rows[pool].bytes
        fill(self.words[first // 8 : (first + size) // 8], seed)

    def first_wrong(self, pool: int, slot: int, seed: int, size: int) -> int:
        """See `hw.device.Device`."""
        if pool in self.files:
            return self.wrong_in_file(pool, slot, seed, size, self._page)
        return int(first_wrong(self.row(pool, slot)[:size].view(np.int64), seed))

    def wrong_in_file(self, pool: int, slot: int, seed: int, size: int, buffer: Page) -> int:
        """`first_wrong` for a row of a file, read back through `buffer`."""
        page = buffer(int(self.stride[pool]))
        self.files[pool].read(slot, page)
        return int(first_wrong(page[:size].view(np.int64), seed))

    def recover(self) -> None:
        """See `hw.device.Device`."""
        self.flags[FAILED] = 0
        for thread in self._threads:
            thread.catch_up()

    def verify(self) -> None:
        """See `hw.device.Device`."""
        for file in self.files.values():
            file.verify()

    def close(self) -> None:
        """See `hw.device.Device`."""
        self.flags[FAILED] = 1
        for thread in self._threads:
            thread.stop()
        self._threads = []
        for file in self.files.values():
            file.close()
        self.words = np.empty(0, np.int64)
        self.memory.close()
