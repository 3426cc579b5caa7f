"""The NIXL link with the real library: two processes, UCX, host memory; bytes and notes are checked.

Not collected by default: needs nixl-cu13 and torch (tests/hw/README.md).
"""

import time

import numpy as np
import pytest

from hw.errors import HardwareError
from tests.hw.test_link import SHAPES, check_all_shapes, peer


def test_rows_and_notes_go_over_and_come_back_whole() -> None:
    with peer("nixl") as link:
        check_all_shapes(link)


def test_a_peer_that_dies_in_the_middle_is_an_error_and_not_a_hang() -> None:
    with peer("nixl", die_at=1) as link:
        rows = np.zeros(SHAPES[0], np.uint8)
        link.send(rows, b"a")
        link.receive(rows)
        begun = time.monotonic()

        def second() -> None:
            link.send(np.zeros(SHAPES[1], np.uint8), b"b")
            link.receive(np.zeros(SHAPES[1], np.uint8))

        with pytest.raises(HardwareError):
            second()
        assert time.monotonic() - begun < 30
