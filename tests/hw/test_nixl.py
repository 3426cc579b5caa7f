"""The NIXL link with the real library: two processes, UCX, host memory; bytes and notes are checked.

Each test is a process of its own that starts another one; this one never imports the library.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

COMMON = """
import sys, time
import numpy as np
from hw.errors import HardwareError, PeerLostError
from tests.hw.test_link import SHAPES, check_all_shapes, peer
"""


def run(environment: dict[str, str], code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", COMMON + code],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env=environment,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_rows_and_notes_go_over_and_come_back_whole_without_torch(real_libraries: dict[str, str]) -> None:
    said = run(
        real_libraries,
        """
with peer("nixl") as link:
    check_all_shapes(link)
    wide = np.arange(64 * 8192, dtype=np.int64).astype(np.uint8).reshape(64, 8192)
    try:
        link._registered(wide[:, ::2])
        raise SystemExit("rows with holes were taken")
    except ValueError as error:
        assert "whole spans" in str(error), error
print("torch" in sys.modules)
""",
    )
    assert said.splitlines()[-1] == "False"


def test_a_peer_that_dies_before_its_answer_is_an_error_and_not_a_hang(real_libraries: dict[str, str]) -> None:
    run(
        real_libraries,
        """
with peer("nixl", die_at=1) as link:
    rows = np.zeros(SHAPES[0], np.uint8)
    link.send(rows, b"a")
    link.receive(rows)
    begun = time.monotonic()
    try:
        link.send(np.zeros(SHAPES[1], np.uint8), b"b")
        link.receive(np.zeros(SHAPES[1], np.uint8))
        raise SystemExit("no error")
    except HardwareError as error:
        assert "the sender's blocks are intact" in str(error), error
    assert time.monotonic() - begun < 30
""",
    )


def test_a_peer_killed_while_it_is_written_to_is_an_error_and_the_bytes_are_still_there(
    real_libraries: dict[str, str],
) -> None:
    """It announces its rows and is gone: the write goes to a process that does not exist any more."""
    run(
        real_libraries,
        """
with peer("nixl", die_at=0, announced=True) as link:
    rows = np.full(SHAPES[0], 7, np.uint8)
    begun = time.monotonic()
    try:
        link.send(rows, b"a")
        raise SystemExit("no error")
    except HardwareError as error:
        assert "the sender's blocks are intact" in str(error), error
    assert time.monotonic() - begun < 30
    assert (rows == 7).all()
""",
    )


def test_the_connectors_store_works_over_nixl_too(real_libraries: dict[str, str]) -> None:
    run(real_libraries, "from tests.hw.test_store import round_trip; round_trip('nixl')")
