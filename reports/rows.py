"""The lines in which a sweep keeps its runs: one JSON object a line, each with its own checksum.

    DIR/rows.jsonl    every run that ever finished there: {"key": ..., figures, "error": ..., "crc32": "8 hex digits"}
    DIR/specs.jsonl   the runs wanted now, in order: {"run": 0, "key": ..., "settings": {...}, "spec": {...}}

A line cut off by a crash or a full disk fails its checksum and counts as not written. It reads and joins; only
`experiments.store` writes.
"""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]

ROWS, PLAN = "rows.jsonl", "specs.jsonl"
SEAL = len(', "crc32": "00000000"}')


def sealed(row: Row) -> bytes:
    """A row as its line."""
    body = json.dumps(row).encode()[:-1]
    return body + f', "crc32": "{zlib.crc32(body):08x}"}}\n'.encode()


def opened(line: bytes) -> Row | None:
    """The row of a line with its line end; None for one that is not whole."""
    body = line[: -SEAL - 1]
    if line[len(body) :] != f', "crc32": "{zlib.crc32(body):08x}"}}\n'.encode():
        return None
    row: Row = json.loads(body + b"}")
    return row


def rows_by_key(path: Path) -> dict[str, Row]:
    """The last whole line of every run, in the order in which they were first written; no file, no rows."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        return {row["key"]: row for row in filter(None, map(opened, file))}


def plan_of(directory: Path) -> Iterator[Row]:
    """The runs that are wanted, in order."""
    with (directory / PLAN).open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def joined(plan: Iterator[Row], rows: dict[str, Row]) -> list[Row]:
    """One row for each wanted run that has finished: its number, its settings, its figures."""
    lines = []
    for entry in plan:
        row = rows.get(entry["key"])
        if row is not None:
            head = {"run": entry["run"], **entry["settings"], "error": row["error"]}
            lines.append(head | {name: value for name, value in row.items() if name not in {*head, "key", "point"}})
    return lines
