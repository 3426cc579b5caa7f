"""Inputs that go wrong in tools of this kind: each is read as a person would, or refused in one line that says why."""

import gzip
import json
from pathlib import Path

import pytest

from traces.errors import TraceError
from traces.options import ReadOptions
from traces.read import opened, read
from traces.stream import joined

GOOD = {"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [0, 1]}
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def row(**changes: object) -> str:
    return json.dumps(GOOD | changes)


def raw(old: str, new: str) -> str:
    return row().replace(old, new)


def waits(**changes: object) -> str:
    return json.dumps({
        "request_id": "b",
        "delay": 3,
        "input_length": 512,
        "output_length": 1,
        "hash_ids": [1],
        **changes,
    })


CHAT = row(chat_id=1, parent_chat_id=-1, hash_ids=list(range(38)))
OTHER_374 = "\N{FULLWIDTH DIGIT THREE}\N{FULLWIDTH DIGIT SEVEN}\N{FULLWIDTH DIGIT FOUR}"
READ = {
    "lines end in three ways": (f"{row()}\r\n{row()}\n{row()}\r{row()}", [600] * 4),
    "a length as 6e2": (raw("600", "6e2"), [600]),
    "an id of 4,000 digits": (raw("[0, 1]", f"[0, {'9' * 4000}]"), [600]),
    "a negative id": (row(hash_ids=[-5, 1]), [600]),
    "an id twice in a row": (row(hash_ids=[7, 7]), [600]),
    "files put together, each with its byte order mark": (f"\ufeff{row()}\n\ufeff{row()}\n", [600, 600]),
    "objects without a line end between them": (row() + row(), [600, 600]),
    "a header in small letters": (AZURE.lower() + "2023-11-16 18:17:03.97,48,10\n", [48]),
    "columns that nobody asked for": ("id," + VIDUR + "x,0.0,374,44\n", [374]),
    "spaces around cells": (VIDUR.replace(",", ", ") + " 0.0, 374, 44\n", [374]),
    "quoted cells": (VIDUR + '"0.0","374","44"\n', [374]),
    "a comma at the end of all lines": (VIDUR.replace("s\n", "s,\n") + "0.0,374,44,\n", [374]),
    "a time of 2**63": (row(timestamp=2**63), [600]),
    "the largest lengths": (row(input_length=2**31 - 1, output_length=2**31 - 1, hash_ids=[]), [2**31 - 1]),
    "ids that are null": (row(hash_ids=None), [600]),
    "a request that waits for itself": (waits(wait_for=["b"]), [512]),
    "a parent that is not there": (waits(wait_for=["zz"]), [512]),
    "a session name of 100,000 letters": (row(session_id="x" * 100_000), [600]),
    "two rows of one chat_id": (f"{CHAT}\n{CHAT}", [600, 600]),
}  # fmt: skip

REFUSED = {
    "NaN as a length": (raw("600", "NaN"), "1: input_length is nan; it must be a number"),
    "infinity as a time": (raw('"timestamp": 0', '"timestamp": Infinity'), "1: timestamp is inf; it must be a number"),
    "a negative length": (row(input_length=-1), "1: input_length is -1"),
    "1e400": (raw("600", "1e400"), "1: input_length is inf"),
    "a number of 5,000 digits": (raw("600", "9" * 5000), "1: not a trace: line 1 is not JSON"),
    "a number of 5,000 digits in an array": (
        f"[{raw('600', '9' * 5000)}]",
        "item 1: a number of more than 4,300 digits",
    ),
    "a time of 1e300": (row(timestamp=1e300), "1: timestamp is 1e+300"),
    "lists inside ids": (row(hash_ids=[[0], [1]]), "1: hash_ids holds [0]; an id must be a whole number or text"),
    "ids as one text": (row(hash_ids="0,1"), "1: hash_ids is '0,1'; it must be a list"),
    "thousands apart in JSON": (row(input_length="1,100"), "1: input_length is '1,100'; it must be a number"),
    "thousands apart in CSV": (AZURE + '2023-11-16 18:17:03.97,"4,808",10\n', "2: ContextTokens is '4,808'"),
    "underscores in numbers": (VIDUR + "0,3_74,44\n", "2: num_prefill_tokens is '3_74'"),
    "digits of another script": (VIDUR + f"0,{OTHER_374},44\n", f"2: num_prefill_tokens is '{OTHER_374}'"),
    "cells apart by semicolons": (AZURE.replace(",", ";"), "cells of a CSV trace must be separated by commas"),
    "cells apart by tabs": (VIDUR.replace(",", "\t"), "cells of a CSV trace must be separated by commas"),
    "a line end inside quotes": (VIDUR + '0,"37\n4",44\n', "2: 2 columns, the header has 3"),
    "a comma too many in one line": (VIDUR + "0.0,374,44,\n", "2: 4 columns, the header has 3"),
    "a column twice": (
        VIDUR.replace("\n", ",num_decode_tokens\n") + "0,3,4,5\n",
        "1: the column num_decode_tokens stands",
    ),
    "the header again": (VIDUR + "0,3,4\n" + VIDUR, "3: arrived_at is 'arrived_at'"),
    "an empty cell": (VIDUR + ",374,44\n", "2: timestamp is missing"),
    "numbers and dates as times": (
        f"{row()}\n{row(timestamp='2024-05-09T22:00:01Z')}",
        "2: the time is a date, those before",
    ),
    "a zone of 25 hours": (row(timestamp="2024-05-10T00:00:00+25:00"), "1: '2024-05-10T00:00:00+25:00' is not a date"),
    "the 30th of February": (row(timestamp="2024-02-30T00:00:00Z"), "1: '2024-02-30T00:00:00Z' is not a date"),
    "a comment": (f"# made by hand\n{row()}", "1: not a trace: line 1 is not JSON"),
    "single quotes": (row().replace('"', "'"), "1: not a trace: line 1 is not JSON"),
    "a comma before the bracket": (row()[:-1] + ",}", "1: not a trace: line 1 is not JSON"),
    "a zero byte": (f"{row()}\n\0\n", "2: not JSON"),
    "only blank lines": ("\n\n   \n", "no requests in"),
    "rows of null": ("null\nnull\n", "1: a row must be a JSON object, this is None"),
    "rows inside an object": (json.dumps({"rows": [GOOD]}), "no known format has the fields 'rows'"),
    "a web page": ("<!DOCTYPE html><html>", "1: not a trace: line 1 is not JSON"),
    "a negative delay": (waits(delay=-3, wait_for=["x"]), "1: delay is -3"),
    "half a letter as a name": (raw("{", '{"session_id": "\\ud800", '), "1: session_id is '\\ud800'"),
    "true as a length": (row(input_length=True), "1: input_length is True"),
    "a number list": ("1,2,3\n4,5,6\n", "no known format has the fields '1, 2, 3'"),
}


def written(tmp_path: Path, content: str | bytes) -> Path:
    path = tmp_path / "trace"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


@pytest.mark.parametrize("name", READ)
def test_odd_but_clear_input_is_read(tmp_path: Path, name: str) -> None:
    content, prompts = READ[name]
    assert read(written(tmp_path, content)).prompt_tokens.tolist() == prompts
    assert joined(opened(written(tmp_path, content))).prompt_tokens.tolist() == prompts


@pytest.mark.parametrize("name", REFUSED)
def test_input_that_cannot_be_meant_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    content, message = REFUSED[name]
    for way in (read, opened):
        with pytest.raises(TraceError) as caught:
            joined(found) if not hasattr(found := way(written(tmp_path, content)), "units") else None
        assert message in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(gzip.compress(row().encode(), mtime=0), mtime=0), "not UTF-8 text"),
        (gzip.compress(b"", mtime=0), "no requests in"),
        (b"\x1f\x8b", "the file is damaged"),
        (b"\x28\xb5\x2f\xfd\0\0 rubbish", "the file is damaged"),
        (b"PAR1 rubbish PAR1", "damaged Parquet file"),
        ('{"session_id": "café"}'.encode("cp1252"), "1: not UTF-8 text"),
    ],
)
def test_packed_or_encoded_rubbish_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read(written(tmp_path, content))


def test_dates_with_zones_are_one_clock(tmp_path: Path) -> None:
    rows = (row(timestamp=t) for t in ("2024-05-10T00:00:00+02:00", "2024-05-09T22:00:01Z", "2024-05-09 22:00:01.5"))
    assert read(written(tmp_path, "\n".join(rows))).arrival_s.tolist() == [0, 1, 1.5]


def test_a_session_whose_times_decrease_is_sorted_and_noted(tmp_path: Path) -> None:
    workload = read(written(tmp_path, f"{row(session_id='a', timestamp=9)}\n{row(session_id='a', timestamp=3)}"))
    assert workload.arrival_s.tolist() == [0, 0.006]
    assert any("1 of 2 rows were out of time order" in note for note in workload.notes)


def test_skipped_lines_are_counted_with_the_first_one(tmp_path: Path) -> None:
    content = "\n".join([row(), "rubbish", row(input_length=0), row()])
    workload = read(written(tmp_path, content), options=ReadOptions(skip_bad_lines=True))
    assert len(workload) == 2
    assert any("2 lines skipped, the first:" in note and ":2: not JSON" in note for note in workload.notes)


@pytest.mark.parametrize(
    "format", ["sharegpt", "text-log", "aibrix", "llmservingsim-sessions", "trtllm-kv-events", "tair"]
)
@pytest.mark.parametrize("value", [1.5, "x", {"a": 1}, [1], [[]], [{"x": []}]])
def test_a_format_named_wrongly_is_one_line_or_a_workload(tmp_path: Path, format: str, value: object) -> None:
    fields = dict.fromkeys(("conversations", "messages", "requests", "sub_requests", "data", "keys", "input"), value)
    path = written(tmp_path, json.dumps(GOOD | {"event_id": 0, "query_type": "prefix_match", "input_len": 5} | fields))
    line = "read"
    try:
        read(path, format=format, options=ReadOptions(default_output=1))
    except TraceError as error:
        line = str(error)
    assert len(line.splitlines()) == 1


def test_repeated_names_are_doubts(tmp_path: Path) -> None:
    stream = opened(written(tmp_path, READ["two rows of one chat_id"][0]))
    joined(stream)
    assert "this chat_id stood in a row before" in stream.doubts
    stream = opened(written(tmp_path, f"{waits(timestamp=0)}\n{waits(wait_for=['b'])}"))
    joined(stream)
    assert "this request_id stood in a row before" in stream.doubts
