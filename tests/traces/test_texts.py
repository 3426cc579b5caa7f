"""Text becomes tokens by a tokenizer the user names, or by bytes; equal beginnings have equal tokens either way."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from traces.errors import TraceError
from traces.options import ReadOptions
from traces.read import read
from traces.stats import hits


def written(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A stand-in for the package: one token a word, numbered by its length."""

    class Tokenizer:
        @staticmethod
        def from_file(path: str) -> "Tokenizer":
            if Path(path).read_text(encoding="utf-8") != "{}":
                raise Exception("expected value\nat line 1")  # ruff: ignore[raise-vanilla-class] - as the package does
            return Tokenizer()

        def encode(self, text: str, add_special_tokens: bool) -> SimpleNamespace:
            assert not add_special_tokens
            return SimpleNamespace(ids=[len(word) for word in text.split()])

    module = ModuleType("tokenizers")
    module.Tokenizer = Tokenizer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tokenizers", module)
    path = tmp_path / "tokenizer.json"
    path.write_text("{}", encoding="utf-8")
    return str(path)


def test_a_named_tokenizer_cuts_text_and_leaves_nothing_to_note(tmp_path: Path, words: str) -> None:
    log = written(tmp_path, {"timestamp": 0, "input": "one three seven", "output": "a bb"})
    workload = read(log, options=ReadOptions(tokenizer=words))
    assert (workload.units.tolist(), workload.output_tokens.tolist()) == ([3, 5, 5], [2])
    assert not any("bytes" in note for note in workload.notes)


def test_faults_of_a_tokenizer_are_one_line(tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = written(tmp_path, {"timestamp": 0, "input": "one", "output": "a"})
    Path(words).write_text("no json", encoding="utf-8")
    with pytest.raises(TraceError, match=r"tokenizer.json: expected value at line 1"):
        read(log, options=ReadOptions(tokenizer=words))
    with pytest.raises(TraceError, match="--tokenizer nowhere: no such file"):
        read(log, options=ReadOptions(tokenizer="nowhere"))
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(TraceError, match=r"pip install 'kvtier\[text\]'"):
        read(log, options=ReadOptions(tokenizer=words))


def test_bytes_a_token_are_stated_in_a_note_and_can_be_chosen(tmp_path: Path) -> None:
    log = written(tmp_path, {"timestamp": 0, "input": "é" * 6, "output": ""})  # 12 bytes
    assert read(log).prompt_tokens.tolist() == [3]
    assert any("4 bytes a token" in note for note in read(log).notes)
    chosen = read(log, options=ReadOptions(bytes_per_token=5))
    assert chosen.prompt_tokens.tolist() == [3]
    assert not any("bytes a token" in note for note in chosen.notes)
    with pytest.raises(TraceError, match=r"--bytes-per-token N overrides .--strict refuses this"):
        read(log, options=ReadOptions(strict=True))


def test_a_longer_chat_begins_with_the_tokens_of_the_shorter_one(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello you"}]
    later = [
        *chat,
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": [{"type": "text", "text": "So"}]},
    ]
    answer = {"choices": [{"message": {"role": "assistant", "content": "Hi!"}}]}
    log = written(
        tmp_path,
        {"created": 1_700_000_000, "body": {"messages": chat}, "response": {"body": answer}},
        {"created": 1_700_000_009, "messages": later, "usage": {}, "completion_tokens": 7},
    )
    workload = read(log)
    # mark 2 tokens, mark 3 tokens, mark: 8. The answer is 1 token; then mark and 1 token, mark: 12 with it.
    assert (workload.prompt_tokens.tolist(), workload.output_tokens.tolist()) == ([8, 12], [1, 7])
    assert hits(workload).tolist() == [0, 8]
    assert workload.arrival_s.tolist() == [0, 9]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"input": "", "output": "x"}, "the prompt is empty"),
        ({"messages": []}, "the prompt is empty"),
        ({"messages": ["a", 1]}, "a message must be a JSON object"),
        ({"messages": [{"content": 5}]}, "content is 5; it must be text, null or a list of parts"),
        ({"messages": [{"content": [{"type": "text"}]}]}, "a part of the content is"),
        ({"messages": [{"content": [{"type": ["text"], "text": "x"}]}]}, "a part of the content is"),
        ({"messages": [{"content": [{"type": "smell"}]}]}, "known are text and image_url"),
        ({"input": "abc"}, "output_length is missing; give a length for such requests with --default-output N"),
        ({"input": "abc", "timestamp": "noon", "output": "x"}, "'noon' is not a date"),
    ],
)
def test_a_row_of_text_that_cannot_be_meant_is_refused(tmp_path: Path, row: object, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read(written(tmp_path, row), format="text-log")


@pytest.mark.parametrize(
    ("first", "second", "gap_s"),
    [
        (1_700_000_000, 1_700_000_002, 2),
        (1_700_000_000_000, 1_700_000_002_000, 2),
        (1_760_587_664_509_217, 1_760_587_666_509_217, 2),
        ("1753780607550317897", "1753780609550317897", 2),
        ("2024-05-10T00:00:00Z", "2024-05-10T02:00:02+02:00", 2),
        ("2024-05-10 00:00:00", "2024-05-10 00:00:00.25", 0.25),
        (0.5, 2.5, 2),
    ],
)
def test_times_of_a_log_are_numbers_of_any_size_or_dates_with_zones(
    tmp_path: Path, first: object, second: object, gap_s: float
) -> None:
    rows = ({"timestamp": time, "input": "a", "output": "b"} for time in (first, second))
    assert read(written(tmp_path, *rows)).arrival_s.tolist() == [0, pytest.approx(gap_s, abs=1e-6)]
