"""A user's own policy: found, compiled, run; and one line with file and line for everything that can be wrong with it."""

from pathlib import Path

import pytest
from numba import config

from experiments.complaints import SpecError
from experiments.eviction import eviction_of
from kvcache.policies import POLICIES

GOOD = "class Mine:\n    def score(now_s, uses, depth, priority, floor):\n        return uses + depth / 4096\n"


def own(directory: Path, text: str, name: str = "Mine") -> str:
    (directory / "own.py").write_text(text, encoding="utf-8")
    return f"{directory / 'own.py'}:{name}"


def test_names_are_those_of_the_table_and_priority_is_no_rule() -> None:
    assert eviction_of("priority") is None
    assert eviction_of("arc") is POLICIES["arc"]


def test_a_class_in_a_file_is_a_policy_and_a_changed_file_another_one(tmp_path: Path) -> None:
    policy = eviction_of(own(tmp_path, GOOD))
    assert policy is not None
    assert policy.score(0.0, 3, 2048, 35, 0.0) == pytest.approx(3.5)
    again = eviction_of(own(tmp_path, GOOD.replace("    def", "    @staticmethod\n    def").replace("4096", "2048")))
    assert again is not None
    assert again.score(0.0, 3, 2048, 35, 0.0) == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Mine:\n    def score(now_s, uses\n", r"own.py:2: '\(' was never closed"),
        ("import nowhere_at_all\n", r"own.py:1: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("class Yours:\n    pass\n", r"own.py: no class Mine; it has Yours"),
        ("x = 1\n", r"own.py: no class Mine; it has none"),
        ("class Mine:\n    pass\n", r"own.py:1: Mine has no function score\(now_s, uses, depth, priority, floor\)"),
        (
            "\nclass Mine:\n    def score(uses):\n        return 1\n",
            r"own.py:3: Mine.score takes \(uses\); it must take",
        ),
        (GOOD.replace("uses +", "deep +"), r"own.py:3: Mine.score: NameError: name 'deep' is not defined"),
        (
            GOOD.replace("uses +", "'a' if uses else"),
            r"own.py:2: Mine.score\(now_s=0.0, uses=1, .*\) is 'a'; it must be a fin",
        ),
        (GOOD.replace("uses +", "1e308 * 10 +"), r"is inf; it must be a finite number"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        eviction_of(own(tmp_path, text))


@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="nothing is compiled")
def test_what_cannot_be_compiled_is_one_line(tmp_path: Path) -> None:
    text = GOOD.replace("return uses +", "return len(dict(a=[uses], b=now_s)) +")
    with pytest.raises(SpecError, match=r"own.py:\d: Mine.score cannot be compiled: "):
        eviction_of(own(tmp_path, text))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("arx", "unknown policy arx; did you mean arc"),
        ("no.py:Mine", r"no.py:1: FileNotFoundError"),
        ("no.txt:Mine", "unknown policy no.txt:Mine"),
    ],
)
def test_unknown_policies_are_refused_with_those_known(name: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        eviction_of(name)
