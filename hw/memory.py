"""Where blocks lie in real memory: pools of equal rows, one row a block, one pool for each window, tier and part.

It decides no sizes: block counts and bytes come from the arithmetic the simulator uses. A block is one contiguous
span in each of its window's pools (values, and scales where the cache has them), as in TensorRT-LLM. Rows are padded
to 4 KiB, so that files can be read and written past the page cache.

    window 0:  gpu    [ row 0 | row 1 | ... ]   part 0 (values)      pool number = order of this picture, top down
               host   [ row 0 | row 1 | ... ]   part 0
               disk   [ row 0 | row 1 | ... ]   part 0, rows of a slot file
    window 1:  ...
"""

import errno
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.errors import OutOfMemoryError
from kvcache.tables import Pool

GPU, HOST, DISK = range(3)
TIERS = ("gpu", "host", "disk")
PAGE = 4096
WORD = 8


@dataclass(frozen=True)
class Rows:
    """One pool: `blocks` rows of `size` bytes used, `stride` bytes apart."""

    window: int
    tier: int
    part: int
    blocks: int
    size: int

    @property
    def stride(self) -> int:
        """Bytes from one row to the next."""
        return -(-self.size // PAGE) * PAGE

    @property
    def bytes(self) -> int:
        """Bytes of the whole pool."""
        return self.blocks * self.stride

    @property
    def name(self) -> str:
        """As messages call it."""
        return f"{TIERS[self.tier]} pool {self.part} of window {self.window}"


class Layout:
    """All pools of one worker. A place is one (tier, window, slot): what events and stamps are kept for."""

    def __init__(self, pools: Sequence[Pool], copy_bytes: Sequence[Sequence[int]], tokens_per_block: int) -> None:
        self.tokens_per_block = tokens_per_block
        self.rows: list[Rows] = []
        self.parts: dict[tuple[int, int], list[int]] = {}
        self._first: dict[tuple[int, int], int] = {}
        self.places = 0
        self.windows = len(pools)
        for window, (pool, sizes) in enumerate(zip(pools, copy_bytes, strict=True)):
            for tier, blocks in enumerate(pool.blocks):
                self._first[window, tier] = self.places
                self.places += blocks
                self.parts[window, tier] = []
                for part, size in enumerate(sizes):
                    self.parts[window, tier].append(len(self.rows))
                    self.rows.append(Rows(window, tier, part, blocks, size))
        for rows in self.rows:
            if rows.size % WORD:
                raise ValueError(f"a block of the {rows.name} has {rows.size} bytes; stamps need a multiple of {WORD}")

    def place(self, window: int, tier: int, slot: int) -> int:
        """Number of a place."""
        return self._first[window, tier] + slot

    def name(self, place: int) -> str:
        """A place as messages call it."""
        (window, tier), first = max(
            ((key, first) for key, first in self._first.items() if first <= place), key=lambda item: item[1]
        )
        return f"{TIERS[tier]} slot {place - first} of window {window}"

    def bytes_of(self, tier: int) -> int:
        """Bytes of one tier."""
        return sum(rows.bytes for rows in self.rows if rows.tier == tier)

    def block_bytes(self, window: int) -> int:
        """Bytes of one block, all parts."""
        return sum(self.rows[pool].size for pool in self.parts[window, GPU])

    def copy_bytes(self, window: int, tokens: int) -> int:
        """Bytes of a copy of the first `tokens` tokens of a block (0: the whole block), all parts."""
        return sum(self.part_bytes(pool, tokens) for pool in self.parts[window, GPU])

    def part_bytes(self, pool: int, tokens: int) -> int:
        """Bytes of the first `tokens` tokens of a row (0: the whole row), up to whole words."""
        size = self.rows[pool].size
        return size if tokens == 0 else min(size, -(-(size * tokens // self.tokens_per_block) // WORD) * WORD)


def available_bytes() -> int:
    """Host memory that may be taken without swapping, as the kernel estimates it; the cgroup's limit counts too."""
    free = 1 << 62
    with open("/proc/meminfo", encoding="ascii") as file:  # ruff: ignore[builtin-open]
        for line in file:
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(name, encoding="ascii") as file:  # ruff: ignore[builtin-open]
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit():
            free = min(free, int(text))
    return free


def anonymous(size: int) -> mmap.mmap:
    """Page-aligned zeroes of this process alone. Not a shared mapping, Python's default: those have no huge pages as most
    kernels are set up, and where cold memory is reclaimed (DAMON) their pages are unmapped and fault again.
    """
    return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class HostMemory:
    """One page-aligned allocation, in huge pages where the kernel has them, every page touched."""

    def __init__(self, size: int, what: str) -> None:
        self.size = max(size, PAGE)
        if self.size > 0.9 * available_bytes():
            raise OutOfMemoryError(
                errno.ENOMEM,
                f"{what}: {self.size / 2**30:.2f} GiB of host memory are needed,"
                f" {available_bytes() / 2**30:.2f} GiB are free: lower capacity.gpu_tokens or capacity.host_tokens",
            )
        try:
            self._map = anonymous(self.size)
        except OSError as error:
            code = error.errno or errno.ENOMEM
            raise OutOfMemoryError(code, f"{self.size} bytes for the {what} were refused") from None
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self.array: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)
        self.array[::PAGE] = 0
        self.address = int(self.array.ctypes.data)

    def view(self, offset: int, size: int) -> NDArray[Any]:
        """A part of it as bytes."""
        return self.array[offset : offset + size]

    def close(self) -> None:
        """Give it back; views of it must be gone."""
        self.array = np.empty(0, np.uint8)
        try:
            self._map.close()
        except BufferError:  # a view is still alive; the memory goes with it
            return
