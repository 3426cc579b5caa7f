"""Waits between copies: the checker finds each one left out; with all of them no schedule corrupts a byte."""

import numpy as np
import pytest

from hw.cpu import CpuDevice
from hw.device import COMPUTE, OFFLOAD, ONBOARD, STREAMS
from hw.memory import DISK, GPU, HOST
from hw.mover import Mover
from hw.ordering import (
    COPIES_AFTER_KERNELS,
    KERNELS_AFTER_COPIES,
    READ_AFTER_WRITE,
    RULES,
    WRITE_AFTER_READ,
    WRITE_AFTER_WRITE,
    Entry,
    Event,
    races,
)
from hw.stamps import Stamps, WrongBytesError
from kvcache import tables
from tests.hw.conftest import BLOCKS

OFF, ON, WRITE, READ, INSIDE = range(5)  # kinds of copy, as in kvcache.tables


def rows(*copies: tuple[int, int, int]) -> np.ndarray:
    """(kind, source slot, destination slot) in window 0, whole blocks."""
    return np.array([(kind, 0, source, target, 0, 7) for kind, source, target in copies], np.int32)


def filled(device: CpuDevice, rules: frozenset[str] = RULES, *, check: bool = True) -> Mover:
    """A mover over pools whose every place holds a stamp of its own."""
    stamps = Stamps(device.layout)
    for window in range(device.layout.windows):
        for tier in (GPU, HOST, DISK):
            for slot in range(BLOCKS):
                seed = stamps.compute(device.layout.place(window, tier, slot), 1000 * tier + slot)
                for pool in device.layout.parts[window, tier]:
                    device.fill(pool, slot, seed)
    mover = Mover(device, stamps, check=check, rules=rules)
    mover.keep_log = True
    return mover


def verify(mover: Mover) -> None:
    """Every place holds its stamp."""
    layout = mover.device.layout
    for window in range(layout.windows):
        for tier in (GPU, HOST, DISK):
            for slot in range(BLOCKS):
                place = layout.place(window, tier, slot)
                for pool in layout.parts[window, tier]:
                    size = layout.part_bytes(pool, int(mover.stamps.tokens[place]))
                    assert mover.device.first_wrong(pool, slot, mover.stamps.seed(place), size) == -1, layout.name(
                        place
                    )


PLANTED = {
    READ_AFTER_WRITE: [rows((OFF, 0, 0), (ON, 0, 1))],
    WRITE_AFTER_READ: [rows((OFF, 0, 0), (ON, 1, 0))],
    WRITE_AFTER_WRITE: [rows((ON, 0, 0), (READ, 0, 0))],
    COPIES_AFTER_KERNELS: [[(0, 3, 5)], rows((OFF, 3, 0))],
    KERNELS_AFTER_COPIES: [rows((OFF, 3, 0)), [(0, 3, 5)]],
}
"""The smallest run that needs the wait: steps' copies, and what kernels write as (window, slot, key)."""


def gather(mover: Mover, steps: list, delay_ns: int = 0) -> None:
    for step in steps:
        if isinstance(step, list):
            mover.kernels(step)
        else:
            mover.copies(step, delays_ns=[delay_ns] + [0] * (len(step) - 1))


@pytest.mark.parametrize("rule", PLANTED)
def test_checker_finds_the_missing_wait_and_names_both_copies(device: CpuDevice, rule: str) -> None:
    mover = filled(device, RULES - {rule}, check=False)
    gather(mover, PLANTED[rule])
    found = races(mover.log)
    assert {race.place for race in found} == {found[0].place}
    assert found[0].what[0]
    assert found[0].what[1]
    assert "slot" in str(found[0])


@pytest.mark.parametrize("rule", PLANTED)
def test_checker_is_content_with_all_waits(device: CpuDevice, rule: str) -> None:
    mover = filled(device, check=False)
    gather(mover, PLANTED[rule])
    assert races(mover.log) == []
    mover.run()
    verify(mover)


@pytest.mark.parametrize("rule", [WRITE_AFTER_READ, READ_AFTER_WRITE])
def test_a_missing_wait_really_corrupts_and_the_block_is_named(device: CpuDevice, rule: str) -> None:
    """The first copy is 20 ms late, the second does not wait for it."""
    mover = filled(device, RULES - {rule})
    gather(mover, PLANTED[rule], delay_ns=20_000_000)
    with pytest.raises(WrongBytesError, match=r"slot \d+ of window 0 .*should hold key node \d+ version \d+"):
        mover.run()


@pytest.mark.parametrize("rule", [WRITE_AFTER_READ, READ_AFTER_WRITE])
def test_with_the_wait_a_late_copy_corrupts_nothing(device: CpuDevice, rule: str) -> None:
    mover = filled(device)
    gather(mover, PLANTED[rule], delay_ns=20_000_000)
    mover.run()
    verify(mover)


def test_two_offloads_to_one_host_slot_end_with_the_second_one(device: CpuDevice) -> None:
    mover = filled(device)
    gather(mover, [rows((OFF, 0, 5), (OFF, 1, 5))], delay_ns=5_000_000)
    mover.run()
    assert mover.stamps.node[device.layout.place(0, HOST, 5)] == 1
    verify(mover)


def test_onboard_into_a_slot_starts_after_the_offload_from_it_has_ended(device: CpuDevice) -> None:
    """Offload of slot 0 takes 10 ms; its slot is onboarded into at once: it must wait."""
    mover = filled(device, check=False)
    gather(mover, [rows((OFF, 0, 0), (ON, 1, 0))], delay_ns=10_000_000)
    ran = mover.run()
    off = ran[OFFLOAD][1].times_s[ran[OFFLOAD][0][:, 0] == 0]
    on = ran[ONBOARD][1].times_s[ran[ONBOARD][0][:, 0] == 0]
    assert on[0, 0] >= off[-1, 1]


def test_a_store_asked_for_early_starts_after_the_kernels_that_write_the_block(device: CpuDevice) -> None:
    mover = filled(device, check=False)
    mover.kernels([(0, 3, 5)], seconds=0.01)
    mover.copies(rows((OFF, 3, 0)))
    ran = mover.run()
    off = ran[OFFLOAD][1].times_s[ran[OFFLOAD][0][:, 0] == 0]
    assert off[0, 0] >= ran[COMPUTE][1].times_s[-1, 1]
    verify(mover)


def random_steps(rng: np.random.Generator, steps: int) -> list:
    made: list = []
    for _ in range(steps):
        n = int(rng.integers(1, 9))
        copies = np.zeros((n, 6), np.int32)
        copies[:, 0] = rng.choice([OFF, ON, INSIDE, WRITE, READ], n, p=[0.4, 0.3, 0.1, 0.1, 0.1])
        copies[:, 1] = rng.integers(0, 2, n)
        copies[:, 2] = rng.integers(0, 4, n)  # few slots: conflicts in every step
        copies[:, 3] = rng.integers(0, 4, n)
        inside = copies[:, 0] == INSIDE
        copies[inside, 3] = copies[inside, 2] + 4
        copies[inside | (copies[:, 0] == ON), 4] = rng.integers(0, 16, int((inside | (copies[:, 0] == ON)).sum()))
        made.append(copies)
        made.append([(int(rng.integers(0, 2)), int(slot), int(rng.integers(1, 99))) for slot in rng.integers(0, 4, 2)])
    return made


def test_a_thousand_random_schedules_corrupt_nothing(device: CpuDevice) -> None:
    """All steps of a schedule are in flight at once; only the waits between their rows keep them apart."""
    rng, moves, checks = np.random.default_rng(1), 0, 0
    mover = filled(device)
    mover.keep_log = False
    for schedule in range(1000):
        for step in random_steps(rng, 4):
            if isinstance(step, list):
                mover.kernels(step)
            else:
                moves += len(step)
                mover.copies(step, delays_ns=(rng.integers(0, 2, len(step)) * rng.integers(1, 30_000)).tolist())
        mover.run()
        checks += mover.checks
        if schedule % 100 == 0:
            verify(mover)
    verify(mover)
    assert moves > 15_000
    assert checks > moves


def test_the_checker_agrees_on_random_schedules_and_objects_when_any_rule_is_missing(device: CpuDevice) -> None:
    for seed in range(20):
        steps = random_steps(np.random.default_rng(seed), 6)
        mover = filled(device, check=False)
        gather(mover, steps)
        assert races(mover.log) == []
    missed = []
    for rule in sorted(RULES):
        for seed in range(20):
            mover = filled(device, RULES - {rule}, check=False)
            gather(mover, random_steps(np.random.default_rng(seed), 6))
            if races(mover.log):
                break
        else:
            missed.append(rule)
    assert missed == []


def test_streams_that_wait_for_each_other_for_ever_are_reported() -> None:
    log = [[Entry(waits=Event(1, 1))], [Entry(waits=Event(0, 1))]] + [[] for _ in STREAMS[2:]]
    with pytest.raises(ValueError, match="stream 0 at row 1, stream 1 at row 1"):
        races(log)


def test_kinds_are_those_of_the_tables() -> None:
    kinds = (tables.OFFLOAD, tables.ONBOARD, tables.DISK_WRITE, tables.DISK_READ, tables.INTRA_COPY)
    assert kinds == (OFF, ON, WRITE, READ, INSIDE)
