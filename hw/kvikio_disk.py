"""Slot files read by kvikio: straight into GPU memory where GPUDirect Storage is in force, by way of host memory where not.

The same slot files as `hw.disk`, opened a second time. kvikio raises RuntimeErrors without numbers; they are classified. What
it really did (POSIX, GDS, mapped memory) is read from its own statistics, because asking for GDS is not getting it.
"""

import importlib
import importlib.util
from typing import Any

from hw.disk import SlotFile
from hw.errors import classify


def unavailable() -> str | None:
    """Why kvikio cannot be used here; None: it can. Importing it is safe; opening the cuFile driver is not, and not done."""
    if importlib.util.find_spec("kvikio") is None:
        return "kvikio is not installed"
    try:
        importlib.import_module("kvikio.defaults")
    except (ImportError, RuntimeError, OSError) as error:
        return f"kvikio does not load: {error}"
    return None


class KvikioFile:
    """Reads and writes whole rows of one slot file. Buffers: anything with the CUDA array interface, or host bytes."""

    def __init__(self, file: SlotFile, facts: dict[str, Any] | None = None) -> None:
        import kvikio
        from kvikio import defaults

        self._file = file
        self._monitor: Any = None
        defaults.set({"auto_direct_io_read": file.direct, "auto_direct_io_write": file.direct})
        try:
            self._open: Any = kvikio.CuFile(str(file.path), "r+")
        except RuntimeError as error:
            raise classify(error, "kvikio could not open the slot file", str(file.path)) from None
        if hasattr(kvikio, "SummaryMonitor"):
            self._monitor = kvikio.SummaryMonitor()  # counts for the whole process
        if facts is not None:
            facts["kvikio"] = kvikio.__version__
            facts["kvikio_posix_preferred"] = bool(defaults.is_compat_mode_preferred())

    def read(self, slot: int, buffer: Any) -> str:
        """A whole row into `buffer`; returns the path it took."""
        return self._move(slot, buffer, self._open.pread, "reading")

    def write(self, slot: int, buffer: Any) -> str:
        """A whole row from `buffer`; returns the path it took."""
        return self._move(slot, buffer, self._open.pwrite, "writing")

    def _move(self, slot: int, buffer: Any, move: Any, what: str) -> str:
        rows = self._file.rows
        assert 0 <= slot < rows.blocks, f"slot {slot} of {rows.blocks}"
        offset = slot * rows.stride
        try:
            moved = move(buffer, rows.stride, offset).get()
        except RuntimeError as error:
            lost = "nothing" if what == "reading" else "the block that was to be written"
            raise classify(error, f"{what} {rows.name} slot {slot}", str(self._file.path), offset, lost) from None
        assert moved == rows.stride, f"{moved} of {rows.stride} bytes"
        return f"kvikio ({self.backend()})"

    def backend(self) -> str:
        """POSIX, GDS or MMAP, by the bytes kvikio has counted; "not told" by versions that count nothing."""
        if self._monitor is None:
            return "backend not told"
        used = self.bytes_by_backend()
        return " and ".join(sorted(used)) or "backend not told"

    def bytes_by_backend(self) -> dict[str, int]:
        """Bytes by backend so far."""
        if self._monitor is None:
            return {}
        totals = self._monitor.get().by_backend
        return {name: one["bytes_transferred"] for name, one in totals.items() if one["bytes_transferred"]}

    def close(self) -> None:
        """Close; the slot file stays."""
        if self._monitor is not None:
            self._monitor.stop()
            self._monitor = None
        self._open.close()
