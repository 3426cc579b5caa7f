"""One run from spec to row: what it refuses, what it says, and what its figures have to do with each other."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from experiments.run import run
from experiments.spec import Spec
from experiments.version import kvtier_version
from kvcache.request import Requests
from traces.read import read

Build = Callable[..., Requests]


def spec_of(tokens_per_block: int = 16, gpu: int = 40, host: int = 0, **more: Any) -> Spec:
    base = {
        "kv_cache_config": {"tokens_per_block": tokens_per_block, **more.pop("kv_cache_config", {})},
        "capacity": {"gpu_blocks": gpu, "host_blocks": host, **more.pop("capacity", {})},
    }
    return Spec.model_validate(base | more)


def busy(n: int = 120, *, seed: int = 3) -> Requests:
    """Conversations of a few sessions, one request a tenth of a second: enough for queues, offloads and onboards."""
    rng = np.random.default_rng(seed)
    said: dict[int, list[int]] = {s: [s % 3] for s in range(9)}
    prompts, session = [], rng.integers(0, 9, n)
    for s in session.tolist():
        said[s] = (said[s] + rng.integers(100, 10_000, rng.integers(1, 6)).tolist())[-60:]
        prompts.append(list(said[s]))
    lengths = np.array([len(p) for p in prompts])
    return Requests(
        "test",
        16,
        np.arange(n) * 0.1,
        (lengths * 16 - rng.integers(0, 16, n)).astype(np.int32),
        rng.integers(0, 40, n).astype(np.int32),
        np.cumsum([0, *lengths]).astype(np.int64),
        np.array([unit for p in prompts for unit in p], np.int32),
        session=session.astype(np.int32),
    )


class TestTooLong:
    """A pool of 4 blocks of 16 tokens; prompts of 32, 80 and 16 tokens and 10 outputs each."""

    def requests(self, build: Build) -> Requests:
        return build([[1, 2], [1, 2, 3, 4, 5], [6]])

    @pytest.mark.parametrize("timing", [False, True])
    def test_a_request_longer_than_the_pool_is_an_error_that_names_it(self, build: Build, timing: bool) -> None:
        with pytest.raises(
            ValueError, match=r"request 1 needs 80 prompt \+ 10 output tokens.*4 blocks of 16.*gpu_tokens"
        ):
            run(spec_of(gpu=4), self.requests(build), timing=timing)

    @pytest.mark.parametrize("timing", [False, True])
    def test_it_can_be_dropped(self, build: Build, timing: bool) -> None:
        row = run(spec_of(gpu=4, too_long="drop"), self.requests(build), timing=timing)
        assert (row["requests"], row["prompt_tokens"]) == (2, 48)
        assert row["notes"] == ["dropped 1 requests longer than the GPU pool of 4 blocks of 16 tokens (too_long=drop)"]

    @pytest.mark.parametrize("timing", [False, True])
    def test_it_can_be_cut_to_what_the_pool_holds(self, build: Build, timing: bool) -> None:
        row = run(spec_of(gpu=4, too_long="truncate"), self.requests(build), timing=timing)
        assert (row["requests"], row["prompt_tokens"], row["output_tokens"]) == (3, 32 + 54 + 16, 30)

    def test_dropping_every_request_is_an_error(self, build: Build) -> None:
        with pytest.raises(ValueError, match="every request is longer"):
            run(spec_of(gpu=1, too_long="drop"), self.requests(build), timing=False)

    def test_max_seq_len_is_a_limit_too(self, build: Build) -> None:
        row = run(spec_of(too_long="drop", scheduler={"max_seq_len": 50}), self.requests(build), timing=False)
        assert row["requests"] == 2
        assert "scheduler.max_seq_len=50" in row["notes"][0]


class TestRefusals:
    def test_prefill_that_could_starve_is_refused_where_time_is_simulated(self, build: Build) -> None:
        spec = spec_of(scheduler={"max_num_tokens": 100, "max_batch_size": 90})
        with pytest.raises(ValueError, match=r"max_num_tokens is 100.*max_batch_size \+ tokens_per_block"):
            run(spec, build([[1]]))
        assert run(spec, build([[1]]), timing=False)["requests"] == 1

    def test_a_prompt_that_never_fits_into_a_step_is_refused(self, build: Build) -> None:
        scheduler = {"max_num_tokens": 64, "max_batch_size": 4, "enable_chunked_prefill": False}
        with pytest.raises(ValueError, match="longest prompt has 80 tokens"):
            run(spec_of(scheduler=scheduler), build([[1, 2, 3, 4, 5]]))
        assert run(spec_of(scheduler=scheduler), build([[1, 2, 3, 4]]))["requests"] == 1

    @pytest.mark.parametrize("policy", ["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH", "vllm"])
    @pytest.mark.parametrize("overlap", [False, True])
    def test_who_is_not_refused_runs_in_the_smallest_pool_that_takes_him(
        self, build: Build, policy: str, overlap: bool
    ) -> None:
        # 5 blocks of 16: 70 prompt tokens and 10 outputs are 80, and 81 are too many
        if policy == "vllm" and overlap:
            return
        rules: dict[str, Any] = {"max_num_tokens": 64, "max_batch_size": 3, "disable_overlap_scheduler": not overlap}
        profile = "vllm" if policy == "vllm" else "trtllm"
        if policy != "vllm":
            rules["capacity_scheduler_policy"] = policy
        prompts = [list(range(10 * i, 10 * i + 5)) for i in range(4)]
        fits = build(prompts, prompt_tokens=[70] * 4)
        spec = spec_of(gpu=5 + (policy == "vllm"), scheduler=rules, profile=profile)  # vLLM keeps one block for itself
        assert run(spec, fits)["requests"] == 4
        with pytest.raises(ValueError, match=r"request 1 needs 71 prompt .* more than the GPU pool of 5 blocks"):
            run(spec, build(prompts, prompt_tokens=[70, 71, 70, 70]))

    def test_drafts_of_two_steps_need_room_beside_the_longest_request(self, build: Build) -> None:
        scheduler = {"disable_overlap_scheduler": False, "max_num_tokens": 64, "max_batch_size": 3}
        drafts = {"max_draft_len": 3, "accepted_tokens_per_step": 1.2}
        spec = spec_of(gpu=5, scheduler=scheduler, speculative_config=drafts)
        with pytest.raises(ValueError, match="5 blocks of 16 tokens less 6 for drafts"):
            run(spec, build([[1, 2, 3, 4, 5]], prompt_tokens=[65]))
        assert run(spec, build([[1, 2, 3, 4, 5]], prompt_tokens=[64]))["requests"] == 1

    def test_a_step_that_drafts_could_fill_is_refused(self, build: Build) -> None:
        scheduler = {"max_num_tokens": 64, "max_batch_size": 16}
        drafts = {"num_nextn_predict_layers": 3, "accepted_tokens_per_step": 1}
        with pytest.raises(ValueError, match=r"at least max_batch_size x 4 \+ tokens_per_block \(64 \+ 16\)"):
            run(spec_of(scheduler=scheduler, speculative_config=drafts), build([[1]]))

    def test_a_chunk_unit_that_no_step_could_hold_or_that_cuts_blocks_is_refused(self, build: Build) -> None:
        with pytest.raises(ValueError, match="chunk_unit_size is 24; it must be a multiple of tokens_per_block"):
            run(spec_of(scheduler={"chunk_unit_size": 24}), build([[1]]))
        scheduler = {"chunk_unit_size": 64, "max_num_tokens": 67, "max_batch_size": 4}
        with pytest.raises(ValueError, match=r"at least max_batch_size \+ chunk_unit_size \(4 \+ 64\)"):
            run(spec_of(scheduler=scheduler), build([[1]]))

    def test_a_prompt_that_could_not_be_resumed_whole_is_refused(self, build: Build) -> None:
        # 48 tokens fit into a step of 50, but not with 10 outputs after a pause
        scheduler = {"max_num_tokens": 50, "max_batch_size": 4, "enable_chunked_prefill": False}
        requests = build([[1, 2, 3]])
        assert run(spec_of(scheduler=scheduler), requests)["requests"] == 1
        paused = {**scheduler, "capacity_scheduler_policy": "MAX_UTILIZATION"}
        with pytest.raises(ValueError, match="58 tokens with what it may have generated before a pause"):
            run(spec_of(scheduler=paused), requests)

    def test_a_block_size_that_does_not_divide_the_traces_is_refused(self, build: Build) -> None:
        with pytest.raises(ValueError, match="tokens_per_block is 24"):
            run(spec_of(24), build([[1]]), timing=False)


class TestNotes:
    def test_below_the_traces_block_size_hits_are_a_lower_bound(self, build: Build) -> None:
        [note] = run(spec_of(8), build([[1], [2]]), timing=False)["notes"]
        assert note.startswith("lower bound: sharing inside a trace block of 16 tokens is unknown")

    @pytest.mark.parametrize("tokens_per_block", [16, 32])
    def test_at_or_above_it_there_is_nothing_to_note(self, build: Build, tokens_per_block: int) -> None:
        assert run(spec_of(tokens_per_block), build([[1], [2]]), timing=False)["notes"] == []

    def test_token_traces_have_no_lower_bound(self, build: Build) -> None:
        assert run(spec_of(8), build([[1], [2]], unit_tokens=1), timing=False)["notes"] == []


class TestArrivals:
    def test_twice_the_rate_halves_the_time_of_arrivals(self, build: Build) -> None:
        # requests at 0, 1 and 2 s; the last one ends a moment after its arrival
        requests = build([[1], [2], [3]])
        slow = run(spec_of(), requests)["makespan_s"]
        fast = run(spec_of(workload={"rate_scale": 2}), requests)["makespan_s"]
        assert slow - 2 == pytest.approx(fast - 1)

    def test_requests_of_one_instant_spread_evenly_up_to_the_next(self, build: Build) -> None:
        # instants 0, 0, 0, 0, 8, 8: spread to 0, 2, 4, 6, 8, 12
        requests = replace(build([[i] for i in range(6)]), arrival_s=np.array([0, 0, 0, 0, 8, 8.0]))
        together = run(spec_of(), requests)
        apart = run(spec_of(workload={"spread_arrivals": True}), requests)
        assert apart["makespan_s"] - together["makespan_s"] == pytest.approx(4, abs=0.1)
        assert apart["ttft_s"]["p99"] < together["ttft_s"]["p99"]

    def test_in_a_closed_loop_latency_counts_from_when_a_request_is_sent(self, build: Build) -> None:
        # one at a time: nobody ever waits, however the trace's times lie
        requests = build([[i] for i in range(4)])
        alone = run(spec_of(), build([[0]]))
        row = run(spec_of(workload={"concurrency": 1}), requests)
        assert row["ttft_s"]["p99"] == pytest.approx(alone["ttft_s"]["p50"])
        assert row["makespan_s"] == pytest.approx(4 * alone["makespan_s"])

    def test_recorded_think_times_count_and_are_scaled_with_the_arrivals(self, build: Build) -> None:
        requests = replace(build([[1], [2]], session=[7, 7]), think_s=np.array([np.nan, 60.0]))
        closed = run(spec_of(workload={"concurrency": 9}), requests)["makespan_s"]
        assert closed == pytest.approx(60, abs=1)
        waiting = {"wait_for_turns": True, "rate_scale": 2}
        assert run(spec_of(workload=waiting), requests)["makespan_s"] == pytest.approx(30, abs=1)

    @pytest.mark.parametrize("workload", [{"concurrency": 2}, {"wait_for_turns": True}])
    def test_without_a_clock_nobody_can_wait_for_anybody(self, build: Build, workload: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="need a clock: leave out --no-timing, or them"):
            run(spec_of(workload=workload), build([[1]]), timing=False)

    @pytest.mark.parametrize("times", [{"rate_scale": 2}, {"spread_arrivals": True}, {"wait_for_turns": True}])
    def test_a_closed_loop_leaves_no_times_to_change(self, times: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="concurrency takes the place of the trace's times"):
            spec_of(workload={"concurrency": 4, **times})

    def test_requests_of_one_single_instant_cannot_be_spread(self, build: Build) -> None:
        requests = replace(build([[1], [2]]), arrival_s=np.zeros(2))
        row = run(spec_of(workload={"spread_arrivals": True}), requests)
        assert row["makespan_s"] == run(spec_of(), requests)["makespan_s"]


class TestRow:
    @pytest.mark.parametrize("timing", [False, True])
    def test_it_is_plain_json_without_nan(self, timing: bool) -> None:
        row = run(spec_of(gpu=70, host=30), busy(), timing=timing)
        assert json.loads(json.dumps(row, allow_nan=False)) == row

    def test_a_run_without_any_reuse_is_plain_json_too(self, build: Build) -> None:
        requests = replace(build([[1]]), output_tokens=np.zeros(1, np.int32))
        row = run(spec_of(), requests)
        json.dumps(row, allow_nan=False)
        assert row["tpot_s"] is None
        assert row["hit_rate_tokens"] == 0

    def test_it_says_which_spec_and_version_made_it(self) -> None:
        spec = spec_of()
        row = run(spec, busy(5), timing=False)
        assert row["version"] == kvtier_version()
        assert row["spec"]["kv_cache_config"]["tokens_per_block"] == 16
        assert row["spec"]["kv_cache_config"]["secondary_offload_min_priority"] == 30  # in force, though not set
        assert Spec.model_validate(row["spec"]).shown() == spec.shown()

    @pytest.mark.parametrize("timing", [False, True])
    def test_hits_bytes_and_blocks_add_up(self, timing: bool) -> None:
        requests = busy()
        spec = spec_of(8, gpu=170, host=120, profile="cascade", capacity={"disk_blocks": 200})
        row = run(spec, requests, timing=timing)
        assert min(row["offload_blocks"], row["onboard_blocks"], row["disk_read_blocks"], row["hit_tokens"]) > 0
        assert sum(row["hit_tokens_by_tier"].values()) == row["hit_tokens"] < row["prompt_tokens"]
        for copies in ("offload", "onboard", "disk_write", "disk_read"):
            assert row[f"{copies}_bytes"] == row[f"{copies}_blocks"] * row["block_bytes"]
        assert row["block_bytes"] == 8 * 131_072  # Llama-3.1-8B in bf16: 128 KiB a token
        assert row["lookup_blocks"] == (-(-requests.prompt_tokens // 8)).sum()
        assert row["lookup_blocks"] == row["reused_blocks"] + sum(row["misses_by_cause"].values())
        assert row["prompt_tokens"] == requests.prompt_tokens.sum()
        assert row["output_tokens"] == requests.output_tokens.sum()

    def test_without_timing_there_are_no_times(self) -> None:
        row = run(spec_of(), busy(5), timing=False)
        for name in ("ttft_s", "tpot_s", "e2e_s", "output_tokens_per_s", "makespan_s", "steps"):
            assert row[name] is None

    def test_times_stand_in_their_order(self) -> None:
        row = run(spec_of(gpu=120, host=60), busy())
        assert 0 < row["ttft_s"]["p50"] <= row["ttft_s"]["p90"] <= row["ttft_s"]["p99"]
        assert row["ttft_s"]["mean"] < row["e2e_s"]["mean"] < row["makespan_s"]
        assert row["output_tokens_per_s"] == pytest.approx(row["output_tokens"] / row["makespan_s"])
        assert all(math.isfinite(row[name]) for name in ("compute_s", "copy_wait_s", "events_per_s", "wall_s"))

    def test_the_more_of_the_copies_passes_beside_kernels_the_less_is_waited_for_them(self) -> None:
        plain, layers, free = (
            run(spec_of(gpu=70, host=100, overlap=overlap), busy())["copy_wait_s"]
            for overlap in ("trtllm", "layerwise", "full")
        )
        assert plain > 5 * layers > 5 * free >= 0

    def test_a_trace_on_one_worker_takes_no_fewer_seconds_of_work_than_its_copies_and_kernels(self) -> None:
        row = run(spec_of(gpu=70, host=100), busy())
        assert row["copy_wait_s"] > 0
        assert row["compute_s"] + row["copy_wait_s"] <= row["makespan_s"] + 1e-9


def without_speed(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in {"wall_s", "events_per_s"}}


class TestEqualWays:
    @pytest.mark.parametrize(
        "more",
        [
            {},
            {"workload": {"workers": 3}},
            {"overlap": "full"},
            {"overlap": "layerwise"},
            {"scheduler": {"disable_overlap_scheduler": False, "context_chunking_policy": "EQUAL_PROGRESS"}},
            {"scheduler": {"max_batch_size": 4, "max_num_tokens": 100}},
            {"retention": [{"turns": True, "priority": 80, "duration_s": 2}]},
            {"workload": {"concurrency": 6, "workers": 2}},
            {"workload": {"wait_for_turns": True, "rate_scale": 20, "workers": 2, "router": "session"}},
            {"workload": {"concurrency": 6}, "profile": "vllm", "capacity": {"host_blocks": 0}},
        ],
    )
    def test_steps_spent_at_once_give_the_row_of_steps_spent_singly(self, more: dict[str, Any]) -> None:
        spec = spec_of(gpu=70, host=50, **more)
        assert without_speed(run(spec, busy())) == without_speed(run(spec, busy(), skip=False))

    def test_the_same_spec_gives_the_same_row_again(self) -> None:
        spec = spec_of(gpu=70, host=50, workload={"workers": 2, "router": "random", "seed": 5})
        assert without_speed(run(spec, busy())) == without_speed(run(spec, busy()))

    def test_progress_does_not_change_a_cache_only_row(self) -> None:
        told: list[int] = []
        spec = spec_of(gpu=70, host=50)
        row = run(spec, busy(), timing=False, progress=lambda done, _of: told.append(done))
        assert without_speed(row) == without_speed(run(spec, busy(), timing=False))
        assert told[-1] == 120

    def test_requests_far_apart_hit_what_the_cache_only_view_hits(self) -> None:
        requests = busy()
        slow = replace(requests, arrival_s=requests.arrival_s * 1e4)
        timed, cache_only = run(spec_of(gpu=70, host=50), slow), run(spec_of(gpu=70, host=50), slow, timing=False)
        for name in ("hit_tokens", "hit_tokens_by_tier", "offload_blocks", "onboard_blocks", "misses_by_cause"):
            assert timed[name] == cache_only[name], name

    def test_two_workers_split_the_work_and_each_has_a_cache_of_its_own(self) -> None:
        one, two = (run(spec_of(gpu=400, workload={"workers": w}), busy()) for w in (1, 2))
        assert two["requests"] == one["requests"]
        assert two["lookup_blocks"] == one["lookup_blocks"]
        assert two["hit_tokens"] < one["hit_tokens"]  # what the other worker computed is not found

    def test_sessions_kept_together_hit_more_than_sessions_dealt_out(self) -> None:
        dealt, kept = (
            run(spec_of(gpu=400, workload={"workers": 3, "router": router}), busy())["hit_tokens"]
            for router in ("round_robin", "session")
        )
        assert dealt < kept


def test_a_model_with_sliding_windows_serves_a_real_trace() -> None:
    spec = Spec.model_validate({
        "model": "gpt-oss-120b",
        "hardware": "h200",
        "kv_cache_config": {"tokens_per_block": 64, "host_cache_size": "20GiB"},
    })
    requests = read("mooncake_arxiv_first1000").head(80)
    row = run(spec, requests)
    assert row["requests"] == 80
    assert row["lookup_blocks"] == (-(-requests.prompt_tokens // 64)).sum()


class TestCostModels:
    """`cost_model: table` takes the kernels of the hardware file, and tells how many steps nobody measured."""

    def machine(self, path: Path) -> str:
        tables = {
            "linear": [[1, 1.0e12], [64, 60.0e12], [512, 300.0e12]],
            "prefill_attention": [[1, 100.0e12], [4096, 400.0e12]],
            "decode_attention": [[4096, 1.0e12], [1.0e9, 2.0e12]],
        }
        measured = {name: {"table": table, "source": "measured here"} for name, table in tables.items()}
        path.write_text(yaml.safe_dump({"base": "h100-sxm", "compute": {"measured": measured}}), encoding="utf-8")
        return str(path)

    def test_a_run_says_how_many_steps_lie_beyond_the_measurements(self, build: Build, tmp_path: Path) -> None:
        hardware = self.machine(tmp_path / "mine.yaml")
        # prompts of 640 tokens (beyond the 512 rows), of 32 (within); 10 tokens each, one a step
        requests = build([list(range(40)), [77, 78]])
        row = run(spec_of(gpu=100, hardware=hardware, cost_model="table"), requests)
        assert row["notes"][0] == "steps: products and attention as measured (measured here); the rest by the roofline"
        assert row["notes"][1].startswith("cost_model table: 1 of ")
        roofline = run(spec_of(gpu=100, hardware=hardware), requests)
        assert roofline["notes"] == []
        assert roofline["ttft_s"] != row["ttft_s"]

    def test_presets_have_no_measured_kernels(self, build: Build) -> None:
        with pytest.raises(ValueError, match=r"cost_model is table and hardware h100-sxm has no compute\.measured"):
            run(spec_of(cost_model="table"), build([[1]]))

    def test_stages_of_a_pipeline_answer_many_sooner_and_one_later(self, build: Build) -> None:
        one, two = (spec_of(gpu=400, parallel={"pipeline_parallel_size": n}) for n in (1, 2))
        alone = build([list(range(30))])
        assert run(two, alone)["ttft_s"]["mean"] > run(one, alone)["ttft_s"]["mean"]
