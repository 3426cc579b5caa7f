"""A key stands for a run: it changes with all that can change the row, and with nothing else."""

from pathlib import Path
from typing import Any, get_args

import pytest

from experiments import jobs, ready
from experiments.design import Design
from experiments.jobs import Task, content_of, key_of
from experiments.load import Draft, load
from experiments.run import run
from experiments.spec import Workload
from experiments.trace import Trace
from reports.columns import flat

LINES = """{"timestamp": 0, "input_length": 600, "output_length": 10, "hash_ids": [0, 1]}
{"timestamp": 1000, "input_length": 700, "output_length": 20, "hash_ids": [0, 2]}
"""


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    path = tmp_path / "trace.jsonl"
    path.write_text(LINES, encoding="utf-8")
    return Trace(str(path))


def key(trace: Trace, *settings: str, timing: bool = True) -> str:
    return key_of(load(None, settings)[0], trace, timing=timing)


def test_any_setting_the_trace_time_and_the_code_change_the_key(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        key(trace),
        key(trace, "tokens_per_block=64"),
        key(trace, "max_batch_size=8"),
        key(trace, "seed=1"),
        key(Trace(trace.name, limit=1)),
        key(trace, timing=False),
    ]
    monkeypatch.setattr(jobs, "code_sha256", lambda: "of other code")
    assert len({*keys, key(trace)}) == len(keys) + 1


def test_name_of_the_trace_and_the_way_a_default_is_written_do_not_change_the_key(trace: Trace, tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    copy.write_text(LINES.replace(", ", ",  "), encoding="utf-8")
    assert key(Trace(str(copy))) == key(trace)
    assert key(trace, "secondary_offload_min_priority=30") == key(trace, "tokens_per_block=32") == key(trace)


def test_content_of_a_file_that_the_spec_names_is_part_of_the_key(trace: Trace, tmp_path: Path) -> None:
    hardware = tmp_path / "hardware.yaml"
    hardware.write_text("a: 1", encoding="utf-8")
    first = key(trace, f"hardware={hardware}")
    hardware.write_text("a: 2", encoding="utf-8")
    assert key(trace, f"hardware={hardware}") != first


def test_one_changed_content_unit_changes_the_content(trace: Trace, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text(LINES.replace("[0, 2]", "[0, 1]"), encoding="utf-8")
    assert content_of(Trace(str(other))) != content_of(trace)


def test_thresholds_that_share_a_key_share_every_figure() -> None:
    """On a real trace with five priorities and expiry, with time: the runs that a sweep leaves out are the same runs."""
    trace = Trace("mooncake_arxiv_first1000", limit=150)
    rules = ["gpu_tokens=150000", "host_tokens=300000", "tokens_per_block=512", "workload.workers=2"]
    groups: dict[str, list[Any]] = {}
    for threshold in (0, 10, 15, 16, 35, 36, 55, 56, 76, 91, 100):
        settings = [*rules, f"secondary_offload_min_priority={threshold}", "retention.1.duration_s=20"]
        spec, _ = load("mooncake_hour", settings)
        row = flat(run(spec, trace.requests()))
        figures = {name: value for name, value in row.items() if name not in {"wall_s", "events_per_s"}}
        groups.setdefault(key_of(spec, trace, timing=True), []).append(figures)
    assert [len(group) for group in groups.values()] == [1, 2, 2, 2, 1, 1, 2]
    assert all(figures == group[0] for group in groups.values() for figures in group)
    assert len({group[0]["offload_blocks"] for group in groups.values()}) > 3


def test_repeats_seed_the_router_and_a_generated_trace() -> None:
    task = Task(Draft(), [], Trace("synthetic:multitenant?requests=5"), Design(repeats=2))
    assert [job.spec.workload.seed for job in task.jobs()] == [0, 1]
    assert [job.trace.name[-6:] for job in task.jobs()] == ["seed=0", "seed=1"]


@pytest.mark.parametrize("router", ["round_robin", "session"])
def test_routers_that_are_said_to_draw_nothing_do_the_same_with_every_seed(trace: Trace, router: str) -> None:
    told = set()
    for seed in range(8):
        spec, _ = load(None, [f"workload.router={router}", "workload.workers=2", f"seed={seed}"])
        assert not ready.draws(spec)
        told.add(tuple(ready.worker_of(ready.ready(spec, trace.requests(), timing=True))))
    assert len(told) == 1


def test_every_other_router_may_draw() -> None:
    routers = set(get_args(Workload.model_fields["router"].annotation)) - {"round_robin", "session"}
    assert all(ready.draws(load(None, [f"workload.router={router}", "workload.workers=2"])[0]) for router in routers)
    assert not ready.draws(load(None, ["workload.router=random"])[0])
