"""Small pools on the cpu device, and the real kvikio and NIXL in a directory of their own."""

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hw.cpu import CpuDevice
from hw.memory import Layout
from kvcache.tables import Pool

BLOCKS = 12
SIZES = ((4096, 512), (8192,))  # window 0 has values and scales
WANTED = Path(__file__).parent / "real_libraries.txt"
ROOT = Path(__file__).parents[2]


def small_layout(disk: int = BLOCKS) -> Layout:
    return Layout((Pool(1024, (BLOCKS, BLOCKS, disk)), Pool(256, (BLOCKS, BLOCKS, disk), sliding=True)), SIZES, 16)


@pytest.fixture
def device(tmp_path: Path) -> Iterator[CpuDevice]:
    opened = CpuDevice(small_layout(), tmp_path)
    yield opened
    opened.close()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="session")
def real_libraries() -> dict[str, str]:
    """An environment in which child processes find kvikio and NIXL; the first run installs them beside this Python.

    They are not requirements of the project: see real_libraries.txt. Only children import them. No network is a failure,
    not a skip: what runs on GPU nodes would otherwise go untested without anybody noticing.
    """
    if sys.platform != "linux" or platform.machine() not in {"x86_64", "aarch64"}:
        pytest.skip(f"kvikio and NIXL have no wheels for {sys.platform} {platform.machine()}")
    key = hashlib.sha256(WANTED.read_bytes() + sys.version.encode()).hexdigest()[:12]
    there = Path(sys.prefix) / "kvtier-test-libraries" / key
    if not there.exists():
        there.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=there.parent) as made:
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]
            command += ["--disable-pip-version-check", "--target", f"{made}/new", "-r", str(WANTED)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            if done.returncode:
                pytest.fail(f"pip could not install {WANTED.name}: {done.stderr.strip()[-500:]}", pytrace=False)
            Path(f"{made}/new").rename(there)
    cufile = next(there.rglob("libcufile.so.0")).parent  # its loader looks into site-packages only
    return {**os.environ, "PYTHONPATH": f"{there}:{ROOT}", "LD_LIBRARY_PATH": str(cufile), "NIXL_LOG_LEVEL": "ERROR"}
