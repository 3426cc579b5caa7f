"""The disk tier: slot files with rows of a fixed stride, read and written past the page cache where possible.

It keeps no table of what is where. Rows and buffers are 4 KiB-aligned, so O_DIRECT works everywhere it exists; where
it does not (tmpfs, some network file systems) files are opened buffered and the report says so. A file belongs to one
process, carries its name, and is gone when the device closes.
"""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.errors import SlotFileGoneError, SlotFileShortError, classify
from hw.memory import PAGE, Rows, anonymous


class SlotFile:
    """One pool of the disk tier. `direct` None: O_DIRECT if possible."""

    def __init__(self, directory: Path, rows: Rows, *, direct: bool | None = None) -> None:
        self.rows = rows
        self.path = directory / f"kvtier-{os.getpid()}-w{rows.window}-p{rows.part}-{id(self):x}.slots"
        self.note = ""
        self._fd = -1
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.ftruncate(self._fd, rows.bytes)
            self._reserve()
            if direct is not False:
                self._go_direct(required=bool(direct))
        except OSError as error:
            self.close()
            what = f"the {rows.name} needs a file of {rows.bytes} bytes"
            raise classify(error, what, str(self.path)) from None
        except BaseException:  # Ctrl-C while space is reserved
            self.close()
            raise
        self.direct = direct is not False and not self.note

    def _reserve(self) -> None:
        """Blocks for the whole file now: a full disk is found here, not in the middle of a run."""
        try:
            os.posix_fallocate(self._fd, 0, self.rows.bytes)
        except OSError as error:
            if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}:
                raise
            self.note = ""

    def _go_direct(self, *, required: bool) -> None:
        """Open the file again with O_DIRECT and try it."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_DIRECT)
        except OSError as error:
            if required:
                raise
            self.note = f"{self.path.parent}: no O_DIRECT here ({os.strerror(error.errno or 0)}); files are buffered"
            return
        trial = anonymous(PAGE)
        try:
            os.preadv(fd, [trial], 0)
        except OSError as error:
            os.close(fd)
            if required:
                raise
            self.note = f"{self.path.parent}: O_DIRECT fails ({os.strerror(error.errno or 0)}); files are buffered"
            return
        os.close(self._fd)
        self._fd = fd

    @property
    def fileno(self) -> int:
        """The open file."""
        return self._fd

    def write(self, slot: int, row: NDArray[np.uint8]) -> None:
        """A whole row, padding included, from 4 KiB-aligned memory."""
        offset, done = slot * self.rows.stride, 0
        self._check_slot(slot, row)
        while done < len(row):
            try:
                done += os.pwritev(self._fd, [row.data[done:]], offset + done)
            except OSError as error:
                raise self._fault(error, f"writing {self.rows.name} slot {slot}", offset + done) from None

    def read(self, slot: int, row: NDArray[np.uint8]) -> None:
        """A whole row into 4 KiB-aligned memory; a file that ends too early is an error, not a short answer."""
        offset, done = slot * self.rows.stride, 0
        self._check_slot(slot, row)
        while done < len(row):
            try:
                got = os.preadv(self._fd, [row.data[done:]], offset + done)
            except OSError as error:
                raise self._fault(error, f"reading {self.rows.name} slot {slot}", offset + done) from None
            if got == 0:
                size = os.fstat(self._fd).st_size
                raise SlotFileShortError(
                    errno.ENODATA,
                    f"reading {self.rows.name} slot {slot}: the file has {size} bytes instead of {self.rows.bytes}",
                    str(self.path),
                    offset + done,
                    lost=f"the slots from byte {size} on",
                )
            done += got

    def _check_slot(self, slot: int, row: NDArray[np.uint8]) -> None:
        assert 0 <= slot < self.rows.blocks, f"slot {slot} of {self.rows.blocks}"
        assert len(row) == self.rows.stride, f"{len(row)} bytes for a row of {self.rows.stride}"

    def _fault(self, error: OSError, what: str, offset: int) -> OSError:
        lost = "nothing" if what.startswith("reading") else "the block that was to be written"
        return classify(error, what, str(self.path), offset, lost)

    def verify(self) -> None:
        """The file is still the one that was made, and whole."""
        try:
            there, mine = self.path.stat(), os.fstat(self._fd)
        except FileNotFoundError:
            raise SlotFileGoneError(
                errno.ENOENT, f"the slot file of the {self.rows.name} was removed", str(self.path), lost="its blocks"
            ) from None
        if (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            raise SlotFileGoneError(errno.ESTALE, "another file has taken the slot file's place", str(self.path))
        if there.st_size < self.rows.bytes:
            raise SlotFileShortError(
                errno.ENODATA, f"the slot file has {there.st_size} bytes instead of {self.rows.bytes}", str(self.path)
            )

    def close(self) -> None:
        """Close and remove."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self.path.unlink(missing_ok=True)


def check_storage(directory: Path | None) -> Path:
    """A directory that slot files can be made in."""
    if directory is None:
        raise ValueError("the disk tier needs a directory for its slot files: give --storage DIR")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / f"kvtier-{os.getpid()}.probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise classify(error, "the storage directory cannot be written", str(directory)) from None
    return directory


def aligned(size: int) -> NDArray[Any]:
    """Page-aligned bytes."""
    return np.frombuffer(anonymous(-(-size // PAGE) * PAGE), np.uint8)[:size]
