"""Opens one trace file and hands out its lines or JSON rows, each with its place.

It knows gzip (by the first two bytes, never by the name), the UTF-8 byte order mark and JSON arrays. It does not know
what a row means.
"""

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from traces.errors import Place, TraceError, shown

GZIP_MAGIC = b"\x1f\x8b"
PARQUET_MAGIC = b"PAR1"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Source:
    """A trace file: where it lies and what the user calls it."""

    path: Path
    name: str
    sample: str = ""
    """Its name among the bundled samples; empty for a user's file."""

    def error(self, what: str) -> TraceError:
        """The error to raise for a fault of the file as a whole."""
        return TraceError(f"{self.name}: {what}")

    def magic(self) -> bytes:
        """The first four bytes as they lie on disk."""
        try:
            with self.path.open("rb") as file:
                return file.read(4)
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror}") from None

    def lines(self) -> Iterator[tuple[Place, str]]:
        """Every line that is not blank, decoded, without its line end."""
        number = 0
        try:
            with self._open() as file:
                for number, raw in enumerate(file, start=1):
                    text = self._decoded(raw, number)
                    if text:
                        yield Place(self.name, number), text
        except (OSError, EOFError, zlib.error) as error:
            raise self.error(f"cannot be read beyond line {number}: {error}; the file is damaged") from None

    def rows(self) -> Iterator[tuple[Place, Any]]:
        """Every JSON value of the file: one a line, or the items of one array, or one object over many lines.

        A line that is not JSON comes out as the `TraceError` to raise, so that a caller may also skip it.
        """
        lines = self.lines()
        first = next(lines, None)
        if first is None:
            return
        value = parsed(*first)
        if isinstance(value, TraceError) and first[1][0] in "[{":
            value = self._whole(value)
        if isinstance(value, list):
            yield from ((Place(self.name, number, is_item=True), item) for number, item in enumerate(value, start=1))
            return
        yield first[0], value
        for place, text in lines:
            yield place, parsed(place, text)

    def _open(self) -> BinaryIO:
        if self.magic()[:2] == GZIP_MAGIC:
            return io.BufferedReader(gzip.open(self.path, "rb"))
        return self.path.open("rb")

    def _decoded(self, raw: bytes, number: int) -> str:
        if number == 1:
            raw = raw.removeprefix(BYTE_ORDER_MARK)
        try:
            return raw.decode("utf-8").strip()
        except UnicodeDecodeError:
            raise Place(self.name, number).error(f"not UTF-8 text: {shown(raw[:40])}") from None

    def _whole(self, otherwise: TraceError) -> Any:
        """The file as one JSON value in a list, or the error of its first line."""
        text = "\n".join(line for _, line in self.lines())
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return otherwise
        return value if isinstance(value, list) else [value]


def parsed(place: Place, text: str) -> Any:
    """The JSON value on a line, or the error that says why there is none."""
    try:
        return json.loads(text)
    except RecursionError:
        return place.error("not a trace row: JSON nested too deeply")
    except ValueError as error:
        reason = f" ({error.msg} at column {error.colno})" if isinstance(error, json.JSONDecodeError) else ""
        start = "not a trace: line 1 is not JSON" if place.line == 1 else "not JSON"
        return place.error(f"{start}{reason}: {shown(text)}; --skip-bad-lines leaves such lines out")
