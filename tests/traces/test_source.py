"""Packing, encodings, line ends, pipes and JSON layouts: the same rows, or one line that says what the file is."""

import gzip
import io
import json
import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from traces import json_items, source
from traces.errors import TraceError
from traces.options import ReadOptions
from traces.read import opened, read

ROWS = [{"timestamp": i, "input_length": 512, "output_length": i + 1, "hash_ids": [i]} for i in range(5)]
LINES = "".join(f"{json.dumps(row)}\n" for row in ROWS)


def outputs(path: Path | str, **options: object) -> list[int]:
    return read(path, options=ReadOptions(**options)).output_tokens.tolist()  # type: ignore[arg-type]


def written(tmp_path: Path, content: bytes | str) -> Path:
    path = tmp_path / "trace"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def zstd(text: str) -> bytes:
    return bytes(pa.Codec("zstd").compress(text.encode(), asbytes=True))


@pytest.mark.parametrize(
    "content",
    [
        LINES,
        LINES.replace("\n", "\r\n"),
        LINES.replace("\n", "\r"),
        LINES.replace("\n", "\n\n  \n"),
        LINES.strip(),
        json.dumps(ROWS),
        json.dumps(ROWS, indent=2),
        "".join(json.dumps(row, indent=1) for row in ROWS),
        b"\xef\xbb\xbf" + LINES.encode(),
        gzip.compress(b"\xef\xbb\xbf" + LINES.encode()),
        b"".join(gzip.compress(line.encode()) for line in LINES.splitlines(keepends=True)),
        gzip.compress(LINES.encode()) + b"\0" * 512,
        zstd(LINES),
        b"".join(zstd(line) for line in LINES.splitlines(keepends=True)),
    ],
    ids=["lines", "crlf", "cr", "blank-lines", "no-last-newline", "array", "pretty-array", "pretty-objects", "bom",
         "bom-gzip", "gzip-members", "padded-gzip", "zstd", "zstd-frames"],
)  # fmt: skip
def test_the_same_rows_however_they_are_laid_out_and_packed(tmp_path: Path, content: bytes | str) -> None:
    assert outputs(written(tmp_path, content)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LINES.encode("utf-16"), "UTF-16 text; save it as UTF-8"),
        (b"PK\x03\x04 and so on", "a zip archive"),
        (b"BZh91AY", "packed with bzip2"),
        (LINES.encode()[:-3] + b"\xff\xfe\n", "5: not UTF-8 text"),
        (gzip.compress(LINES.encode() * 99)[:-20], "the file is damaged"),
        (zstd(LINES * 99)[:-20], "the file is damaged"),
        (gzip.compress(LINES.encode()) + b"rubbish", "the file is damaged"),
        (LINES[:-2] + ",}\n", "5: not JSON"),
        (json.dumps(ROWS)[:-1], "item 6: there is no comma or closing bracket"),
        (json.dumps(ROWS)[:-1] + ",]", "item 6: not JSON"),
        (json.dumps(ROWS)[:-1] + "]]", "item 6: there is more text after the array"),
        (json.dumps(ROWS).replace("}, {", "} {", 1), "item 2: there is no comma"),
        (json.dumps(ROWS)[:-20], "item 5: not JSON"),
        ("[[1, 2], [3]]", "item 1: a row must be a JSON object"),
        ('{"timestamp": 0, "timestamp": 1, "input_length": 5, "output_length": 1}', "timestamp stands there twice"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_one_line(tmp_path: Path, content: bytes | str, message: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(TraceError) as caught:
        read(path)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_long_array_on_one_line_comes_item_by_item(tmp_path: Path) -> None:
    many = [row | {"timestamp": i} for i in range(20_000) for row in ROWS[:1]]
    path = written(tmp_path, json.dumps(many))
    assert sum(len(piece) for piece in opened(path).pieces) == 20_000


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_items_do_not_depend_on_where_the_chunks_end(size: int) -> None:
    text = ' [1, 23 ,-4.5e2, "a\\u00e9\\"b", {"k": [true, null]}, [] ]\n'
    chunks = (text[i : i + size] for i in range(0, len(text), size))
    assert list(json_items.items(chunks, 1000)) == json.loads(text)


def test_a_line_that_grows_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "LONGEST_BYTES", 1 << 20)
    with pytest.raises(TraceError, match="a line of more than 1 MiB"):
        read(written(tmp_path, gzip.compress(b"0" * 5_000_000)))
    with pytest.raises(TraceError, match="1"):
        read(written(tmp_path, gzip.compress(b'["' + b"0" * 5_000_000)))


def test_standard_input_and_pipes_are_read_like_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(LINES.encode())), encoding="utf-8"))
    assert outputs("-") == [1, 2, 3, 4, 5]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=[LINES])
    writer.start()
    assert outputs(pipe) == [1, 2, 3, 4, 5]
    writer.join()


@pytest.mark.parametrize(("name", "message"), [("/dev/null", "it is a device"), ("a\0b", "null")])
def test_what_is_no_file_is_refused(name: str, message: str) -> None:
    with pytest.raises(TraceError, match=f"cannot be read: .*{message}|no such file"):
        read(name)


def test_a_file_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, LINES)

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(TraceError, match="cannot be read: Permission denied"):
        read(path)
