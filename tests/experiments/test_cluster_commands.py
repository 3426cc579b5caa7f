"""kvtier route and kvtier disagg, as their users see them, on workloads of a few requests."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simpy

import reports.choice
from experiments.disagg import side_of
from experiments.disagg_study import Study, side, studied
from experiments.load import load
from experiments.pieces import Pieces
from experiments.rate_match import Load
from experiments.ready import ready
from experiments.replay import Extras, explained, pool_lines
from experiments.routed import cluster_of
from experiments.run import run, run_pieces
from experiments.trace import Trace
from reports.page.kinds import report
from sim.feed import Feed
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


STORE = ("store.size=10GiB", "store.gigabytes_per_s=20")
APART = ("cluster.context.workers=1", "cluster.generation.workers=1")


def test_what_the_store_gives_is_counted_apart_from_the_workers_own_caches() -> None:
    alone, stored = row(), row(*STORE)
    assert stored["hit_tokens"] == alone["hit_tokens"]
    # six prompts of 640 tokens, twenty blocks each, saved once; whole blocks less the last are loaded
    assert stored["store"]["saved_bytes"] == 6 * 20 * stored["block_bytes"]
    assert stored["store"]["hit_tokens"] == 19 * 32 * stored["store"]["loads"] > 0
    assert stored["store"]["hit_rate"] == pytest.approx(stored["store"]["hit_tokens"] / stored["prompt_tokens"])
    assert stored["ttft_s"]["mean"] < alone["ttft_s"]["mean"]
    assert "store" not in alone


def test_a_slow_store_costs_more_than_it_gives() -> None:
    # 2.5 GB over 0.1 GB/s: 25 times as long as a prompt takes to compute
    assert row("store.size=10GiB", "store.gigabytes_per_s=0.1")["ttft_s"]["mean"] > row()["ttft_s"]["mean"]


def test_prompts_that_the_store_holds_pass_the_context_worker_by() -> None:
    never, often = row(*APART, *STORE), row(*APART, *STORE, "store.bypass_tokens=64")
    assert never["store"]["bypassed_requests"] == 0
    assert never["requests_by_worker"] == [24, 0]
    assert often["store"]["bypassed_requests"] == often["requests_by_worker"][1] > 0
    assert often["transferred_bytes"] < never["transferred_bytes"]


def test_a_pool_that_grows_says_when_and_counts_the_gpus_it_had() -> None:
    figures = row(
        "autoscaling.aggregated={above: 2, below: 0.1}", "autoscaling.period_s=0.05", "autoscaling.start_s=0.1",
        "workload.rate_scale=50",
    )  # fmt: skip
    sizes = figures["pool_sizes"]["aggregated"]
    assert sizes[0] == [0.0, 1]
    assert sizes[1][1] == 2
    # decided at a multiple of 0.05 s, open 0.1 s later
    assert sizes[1][0] * 20 == pytest.approx(round(sizes[1][0] * 20))
    assert 1 < figures["gpus"] == figures["mean_workers"]["aggregated"] < 3
    assert figures["output_tokens_per_s_per_gpu"] == pytest.approx(figures["output_tokens_per_s"] / figures["gpus"])


def test_the_sizes_of_a_pool_are_told_in_one_line_and_long_ones_cut() -> None:
    few, many = [[0.0, 1], [2.5, 2]], [[float(t), 1 + t % 2] for t in range(20)]
    assert list(pool_lines({"pool_sizes": {"context": few}})) == ["context workers open: 1 from 0 s, 2 from 2.5 s"]
    assert next(pool_lines({"pool_sizes": {"context": many}})).endswith("2 from 11 s, ... (19 changes in all)")
    assert list(pool_lines({})) == []


def test_a_sweep_over_cluster_specs_has_paces_and_goodput_in_its_table(tmp_path: Path) -> None:
    from experiments.sweep import sweep
    from experiments.sweeping import Wish

    settings = ["gpu_tokens=20000", "slo.ttft_s=0.05", "cluster.generation.workers=1", "store.size=1GiB"]
    wish = Wish(Trace(TRACE), None, settings, ["cluster.context.workers=1,2"])
    rows = sweep(wish.task(), tmp_path, run, lambda jobs, work: ((job, work(job)) for job in jobs), lambda _: None)
    assert [row["error"] for row in rows] == [None, None]
    assert [row["gpus"] for row in rows] == [2, 3]
    for name in ("output_tokens_per_s_per_gpu", "tokens_per_s_per_user", "goodput_requests_per_s", "store_saved_bytes"):
        assert all(row[name] > 0 for row in rows), name
    wish = reports.choice.Wish("tokens_per_s_per_user", "goodput_requests_per_s_per_gpu")
    assert reports.choice.choose(tmp_path, wish).plot.exists()
    page = report(tmp_path, tmp_path / "page.html", "kvtier").read_text(encoding="utf-8")
    assert '"x": "tokens_per_s_per_user"' in page or '"x":"tokens_per_s_per_user"' in page


def test_both_sides_of_a_disaggregated_cluster_may_grow() -> None:
    figures = row(
        "cluster.context.workers=3", "cluster.generation.workers=2", "autoscaling.context={above: 1, below: 0}",
        "autoscaling.generation={rule: kv, above: 0.001, below: 0}", "autoscaling.period_s=0.02",
        "autoscaling.start_s=0", "workload.rate_scale=20",
    )  # fmt: skip
    assert max(n for _, n in figures["pool_sizes"]["context"]) > 1
    assert max(n for _, n in figures["pool_sizes"]["generation"]) == 2
    assert sum(n > 0 for n in figures["requests_by_worker"][:3]) > 1


def test_a_cluster_fed_in_pieces_gives_the_row_of_the_whole_workload() -> None:
    # the last piece has the longest sequences, which the tables made for the first one do not hold
    requests = read("synthetic:chat?requests=60&tenants=4&requests_per_s=20&block_tokens=32")
    order = np.argsort(requests.prompt_tokens, kind="stable")
    longest_last = replace(requests.take(order), arrival_s=requests.arrival_s)
    for settings in (("workload.router=kv",), APART, (*STORE, "workload.router=least_loaded")):
        spec = load(None, ["gpu_tokens=60000", "workload.workers=2", *settings])[0]
        pieces = (longest_last.take(rows) for rows in np.array_split(np.arange(60), 4))
        whole, fed = run(spec, longest_last), run_pieces(spec, pieces)
        for row_ in (whole, fed):
            del row_["wall_s"], row_["events_per_s"]
        assert fed == whole


def table_bytes(requests: int) -> int:
    """What the workers' tables take after so many requests in pieces of a few hundred; the load is one they keep up with."""
    spec = load(None, ["gpu_tokens=60000", "tokens_per_block=64", "workload.workers=4", "workload.router=kv"])[0]
    chat = "tenants=50&prompt_max_tokens=4500&requests_per_s=8&block_tokens=64"
    whole = read(f"synthetic:chat?requests={requests}&{chat}")
    pieces = (whole.take(rows) for rows in np.array_split(np.arange(requests), requests // 400))
    fed = Pieces(spec, pieces)
    cluster = cluster_of(fed.first, simpy.Environment(), Feed(fed.batches()), None, skip=True)
    assert len(cluster.run().column("worker")) == requests
    tables = [array for part in cluster.fleet for array in (part if isinstance(part, tuple) else (part,))]
    return sum(array.nbytes for array in tables if array is not None)


def test_tables_of_a_cluster_follow_its_blocks_and_not_the_requests() -> None:
    # between the two the longest sequence grows a little, and room for it
    assert table_bytes(4_000) < 1.25 * table_bytes(1_000)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (("store.bypass_tokens=9",), "for disaggregated serving with a store"),
        (("store.size=1MiB",), "one block 4194304; it must hold one at least"),
        ((*STORE, "enable_block_reuse=false"), "leave enable_block_reuse on"),
        ((*STORE, "scheduler.capacity_scheduler_policy=MAX_UTILIZATION"), "use GUARANTEED_NO_EVICT"),
        ((*STORE, "model=gpt-oss-120b"), "full attention only"),
        ((*STORE, "concurrency=3"), "knows arrivals of the trace only"),
        (("autoscaling.context={above: 2, below: 1}",), "use aggregated"),
        ((*APART, "autoscaling.aggregated={above: 2, below: 1}"), "use context and generation"),
        (("autoscaling.aggregated={above: 2, below: 2}",), "below must be the smaller"),
        (("autoscaling.aggregated={rule: kv, above: 2, below: 1}",), "a share of the blocks, from 0 to 1"),
        (("autoscaling.aggregated={above: 2, below: 1, min_workers: 7}",), "min_workers is 7 and workload.workers 3"),
    ],
)
def test_an_impossible_store_or_pool_is_refused_in_one_line(settings: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        row(*settings)


def test_context_workers_can_be_chosen_by_what_they_hold() -> None:
    apart = ("cluster.context.workers=3", "cluster.generation.workers=1")
    by_events, blind = row(*apart, "workload.router=kv"), row(*apart, "workload.router=kv", "router.event_loss=1")
    assert by_events["events"]["received"] > 0
    assert by_events["hit_tokens"] > row(*apart, "workload.router=random")["hit_tokens"]
    assert blind["notes"][0].startswith("WARNING: the router reads KV events and received none: all 24 decisions")
    # replicas with a period of reports are there too: each knows its own choices only
    assert row(*apart, "workload.router=least_loaded", "router.replicas=8", "router.report_period_s=5")["imbalance"] > 1


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


def test_the_study_knows_a_store_pools_and_limits() -> None:
    study = Study(Load(640, 8), side("n=2,tp=1", "--ctx"), side("n=1,tp=2", "--gen"), 12, rate=20.0)
    more = ["store.size=1GiB", "store.bypass_tokens=64", "autoscaling.context={above: 2, below: 1}", "slo.ttft_s=0.001"]
    result = studied(study, None, more)
    assert result["apart"]["store"]["saved_bytes"] > 0
    assert result["apart"]["pool_sizes"]["context"] == [[0.0, 1]]
    assert result["apart"]["goodput_share"] == result["together"]["goodput_share"] == 0
    assert result["together"]["pool_sizes"] is None


@pytest.mark.parametrize(
    ("ctx", "gen", "complaint"),
    [
        ("tp=3", "tp=1", "tp=3: the 32 heads of llama-3.1-8b cannot be shared evenly"),
        ("tp=1", "pp=64", "pp=64: llama-3.1-8b has 32 layers only"),
    ],
)
def test_a_split_that_no_model_has_is_refused(ctx: str, gen: str, complaint: str) -> None:
    study = Study(Load(640, 8), side(ctx, "--ctx"), side(gen, "--gen"), 12, rate=20.0)
    with pytest.raises(ValueError, match=complaint):
        studied(study, None, [])


def test_a_study_whose_transfers_all_fail_says_which_settings_to_change() -> None:
    study = Study(Load(640, 8), side("n=1,tp=1", "--ctx"), side("n=1,tp=1", "--gen"), 3, rate=20.0)
    with pytest.raises(ValueError, match=r"none of 3 transfers came through: raise cluster\.kv_transfer"):
        studied(study, None, ["cluster.transfer_failure_share=1"])


def test_what_goes_worker_by_worker_is_refused_for_a_cluster(tmp_path: Path) -> None:
    for spec in ("workload.router=kv", "store.size=1GiB"):
        with pytest.raises(ValueError, match="--record goes through one worker after the other"):
            Extras(None, tmp_path, None, timing=True).check(None, [spec])
        with pytest.raises(ValueError, match="explain goes through one worker after the other"):
            explained(Trace(TRACE), None, [spec], 0, None, timing=True)
    Extras(tmp_path, None, None, timing=False).check(None, ["workload.router=kv"])


def test_without_a_clock_a_cluster_says_that_it_plays_no_part() -> None:
    assert "meet one cache" in run(load(None, ["workload.router=kv"])[0], read(TRACE), timing=False)["notes"][0]


@pytest.mark.parametrize("text", ["n=0", "tp=x", "dp=2", "n"])
def test_a_side_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"--ctx .* is not one of n=, tp=, pp="):
        side(text, "--ctx")


def test_an_unknown_router_names_the_known_ones(tmp_path: Path) -> None:
    from experiments.comparison import compared

    with pytest.raises(ValueError, match="best is no router; known: round_robin, random"):
        compared(Trace(str(tmp_path)), None, [], "kv,best")


def test_late_events_are_rows_of_their_own_and_can_be_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from experiments.comparison import compared, show

    rows = compared(Trace(TRACE), None, ["gpu_tokens=20000", "workload.workers=2"], "random,kv", "0,60")
    show(rows, None, tmp_path / "late.png")
    printed = capsys.readouterr().out
    assert "kv, 60 s late" in printed
    assert [row["spec"]["workload"]["router"] for row in rows] == ["random", "kv", "kv"]  # random reads no events
    assert rows[1]["hit_tokens"] >= rows[2]["hit_tokens"]
    assert (tmp_path / "late.png").exists()
