"""The door to the compiler: every integer arrives as int64, and the source runs without a compiler too."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba import types

from kvcache import compiled as door
from kvcache.blocks import note_copy
from kvcache.tables import N_COPIES, Pool, Settings, make_state


@door.compiled
def doubled(x: int) -> int:
    return 2 * x


class TestCalls:
    def test_a_compiled_function_gives_what_its_source_gives(self) -> None:
        assert [int(doubled(x)) for x in (3, np.int32(4), np.int8(-5))] == [6, 8, -10]

    def test_loops_write_nothing_where_nothing_is_recorded(self) -> None:
        state = make_state((Pool(64, (2, 2)),), Settings())
        note_copy(state, 0, 0, 2, 0)
        assert state.tally[N_COPIES] == 0


class StandIn:
    """What numba's dispatcher shows of itself: with NUMBA_DISABLE_JIT=1 there is none."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self._cache = SimpleNamespace(_cache_file=SimpleNamespace(_source_stamp=None))

    def compile(self, signature: Any) -> None:
        self.asked.append(signature)


class TestDispatcher:
    def wrapped(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setattr(door, "njit", lambda **_options: lambda _function: StandIn())
        return door.loop(doubled.py_func if hasattr(doubled, "py_func") else doubled)

    def test_all_integers_and_literals_become_one_signature(self, monkeypatch: pytest.MonkeyPatch) -> None:
        function = self.wrapped(monkeypatch)
        function.compile((types.int32, types.literal(7), types.float64, types.int32[:]))
        assert function.asked == [(types.int64, types.int64, types.float64, types.int32[:])]

    def test_cached_code_depends_on_every_file_of_the_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stamp = self.wrapped(monkeypatch)._cache._cache_file._source_stamp
        assert {"blocks.py", "queues.py", "tables.py", "test_compiled.py"} <= {name for name, _, _ in stamp}

    def test_the_stamp_changes_with_any_file(self, tmp_path: Path) -> None:
        (tmp_path / "a.py").write_text("x = 1")
        before = door._stamp.__wrapped__(tmp_path)
        (tmp_path / "b.py").write_text("y = 1")
        assert door._stamp.__wrapped__(tmp_path) != before

    def test_without_a_dispatcher_the_function_stays_as_it_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(door, "njit", lambda **_options: lambda function: function)
        plain = len
        assert door.loop(plain) is plain
