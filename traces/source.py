"""Opens one trace file and hands out its lines or JSON values, each with its place, without holding the file.

It knows gzip and zstd (by their first bytes, never by the name), the UTF-8 byte order mark, JSON arrays and objects over
many lines, standard input and pipes (copied to a temporary file first: a trace is looked at twice). It does not know
what a row means.
"""

import gzip
import io
import json
import shutil
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO

from traces.errors import SKIP, Place, TraceError, shown
from traces.json_items import DECODER, NotJsonError, items

GZIP_MAGIC, ZSTD_MAGIC, PARQUET_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
OTHER_MAGIC = {
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"BZh": "packed with bzip2; unpack it first",
    b"\xfd7zXZ": "packed with xz; unpack it first",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
}
STDIN = "-"
CHUNK = 1 << 20
LONGEST_BYTES = 1 << 28
"""A longer line or item is refused: it is no request, and could come from a few packed bytes."""


@dataclass(frozen=True)
class Source:
    """A trace file: where it lies and what the user calls it."""

    path: Path
    name: str
    sample: str = ""
    """Its name among the bundled samples; empty for a user's file."""
    kept: Any = None
    """The temporary file behind a pipe; it goes away with the Source."""

    def error(self, what: str) -> TraceError:
        """The error to raise for a fault of the file as a whole."""
        return TraceError(f"{self.name}: {what}")

    @cached_property
    def magic(self) -> bytes:
        """The first six bytes as they lie on disk."""
        try:
            with self.path.open("rb") as file:
                return file.read(6)
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror}") from None

    @property
    def is_parquet(self) -> bool:
        return self.magic.startswith(PARQUET_MAGIC)

    def lines(self) -> Iterator[tuple[Place, str]]:
        """Every line that is not blank, decoded, without its line end. A lone carriage return ends a line too."""
        number = 0
        try:
            for number, raw in enumerate(self._raw_lines(), start=1):
                text = self._decoded(raw, number)
                if text:
                    yield Place(self.name, number), text
        except (OSError, EOFError, zlib.error) as error:
            raise self.error(f"cannot be read beyond line {number}: {error}; the file is damaged") from None

    def _raw_lines(self) -> Iterator[bytes]:
        with self._open() as file:
            while raw := file.readline(LONGEST_BYTES):
                if len(raw) == LONGEST_BYTES:
                    raise self.error(f"a line of more than {LONGEST_BYTES >> 20} MiB is no request")
                yield from raw.splitlines()

    def rows(self) -> Iterator[tuple[Place, Any]]:
        """Every JSON value of the file: one a line, or the items of one array, or objects over many lines.

        A line that is not JSON comes out as the `TraceError` to raise, so that a caller may also skip it.
        """
        first = next(self.lines(), None)
        if first is None:
            return
        start = first[1][0]
        if start == "[":
            yield from self._items(None)
        elif start == "{" and isinstance(broken := parsed(*first), TraceError) and self._is_over_many_lines():
            yield from self._items(broken)
        else:
            for place, text in self.lines():
                yield place, parsed(place, text)

    def _items(self, first_line: TraceError | None) -> Iterator[tuple[Place, Any]]:
        n = 0
        try:
            for n, value in enumerate(items(self._chunks(), LONGEST_BYTES), start=1):
                yield Place(self.name, n, is_item=True), value
        except NotJsonError as fault:
            if n == 0 and first_line is not None:
                raise first_line from None
            where = Place(self.name, n + 1, is_item=True)
            raise where.error(f"{fault}; what comes after it cannot be read") from None

    def _is_over_many_lines(self) -> bool:
        try:
            next(items(self._chunks(), LONGEST_BYTES), None)
        except NotJsonError:
            return False
        return True

    def _chunks(self) -> Iterator[str]:
        """The text, decoded, in chunks."""
        try:
            with self._open() as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
                while chunk := text.read(CHUNK):
                    yield chunk
        except UnicodeDecodeError as error:
            raise self.error(f"not UTF-8 text: {shown(error.object[error.start : error.start + 40])}") from None
        except (OSError, EOFError, zlib.error) as error:
            raise self.error(f"cannot be read to its end: {error}; the file is damaged") from None

    def _open(self) -> BinaryIO:
        magic = self.magic
        if magic.startswith(GZIP_MAGIC):
            return io.BufferedReader(gzip.open(self.path, "rb"))
        if magic.startswith(ZSTD_MAGIC):
            import pyarrow as pa

            return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(self.path)), "zstd"), CHUNK)
        for start, what in OTHER_MAGIC.items():
            if magic.startswith(start):
                raise self.error(what)
        return self.path.open("rb")

    def _decoded(self, raw: bytes, number: int) -> str:
        try:
            return raw.removeprefix(BYTE_ORDER_MARK).decode("utf-8").strip()
        except UnicodeDecodeError:
            raise Place(self.name, number).error(f"not UTF-8 text: {shown(raw[:40])}") from None


def parsed(place: Place, text: str) -> Any:
    """The JSON value on a line, or the error that says why there is none."""
    start = "not a trace: line 1 is not JSON" if place.line == 1 else "not JSON"
    try:
        return DECODER.decode(text)
    except RecursionError:
        return place.error("not a trace row: JSON nested too deeply")
    except NotJsonError as fault:
        return place.error(f"{fault}; {SKIP}")
    except ValueError as error:  # also a number of more than 4,300 digits
        reason = f" ({error.msg} at column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        return place.error(f"{start}{reason}: {shown(text)}; {SKIP}")


def located(trace: str | Path, samples: Mapping[str, Path]) -> Source:
    """The file behind a path, the name of a sample, or `-` for standard input."""
    try:
        found = _file(trace)
    except (OSError, ValueError) as error:
        raise TraceError(f"{trace}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if found is not None:
        return found
    if str(trace) in samples:
        return Source(samples[str(trace)], str(trace), sample=str(trace))
    raise TraceError(f"{trace}: no such file; the bundled samples are {', '.join(samples)}")


def _file(trace: str | Path) -> Source | None:
    path = Path(trace)
    if str(trace) == STDIN:
        return _copied(sys.stdin.buffer, "standard input")
    if path.is_fifo():
        with path.open("rb") as pipe:
            return _copied(pipe, str(trace))
    if path.is_dir():
        raise IsADirectoryError(0, "it is a directory; name one trace file in it")
    if path.exists() and not path.is_file():
        raise OSError(0, "it is a device, not a file")
    return Source(path, str(trace)) if path.exists() else None


def _copied(pipe: BinaryIO, name: str) -> Source:
    file = NamedTemporaryFile(prefix="kvtier-")  # ruff: ignore[open-file-with-context-handler] - it lives as long as the Source
    shutil.copyfileobj(pipe, file)
    file.flush()
    return Source(Path(file.name), name, kept=file)
