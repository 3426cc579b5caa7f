"""Blocks between two processes over shared memory: all bytes arrive, and a peer that dies is an error, not a hang."""

import multiprocessing
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from hw.errors import PeerLostError
from hw.link import SharedMemoryLink, open_pair
from tests.hw.peer import echo, end

SHAPES = [(1, 4096), (64, 65536), (7, 100), (300, 16384)]


@contextmanager
def peer(kind: str, *, die_at: int = -1, announced: bool = False, size: int = 1 << 21) -> Generator[Any]:
    """A link to another process that sends everything back."""
    context = multiprocessing.get_context("spawn")
    ring, memory, here, there = open_pair(size)
    process = context.Process(target=echo, args=(kind, ring, there, SHAPES, die_at, announced))
    process.start()
    there.close()
    link = end(kind, "here", ring, here)
    try:
        yield link
    finally:
        link.close()
        process.join(20)
        assert not process.is_alive()
        memory.close()
        memory.unlink()


def check_all_shapes(link: Any) -> None:
    rng = np.random.default_rng(0)
    for number, shape in enumerate(SHAPES):
        rows, back = rng.integers(0, 256, shape).astype(np.uint8), np.zeros(shape, np.uint8)
        link.send(rows, b"batch %d" % number)
        assert link.receive(back) == b"back batch %d" % number
        assert (back == rows + np.uint8(1)).all()


def test_rows_go_over_and_come_back_whole_also_more_than_the_ring_holds() -> None:
    with peer("shm") as link:
        check_all_shapes(link)


def test_a_peer_that_dies_in_the_middle_is_an_error_within_a_second() -> None:
    with peer("shm", die_at=1) as link:
        rows = np.zeros(SHAPES[0], np.uint8)
        link.send(rows, b"")
        link.receive(rows)
        link.send(np.zeros(SHAPES[1], np.uint8), b"")
        begun = time.monotonic()
        with pytest.raises(PeerLostError, match=r"has gone.*the sender's blocks are intact"):
            link.receive(np.zeros(SHAPES[1], np.uint8))
        assert time.monotonic() - begun < 5


def test_a_silent_peer_is_an_error_after_the_limit() -> None:
    ring, memory, here, there = open_pair(4096)
    link = SharedMemoryLink(ring, here, limit_s=0.05)
    with pytest.raises(PeerLostError, match=r"silent for 0\.05 s"):
        link.receive(np.zeros((1, 8), np.uint8))
    link.close()
    there.close()
    memory.close()
    memory.unlink()


def test_rows_of_another_shape_are_refused() -> None:
    ring, memory, here, there = open_pair(1 << 16)
    sender, receiver = SharedMemoryLink(ring, here, limit_s=1), SharedMemoryLink(ring, there, limit_s=1)
    here.send((4, 64, True, b""))
    with pytest.raises(ValueError, match="4 rows of 64 bytes come, 3 of 64 were expected"):
        receiver.receive(np.zeros((3, 64), np.uint8))
    with pytest.raises(ValueError, match="does not fit"):
        sender.send(np.zeros((1, 1 << 17), np.uint8), b"")
    sender.close()
    receiver.close()
    memory.close()
    memory.unlink()
