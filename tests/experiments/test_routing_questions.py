"""What users asked about routing, events and transfers, with the numbers they gave: each as the smallest run that answers it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from experiments.load import load
from experiments.run import run
from kvcache.request import Requests
from sim.handover import Handover, LinkProfile, Transport, handover, load_link
from sim.hardware import load_hardware
from sim.layout import Split, conversion
from traces.read import read

UNIT = 8
QWEN3_235B = (94, 4, 128)
"""Layers, KV heads, head dimension."""


def requests_of(prompts: list[list[int]], output: int, gap_s: float) -> Requests:
    """Prompts in units of 8 tokens, one every `gap_s`."""
    n = len(prompts)
    return Requests(
        "test",
        UNIT,
        np.arange(n) * gap_s,
        np.array([UNIT * len(p) for p in prompts], np.int32),
        np.full(n, output, np.int32),
        np.cumsum([0, *(len(p) for p in prompts)]).astype(np.int64),
        np.array([unit for p in prompts for unit in p], np.int32),
    )


def row(requests: Requests, *settings: str) -> dict[str, Any]:
    return run(load(None, list(settings))[0], requests)


class TestQuestion36AndE3:
    """A router whose workers publish nothing, and what it loses: 90 % of 96 % in multi-turn chats (TensorRT-LLM PR #15522)."""

    CHATS = "synthetic:multitenant?requests=400&tenants=4&turns_mean=8&requests_per_s=4"

    def test_with_events_more_is_found_than_without_and_the_silence_is_told(self) -> None:
        settings = ["workload.workers=4", "workload.router=kv", "gpu_tokens=200000", "router.overlap_weight=2"]
        told = run(load(None, settings)[0], read(self.CHATS))
        silent = run(load(None, [*settings, "router.event_loss=1"])[0], read(self.CHATS))
        assert told["hit_rate_tokens"] > silent["hit_rate_tokens"] + 0.05
        assert told["events"]["blind_decisions"] < 5
        assert silent["events"]["blind_decisions"] == 400
        assert any("received none" in note for note in silent["notes"])
        assert not any("received none" in note for note in told["notes"])


class TestQuestion37:
    """dynamo#4429: the router's memory grew to 100s of GB with 8 workers, 10 requests/s, ISL 20,000, OSL 300."""

    def index(self, requests: int) -> dict[str, Any]:
        per_prompt = 20_000 // UNIT
        prompts = [list(range(i * per_prompt, (i + 1) * per_prompt)) for i in range(requests)]
        figures = row(
            requests_of(prompts, 300, 0.1), "workload.workers=8", "workload.router=kv", "gpu_tokens=100000",
            "tokens_per_block=64", "model=llama-3.1-8b",
        )  # fmt: skip
        return {name: figures[name] for name in ("index_bytes", "index_blocks")}

    def test_the_index_is_as_large_after_900_prompts_as_after_300(self) -> None:
        early, late = self.index(300), self.index(900)
        assert late["index_bytes"] == early["index_bytes"]
        # 8 pools of 1,562 blocks, and a quarter more that the workers may not have told of
        assert late["index_blocks"] <= 1.25 * 8 * 1562
        assert late["index_bytes"] < 20e6  # with what the workers hold back between two requests


class TestQuestion40:
    """Affinity piles everything on one worker: 448/0 requests, 224/224 once load counts (Infera PR #103)."""

    def split(self, router: str, *settings: str) -> list[int]:
        # one prompt of 4,096 tokens for all: once, and from 1 s on 447 times in 15 s, answers of 64 tokens
        requests = requests_of([list(range(512))] * 448, 64, 1 / 30)
        requests = replace(requests, arrival_s=requests.arrival_s + np.where(np.arange(448) > 0, 1.0, 0.0))
        more = ("workload.workers=2", f"workload.router={router}", "gpu_tokens=200000", "model=llama-3.1-8b")
        return sorted(row(requests, *more, *settings)["requests_by_worker"])

    def test_a_prefix_that_outweighs_all_load_takes_every_request_to_one_worker(self) -> None:
        assert self.split("scored", "router.overlap_weight=1000") == [0, 448]

    def test_with_the_load_in_the_sum_both_workers_serve_half(self) -> None:
        for router in ("kv", "approximate"):
            assert self.split(router)[0] >= 0.4 * 448


def qwen(transport: Transport, tokens: int = 8192, sides: tuple[int, int] = (4, 4)) -> Handover:
    layers, heads, dim = QWEN3_235B
    split = conversion(layers, heads, Split(sides[0]), Split(sides[1]))
    per_token = 2.0 * layers * heads * dim
    return handover(transport, split, load_hardware("h100-sxm"), -(-tokens // 32), 32, per_token, layers)


class TestQuestion42:
    """TensorRT-LLM PR #12273, Qwen3-235B, ISL 8,192: prepare 10.3 -> 0.42 ms, transfer 10.8 ms flat, task 46.4 -> 29.0 ms."""

    def test_a_shorter_preparation_is_all_that_changes(self) -> None:
        now = load_link("nixl-ucx")
        figures = {name: getattr(now, name) for name in ("start_s", "descriptor_s", "bandwidth_bytes_per_s")}
        before = LinkProfile("before", prepare_s=10.3e-3, must_register=True, sources={}, **figures)
        old, new = qwen(Transport(before)), qwen(Transport(now))
        assert new.prepare_s == pytest.approx(0.42e-3)
        assert old.wire_s == new.wire_s
        assert old.seconds - new.seconds == pytest.approx(9.88e-3)

    def test_the_transfer_takes_as_long_as_measured_within_a_factor_of_two(self) -> None:
        parts = qwen(Transport(load_link("nixl-ucx")))
        assert 0.5 < (parts.wire_s + parts.convert_s) / 10.7e-3 < 2


class TestQuestion43:
    """Mismatched heads: p99 26.74 s -> 125 ms at 5 users, 10.15 s -> 288 ms at 40 by coalescing (TensorRT-LLM PR #17518)."""

    def test_a_message_for_each_piece_costs_tens_of_times_what_one_buffer_does(self) -> None:
        # TP 4 to TP 8 halves each rank's heads: without a buffer each block gives 94 layers x keys and values
        link = load_link("nixl-ucx")
        buffered = qwen(Transport(link), sides=(4, 8))
        pieces = 256 * 94 * 2
        each = pieces * (link.start_s + link.descriptor_s) + buffered.wire_bytes / 4 / link.bandwidth_bytes_per_s
        assert buffered.descriptors < 10
        assert each / (buffered.wire_s + buffered.convert_s) > 10.15 / 0.288


class TestQuestion44:
    """vLLM#55434: 91,000 to 120,000 descriptors for 4.9 GB; half the time goes into posting; NVLink is slower than RDMA."""

    def seconds(self, name: str, descriptors: int) -> tuple[float, float]:
        link = load_link(name)
        return descriptors * link.descriptor_s, 4.9e9 / link.bandwidth_bytes_per_s

    @pytest.mark.parametrize("descriptors", [91_000, 112_000, 120_000])
    def test_the_faster_wire_is_slower_because_each_descriptor_costs_twenty_times_as_much(
        self, descriptors: int
    ) -> None:
        rdma, nvlink = self.seconds("nixl-ucx", descriptors), self.seconds("nvlink", descriptors)
        assert nvlink[1] < 0.2 * rdma[1]
        assert sum(nvlink) > 3 * sum(rdma)
        assert nvlink[0] / rdma[0] == pytest.approx(20, rel=0.01)

    def test_a_third_of_the_rdma_time_is_posting(self) -> None:
        # published 56.9 %; ours rests on the wire's speed at 64 MiB, which that machine did not reach
        posting, wire = self.seconds("nixl-ucx", 112_000)
        assert 0.25 < posting / (posting + wire) < 0.6


class TestQuestion45:
    """nixl: 15,000 segments of 1 GB take 0.6 s to post; 0.324 GB/s with one thread and batches of one, 285 in bulk."""

    def test_fifteen_thousand_segments_cost_a_fraction_of_a_second_on_the_dear_path(self) -> None:
        link = load_link("nvlink")
        assert 15_000 * link.descriptor_s == pytest.approx(0.6, rel=0.75)
        small = 4096 / (link.start_s + link.descriptor_s + 4096 / link.bandwidth_bytes_per_s)
        assert small < 0.01 * link.bandwidth_bytes_per_s


def test_r28_a_request_of_seven_blocks_for_a_pool_of_four_is_refused_at_once_with_the_reason() -> None:
    requests = requests_of([list(range(13))], 1, 1.0)  # 104 tokens; blocks of 16
    with pytest.raises(ValueError, match=r"too_long=drop or too_long=truncate"):
        row(requests, "gpu_tokens=64", "tokens_per_block=16")
    with pytest.raises(ValueError, match=r"too_long=drop or too_long=truncate"):
        row(requests, "gpu_tokens=64", "tokens_per_block=16", "workload.workers=2", "workload.router=kv")
