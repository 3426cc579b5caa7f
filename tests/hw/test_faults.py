"""When the disk, the memory or the user stops a run: one clear error, accounting intact, no stray files, no hang."""

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hw import disk as disk_module
from hw.cpu import CpuDevice
from hw.device import DISK_OUT, open_device
from hw.disk import SlotFile, aligned, check_storage
from hw.errors import (
    HardwareError,
    OutOfMemoryError,
    SlotFileGoneError,
    SlotFileShortError,
    StorageFaultError,
    StorageFullError,
    StorageReadOnlyError,
    StreamStoppedError,
    classify,
)
from hw.memory import DISK, Layout, Rows
from hw.mover import Mover
from hw.stamps import Stamps
from kvcache.tables import Pool
from tests.hw.conftest import small_layout

ROWS = Rows(0, DISK, 0, 64, 4096)
OFF, ON, WRITE, READ = range(4)
LIMIT_S = 20


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A test that waits for ever is killed."""
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail(f"hung for {LIMIT_S} s"))
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)


@contextmanager
def file_size_limit(size: int) -> Generator[None]:
    """The kernel refuses to let files grow past `size` bytes, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def copies(*rows: tuple[int, int, int]) -> Any:
    return np.array([(kind, 0, source, target, 0, 7) for kind, source, target in rows], np.int32)


def test_a_full_disk_is_found_when_the_tier_is_made_and_leaves_no_file(tmp_path: Path) -> None:
    with file_size_limit(8192), pytest.raises(StorageFullError) as caught:
        CpuDevice(small_layout(), tmp_path)
    assert caught.value.errno in {errno.EFBIG, errno.ENOSPC}
    assert str(tmp_path) in caught.value.path
    assert list(tmp_path.iterdir()) == []


def test_no_space_in_the_middle_of_a_run_names_file_offset_and_loss(tmp_path: Path) -> None:
    """The file system takes the rest away: slot 5 lies beyond what a file may hold."""
    with closing(SlotFile(tmp_path, ROWS)) as file, file_size_limit(4096 * 4):
        with pytest.raises(StorageFullError) as caught:
            file.write(5, aligned(4096))
        assert caught.value.offset == 5 * 4096
        assert caught.value.lost == "the block that was to be written"
        file.write(3, aligned(4096))


def test_dev_full_says_no_space_left(tmp_path: Path) -> None:
    with closing(SlotFile(tmp_path, ROWS, direct=False)) as file:
        mine, full = file.fileno, os.open("/dev/full", os.O_RDWR)
        saved = os.dup(mine)
        os.dup2(full, mine)
        with pytest.raises(StorageFullError, match="No space left on device"):
            file.write(0, aligned(4096))
        os.dup2(saved, mine)
        os.close(full)
        os.close(saved)


def test_a_file_cut_short_is_an_error_not_a_short_answer(tmp_path: Path) -> None:
    with closing(SlotFile(tmp_path, ROWS)) as file:
        os.truncate(file.path, 10 * 4096)
        file.read(9, aligned(4096))
        with pytest.raises(
            SlotFileShortError, match=r"has 40960 bytes instead of 262144.*lost: the slots from byte 40960"
        ):
            file.read(10, aligned(4096))
        with pytest.raises(SlotFileShortError):
            file.verify()


def test_a_removed_file_is_noticed_by_verify(tmp_path: Path) -> None:
    with closing(CpuDevice(small_layout(), tmp_path)) as device:
        next(tmp_path.iterdir()).unlink()
        with pytest.raises(SlotFileGoneError, match="was removed"):
            device.verify()


def test_another_file_in_its_place_is_noticed(tmp_path: Path) -> None:
    with closing(SlotFile(tmp_path, ROWS)) as file:
        (tmp_path / "other").write_bytes(bytes(ROWS.bytes))
        (tmp_path / "other").replace(file.path)
        with pytest.raises(SlotFileGoneError, match="another file"):
            file.verify()


def test_a_directory_that_cannot_be_written_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Root may write anywhere, so the answer of a read-only file system is played."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "touch", refused)
    with pytest.raises(StorageReadOnlyError, match="Read-only file system") as caught:
        check_storage(tmp_path)
    assert caught.value.path == str(tmp_path)


def test_a_file_where_the_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HardwareError, match="cannot be written"):
        check_storage(tmp_path / "file")


def test_no_directory_for_a_disk_tier_is_a_wrong_setting() -> None:
    with pytest.raises(ValueError, match="--storage"):
        CpuDevice(small_layout())


class Broken(SlotFile):
    """A disk that fails: `fault` is raised at the third write."""

    writes = 0

    def write(self, slot: int, row: Any) -> None:
        type(self).writes += 1
        if type(self).writes == 3:
            raise classify(OSError(errno.EIO, "I/O error"), "writing", str(self.path), slot * self.rows.stride)
        super().write(slot, row)


def test_an_io_error_stops_every_stream_and_the_device_works_on_afterwards(tmp_path: Path) -> None:
    """Onboards wait for a disk write that fails: they stop too, nothing hangs, and later steps are right."""
    Broken.writes = 0
    with closing(CpuDevice(small_layout(), tmp_path, Broken)) as device:
        stamps = Stamps(device.layout)
        mover = Mover(device, stamps, check=True)
        mover.kernels([(0, slot, slot) for slot in range(8)])
        mover.copies(copies(*[(OFF, slot, slot) for slot in range(8)]))
        mover.run()
        mover.copies(copies((WRITE, 0, 0), (WRITE, 1, 1), (ON, 0, 9), (OFF, 2, 0)))
        with pytest.raises(StorageFaultError, match=r"Input/output error.*lost: nothing") as caught:
            mover.run()
        assert caught.value.errno == errno.EIO
        assert caught.value.offset >= 0
        mover.kernels([(0, slot, 50 + slot) for slot in range(4)])
        mover.copies(copies((OFF, 0, 0), (OFF, 1, 1), (WRITE, 0, 4), (READ, 4, 11)))
        mover.run()
        place = device.layout.place(0, 0, 11)
        assert stamps.node[place] == 50
        assert device.first_wrong(0, 11, stamps.seed(place), 4096) == -1
    assert list(tmp_path.iterdir()) == []


def test_after_a_failure_nothing_is_done_before_recover(tmp_path: Path) -> None:
    Broken.writes = 2
    with closing(CpuDevice(small_layout(), tmp_path, Broken)) as device:
        program = np.array([[5, 2, 0, 4, 0, 4096, 0, 0]], np.int64)
        with pytest.raises(HardwareError):
            device.run({DISK_OUT: program})
        with pytest.raises(StreamStoppedError):
            device.run({DISK_OUT: program})
        device.recover()
        device.run({DISK_OUT: program})


def test_without_o_direct_files_are_buffered_and_the_report_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., int] = os.open

    def refused(path: Any, flags: int, *more: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no O_DIRECT")
        return real(path, flags, *more)

    monkeypatch.setattr(disk_module.os, "open", refused)
    with closing(CpuDevice(small_layout(), tmp_path)) as device:
        assert any("files are buffered" in note for note in device.report.notes)
        mover = Mover(device, Stamps(device.layout), check=True)
        mover.kernels([(0, 0, 1)])
        mover.copies(copies((OFF, 0, 0), (WRITE, 0, 0), (READ, 0, 1)))
        mover.run()
        assert device.report.bytes_by_path["disk to gpu: buffered file"] > 0


def test_more_memory_than_there_is_names_need_and_setting() -> None:
    layout = Layout((Pool(1024, (1 << 30, 0)),), ((1 << 20,),), 16)
    with pytest.raises(OutOfMemoryError, match=r"GiB are free: lower capacity.gpu_tokens"):
        CpuDevice(layout)


def test_an_unknown_device_is_a_wrong_setting() -> None:
    with pytest.raises(ValueError, match="cpu or cuda:0"):
        open_device("tpu", small_layout())


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("KvikIO failure: read() EOF", SlotFileShortError),
        ("KvikIO failure: No space left on device", StorageFullError),
        ("KvikIO failure: No such file or directory", SlotFileGoneError),
        ("CUDA error: out of memory", OutOfMemoryError),
        ("cudaErrorMemoryAllocation", OutOfMemoryError),
        ("something else", StorageFaultError),
    ],
)
def test_errors_without_a_number_are_known_by_their_text(text: str, kind: type[HardwareError]) -> None:
    found = classify(RuntimeError(text), "reading", "/x", 4096)
    assert type(found) is kind
    assert found.errno
    assert found.offset == 4096


RUN = """
import signal, sys
from pathlib import Path
from hw.cpu import CpuDevice
from tests.hw.conftest import small_layout
import numpy as np
from hw.program import DELAY
device = CpuDevice(small_layout(), Path(sys.argv[1]))
signal.signal(signal.SIGINT, signal.default_int_handler)  # started in the background, a process inherits "ignore"
try:
    print("ready", flush=True)
    program = np.zeros((1, 8), np.int64)
    program[0, 0], program[0, 5] = DELAY, 500_000_000
    while True:
        device.run({0: program, 1: program})
finally:
    device.close()
"""


def test_ctrl_c_ends_within_a_second_and_leaves_no_file(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert list(tmp_path.iterdir()) != []
            time.sleep(0.2)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=10)
        finally:
            process.kill()
    assert "KeyboardInterrupt" in said
    assert list(tmp_path.iterdir()) == []
