"""Measures what copies cost on a device: blocks of one size, so many a batch, alone, both ways, beside kernels; and files.

It fits nothing (`experiments.calibrate` does). Every cell is warmed up once, then repeated; rows are taken in random
order through the whole pool, so that no processor cache keeps them; their content is that of stamps, which does not
compress. Where copies are gathered, their host side lies side by side, as in engines that gather.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hw.device import COMPUTE, OFFLOAD, ONBOARD, Device
from hw.disk import SlotFile, aligned
from hw.memory import DISK, GPU, HOST, Layout, Rows
from hw.program import (
    BYTES,
    COLUMNS,
    COPY,
    DELAY,
    OP,
    POOL_A,
    POOL_B,
    SEED,
    SLOT_A,
    SLOT_B,
    STAMP,
    WAIT,
    Program,
    fill,
)
from kvcache.tables import Pool

STREAM = {"d2h": OFFLOAD, "h2d": ONBOARD, "d2d": ONBOARD, "stamp": COMPUTE}
ENDS = {"d2h": (GPU, HOST), "h2d": (HOST, GPU), "d2d": (GPU, GPU)}
BESIDE = {"d2h both": "h2d", "h2d both": "d2h", "d2h busy": "stamp", "h2d busy": "stamp", "stamp busy": "d2h"}
"""What works on another stream at the same time, by way and mode."""


NEIGHBOURS = 8  # copies of a batch


class Cell(NamedTuple):
    """One thing to measure. `way`: d2h, h2d, d2d (inside the GPU), stamp (kernels that write blocks), write, read (files).

    `mode`: alone; both (the other way works too); busy (copies beside kernels, kernels beside copies); the name of another
    strategy than the device's own; kernel; of files direct, buffered (past a cold page cache), cached (a warm one).
    """

    way: str
    size: int  # bytes of a block
    blocks: int  # a batch; of files: calls in flight
    mode: str

    @property
    def key(self) -> str:
        """Name in files."""
        return f"{self.way} {self.size} {self.blocks} {self.mode}"


class Sample(NamedTuple):
    """One repeat: `seconds` of one block or kernel. Copies: a batch's mean (see `steady`), median over batches; files: clock
    over calls.
    """

    cell: Cell
    repeat: int
    blocks: int
    seconds: float
    work: float  # done in these seconds: bytes, of matrix products and prefill FLOPs


def steady(spent: NDArray[np.float64], size: NDArray[np.int64]) -> float:
    """Seconds of a batch's copies of `size` bytes each, every one at the median pace of itself and its neighbours, `NEIGHBOURS`
    in all; a batch of fewer copies counts as it was.

    Single copies are held up for reasons that are none of theirs: a hypervisor that looks which pages are in use takes them
    away, and the next touch waits for the host (130 us on top of 10, for one copy in 16 to 32, on one virtual machine).
    """
    whole = len(spent) // NEIGHBOURS * NEIGHBOURS
    if whole == 0:
        return float(spent.sum())
    pace = np.median((spent[:whole] / size[:whole]).reshape(-1, NEIGHBOURS), axis=1)
    return float(pace @ size[:whole].reshape(-1, NEIGHBOURS).sum(axis=1) + np.median(pace) * size[whole:].sum())


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
        for pool in (GPU, HOST):
            device.randomize(pool, seed + pool)

    def measure(self, cell: Cell, batches: int, repeats: int) -> Iterator[Sample]:
        """Samples of a cell: `batches` batches of `cell.blocks` blocks a repeat, the first not counted."""
        beside = BESIDE.get(f"{cell.way} {cell.mode}")
        ways, own = [cell.way, *([beside] if beside else [])], self.device.strategy
        if cell.mode in self.device.strategies:
            self.device.strategy = cell.mode
        try:
            yield from self._repeats(cell, ways, batches, repeats)
        finally:
            self.device.strategy = own

    def _repeats(self, cell: Cell, ways: list[str], batches: int, repeats: int) -> Iterator[Sample]:
        for repeat in range(-1, repeats):
            spent = [self._batch(ways, cell) for _ in range(batches)]
            spent = [one for one in spent if len(one)]  # with two ways, none if one had ended before the other began
            if repeat >= 0 and spent:
                seconds = float(np.median([steady(one, np.ones(len(one), np.int64)) / len(one) for one in spent]))
                yield Sample(cell, repeat, sum(map(len, spent)), seconds, float(cell.size))

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
        copies = {s: np.isin(p[:, OP], (COPY, STAMP)) for s, p in programs.items()}
        me = STREAM[ways[0]]
        times, spent = ran[me].times_s[copies[me]], ran[me].spent_s[copies[me]]
        if len(ways) > 1:
            other = ran[STREAM[ways[1]]].times_s[copies[STREAM[ways[1]]]]
            spent = spent[(times[:, 0] >= other[0, 0]) & (times[:, 1] <= other[-1, 1])]
        return np.asarray(spent, np.float64)

    def _program(self, way: str, cell: Cell) -> Program:
        n, rows = self.device.layout.rows[0].blocks, np.zeros((cell.blocks, COLUMNS), np.int64)
        self._at = 0 if self._at + cell.blocks > n else self._at
        take = self._at + np.arange(cell.blocks)
        self._at = (self._at + cell.blocks) % n
        rows[:, BYTES] = cell.size
        if way == "stamp":  # of blocks that no copy beside it touches
            rows[:, OP], rows[:, POOL_A], rows[:, SEED] = STAMP, GPU, 1 + take
            rows[:, SLOT_A] = self._order[GPU][(take + n // 2) % n]
            return rows
        source, target = ENDS[way]
        host = np.arange(n) if self.device.strategy == "gather" else self._order[HOST]
        order = {GPU: self._order[GPU], HOST: host}
        rows[:, OP], rows[:, POOL_A], rows[:, POOL_B] = COPY, source, target
        rows[:, SLOT_A] = order[source][take]
        rows[:, SLOT_B] = order[target][(take + (n // 2 if source == target else 0)) % n]
        return rows


class Files:
    """Reads and writes of one slot file, several calls in flight. `direct`: past the page cache."""

    def __init__(self, directory: Path, size: int, file_bytes: int, *, direct: bool, seed: int) -> None:
        self.rows = Rows(0, DISK, 0, max(8, file_bytes // size), size)
        self.file = SlotFile(directory, self.rows, direct=None if direct else False)
        self._order = np.random.default_rng(seed).permutation(self.rows.blocks)
        self._at, self._seed = 0, seed
        self._pages: dict[int, NDArray[np.uint8]] = {}
        page = self._page(0)
        for slot in range(self.rows.blocks):
            self.file.write(slot, page)
        os.fdatasync(self.file.fileno)

    def _page(self, number: int) -> NDArray[np.uint8]:
        if number not in self._pages:
            self._pages[number] = aligned(self.rows.stride)
            fill(self._pages[number].view(np.int64), self._seed * 1000 + number)
        return self._pages[number]

    def forget(self) -> None:
        """Take the file out of the page cache."""
        os.fdatasync(self.file.fileno)  # dirty pages would stay
        os.posix_fadvise(self.file.fileno, 0, 0, os.POSIX_FADV_DONTNEED)

    def measure(self, cell: Cell, calls: int, repeats: int) -> Iterator[Sample]:
        """Samples of a cell: wall clock over calls; buffered writes up to the disk, cached ones up to the page cache."""
        move = self.file.write if cell.way == "write" else self.file.read
        for repeat in range(-1, repeats):
            slots = self._order[(self._at + np.arange(calls)) % self.rows.blocks].tolist()
            self._at = (self._at + calls) % self.rows.blocks
            if cell.mode == "buffered":
                self.forget()
            elif cell.mode == "cached":
                for slot in slots:
                    self.file.read(slot, self._page(0))
            begun = time.perf_counter()
            self._calls(move, slots, cell.blocks)
            if cell.way == "write" and cell.mode == "buffered":
                os.fdatasync(self.file.fileno)
            seconds = time.perf_counter() - begun
            if repeat >= 0:
                yield Sample(cell, repeat, calls, seconds / calls, float(cell.size))

    def _calls(self, move: Callable[[int, NDArray[np.uint8]], None], slots: list[int], depth: int) -> None:
        def work(number: int) -> None:
            page = self._page(number)
            for slot in slots[number::depth]:
                move(slot, page)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(1, depth)]
        for thread in threads:
            thread.start()
        work(0)
        for thread in threads:
            thread.join()

    def close(self) -> None:
        """Remove the file."""
        self.file.close()
