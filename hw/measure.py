"""Measures what copies cost on a device: blocks of one size, so many a batch, one way or both at once; and files.

It fits nothing (`experiments.calibrate` does). Every cell is warmed up once, then repeated; rows are taken in random
order through the whole pool, so that no processor cache keeps them; their content is that of stamps, which does not
compress.
"""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hw.device import OFFLOAD, ONBOARD, Device
from hw.disk import SlotFile, aligned
from hw.memory import DISK, GPU, HOST, Layout, Rows
from hw.program import BYTES, COLUMNS, COPY, DELAY, OP, POOL_A, POOL_B, SLOT_A, SLOT_B, WAIT, Program, fill
from kvcache.tables import Pool

STREAM = {"d2h": OFFLOAD, "h2d": ONBOARD, "d2d": ONBOARD}
ENDS = {"d2h": (GPU, HOST), "h2d": (HOST, GPU), "d2d": (GPU, GPU)}


class Cell(NamedTuple):
    """One thing to measure. `way`: d2h, h2d, d2d (inside the GPU), write, read (files)."""

    way: str
    size: int  # bytes of a block
    blocks: int  # a batch; of files: calls in flight
    mode: str  # alone, both (the other way works too); direct, buffered

    @property
    def key(self) -> str:
        """Name in files."""
        return f"{self.way} {self.size} {self.blocks} {self.mode}"


class Sample(NamedTuple):
    """One repeat: seconds of one block. Copies: a batch's mean, median over batches; files: clock over calls."""

    cell: Cell
    repeat: int
    blocks: int
    seconds: float


def copy_layout(size: int, pool_bytes: int) -> Layout:
    """Pools of equal size on both sides for blocks of `size` bytes."""
    blocks = max(2, pool_bytes // size)
    return Layout((Pool(1 << 20, (blocks, blocks)),), ((size,),), 1)


class Copies:
    """Runs batches through one device; goes on through the pools where the last batch ended."""

    def __init__(self, device: Device, seed: int) -> None:
        self.device = device
        rng = np.random.default_rng(seed)
        n = device.layout.rows[0].blocks
        self._order = {tier: rng.permutation(n) for tier in (GPU, HOST)}
        self._at = 0
        for pool in range(2):
            for slot in range(n):
                device.fill(pool, slot, 2 * slot + pool)

    def measure(self, cell: Cell, batches: int, repeats: int) -> Iterator[Sample]:
        """Samples of a cell: `batches` batches of `cell.blocks` blocks a repeat, the first not counted."""
        ways = [cell.way] if cell.mode == "alone" else [cell.way, "d2h" if cell.way == "h2d" else "h2d"]
        for repeat in range(-1, repeats):
            spent = [self._batch(ways, cell) for _ in range(batches)]
            spent = [one for one in spent if len(one)]  # with two ways, none if one had ended before the other began
            if repeat >= 0 and spent:
                seconds = float(np.median([one.mean() for one in spent]))
                yield Sample(cell, repeat, sum(map(len, spent)), seconds)

    def _batch(self, ways: list[str], cell: Cell) -> NDArray[np.float64]:
        """Seconds of the first way's copies; with two, of those it made while the other one worked."""
        programs = {STREAM[way]: self._program(way, cell) for way in ways}
        if len(programs) > 1:
            streams = list(programs)
            marks = {stream: self.device.done(stream) + 1 for stream in streams}
            gates = {
                a: [[DELAY] + [0] * 7, *([WAIT, b, marks[b], 0, 0, 0, 0, -1] for b in streams if b != a)]
                for a in streams
            }
            programs = {s: np.concatenate([np.array(gates[s], np.int64), p]) for s, p in programs.items()}
        ran = self.device.run(programs)
        copies = {s: p[:, OP] == COPY for s, p in programs.items()}
        me = STREAM[ways[0]]
        times, spent = ran[me].times_s[copies[me]], ran[me].spent_s[copies[me]]
        if len(ways) > 1:
            other = ran[STREAM[ways[1]]].times_s[copies[STREAM[ways[1]]]]
            spent = spent[(times[:, 0] >= other[0, 0]) & (times[:, 1] <= other[-1, 1])]
        return np.asarray(spent, np.float64)

    def _program(self, way: str, cell: Cell) -> Program:
        n, rows = self.device.layout.rows[0].blocks, np.zeros((cell.blocks, COLUMNS), np.int64)
        take = (self._at + np.arange(cell.blocks)) % n
        self._at = (self._at + cell.blocks) % n
        source, target = ENDS[way]
        rows[:, OP], rows[:, BYTES] = COPY, cell.size
        rows[:, POOL_A], rows[:, POOL_B] = source, target
        rows[:, SLOT_A] = self._order[source][take]
        rows[:, SLOT_B] = self._order[target][(take + (n // 2 if source == target else 0)) % n]
        return rows


class Files:
    """Reads and writes of one slot file, several calls in flight."""

    def __init__(self, directory: Path, size: int, file_bytes: int, *, direct: bool, seed: int) -> None:
        self.rows = Rows(0, DISK, 0, max(8, file_bytes // size), size)
        self.file = SlotFile(directory, self.rows, direct=None if direct else False)
        self._order = np.random.default_rng(seed).permutation(self.rows.blocks)
        self._at, self._seed = 0, seed
        page = self._page(0)
        for slot in range(self.rows.blocks):
            self.file.write(slot, page)

    def _page(self, number: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        page = aligned(self.rows.stride)
        fill(page.view(np.int64), self._seed * 1000 + number)
        return page

    def measure(self, cell: Cell, calls: int, repeats: int) -> Iterator[Sample]:
        """Samples of a cell. With one call in flight a call's own seconds; with several, wall clock over calls."""
        for repeat in range(-1, repeats):
            if not self.file.direct:
                os.posix_fadvise(self.file.fileno, 0, 0, os.POSIX_FADV_DONTNEED)
            slots = self._order[(self._at + np.arange(calls)) % self.rows.blocks].tolist()
            self._at = (self._at + calls) % self.rows.blocks
            move = self.file.write if cell.way == "write" else self.file.read

            def work(number: int, slots: list[int] = slots, step: int = cell.blocks) -> None:
                page = self._page(number)
                for slot in slots[number::step]:
                    move(slot, page)  # ruff: ignore[function-uses-loop-variable]

            begun = time.perf_counter()
            if cell.blocks == 1:
                work(0)
            else:
                threads = [threading.Thread(target=work, args=(i,)) for i in range(cell.blocks)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            if cell.way == "write" and not self.file.direct:
                os.fdatasync(self.file.fileno)
            seconds = time.perf_counter() - begun
            if repeat >= 0:
                yield Sample(cell, repeat, calls, seconds / calls)

    def close(self) -> None:
        """Remove the file."""
        self.file.close()
