"""What can go wrong when bytes really move: one family of exceptions, each with errno, path, offset and what was lost.

It prevents nothing. All of them are OSErrors, so a command ends with one line. `classify` turns what libraries throw
(errno, or kvikio's texts without one) into the family.
"""

import errno as codes
import os


class HardwareError(OSError):
    """A real device, memory or file refused. `lost` says what the fault took with it; blocks keep their accounting."""

    def __init__(self, code: int, what: str, path: str = "", offset: int = -1, lost: str = "nothing") -> None:
        at = f" at byte {offset}" if offset >= 0 else ""
        super().__init__(code, f"{what}{at} ({os.strerror(code)}; lost: {lost})", path or None)
        self.path, self.offset, self.lost = path, offset, lost

    def __str__(self) -> str:
        return f"{self.path}: {self.strerror}" if self.path else str(self.strerror)


class StorageFullError(HardwareError):
    """No space left, a quota, or the file size limit."""


class StorageReadOnlyError(HardwareError):
    """The storage directory or the slot file may not be written."""


class SlotFileGoneError(HardwareError):
    """The slot file is not there, or another file has taken its place."""


class SlotFileShortError(HardwareError):
    """The slot file ends before the slot does."""


class StorageFaultError(HardwareError):
    """The device answered with an I/O error."""


class PinnedMemoryError(HardwareError):
    """Host memory could not be page-locked."""


class OutOfMemoryError(HardwareError):
    """GPU or host memory for the pools is not there."""


class PeerLostError(HardwareError):
    """The process at the other end of a transfer has gone."""


class StreamStoppedError(HardwareError):
    """Work behind a failed copy was not done."""


KINDS: dict[int, type[HardwareError]] = {
    codes.ENOSPC: StorageFullError,
    codes.EDQUOT: StorageFullError,
    codes.EFBIG: StorageFullError,
    codes.EACCES: StorageReadOnlyError,
    codes.EPERM: StorageReadOnlyError,
    codes.EROFS: StorageReadOnlyError,
    codes.ENOENT: SlotFileGoneError,
    codes.ESTALE: SlotFileGoneError,
    codes.ENODATA: SlotFileShortError,
    codes.ENOMEM: OutOfMemoryError,
    codes.EPIPE: PeerLostError,
    codes.ECONNRESET: PeerLostError,
}

TEXTS = {
    "no space left": codes.ENOSPC,
    "file too large": codes.EFBIG,
    "no such file": codes.ENOENT,
    "read-only file system": codes.EROFS,
    "permission denied": codes.EACCES,
    "operation not permitted": codes.EBADF,
    "bad file descriptor": codes.EBADF,
    "eof": codes.ENODATA,
    "out of memory": codes.ENOMEM,
    "cudaerrormemoryallocation": codes.ENOMEM,
}


def classify(error: BaseException, what: str, path: str = "", offset: int = -1, lost: str = "nothing") -> HardwareError:
    """`error` as a member of the family; an error without errno is known by its text, else counts as an I/O error."""
    if isinstance(error, HardwareError):
        return error
    code = getattr(error, "errno", None)
    if code is None:
        text = str(error).lower()
        code = next((number for words, number in TEXTS.items() if words in text), None)
    if code is None:
        code, what = codes.EIO, f"{what}: {' '.join(str(error).split())[:300]}"
    return KINDS.get(code, StorageFaultError)(code, what, path, offset, lost)
