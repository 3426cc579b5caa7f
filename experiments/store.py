"""Keeps the rows of finished runs in one file that only grows, and lets one sweep at a time write to it.

A row is one `write` at the file's end and on the disk before the next run is counted as done. What a kill or a full disk leaves
half-written fails its checksum (`reports.rows`) and is cut away when the file is opened again: a crash costs at most
the runs that had not finished. It does not know what a row means.
"""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from experiments.complaints import SpecError
from reports.rows import ROWS, Row, rows_by_key, sealed


class Store:
    """The rows of one directory by key. Open it with `store_in`."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._descriptor = descriptor
        self.rows = rows_by_key(path)

    def append(self, row: Row) -> None:
        """Keep a row (with its "key"); the last one of a key counts."""
        line = sealed(row)
        if os.write(self._descriptor, line) != len(line):
            raise OSError(f"{ROWS}: the disk took only part of a row; make room and start the sweep again")
        os.fsync(self._descriptor)
        self.rows[row["key"]] = row


@contextmanager
def store_in(directory: Path) -> Generator[Store, None, None]:
    """The store of a directory, which is made if need be; while it is open nobody else may open it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / ROWS
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SpecError(f"{directory}: another sweep is writing there; wait for it or give another --out") from None
        _cut_broken_end(path, descriptor)
        yield Store(path, descriptor)
    finally:
        os.close(descriptor)


def is_open(directory: Path) -> bool:
    """Whether a sweep is writing there now."""
    path = directory / ROWS
    if not path.exists():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        return False


def _cut_broken_end(path: Path, descriptor: int) -> None:
    """Take away a last line that is not whole, so that the next one starts on a line of its own."""
    end = 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                end += len(line)
    os.ftruncate(descriptor, end)
