"""Runs that share a process share the names of their blocks, and nothing else: each has the row it has alone."""

import threading
from typing import Any

import pytest

from experiments import prepared
from experiments.load import load
from experiments.prepared import left_in, shared_tables
from experiments.run import run
from experiments.trace import Trace
from kvcache.load import prepare
from kvcache.request import Requests
from kvcache.retention import RetentionColumns
from kvcache.tables import Pool, Settings
from tests.experiments.conftest import Build

BASE = ["gpu_tokens=60000", "host_tokens=60000", "tokens_per_block=512", "too_long=drop"]
WAYS: list[tuple[list[str], bool]] = [
    (["secondary_offload_min_priority=0"], False),
    (["host_tokens=300000"], False),
    (["profile=trtllm-2025"], False),
    (["profile=cascade", "disk_tokens=100000"], False),
    (["model=gpt-oss-120b", "hardware=b200", "too_long=truncate"], False),
    ([], True),
    (["workload.workers=2"], True),
    (["concurrency=4", "rate_scale=1", "spread_arrivals=false"], True),
    (["workload.workers=2", "workload.router=random"], True),
    (["capacity_scheduler_policy=MAX_UTILIZATION", "max_batch_size=16"], True),
    (["profile=vllm", "host_tokens=0"], True),
    (["retention.3.priority=80"], True),
    (["tokens_per_block=1024"], True),
    ([], True),
]


def row(trace: Trace, settings: list[str], *, timing: bool) -> dict[str, Any]:
    spec, _ = load("mooncake_hour", [*BASE, "workload.workers=1", *settings])
    figures = run(spec, trace.requests(), timing=timing)
    return {name: value for name, value in figures.items() if name not in {"wall_s", "events_per_s"}}


def test_runs_one_after_the_other_have_the_rows_they_have_alone() -> None:
    trace = Trace("mooncake_arxiv_first1000", limit=80)
    together = [row(trace, *way[:1], timing=way[1]) for way in WAYS]
    for way, found in zip(WAYS, together, strict=True):
        left_in(threading.get_ident()).clear()
        assert row(trace, way[0], timing=way[1]) == found


def test_failed_run_leaves_no_tables_behind(build: Build) -> None:
    requests, pools = build([[1, 2, 3]]), (Pool(1 << 20, (8, 0)),)
    with pytest.raises(ZeroDivisionError), shared_tables() as give:
        1 // (len(give(requests, RetentionColumns.none(1), pools, Settings(tokens_per_block=16))) - 2)
    assert not left_in(threading.get_ident())


def test_tables_are_used_again_for_the_same_blocks_only_and_never_by_two_engines_at_once(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    interned = []

    def counted(requests: Requests, *rest: Any) -> Any:
        interned.append(requests)
        return prepare(requests, *rest)

    def run_of_two(requests: Requests, block: int) -> int:
        """How many of two engines with the same requests had their blocks interned anew."""
        interned.clear()
        nothing, pools = RetentionColumns.none(len(requests)), (Pool(1 << 20, (8, 0)),)
        with shared_tables() as give:
            states = [give(requests, nothing, pools, Settings(tokens_per_block=block))[0] for _ in range(2)]
        assert states[0].nodes is not states[1].nodes
        return len(interned)

    monkeypatch.setattr(prepared, "prepare", counted)
    left_in(threading.get_ident()).clear()
    requests, other = build([[1, 2, 3]]), build([[1, 2, 4]])
    assert [run_of_two(requests, 16), run_of_two(requests, 16)] == [2, 1]
    assert [run_of_two(other, 16), run_of_two(requests, 16), run_of_two(requests, 32)] == [2, 2, 2]
