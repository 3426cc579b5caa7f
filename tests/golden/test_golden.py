"""Replays of real traffic, count by count: against what this code counted before, and against other simulators."""

from collections import OrderedDict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from experiments.run import run
from experiments.spec import Spec
from kvcache.request import Requests
from tests.golden.record import cases, counted, recorded
from traces.read import read

RECORDED = {case["name"]: case for case in recorded()}


def test_the_file_holds_every_case_with_the_spec_that_made_it() -> None:
    assert [{**case, "counts": None} for case in cases()] == [{**case, "counts": None} for case in recorded()]


@pytest.mark.parametrize("name", RECORDED)
def test_no_count_has_changed(name: str) -> None:
    assert counted(RECORDED[name]) == RECORDED[name]["counts"]


def test_without_retention_a_higher_threshold_than_35_offloads_nothing() -> None:
    base = RECORDED["mooncake_arxiv_first1000, 512 tokens a block, host"]
    spec = {**base["spec"], "kv_cache_config": {"tokens_per_block": 512, "secondary_offload_min_priority": 36}}
    counts = counted({**base, "spec": spec})
    assert counts["offload_blocks"] == 0
    gpu_only = RECORDED["mooncake_arxiv_first1000, 512 tokens a block, gpu"]["counts"]
    assert counts["hit_tokens"] == gpu_only["hit_tokens"]


PUBLISHED = {1000: 12_988, 2000: 15_942, 5000: 34_185, 10_000: 62_001, 20_000: 84_689, 30_000: 95_336, 50_000: 102_723}
# TensorRT-LLM stores the short last block too: it stays, younger than the other blocks of its prompt, until it is the
# oldest of all. Each request then holds one slot that hardly ever hits.
TENSORRT_LLM = {
    1000: 12_837,
    2000: 15_645,
    5000: 32_203,
    10_000: 60_971,
    20_000: 82_935,
    30_000: 93_860,
    50_000: 102_165,
}


class TestFullBlockLru:
    """Hits of full blocks on the conversation trace (288,500 lookups), as engine-like simulators count them.

    Their engine caches full blocks only: the short last block of a prompt takes a slot while the request runs, and the
    slot is empty again when it ends. Blocks are released last first, one request after the other, prompts only. NVIDIA
    Dynamo's replay (1.4.2 and 1.6.1) and a plain reference give these.
    """

    def hits(self, requests: Requests, capacity: int, **profile: Any) -> int:
        spec = Spec.model_validate({
            "kv_cache_config": {"tokens_per_block": 512, "enable_partial_reuse": False},
            "capacity": {"gpu_blocks": capacity, "host_blocks": 0},
            "profile": {"name": "trtllm", **profile},
        })
        row = run(spec, requests, timing=False)
        assert row["hit_tokens"] == 512 * row["reused_blocks"]
        return int(row["reused_blocks"])

    @pytest.mark.parametrize("capacity", PUBLISHED)
    def test_a_tail_that_is_never_stored_gives_the_published_hits(self, capacity: int) -> None:
        # A tail of one token and no output leaves nothing to store in the last block; detached_first gives its slot
        # back first. (22 prompts have no tail; one output token makes the whole of them usable.)
        trace = read("mooncake_conversation")
        tail = trace.prompt_tokens % 512 != 0
        cut = np.where(tail, trace.prompt_tokens // 512 * 512 + 1, trace.prompt_tokens).astype(np.int32)
        requests = replace(
            trace, prompt_tokens=cut, output_tokens=(~tail).astype(np.int32), output_offset=None, output_units=None
        )
        assert self.hits(requests, capacity, detached_first=True) == PUBLISHED[capacity]

    @pytest.mark.parametrize("capacity", TENSORRT_LLM)
    def test_the_stored_tail_is_all_that_tensorrt_llm_does_differently(self, capacity: int) -> None:
        trace = read("mooncake_conversation")
        ones = np.ones(len(trace), np.int32)
        requests = replace(trace, output_tokens=ones, output_offset=None, output_units=None)
        assert self.hits(requests, capacity) == TENSORRT_LLM[capacity]
        assert plain_lru(trace, capacity, keep_tails=True) == TENSORRT_LLM[capacity]

    @pytest.mark.parametrize("capacity", [1000, 10_000])
    def test_the_plain_lru_of_this_file_gives_the_published_hits_without_tails(self, capacity: int) -> None:
        assert plain_lru(read("mooncake_conversation"), capacity, keep_tails=False) == PUBLISHED[capacity]


def plain_lru(requests: Requests, capacity: int, *, keep_tails: bool) -> int:
    """Full-block hits of an LRU; the oldest entry of `cache` comes first, a tail has a name of its own."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for r in range(len(requests)):
        prompt = int(requests.prompt_tokens[r])
        blocks = requests.prompt_units(r)[: prompt // 512].tolist()
        reused = 0
        while reused < (prompt - 1) // 512 and blocks[reused] in cache:
            del cache[blocks[reused]]  # in use: not to be evicted
            reused += 1
        hits += reused
        while len(cache) + -(-prompt // 512) > capacity:
            cache.popitem(last=False)
        if keep_tails and prompt % 512:
            cache[-1 - r] = None
        for block in reversed(blocks):
            cache.pop(block, None)
            cache[block] = None
    return hits
