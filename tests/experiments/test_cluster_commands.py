"""kvtier route and kvtier disagg, as their users see them, on workloads of a few requests."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.disagg import side_of
from experiments.disagg_study import Study, side, studied
from experiments.load import load
from experiments.rate_match import Load
from experiments.ready import ready
from experiments.run import run
from traces.read import read

TRACE = "synthetic:repeat_scan?prompts=6&rounds=4&prompt_tokens=640&output_tokens=8&order=shuffled&requests_per_s=20"


def row(*settings: str) -> dict[str, Any]:
    return run(load(None, ["gpu_tokens=20000", "workload.workers=3", *settings])[0], read(TRACE))


def test_a_run_says_how_the_router_spread_the_work() -> None:
    figures = row("workload.router=kv")
    assert sum(figures["requests_by_worker"]) == 24
    assert len(figures["hit_rate_by_worker"]) == 3
    assert figures["imbalance"] >= 1
    assert figures["events"]["received"] > 0
    assert not figures["notes"] or "WARNING" not in figures["notes"][0]


def test_a_router_without_events_says_so_first_and_counts_its_blind_decisions() -> None:
    figures = row("workload.router=kv", "router.event_loss=1")
    assert figures["events"]["blind_decisions"] == 24
    assert figures["notes"][0].startswith("WARNING: the router reads KV events and received none: all 24 decisions")
    # user question 35: with events it finds more
    assert row("workload.router=kv")["hit_tokens"] > figures["hit_tokens"]


def test_workers_by_turn_say_so_too() -> None:
    assert sum(row("workload.router=round_robin")["requests_by_worker"]) == 24


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (("workload.router=kv", "workload.concurrency=2"), "knows arrivals of the trace only"),
        (("workload.router=kv", "profile=vllm"), "knows TensorRT-LLM's profiles only"),
        (("workload.router=kv", "disable_overlap_scheduler=false"), "does not know the overlap scheduler"),
        (("cluster.context.workers=1",), "above 0 together"),
        (("cluster.context.workers=1", "cluster.generation.workers=1", "enable_block_reuse=false"), "leave it on"),
        (("cluster.context.workers=1", "cluster.generation.workers=1", "workload.router=kv"), "workers that do both"),
        (
            (
                "cluster.context.workers=1", "cluster.generation.workers=1",
                "scheduler.capacity_scheduler_policy=MAX_UTILIZATION",
            ),
            "cannot be paused",
        ),
    ],
)  # fmt: skip
def test_what_a_cluster_cannot_do_is_refused_in_one_line(settings: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        row(*settings)


def test_a_disaggregated_run_splits_its_first_tokens_time() -> None:
    figures = row("cluster.context.workers=2", "cluster.generation.workers=1", "cluster.link=nvlink")
    parts = figures["ttft_parts"]
    assert sum(parts.values()) == pytest.approx(figures["ttft_s"]["mean"])
    assert parts["prepare_s"] == pytest.approx(0.42e-3)
    assert figures["gpus"] == 3
    assert figures["transferred_bytes"] > 0
    assert sum(figures["requests_by_worker"][:2]) == 24


def test_registered_buffers_are_taken_off_the_pool() -> None:
    # Llama-3.1-8B: 131,072 bytes a token; a block of 32 tokens is 4 MiB. Two send buffers of 8,192 tokens: 512 blocks; one
    # receive buffer: 256. UCX makes its buffers on demand.
    spec = load(None, ["cluster.context.workers=1", "cluster.generation.workers=1"])[0]
    work = ready(spec, read(TRACE), timing=True)
    whole = work.plan.pools[0].blocks[0]
    sides = [side_of(work, spec.cluster.context, sends=sends).plan.pools[0].blocks[0] for sends in (True, False)]
    assert sides == [whole - 512, whole - 256]
    ucx = load(None, ["cluster.context.workers=1", "cluster.generation.workers=1", "cluster.link=ucx"])[0]
    assert (
        side_of(ready(ucx, read(TRACE), timing=True), ucx.cluster.context, sends=True).plan.pools[0].blocks[0] == whole
    )
    large = load(
        None, ["cluster.context.workers=1", "cluster.generation.workers=1", "cluster.max_tokens_in_buffer=1e6"]
    )[0]
    with pytest.raises(ValueError, match="leave no block: lower cluster"):
        side_of(ready(large, read(TRACE), timing=True), large.cluster.context, sends=True)


def test_the_study_sets_both_ways_side_by_side() -> None:
    study = Study(Load(640, 8), side("n=2,tp=1", "--ctx"), side("n=1,tp=2", "--gen"), 12, rate=20.0)
    result = studied(study, None, [])
    assert result["gpus"] == 4
    assert result["peers"] == 1
    assert result["apart"]["ttft_parts"]["wire_s"] > 0
    assert result["together"]["ttft_parts"] is None
    assert len(result["points"]) > 3
    assert result["context_gpus_per_generation_gpu"] > 0
    json.dumps(result)


@pytest.mark.parametrize("text", ["n=0", "tp=x", "dp=2", "n"])
def test_a_side_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"--ctx .* is not one of n=, tp=, pp="):
        side(text, "--ctx")


def test_an_unknown_router_names_the_known_ones(tmp_path: Path) -> None:
    from experiments.comparison import compared
    from experiments.trace import Trace

    with pytest.raises(ValueError, match="best is no router; known: round_robin, random"):
        compared(Trace(str(tmp_path)), None, [], "kv,best")


def test_late_events_are_rows_of_their_own_and_can_be_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from experiments.comparison import compared, show
    from experiments.trace import Trace

    rows = compared(Trace(TRACE), None, ["gpu_tokens=20000", "workload.workers=2"], "kv", "0,60")
    show(rows, None, tmp_path / "late.png")
    printed = capsys.readouterr().out
    assert "kv, 60 s late" in printed
    assert rows[0]["hit_tokens"] >= rows[1]["hit_tokens"]
    assert (tmp_path / "late.png").exists()
