"""What a sweep has kept survives whatever ends it, and nothing half-written is ever taken for a row."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.complaints import SpecError
from experiments.store import is_open, store_in
from reports.rows import joined, opened, rows_by_key, sealed

ROOT = Path(__file__).parents[2]
ROWS: list[dict[str, Any]] = [{"key": "a", "error": None, "hits": 1}, {"key": "b", "error": None, "note": 'ü " } , {'}]


def keep(directory: Path, rows: list[dict[str, Any]]) -> Path:
    with store_in(directory) as store:
        for row in rows:
            store.append(row)
    return directory / "rows.jsonl"


def test_rows_come_back_as_they_were_and_each_line_is_json(tmp_path: Path) -> None:
    path = keep(tmp_path, ROWS)
    assert list(rows_by_key(path).values()) == ROWS
    assert [json.loads(line)["key"] for line in path.read_text(encoding="utf-8").splitlines()] == ["a", "b"]


def test_file_cut_anywhere_in_its_last_line_has_the_rows_before_and_takes_the_next(tmp_path: Path) -> None:
    path = keep(tmp_path, ROWS)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        path.write_bytes(whole[:end])
        assert list(rows_by_key(path)) == ["a"]
        keep(tmp_path, [ROWS[1]])
        assert path.read_bytes() == whole


def test_line_with_any_byte_changed_is_no_row() -> None:
    line = sealed(ROWS[1])
    assert opened(line) == ROWS[1]
    assert all(opened(line[:i] + bytes([line[i] ^ 1]) + line[i + 1 :]) is None for i in range(len(line)))


def test_damaged_line_in_the_middle_costs_its_own_row_only(tmp_path: Path) -> None:
    path = keep(tmp_path, ROWS)
    path.write_bytes(path.read_bytes().replace(b'"hits": 1', b'"hits": 2'))
    assert list(rows_by_key(path)) == ["b"]
    keep(tmp_path, [ROWS[0]])
    assert rows_by_key(path) == {"b": ROWS[1], "a": ROWS[0]}


def test_the_last_row_of_a_key_counts(tmp_path: Path) -> None:
    path = keep(tmp_path, [{"key": "a", "error": "no room"}, ROWS[0]])
    assert rows_by_key(path) == {"a": ROWS[0]}


def test_one_run_may_stand_for_several_settings_and_a_missing_one_leaves_no_row() -> None:
    plan = [{"run": i, "key": key, "settings": {"threshold": t}} for i, (key, t) in enumerate(["a0", "a9", "c9"])]
    figures = {"a": {"key": "a", "error": None, "threshold": "of the run", "hits": 1}}
    assert joined(iter(plan), figures) == [
        {"run": 0, "threshold": "0", "error": None, "hits": 1},
        {"run": 1, "threshold": "9", "error": None, "hits": 1},
    ]


def test_second_writer_is_refused_while_the_first_is_there(tmp_path: Path) -> None:
    with store_in(tmp_path):
        assert is_open(tmp_path)
        with pytest.raises(SpecError, match="another sweep is writing there"), store_in(tmp_path):
            pass
    assert not is_open(tmp_path)
    assert not is_open(tmp_path / "nothing")


def test_thirty_kills_at_random_moments_lose_no_finished_run(tmp_path: Path) -> None:
    """`killed.py` starts a sweep of 24 runs and kills it with its workers, 30 times; then it lets it end."""
    script = ROOT / "tests" / "experiments" / "killed.py"
    result = subprocess.run(
        [sys.executable, str(script), str(tmp_path), "30"], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert result.returncode == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["kills"] == 30
    assert told["rows"] == told["uninterrupted"]
    assert len(told["rows"]) == 24
    assert told["lost"] == 0, "a finished run was made again"
    assert told["amid"] >= 5, "too few kills fell between two runs to say anything"
