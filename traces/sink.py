"""Where a written trace goes: a file, whole or not at all, packed as its name says; or standard output.

It does not know formats of rows (`traces.write`, `traces.parquet`).
"""

import gzip
import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from traces.errors import TraceError

PARQUET = ".parquet"
STDOUT = "-"


@contextmanager
def opened_sink(path: Path, name: str) -> Generator[IO[bytes]]:
    """A file to write bytes to, packed as the end of `name` says: .gz, .zst, or not at all."""
    if name.endswith(".gz"):
        with (
            path.open("wb") as raw,
            gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="", compresslevel=6) as file,
        ):
            yield file  # type: ignore[misc]
    elif name.endswith(".zst"):
        try:
            import pyarrow as pa
        except ImportError:
            raise TraceError(f"{name}: .zst needs pyarrow: pip install 'kvtier[parquet]'") from None
        with pa.CompressedOutputStream(str(path), "zstd") as file:
            yield file
    else:
        with path.open("wb") as file:
            yield file


def write_lines(lines: Iterable[str], file: Any) -> None:
    """Lines as UTF-8, many at a time."""
    waiting: list[str] = []
    for line in lines:
        waiting.append(line)
        if len(waiting) == 1024:
            file.write(("\n".join(waiting) + "\n").encode())
            waiting.clear()
    if waiting:
        file.write(("\n".join(waiting) + "\n").encode())


def stdout() -> IO[bytes]:
    """Standard output as bytes."""
    return sys.stdout.buffer
