"""A stream of pieces, joined again, is the workload it was cut from."""

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from kvcache.request import Requests
from traces.errors import TraceError
from traces.options import ReadOptions
from traces.parquet import write_stream
from traces.read import opened, read
from traces.stream import in_pieces, joined


def assert_same(one: Requests, other: Requests) -> None:
    for field in fields(Requests):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if field.name == "labels":
            assert {name: (v.codes.tolist(), v.names) for name, v in a.items()} == {
                name: (v.codes.tolist(), v.names) for name, v in b.items()
            }
        elif isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            assert np.array_equal(a, b, equal_nan=a.dtype == np.float64)
        else:
            assert a == b


@pytest.mark.parametrize("trace", ["llmservingsim_sharegpt300_blk16", "synthetic:multitenant?requests=300"])
@pytest.mark.parametrize("n", [7, 100, 10_000])
def test_pieces_joined_are_the_whole(trace: str, n: int) -> None:
    whole = read(trace)
    assert_same(joined(in_pieces(whole, n)), whole)


def test_an_opened_trace_is_the_trace_read() -> None:
    assert_same(joined(opened("mooncake_arxiv_first1000")), read("mooncake_arxiv_first1000"))


def small_pieces(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    monkeypatch.setattr("traces.collect.PIECE_REQUESTS", n)
    monkeypatch.setattr("traces.order.PIECE_REQUESTS", n)
    monkeypatch.setattr("traces.parquet.PIECE_REQUESTS", n)


@pytest.mark.parametrize(
    "trace", ["llmservingsim_sharegpt300_blk16", "miniswe_hashed_blk16", "dynamo_pi_request_trace"]
)
def test_reading_piece_by_piece_gives_what_reading_whole_gives(trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ReadOptions(link_outputs=False)  # links reach the next piece only
    whole = read(trace, options=options)
    small_pieces(monkeypatch, 37)
    assert_same(joined(opened(trace, options=options)), whole)
    assert max(len(piece) for piece in opened(trace, options=options).pieces) <= 37


def row(ms: int, i: int) -> str:
    return f'{{"timestamp": {ms}, "input_length": 512, "output_length": {i + 1}, "hash_ids": [{i}]}}\n'


def test_rows_a_little_out_of_order_come_out_sorted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(row(ms, i) for i, ms in enumerate([4, 3, 2, 1, 8, 7, 6, 5, 12, 11])))
    small_pieces(monkeypatch, 4)
    stream = opened(path)
    assert joined(stream).arrival_s.tolist() == [0, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.01, 0.011]
    assert any("7 of 10 rows were out of time order" in note for note in stream.notes)


def test_a_row_too_far_out_of_order_is_refused_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(row(ms, i) for i, ms in enumerate([1, 2, 3, 4, 5, 6, 7, 0])))
    small_pieces(monkeypatch, 2)
    with pytest.raises(TraceError, match=r"t.jsonl:8: this row is out of time order by more than 2 rows"):
        joined(opened(path))
    assert read(path).arrival_s.tolist() == [0, 0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007]


def test_sessions_one_after_the_other_are_woven_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.jsonl"
    session = '{"block_size": 64, "requests": [%s]}\n'
    request = '{"t": %d, "in": 64, "out": 1, "hash_ids": [%d]}'
    path.write_text("".join(session % ", ".join(request % (t, t) for t in (k, k + 4, k + 8)) for k in range(3)))
    small_pieces(monkeypatch, 2)
    workload = joined(opened(path))
    assert workload.arrival_s.tolist() == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    assert workload.session.tolist() == [0, 1, 2] * 3
    assert workload.units.tolist() == [0, 3, 6, 1, 4, 7, 2, 5, 8]


def turn(ms: int, session: str, n_ids: int, **more: str) -> str:
    ids = [100 * int(session) + k for k in range(n_ids)]
    row = {"timestamp": ms, "input_length": 512 * n_ids, "output_length": 512, "hash_ids": ids, "session_id": session}
    return json.dumps(row | more) + "\n"


def test_answers_are_linked_to_turns_in_the_next_piece_and_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Pieces of two rows: session 1 goes on in the next piece, session 2 two pieces on.
    path = tmp_path / "t.jsonl"
    rows = [(1, 2), (2, 2), (1, 4), (3, 2), (2, 4), (3, 4)]
    path.write_text("".join(turn(k, str(session), n) for k, (session, n) in enumerate(rows)))
    small_pieces(monkeypatch, 2)
    monkeypatch.setattr("traces.read.PIECE_REQUESTS", 2)
    stream = opened(path)
    found = joined(stream)
    assert found.output_offset is not None
    assert np.diff(found.output_offset).tolist() == [1, 0, 0, 1, 0, 0]
    assert any("2 of 6 answers" in note and "in the 2 requests after it" in note for note in stream.notes)


def test_a_label_or_answers_that_begin_in_a_later_piece_come_back_from_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.jsonl"
    rows = [turn(0, "1", 1), turn(1, "2", 1), turn(2, "3", 1), turn(3, "3", 3, type="b"), turn(4, "4", 1, tenant="x")]
    path.write_text("".join(rows))
    small_pieces(monkeypatch, 1)
    write_stream(opened(path), tmp_path / "t.parquet")
    assert [file.name for file in tmp_path.iterdir() if "before" in file.name] == []
    found = joined(opened(tmp_path / "t.parquet"))
    assert found.output_offset is not None
    assert np.diff(found.output_offset).tolist() == [0, 0, 1, 0, 0]
    assert found.labels["type"].codes.tolist() == [-1, -1, -1, 0, -1]
    assert found.labels["tenant"].names == ("x",)
