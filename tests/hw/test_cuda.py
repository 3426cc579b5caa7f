"""The order in which the CUDA device issues work, on a runtime that does whatever streams and events allow, at random.

No GPU: rows are numpy arrays, streams are queues, and nothing runs before it has to; then any stream whose next piece of
work is not waiting may go first. A wait that is missing shows as wrong bytes, as it would on a GPU, only more often.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hw.cuda import CudaDevice
from hw.device import OFFLOAD, open_device
from hw.disk import aligned
from hw.errors import OutOfMemoryError, PinnedMemoryError
from hw.mover import Mover
from hw.ordering import COPIES_AFTER_KERNELS, KERNELS_AFTER_COPIES, READ_AFTER_WRITE, RULES, WRITE_AFTER_READ
from hw.program import fill, first_wrong
from hw.stamps import Stamps, WrongBytesError
from tests.hw.conftest import small_layout
from tests.hw.test_ordering import PLANTED, filled, gather, random_steps, rows, verify


class Event:
    at_s: float | None = None


class LazyRuntime:
    """See the module's text. `fail`: a pool that is refused."""

    name = "stand-in"
    strategies: tuple[str, ...] = ("memcpy", "batch")
    strategy = "batch"

    def __init__(self, seed: int = 0, fail: type[Exception] | None = None) -> None:
        self.facts: dict[str, Any] = {}
        self.random = random.Random(seed)
        self.streams: list[deque[tuple[Event | None, Callable[[], None]]]] = []
        self.clock_s, self.closed, self.fail = 0.0, False, fail
        self.files: list[int] = []

    def gpu_pool(self, rows: int, stride: int) -> Any:
        return np.zeros((rows, stride), np.uint8)

    def host_pool(self, rows: int, stride: int) -> Any:
        if self.fail is not None:
            raise self.fail(12, "refused")
        return aligned(rows * stride).reshape(rows, stride)

    def stream(self) -> Any:
        self.streams.append(deque())
        return self.streams[-1]

    def event(self) -> Any:
        return Event()

    def record(self, event: Any, stream: Any) -> None:
        stream.append((None, lambda: setattr(event, "at_s", self.clock_s)))

    def wait(self, stream: Any, event: Any) -> None:
        stream.append((event, lambda: None))

    def seconds(self, first: Any, last: Any) -> float:
        return float(last.at_s - first.at_s)

    def copy(self, moves: list[tuple[Any, Any]], stream: Any) -> None:
        for target, source in self.random.sample(moves, len(moves)):  # a batch has no order
            stream.append((None, lambda t=target, s=source: t.__setitem__(slice(None), s)))

    def stamp(self, row: Any, seed: int, stream: Any) -> None:
        stream.append((None, lambda: fill(row.view(np.int64), seed)))

    def compare(self, row: Any, seed: int, stream: Any) -> Callable[[], bool]:
        found: list[bool] = []
        stream.append((None, lambda: found.append(first_wrong(row.view(np.int64), seed) >= 0)))
        return lambda: found[0]

    def compute(self, seconds: float, stream: Any) -> None:
        stream.append((None, lambda: setattr(self, "clock_s", self.clock_s + seconds)))

    def synchronize(self, stream: Any) -> None:
        while stream:
            ready = [s for s in self.streams if s and (s[0][0] is None or s[0][0].at_s is not None)]
            assert ready, "every stream waits"
            _, work = self.random.choice(ready).popleft()
            self.clock_s += 1e-6
            work()

    def bytes_of(self, row: Any) -> NDArray[np.uint8]:
        assert not any(self.streams), "read before the streams had ended"
        out: NDArray[np.uint8] = row
        return out

    def put(self, row: Any, data: NDArray[np.uint8]) -> None:
        row[:] = data[: len(row)]

    def randomize(self, pool: Any, seed: int) -> None:
        fill(pool.reshape(-1).view(np.int64), seed)

    def gpu_file(self, file: Any) -> Any:
        return None

    def close(self) -> None:
        self.closed = True


class FileRuntime(LazyRuntime):
    """Bytes may be read while other streams still work, as files are."""

    def bytes_of(self, row: Any) -> NDArray[np.uint8]:
        out: NDArray[np.uint8] = row
        return out


@pytest.fixture
def device(tmp_path: Path) -> Iterator[CudaDevice]:
    opened = CudaDevice(small_layout(), tmp_path, runtime=FileRuntime())
    yield opened
    opened.close()
    assert list(tmp_path.iterdir()) == []


def test_random_schedules_corrupt_nothing_however_streams_interleave(device: CudaDevice) -> None:
    rng = np.random.default_rng(3)
    mover = filled(device)  # type: ignore[arg-type]
    for _ in range(60):
        gather(mover, random_steps(rng, 4))
        mover.run()
    verify(mover)


@pytest.mark.parametrize("rule", [READ_AFTER_WRITE, WRITE_AFTER_READ, COPIES_AFTER_KERNELS, KERNELS_AFTER_COPIES])
def test_a_missing_wait_shows_within_a_few_interleavings(rule: str, tmp_path: Path) -> None:
    wrong = 0
    for seed in range(30):
        with closing(CudaDevice(small_layout(), tmp_path, runtime=FileRuntime(seed))) as device:
            mover = filled(device, RULES - {rule})  # type: ignore[arg-type]
            gather(mover, PLANTED[rule])
            try:
                mover.run()
                verify(mover)
            except (WrongBytesError, AssertionError):
                wrong += 1
    assert wrong > 3


def test_copies_between_waits_are_one_batch_and_share_its_time(tmp_path: Path) -> None:
    with closing(CudaDevice(small_layout(), tmp_path, runtime=FileRuntime())) as device:
        mover = Mover(device, Stamps(device.layout), check=False)
        mover.kernels([(0, slot, slot) for slot in range(6)])
        mover.copies(rows(*[(0, slot, slot) for slot in range(6)]))
        program, ran = mover.run()[OFFLOAD]
        moves = ran.spent_s[program[:, 0] == 0]
        assert len(moves) == 12  # six blocks, values and scales
        assert moves[0] == pytest.approx(8 * moves[1])  # 4096 and 512 bytes
        assert moves.sum() == pytest.approx(13e-6)  # twelve copies and the event behind them
        assert device.report.bytes_by_path == {"gpu to host: batch": 6 * (4096 + 512)}


def test_copies_that_depend_on_each_other_are_never_in_one_batch(tmp_path: Path) -> None:
    """Host slot 0 is overwritten twice by one stream, and read by the other in between: in a batch the order would be lost."""
    for seed in range(20):
        with closing(CudaDevice(small_layout(), tmp_path, runtime=FileRuntime(seed))) as device:
            mover = filled(device)  # type: ignore[arg-type]
            mover.kernels([(0, slot, slot) for slot in range(6)])
            mover.copies(rows((0, 0, 0), (0, 1, 0), (0, 2, 1), (0, 3, 0)))
            mover.copies(rows((1, 0, 9), (4, 9, 10), (4, 10, 11)))  # onboard, then copies of what it brought
            mover.run()
            verify(mover)


def test_pinned_memory_refused_leaves_nothing_open(tmp_path: Path) -> None:
    runtime = LazyRuntime(fail=PinnedMemoryError)
    with pytest.raises(PinnedMemoryError):
        CudaDevice(small_layout(), tmp_path, runtime=runtime)
    assert runtime.closed
    assert list(tmp_path.iterdir()) == []


def test_no_gpu_memory_leaves_nothing_open(tmp_path: Path) -> None:
    runtime = LazyRuntime(fail=OutOfMemoryError)
    with pytest.raises(OutOfMemoryError):
        CudaDevice(small_layout(), tmp_path, runtime=runtime)
    assert runtime.closed


def test_a_failed_launch_names_the_device_and_what_may_be_lost(device: CudaDevice) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    mover = Mover(device, Stamps(device.layout), check=False)
    mover.kernels([(0, 0, 1)])
    mover.run()
    device.runtime.copy = broken  # type: ignore[method-assign]
    mover.copies(rows((0, 0, 0)))
    with pytest.raises(OSError, match=r"illegal memory access.*lost: contents of the pools"):
        mover.run()
    del device.runtime.copy
    mover.kernels([(0, 0, 2)])
    mover.copies(rows((0, 0, 0)))
    mover.run()
    assert device.first_wrong(0, 0, mover.stamps.seed(0), 4096) == -1


def test_without_torch_or_gpu_the_answer_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"needs torch: pip install kvtier\[hw\]|finds no GPU; use --device cpu"):
        open_device("cuda:0", small_layout())
