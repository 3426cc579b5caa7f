"""A recorded agent run (Dynamo, Qwen3-14B): cached tokens of our replay beside those the serving system recorded.

The trace names the prompts' content, not the answers'. Without it a cache finds least (.717 of the prompt tokens); with
every answer taken from the next prompt and one worker it finds most (.809). The recording had two workers, and its
client took reasoning out of some answers before it sent them back: .756.
"""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from experiments.published.runs import served
from experiments.spec import Capacity, KvCacheConfig, Spec
from kvcache.request import Int64, Requests
from traces.options import ReadOptions
from traces.read import read, samples

SPEC = Spec(
    model="llama-3.1-8b",  # every block fits, so that only arrivals and content count
    hardware="h100-sxm",
    kv_cache_config=KvCacheConfig(tokens_per_block=16),
    capacity=Capacity(gpu_tokens=200_000, host_tokens=0),
)
NAME = "dynamo_pi_request_trace"


def recorded() -> list[int]:
    lines = gzip.decompress(Path(samples()[NAME]).read_bytes()).decode().splitlines()
    requests = [event["request"] for event in (json.loads(line)["event"] for line in lines) if "request" in event]
    requests.sort(key=lambda request: request["request_received_ms"])
    return [request["cached_tokens"] for request in requests]


def found(requests: Requests) -> Int64:
    """Tokens found by each request, on the workers that the recording used."""
    workers = requests.labels["worker"].codes
    tokens = np.zeros(len(requests), np.int64)
    for worker in np.unique(workers):
        rows = np.flatnonzero(workers == worker).astype(np.int64)
        tokens[rows] = served(SPEC, requests.take(rows)).reused
    return tokens


@pytest.fixture(scope="module")
def linked() -> Requests:
    return read(NAME)


def test_prompts_alone_and_all_answers_kept_are_the_two_bounds(linked: Requests) -> None:
    prompts = read(NAME, options=ReadOptions(link_outputs=False))
    total = prompts.prompt_tokens.sum()
    assert served(SPEC, prompts).reused.sum() / total == pytest.approx(0.717, abs=5e-4)
    assert served(SPEC, linked).reused.sum() / total == pytest.approx(0.809, abs=5e-4)


def test_on_the_recorded_workers_the_share_is_between_the_bounds_and_near_the_recorded(linked: Requests) -> None:
    share, truth = found(linked).sum() / linked.prompt_tokens.sum(), sum(recorded()) / linked.prompt_tokens.sum()
    assert truth == pytest.approx(0.7555, abs=5e-5)
    assert share == pytest.approx(0.773, abs=5e-4)
    assert 0.717 < share < 0.809


def test_each_request_finds_what_was_recorded_but_for_rewritten_answers(linked: Requests) -> None:
    # Never less than recorded; more only where reasoning went out of an answer (up to 352 tokens), and in request 5,
    # which came 20 ms after the one it shares 96 tokens with.
    more = (found(linked) - np.array(recorded())).tolist()
    assert more == [0, 0, 208, 0, 0, 96, 32, 0, 320, 80, 0, 352, 0, 16, 0, 64, 0]
