"""Mutated traces: each gives a workload that holds together, or one line of text; never another exception, never a hang.

The seeds are the files in `formats/` and `awkward/` and the first lines of the samples. A mutation changes bytes, lines,
JSON values, fields or the packing. What is read is held against a plain count of the rows and, where rows are Mooncake's,
of their tokens; hits against sets of prefixes; reading in pieces against reading whole.

    python -m tests.traces.fuzz --examples 100000
"""

import argparse
import contextlib
import gzip
import itertools
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from kvcache.request import Requests
from traces.errors import TraceError
from traces.link import linked
from traces.options import ReadOptions
from traces.read import FORMATS, opened, read, samples
from traces.stats import hits
from traces.stream import joined

HERE = Path(__file__).parent
HANG_S = 20
ROW_IS_REQUEST = {"mooncake", "bailian", "tokens", "text-log", "kvcache-simulator", "azure", "burstgpt", "vidur"}
NASTY_NUMBERS = (0, -1, 1, 1.5, -0.0, 1e308, -1e308, 2**31 - 1, 2**31, 2**53 + 1, 2**63, 2**64, 10**30, 1e-9)
NASTY_TEXT = (
    "",
    " ",
    "1",
    "01",
    "1,000",
    "NaN",
    "1e3",
    "é\u0000\n",
    "\ud800",
    "null",
    "2024-05-10T00:00:00+25:00",
    "-",
)
NASTY: tuple[Any, ...] = (
    *NASTY_NUMBERS, *NASTY_TEXT, float("nan"), float("inf"), None, True, False, [], {}, [[]], [None], [1, 1], {"a": []}, ["1", 1]
)  # fmt: skip
NAMES = (
    *("timestamp", "input_length", "output_length", "hash_ids", "all_hash_ids", "session_id", "delay", "block_size"),
    *("chat_id", "parent_chat_id", "request_id", "wait_for", "requests", "data", "event", "messages", "conversations"),
    *(
        "input",
        "output",
        "prompt",
        "keys",
        "sub_requests",
        "hash_id_scope",
        "block_tokens",
        "created_time",
        "type",
        "t",
        "in",
    ),
)


def seeds() -> list[bytes]:
    """What is mutated."""
    folders = (HERE / "formats", HERE / "awkward")
    files = [p.read_bytes() for folder in folders for p in sorted(folder.iterdir()) if p.suffix != ".md"]
    plain = [gzip.decompress(file) if file.startswith(b"\x1f\x8b") else file for file in files]
    lines = (gzip.decompress(path.read_bytes()).splitlines(keepends=True)[:3] for path in samples().values())
    return [*plain, *(b"".join(first) for first in lines if sum(map(len, first)) < 20_000)]


def mutated(content: bytes, random: Random) -> bytes:
    """One to three changes."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        content = random.choice((_bytes, _lines, _lines, _values, _values, _values, _fields, _packed))(content, random)
    return content


def _bytes(content: bytes, random: Random) -> bytes:
    at, end = sorted(random.choices(range(len(content) + 1), k=2))
    end = min(end, at + random.choice((1, 3, 40, 4000)))
    new = random.choice((
        b"",
        random.randbytes(random.randint(1, 4)),
        content[at:end] * 2,
        b"\n",
        b",",
        b'"',
        b"}",
        b"]",
        b"\x00",
    ))
    return content[:at] + new + content[end:]


def _lines(content: bytes, random: Random) -> bytes:
    lines = content.split(b"\n")
    i, j = (random.randrange(len(lines)) for _ in range(2))
    match random.randrange(6):
        case 0:
            lines[i], lines[j] = lines[j], lines[i]
        case 1:
            lines.insert(i, lines[j])
        case 2:
            del lines[i]
        case 3:
            lines.insert(i, random.choice((b"", b"   ", b"{}", b"[]", b"null", b"17", b"#", b"\xff\xfe")))
        case 4:
            return random.choice((b"\r\n", b"\r", b"\n\n")).join(lines)
        case _:
            return random.choice((b"\xef\xbb\xbf", b"[", b" ")) + b"\n".join(lines)
    return b"\n".join(lines)


def _rows(content: bytes) -> list[Any] | None:
    try:
        return [json.loads(line) for line in content.decode().split("\n") if line.strip()]
    except (ValueError, RecursionError):
        return None


def _holders(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (object or list, key) in a JSON value."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(entries):
        yield value, key
        yield from _holders(inner)


def _values(content: bytes, random: Random) -> bytes:
    rows = _rows(content)
    places = list(itertools.islice(_holders(rows), 3000))
    if rows is None or not places:
        cells = content.split(b",")
        cells[random.randrange(len(cells))] = str(random.choice(NASTY)).encode("utf-8", "replace")
        return b",".join(cells)
    holder, key = random.choice(places)
    other, other_key = random.choice(places)
    holder[key] = random.choice((random.choice(NASTY), random.choice(NASTY), other[other_key]))
    with contextlib.suppress(ValueError, RecursionError):  # a row put into itself
        return b"\n".join(json.dumps(row).encode() for row in rows) + b"\n"
    return content


def _fields(content: bytes, random: Random) -> bytes:
    rows = _rows(content)
    objects = [row for row in rows or [] if isinstance(row, dict)]
    if not objects:
        return content.replace(*random.choice(((b",", b";"), (b"Tokens", b"tokens"), (b",", b", "), (b'"', b"'"))))
    row = random.choice(objects)
    if row and random.random() < 0.5:
        row[random.choice(NAMES)] = row.pop(random.choice(list(row)))
    else:
        row[random.choice(NAMES)] = random.choice(NASTY)
    return b"\n".join(json.dumps(one).encode() for one in rows or []) + b"\n"


def _packed(content: bytes, random: Random) -> bytes:
    match random.randrange(5):
        case 0:
            return gzip.compress(content, mtime=0)
        case 1:
            return gzip.compress(content)[: -random.randint(1, 30)]
        case 2:
            half = len(content) // 2
            return gzip.compress(content[:half]) + gzip.compress(content[half:])
        case 3:
            return bytes(pa.Codec("zstd").compress(content, asbytes=True))
        case _:
            return content.decode("utf-8", "replace").encode(random.choice(("utf-16", "utf-8-sig", "utf-7")))


def outcome(path: Path, content: bytes, format: str | None, options: ReadOptions) -> str:
    """`result`, or `error`; anything else that a reader may do raises here."""
    path.write_bytes(content)
    line = ""
    try:
        workload = read(path, format=format, options=options)
    except TraceError as error:
        line = str(error)
    if line:
        assert len(line.splitlines()) == 1
        _same_error(path, format, options)
        return "error"
    _holds_together(workload)
    stream = opened(path, format=format, options=replace(options, link_outputs=False))
    pieces = joined(stream)
    assert pieces.prompt_tokens.tolist() == workload.prompt_tokens.tolist()
    assert pieces.units.tolist() == workload.units.tolist()
    _counted(content, stream.format, workload, options)
    return "result"


def _same_error(path: Path, format: str | None, options: ReadOptions) -> None:
    try:
        joined(opened(path, format=format, options=options))
    except TraceError:
        return
    raise AssertionError("read in pieces what was refused as a whole")


def _holds_together(w: Requests) -> None:
    n = len(w)
    assert n > 0
    assert w.arrival_s[0] == 0
    assert np.isfinite(w.arrival_s).all()
    assert (np.diff(w.arrival_s) >= 0).all()
    assert (w.prompt_tokens > 0).all()
    assert (w.output_tokens >= 0).all()
    assert w.unit_offset[0] == 0
    assert w.unit_offset[-1] == len(w.units)
    n_units = np.diff(w.unit_offset)
    held = (
        (n_units == 0)
        | (n_units == w.prompt_tokens // w.unit_tokens)
        | (n_units == -(-w.prompt_tokens // w.unit_tokens))
    )
    assert held.all()
    if n_units.sum() < 2000:
        seen: set[tuple[int, ...]] = set()
        wanted = []
        for i in range(n):
            prefixes = [tuple(w.prompt_units(i)[: k + 1].tolist()) for k in range(int(n_units[i]))]
            wanted.append(sum(p in seen for p in prefixes))
            seen.update(prefixes)
        assert hits(w).tolist() == wanted


def _counted(content: bytes, format: str, workload: Requests, options: ReadOptions) -> None:
    """As many requests as rows, and as many tokens as they say, where that can be counted by other means."""
    rows = _rows(content)
    if format not in ROW_IS_REQUEST or options.skip_bad_lines or rows is None or b"\r" in content:
        return
    if len(rows) == 1 and isinstance(rows[0], list):
        rows = rows[0]
    assert len(workload) == len(rows), (len(workload), len(rows))
    if format in {"mooncake", "bailian"}:
        lengths = [row.get("input_length", row.get("input_tokens")) for row in rows]
        if None not in lengths:
            assert workload.prompt_tokens.sum(dtype=np.int64) == sum(map(int, lengths))


def check(path: Path, content: bytes, format: str | None, options: ReadOptions) -> str:
    """`outcome`, stopped when it hangs."""

    def hang(*_: object) -> None:
        raise AssertionError(f"still reading after {HANG_S} s of CPU")

    old = signal.signal(signal.SIGPROF, hang)
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    try:
        return outcome(path, content, format, options)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)


def property_of(path: Path, counts: Counter[str], examples: int, number: int) -> Callable[[], None]:
    """The test: so many examples, from this seed."""
    known, formats = seeds(), [*[None] * 60, *FORMATS]
    linked(read("dynamo_pi_request_trace"))  # compiles what is compiled, outside the time limit
    hits(read("dynamo_pi_request_trace"))

    @seed(number)
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.integers(2**40, 2**41))
    def holds(change: int) -> None:
        random = Random(change)
        options = ReadOptions(
            skip_bad_lines=random.random() < 0.5,
            strict=random.random() < 0.06,
            default_output=random.choice((7, 7, None)),
            default_prompt=random.choice((None, None, 5)),
        )
        format = random.choice(formats)
        content = mutated(random.choice(known), random)
        counts[check(path, content, format, options)] += 1

    return holds


def main() -> None:
    """Rounds of 2,000 examples, each from its own seed, until there are as many as asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    given_ = parser.parse_args()
    counts: Counter[str] = Counter()
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        for number in itertools.count(given_.seed):
            left = given_.examples - sum(counts.values())
            if left <= 0:
                break
            property_of(Path(folder) / "trace", counts, min(left, 2000), number)()
            sys.stderr.write(f"\r{sum(counts.values()):,} {dict(counts)}")
    spent = time.process_time() - begun
    sys.stdout.write(
        f"\n{sum(counts.values()):,} mutated traces, {dict(counts)}, {spent:.0f} s of CPU: none went wrong\n"
    )


if __name__ == "__main__":
    main()
