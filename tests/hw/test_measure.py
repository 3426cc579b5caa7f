"""What is measured is what happened: gathered copies arrive, kernels really run beside copies, a cold file is cold."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from hw.cpu import CpuDevice
from hw.device import COMPUTE, OFFLOAD
from hw.load import Load
from hw.measure import Cell, Copies, Files, copy_layout, steady
from hw.mover import Mover
from hw.program import BYTES, COPY, OP, independent
from hw.stamps import Stamps
from tests.hw.conftest import small_layout
from tests.hw.test_ordering import filled, gather, random_steps, verify

SIZE = 4096


@pytest.fixture
def copies() -> Iterator[Copies]:
    with closing(CpuDevice(copy_layout(SIZE, 64 * SIZE))) as device:
        yield Copies(device, seed=1)


def test_gathered_copies_arrive_in_random_schedules_as_plain_ones_do(tmp_path: Path) -> None:
    with closing(CpuDevice(small_layout(), tmp_path)) as device:
        device.strategy = "gather"
        mover, rng = filled(device), np.random.default_rng(5)
        for _ in range(60):
            gather(mover, random_steps(rng, 4))
            mover.run()
        verify(mover)
        assert any(path.endswith("gathered, memcpy") for path in device.report.bytes_by_path)


def test_more_than_the_buffer_holds_is_gathered_in_turns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hw.cpu_stream.STAGING", 3 * SIZE)
    with closing(CpuDevice(small_layout(), tmp_path)) as device:
        device.strategy = "gather"
        mover = Mover(device, Stamps(device.layout), check=True)
        mover.kernels([(0, slot, slot) for slot in range(10)])
        mover.copies(np.array([(0, 0, slot, (slot * 7) % 12, 0, 1) for slot in range(10)], np.int32))
        ran = mover.run()
        program, times = ran[OFFLOAD]
        moved = program[:, OP] == COPY
        spent = times.spent_s[moved]
        assert spent[0] / spent[1] == pytest.approx(8, rel=0.01)  # 4096 and 512 bytes: a row's time is its share


def row(source: tuple[int, int], target: tuple[int, int], op: int = COPY) -> list[int]:
    return [op, *source, *target, 8, 0, 0]


@pytest.mark.parametrize(
    ("rows", "end"),
    [
        ([row((0, 0), (1, 0)), row((0, 1), (1, 1)), row((0, 0), (1, 2))], 3),  # reading twice is no conflict
        ([row((0, 0), (1, 0)), row((0, 1), (1, 0))], 1),  # written twice
        ([row((0, 0), (1, 0)), row((1, 0), (0, 5))], 1),  # read after write
        ([row((0, 0), (1, 0)), row((1, 7), (0, 0))], 1),  # write after read
        ([row((0, 0), (1, 0)), row((0, 1), (1, 1), op=1)], 1),  # no copy
    ],
)
def test_a_run_of_copies_ends_before_one_that_depends_on_it(rows: list[list[int]], end: int) -> None:
    assert independent(np.array(rows, np.int64), 0) == end


def test_the_host_side_of_gathered_cells_lies_side_by_side(copies: Copies) -> None:
    copies.device.strategy = "gather"
    program = copies._program("d2h", Cell("d2h", SIZE, 8, "gather"))
    assert (np.diff(program[:, 4]) == 1).all()
    assert not (np.diff(program[:, 2]) == 1).all()


def test_every_mode_of_copying_gives_samples_and_leaves_the_strategy_as_it_was(copies: Copies) -> None:
    for cell in (
        Cell("d2h", SIZE, 8, "alone"),
        Cell("h2d", SIZE, 8, "gather"),
        Cell("stamp", SIZE, 8, "alone"),
    ):
        samples = list(copies.measure(cell, 4, 2))
        assert [one.repeat for one in samples] == [0, 1]
        assert all(one.blocks == 32 and one.seconds > 0 for one in samples)
    assert copies.device.strategy == "rows"


@pytest.mark.parametrize(
    ("spent", "size", "seconds"),
    [
        ([9.0] * 7 + [130.0], [1] * 8, 72.0),  # one of eight was held up
        ([9.0] * 5 + [130.0] * 3 + [11.0] * 8, [1] * 16, 160.0),  # medians 9 and 11
        ([10.0, 130.0, 9.0, 9.0], [1] * 4, 158.0),  # a short batch counts in full
        ([9.0] * 8 + [11.0] * 8 + [130.0] * 4, [1] * 20, 200.0),  # four left over count as the median of the groups, 10
        ([9.0] * 6 + [130.0, 18.0], [1] * 6 + [2, 2], 90.0),  # the pace is 9 a byte, of ten bytes
    ],
)
def test_a_copy_that_was_held_up_does_not_change_its_batch(spent: list[float], size: list[int], seconds: float) -> None:
    assert steady(np.array(spent), np.array(size)) == pytest.approx(seconds)


def test_pools_are_private_memory() -> None:
    """Pages of a shared mapping (`s` in the list of mappings) are 4 KiB large and may be unmapped where they are cold."""
    with closing(CpuDevice(copy_layout(SIZE, 64 * SIZE))) as device:
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
            if first <= device.memory.address < last:
                assert line.split()[1] == "rw-p"
                return
    pytest.fail("the pools lie in no mapping")


def test_copies_beside_kernels_are_counted_only_while_kernels_run() -> None:
    with closing(CpuDevice(copy_layout(1 << 18, 64 << 18))) as device:
        copies, seen = Copies(device, seed=1), []
        run = device.run

        def watched(programs):  # type: ignore[no-untyped-def]
            ran = run(programs)
            seen.append((programs, ran))
            return ran

        device.run = watched  # type: ignore[method-assign]
        for _ in range(10):
            counted = copies._batch(["d2h", "stamp"], Cell("d2h", 1 << 18, 16, "busy"))
            programs, ran = seen[-1]
            stamps = ran[COMPUTE].times_s[programs[COMPUTE][:, BYTES] > 0]
            moves = ran[OFFLOAD].times_s[programs[OFFLOAD][:, OP] == COPY]
            inside = (moves[:, 0] >= stamps[0, 0]) & (moves[:, 1] <= stamps[-1, 1])
            assert len(counted) == inside.sum()
            # and they write blocks that no copy reads
            slots = programs[COMPUTE][programs[COMPUTE][:, BYTES] > 0, 2]
            assert not set(slots.tolist()) & set(programs[OFFLOAD][programs[OFFLOAD][:, OP] == COPY, 2].tolist())


def in_cache(files: Files, slot: int) -> bool:
    """Whether reading the slot would not wait for the disk."""
    fd = os.open(files.file.path, os.O_RDONLY)
    try:
        return os.preadv(fd, [bytearray(SIZE)], slot * SIZE, os.RWF_NOWAIT) == SIZE
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


def test_a_cold_file_is_not_in_the_page_cache_and_a_cached_one_is(tmp_path: Path) -> None:
    with closing(Files(tmp_path, SIZE, 16 * SIZE, direct=False, seed=1)) as files:
        try:
            warm = in_cache(files, 3)
        except OSError as error:
            pytest.skip(f"this file system cannot say what is cached: {error}")
        assert warm
        files.forget()
        if in_cache(files, 3):
            pytest.skip("this file system keeps its pages whatever it is told")
        assert len(list(files.measure(Cell("read", SIZE, 2, "cached"), 16, 2))) == 2
        assert in_cache(files, 3)
        assert len(list(files.measure(Cell("write", SIZE, 4, "buffered"), 16, 2))) == 2


def test_what_others_take_is_a_share_of_all_processors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """1,000 ticks pass: 700 idle or waiting, 300 busy, 20 of them stolen by the hypervisor; this process ran for 2 s = 200."""
    stat, own = tmp_path / "stat", [5.0]
    stat.write_text("cpu  1000 0 0 5000 100 0 0 0 0 0\ncpu0 ...\n")
    monkeypatch.setattr("hw.load.STAT", stat)
    monkeypatch.setattr("hw.load._own", lambda: own[0])
    monkeypatch.setattr("hw.load.os.sysconf", lambda _: 100)
    load = Load()
    stat.write_text("cpu  1200 0 80 5650 150 0 0 20 0 0\n")
    own[0] = 7.0
    assert load.taken() == pytest.approx(0.1)
    monkeypatch.setattr("hw.load.STAT", tmp_path / "nowhere")
    assert not Load().taken()
