"""What the CUDA device needs of CUDA, as an interface: `hw.cuda_torch` has it, and tests have a stand-in."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hw.disk import SlotFile


class Runtime(Protocol):
    """What is needed of CUDA. Pools, rows, streams and events are the runtime's own objects."""

    name: str
    facts: dict[str, Any]
    strategies: tuple[str, ...]  # ways of copying that work here
    strategy: str  # the one in force

    def gpu_pool(self, rows: int, stride: int) -> Any:
        """GPU memory as [rows, stride] bytes."""

    def host_pool(self, rows: int, stride: int) -> Any:
        """Pinned host memory as [rows, stride] bytes."""

    def stream(self) -> Any:
        """A new stream."""

    def event(self) -> Any:
        """A new event that keeps its time."""

    def record(self, event: Any, stream: Any) -> None:
        """Behind what `stream` was given so far."""

    def wait(self, stream: Any, event: Any) -> None:
        """`stream` goes on after `event`."""

    def seconds(self, first: Any, last: Any) -> float:
        """From one recorded event to another, once both are reached."""

    def copy(self, moves: list[tuple[Any, Any]], stream: Any) -> None:
        """Byte rows (target, source), in any order: none of them touches what another one writes."""

    def stamp(self, row: Any, seed: int, stream: Any) -> None:
        """Write the pattern of `seed`."""

    def compare(self, row: Any, seed: int, stream: Any) -> Callable[[], bool]:
        """Whether a row differs from the pattern; the answer is there once the stream is synchronized."""

    def compute(self, seconds: float, stream: Any) -> None:
        """Kernels that keep the GPU busy about so long."""

    def synchronize(self, stream: Any) -> None:
        """Wait until a stream has done everything; its failure is raised."""

    def bytes_of(self, row: Any) -> NDArray[np.uint8]:
        """A row of either memory as host bytes (a copy, of GPU memory)."""

    def put(self, row: Any, data: NDArray[np.uint8]) -> None:
        """Host bytes into a row, now."""

    def randomize(self, pool: Any, seed: int) -> None:
        """Content that does not compress into a whole pool, now."""

    def gpu_file(self, file: SlotFile) -> Any:
        """A kvikio file for reading straight into GPU rows, or None where that is not possible."""

    def close(self) -> None:
        """Give all memory back."""
