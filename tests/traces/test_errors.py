"""Whatever stands in a file, reading it gives a workload or one line of text, never another exception."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traces.errors import TraceError
from traces.options import ReadOptions
from traces.read import FORMATS, read

GOOD = {"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [0, 1]}
ANY_FILE = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
field_names = st.sampled_from([
    "timestamp",
    "created_time",
    "delay",
    "input_length",
    "output_length",
    "hash_ids",
    "all_hash_ids",
    "block_size",
    "session_id",
    "tenant",
    "chat_id",
    "parent_chat_id",
    "input_token_ids",
    "output_token_ids",
    "requests",
    "event",
    "hash_id_scope",
    "wait_for",
])


def outcome(path: Path, **settings_: object) -> str:
    """The line with which the file was refused, or that it was not."""
    line = "read without complaint"
    try:
        read(path, **settings_)  # type: ignore[arg-type]
    except TraceError as error:
        line = str(error)
    assert len(line.splitlines()) == 1
    return line


@ANY_FILE
@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    outcome(path)
    path.write_bytes(gzip.compress(content)[:-3])
    outcome(path)


@ANY_FILE
@given(
    changes=st.lists(st.dictionaries(field_names, json_values, max_size=4), min_size=1, max_size=3),
    format=st.none() | st.sampled_from(sorted(FORMATS)),
    skip=st.booleans(),
)
def test_any_field_values_are_read_or_refused_in_one_line(
    tmp_path: Path, changes: list[dict[str, object]], format: str | None, skip: bool
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps(GOOD | change) for change in changes))
    outcome(path, format=format, options=ReadOptions(skip_bad_lines=skip))


@ANY_FILE
@given(cells=st.lists(st.lists(st.text(max_size=12), min_size=3, max_size=3), max_size=3))
def test_any_csv_cells_are_read_or_refused_in_one_line(tmp_path: Path, cells: list[list[str]]) -> None:
    path = tmp_path / "trace.csv"
    for header in ("TIMESTAMP,ContextTokens,GeneratedTokens", "arrived_at,num_prefill_tokens,num_decode_tokens"):
        path.write_text("\n".join([header, *(",".join(row) for row in cells)]), encoding="utf-8", errors="replace")
        outcome(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output_length": None}, "output_length is null; give a length for such requests with --default-output N"),
        ({"output_length": -1}, "output_length is -1; it must be a number from 0"),
        ({"input_length": -5}, "input_length is -5; it must be a number from 0"),
        ({"input_length": 0}, "input_length is 0; it must be a whole number from 1 to 2147483647"),
        ({"input_length": 2**31}, "input_length is 2147483648; it must be a whole number from 1 to 2147483647"),
        ({"input_length": 1.5}, "input_length is 1.5; it must be a whole number"),
        ({"input_length": True}, "input_length is True; it must be a number"),
        ({"input_length": "600"}, "input_length is '600'; it must be a number"),
        ({"input_length": None}, "input_length is missing"),
        ({"timestamp": -3}, "timestamp is -3; it must be a number from 0"),
        ({"timestamp": float("nan")}, "timestamp is nan; it must be a number"),
        ({"timestamp": None}, "timestamp is missing, and there is no delay"),
        ({"hash_ids": 7}, "hash_ids is 7; it must be a list"),
        ({"hash_ids": [1.0, 2]}, "hash_ids holds 1.0; an id must be a whole number or text"),
        ({"hash_ids": [1, None]}, "hash_ids holds None; an id must be a whole number or text"),
        ({"session_id": [1]}, "session_id is [1]; it must be a number or well-formed text"),
        ({"block_size": 0}, "block_size is 0; it must be a whole number from 1"),
    ],
)
def test_a_wrong_field_is_named_with_its_value_and_line(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n\n{json.dumps(GOOD | change)}\n")
    assert outcome(path).startswith(f"{path}:3: {message}")
    skipping = read(path, options=ReadOptions(skip_bad_lines=True))
    assert len(skipping) == 1
    assert "1 lines skipped" in skipping.notes[0]


def test_a_missing_file_lists_the_samples() -> None:
    with pytest.raises(
        TraceError, match=r"nowhere.jsonl: no such file; the bundled samples are .*mooncake_conversation"
    ):
        read("nowhere.jsonl")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    assert outcome(tmp_path) == f"{tmp_path}: cannot be read: it is a directory; name one trace file in it"


def test_a_path_too_long_for_the_system_is_refused() -> None:
    assert "File name too long" in outcome(Path("x" * 5000))


def test_a_gzip_cut_short_is_refused_with_the_line_it_reached(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(json.dumps(GOOD).encode() * 50)[:-12])
    assert "the file is damaged" in outcome(path)


def test_json_nested_beyond_reason_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("[" * 100_000)
    assert "nested too deeply" in outcome(path)


def test_lines_that_are_json_but_no_objects_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("17\n18\n")
    assert outcome(path).startswith(f"{path}:1: a row must be a JSON object, this is 17")


@pytest.mark.parametrize("option", [{"trace_block_size": 0}, {"time_unit": "minutes"}, {"default_output": -1}])
def test_a_senseless_option_is_refused_when_it_is_made(option: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="it must be"):
        ReadOptions(**option)  # type: ignore[arg-type]
