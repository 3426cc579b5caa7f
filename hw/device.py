"""What a device must be able to do. The worker and the measurements know nothing more of it.

A device owns the pools of a `Layout`, some streams, and nothing else; it decides no order: programs (`hw.program`)
carry their waits. There are two: `hw.cpu` (host memory, a thread a stream, real files) and `hw.cuda`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hw.errors import HardwareError
from hw.memory import Layout
from hw.program import Program

COMPUTE, OFFLOAD, ONBOARD, DISK_OUT, DISK_IN = range(5)
STREAMS = ("compute", "offload", "onboard", "disk write", "disk read")


class Ran(NamedTuple):
    """What became of one stream's program."""

    times_s: NDArray[np.float64]  # [row, 2]: start and end; NaN where the device keeps no time for the row
    spent_s: NDArray[np.float64]  # [row]: what a copy itself took; on the cpu device, while its thread ran
    found: NDArray[np.int64]  # per row: first wrong byte of a CHECK, -1 = none


@dataclass
class Report:
    """Which device and which path each byte took; nothing is hidden here that a figure depends on."""

    device: str
    notes: list[str] = field(default_factory=list)
    bytes_by_path: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def count(self, path: str, size: int) -> None:
        """`size` bytes more on `path`."""
        self.bytes_by_path[path] = self.bytes_by_path.get(path, 0) + size

    def note(self, text: str) -> None:
        """Say `text` once."""
        if text not in self.notes:
            self.notes.append(text)


class Device(Protocol):
    """Pools in real memory, streams, copies."""

    layout: Layout
    report: Report
    strategies: tuple[str, ...]  # ways of making many copies, the first a call a block
    strategy: str  # the one in force; may be set between runs

    def run(self, programs: Mapping[int, Program]) -> dict[int, Ran]:
        """Start the programs of some streams together and wait for all of them. A failure stops every stream."""

    def done(self, stream: int) -> int:
        """Rows that a stream has done in all."""

    def fill(self, pool: int, slot: int, seed: int) -> None:
        """Write the pattern of `seed` into a row of memory or of a file, now."""

    def randomize(self, pool: int, seed: int) -> None:
        """Content that does not compress into every row of a pool in memory, now."""

    def first_wrong(self, pool: int, slot: int, seed: int, size: int) -> int:
        """The first byte of a row that does not follow the pattern of `seed`, -1 if none; now."""

    def bytes_of(self, pool: int, slot: int) -> NDArray[np.uint8]:
        """A row of memory as host bytes: itself, or a copy of GPU memory; now."""

    def put(self, pool: int, slot: int, data: NDArray[np.uint8]) -> None:
        """Host bytes into the beginning of a row of memory, now."""

    def recover(self) -> None:
        """Forget a failure: streams work again. Contents are what they are."""

    def verify(self) -> None:
        """The slot files are those that were made, and whole."""

    def close(self) -> None:
        """Give everything back and leave no files."""


def open_device(name: str, layout: Layout, storage: Path | None = None) -> Device:
    """`cpu`, or `cuda:N`."""
    if name == "cpu":
        from hw.cpu import CpuDevice

        return CpuDevice(layout, storage)
    kind, _, number = name.partition(":")
    if kind == "cuda" and (number or "0").isdigit():
        from hw.cuda import CudaDevice

        return CudaDevice(layout, storage, int(number or 0))
    raise ValueError(f"device {name!r} is not known; write cpu or cuda:0")


__all__ = ["Device", "HardwareError", "Ran", "Report", "open_device"]
