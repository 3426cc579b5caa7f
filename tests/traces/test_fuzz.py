"""A small share of the fuzz; the whole of it is `python -m tests.traces.fuzz --examples 100000`."""

from collections import Counter
from pathlib import Path

import pytest

from tests.traces import fuzz
from traces.options import ReadOptions


def test_mutated_traces_are_read_or_refused(tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    fuzz.property_of(tmp_path / "trace", counts, 400, 1)()
    assert min(counts["result"], counts["error"]) > 60


def test_the_fuzz_notices_a_reader_that_fails_or_miscounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = next(content for content in fuzz.seeds() if content.count(b"\n") > 1 and b"input_length" in content)
    assert fuzz.check(tmp_path / "t", seed, None, ReadOptions()) == "result"
    true = fuzz.read
    monkeypatch.setattr(fuzz, "read", lambda *a, **k: true(*a, **k).head(1))
    with pytest.raises(AssertionError):
        fuzz.check(tmp_path / "t", seed, None, ReadOptions())
    monkeypatch.setattr(fuzz, "read", lambda *_, **__: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        fuzz.check(tmp_path / "t", seed, None, ReadOptions())
