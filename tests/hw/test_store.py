"""The connector with real bytes: blocks go to a store in another process and come back whole, beside the worker's own work."""

import multiprocessing
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from hw.cpu import CpuDevice
from hw.errors import PeerLostError
from hw.link import open_pair
from hw.memory import GPU
from hw.mover import Mover
from hw.stamps import Stamps
from hw.store import StoreConnector
from kvcache.connector import ConnectorScheduler, ConnectorWorker
from tests.hw.conftest import small_layout
from tests.hw.peer import end, store

ROW = 4096 + 512  # values and scales of window 0
TPB = 16


@contextmanager
def connected(
    kind: str = "shm", *, most: int = 100, die_after: int = -1
) -> Generator[tuple[Any, Stamps, StoreConnector]]:
    """A device whose GPU slots 0 to 7 hold key nodes 100 to 107, and a store for it."""
    context = multiprocessing.get_context("spawn")
    ring, memory, here, there = open_pair(4 * ROW)  # more blocks than fit at once go in turns
    process = context.Process(target=store, args=(kind, ring, there, ROW, most, die_after))
    process.start()
    there.close()
    with closing(CpuDevice(small_layout(disk=0))) as device:
        stamps = Stamps(device.layout)
        mover = Mover(device, stamps, check=True)
        mover.kernels([(0, slot, 100 + slot) for slot in range(8)])
        mover.run()
        connector = StoreConnector(device, end(kind, "worker", ring, here))
        try:
            yield device, stamps, connector
        finally:
            connector.close()
            process.join(20)
            assert not process.is_alive()
            memory.close()
            memory.unlink()


def until(connector: StoreConnector, done: Callable[[list[int], list[int]], bool]) -> None:
    saved: list[int] = []
    loaded: list[int] = []
    begun = time.monotonic()
    while not done(saved, loaded):
        assert time.monotonic() - begun < 20
        more = connector.get_finished()
        saved += more[0]
        loaded += more[1]
        time.sleep(0.001)


def holds(device: Any, stamps: Stamps, slot: int, node: int) -> bool:
    """Whether a GPU slot has the bytes that were computed as `node`, values and scales."""
    seed = stamps.seed(device.layout.place(0, GPU, node - 100))
    parts = device.layout.parts[0, GPU]
    return all(device.first_wrong(pool, slot, seed, device.layout.rows[pool].size) == -1 for pool in parts)


def round_trip(kind: str) -> None:
    with connected(kind) as (device, stamps, connector):
        scheduler: ConnectorScheduler = connector
        worker: ConnectorWorker = connector
        assert scheduler.get_num_new_matched_tokens([100, 101, 102], 0) == (0, True)
        worker.start_save(7, [100, 101, 102, 103, 104, 105], [0, 1, 2, 3, 4, 5])
        until(connector, lambda saved, _: saved == [7])
        # four of these six are there; one block of 16 tokens is computed already
        assert scheduler.get_num_new_matched_tokens([102, 103, 104, 105, 106, 107], TPB) == (3 * TPB, True)
        worker.start_load(8, [105, 103], [8, 9])
        worker.start_load(9, [100], [10])
        until(connector, lambda _, loaded: loaded == [8, 9])
        assert holds(device, stamps, 8, 105)
        assert holds(device, stamps, 9, 103)
        assert holds(device, stamps, 10, 100)
        assert not holds(device, stamps, 10, 101)


def test_blocks_are_saved_found_and_loaded_into_other_slots() -> None:
    round_trip("shm")


def test_the_oldest_blocks_leave_a_full_store() -> None:
    with connected(most=3) as (_, _, connector):
        connector.start_save(1, [100, 101, 102], [0, 1, 2])
        connector.start_save(2, [103], [3])
        until(connector, lambda saved, _: saved == [1, 2])
        assert connector.get_num_new_matched_tokens([100], 0)[0] == 0
        assert connector.get_num_new_matched_tokens([101, 102, 103], 0)[0] == 3 * TPB


def test_nothing_to_move_is_finished_at_once_and_a_block_without_a_slot_is_refused() -> None:
    with connected() as (_, _, connector):
        connector.start_load(4, [], [])
        assert connector.get_finished() == ([], [4])
        with pytest.raises(ValueError, match="request 5: 2 blocks for 1 slots"):
            connector.start_save(5, [100, 101], [0])


def test_a_store_that_is_killed_in_the_middle_of_a_transfer_is_an_error_and_the_workers_blocks_are_intact() -> None:
    """It dies when it has heard words and nodes and the blocks are on their way."""
    with connected(die_after=2) as (device, stamps, connector):
        connector.start_save(7, list(range(100, 108)), list(range(8)))
        begun = time.monotonic()
        with pytest.raises(PeerLostError, match=r"has gone.*the sender's blocks are intact"):
            until(connector, lambda saved, _: saved == [7])
        assert time.monotonic() - begun < 10
        assert connector.get_finished() == ([], [])
        with pytest.raises(PeerLostError):
            connector.get_num_new_matched_tokens([100], 0)
        assert all(holds(device, stamps, slot, 100 + slot) for slot in range(8))
