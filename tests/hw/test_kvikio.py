"""The real kvikio over a stand-in for the CUDA driver: rows in and out of slot files, host and "GPU" buffers, its errors.

Needs a C compiler; the library comes with the fixture `real_libraries`.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "stand_in_cuda.c"

COMMON = """
import ctypes, os, sys
from pathlib import Path
import numpy as np
from hw.disk import SlotFile, aligned
from hw.errors import HardwareError, SlotFileShortError, StorageFullError
from hw.kvikio_disk import KvikioFile, unavailable
from hw.memory import DISK, Rows
from hw.program import fill, first_wrong

assert unavailable() is None, unavailable()
rows = Rows(0, DISK, 0, 16, 65536)
file = SlotFile(Path(sys.argv[1]), rows)
kvikio = KvikioFile(file)

def page(seed):
    made = aligned(rows.stride)
    fill(made.view(np.int64), seed)
    return made

class OnGpu:
    def __init__(self, cuda, size):
        cuda.stand_in_alloc.restype = ctypes.c_void_p
        self.address = cuda.stand_in_alloc(ctypes.c_size_t(size))
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (self.address, False), "strides": None, "version": 3}
        self.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.address))
"""


@pytest.fixture(scope="session")
def stand_in(real_libraries: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where children find kvikio and a libcuda."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc, clang) to build the stand-in for libcuda with")
    directory = tmp_path_factory.mktemp("cuda")
    command = [compiler, "-O1", "-w", "-shared", "-fPIC", "-o", str(directory / "libcuda.so.1"), str(SOURCE)]
    subprocess.run(command, check=True, timeout=60)
    return {
        **real_libraries,
        "LD_LIBRARY_PATH": f"{directory}:{real_libraries['LD_LIBRARY_PATH']}",
        "KVIKIO_COMPAT_MODE": "ON",
    }


def run(stand_in: dict[str, str], directory: Path, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", COMMON + code, str(directory)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=stand_in,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_rows_written_by_kvikio_are_read_back_by_pread_and_the_other_way_round(
    stand_in: dict[str, str], tmp_path: Path
) -> None:
    run(
        stand_in,
        tmp_path,
        """
for slot in (0, 7, 15):
    kvikio.write(slot, page(slot))
    back = aligned(rows.stride)
    file.read(slot, back)
    assert first_wrong(back.view(np.int64), slot) == -1
    file.write(slot, page(100 + slot))
    assert kvikio.read(slot, back) == "kvikio (POSIX)", kvikio.backend()
    assert first_wrong(back.view(np.int64), 100 + slot) == -1
assert kvikio.bytes_by_backend() == {"POSIX": 6 * rows.stride}
kvikio.close(); file.close()
assert list(Path(sys.argv[1]).iterdir()) == []
""",
    )


def test_gpu_rows_go_through_the_bounce_buffer_and_arrive_whole(stand_in: dict[str, str], tmp_path: Path) -> None:
    run(
        stand_in,
        tmp_path,
        """
cuda = ctypes.CDLL("libcuda.so.1")
gpu = OnGpu(cuda, rows.stride)
gpu.bytes[:] = page(5)
kvikio.write(3, gpu)
gpu.bytes[:] = 0
kvikio.read(3, gpu)
assert first_wrong(gpu.bytes.view(np.int64), 5) == -1
assert ctypes.c_long.in_dll(cuda, "stand_in_copies").value >= 2
""",
    )


def test_a_short_file_and_a_full_disk_are_the_same_errors_as_without_kvikio(
    stand_in: dict[str, str], tmp_path: Path
) -> None:
    run(
        stand_in,
        tmp_path,
        """
import resource, signal
os.truncate(file.path, 10 * rows.stride)
try:
    kvikio.read(10, aligned(rows.stride))
    raise SystemExit("no error")
except SlotFileShortError as error:
    assert error.offset == 10 * rows.stride and error.errno and "lost: nothing" in str(error), error
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (rows.stride, resource.RLIM_INFINITY))
try:
    kvikio.write(12, page(1))
    raise SystemExit("no error")
except StorageFullError as error:
    assert "the block that was to be written" in error.lost, error
""",
    )


def test_a_file_that_has_gone_cannot_be_opened(stand_in: dict[str, str], tmp_path: Path) -> None:
    run(
        stand_in,
        tmp_path,
        """
file.path.unlink()
try:
    KvikioFile(file)
    raise SystemExit("no error")
except HardwareError as error:
    assert error.errno == 2, error
""",
    )


def test_the_doctor_says_which_backend_the_bytes_took(stand_in: dict[str, str], tmp_path: Path) -> None:
    said = run(stand_in, tmp_path, "from hw import probe; print(probe.child(probe.KVIKIO, sys.argv[1]))")
    assert "'io': 'works'" in said
    assert "'POSIX': 1048576" in said
