"""Small pools on the cpu device."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hw.cpu import CpuDevice
from hw.memory import Layout
from kvcache.tables import Pool

BLOCKS = 12
SIZES = ((4096, 512), (8192,))  # window 0 has values and scales


def small_layout(disk: int = BLOCKS) -> Layout:
    return Layout((Pool(1024, (BLOCKS, BLOCKS, disk)), Pool(256, (BLOCKS, BLOCKS, disk), sliding=True)), SIZES, 16)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[CpuDevice]:
    opened = CpuDevice(small_layout(), tmp_path)
    yield opened
    opened.close()
    assert list(tmp_path.iterdir()) == []
