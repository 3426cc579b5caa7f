"""One request's story against the sums of the whole run, and events against the tables they came from."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.event_log import worker_events, write_events
from experiments.explain import explain
from experiments.explain_view import lines
from experiments.load import load
from experiments.ready import part_of, ready, worker_of
from experiments.run import run
from experiments.spec import Spec
from experiments.watch import moments
from kvcache.request import Requests
from kvcache.router_index import RouterIndex
from traces.read import read


def spec_of(*settings: str) -> Spec:
    return load("default", ["capacity.gpu_blocks=200", "capacity.host_blocks=100", "tokens_per_block=512", *settings])[
        0
    ]


@pytest.fixture(scope="module")
def few() -> Requests:
    return read("mooncake_arxiv_first1000").head(40)


def with_salts(requests: Requests) -> Requests:
    return replace(requests, salt=(np.arange(len(requests)) % 2).astype(np.int32))


@pytest.mark.parametrize("timing", [False, True])
@pytest.mark.parametrize("salted", [False, True])
def test_stories_of_all_requests_add_up_to_the_row_of_the_run(few: Requests, timing: bool, salted: bool) -> None:
    requests = with_salts(few) if salted else few
    # spread: of requests that start in one step, a later one is told of what the earlier ones have just begun
    spec = spec_of("rate_scale=0.05", "spread_arrivals=true", "enable_partial_reuse=false")
    row = run(spec, requests, timing=timing)
    stories = [explain(spec, requests, number, timing=timing) for number in range(len(requests))]
    assert sum(story.hit_tokens for story in stories) == row["hit_tokens"]
    causes = Counter(block.cause for story in stories for block in story.blocks if block.cause is not None)
    assert dict(causes) == row["misses_by_cause"]
    tiers: Counter[str] = Counter()
    for block in (block for story in stories for block in story.blocks):
        if block.cause is None:
            tiers[block.outcome] += block.hit_tokens
    assert {name: tiers[name] for name in ("gpu", "host", "disk")} == row["hit_tokens_by_tier"]
    assert salted == ("other_salt_or_lora" in causes)


def test_a_block_pushed_out_names_the_request_that_took_its_place() -> None:
    requests = read("mooncake_arxiv_first1000").head(40)
    spec = spec_of("capacity.gpu_blocks=180", "capacity.host_blocks=0")
    pushed = [
        block
        for number in range(40)
        for block in explain(spec, requests, number, timing=False).blocks
        if block.cause == "evicted_from_gpu"
    ]
    assert pushed
    for block in pushed:
        assert block.pushed_out_s is not None
        assert len(block.pushed_out_by) == 1


def test_the_first_request_has_never_been_seen(few: Requests) -> None:
    # 6,755 tokens are 13 whole blocks of 512 and 99 tokens
    assert list(lines(explain(spec_of(), few, 0, timing=False))) == [
        "request 0: 0 of 6,755 prompt tokens found (0.0%), looked up at 0.000 s",
        "   blocks 0-12  tokens 0-6,655: miss, never_seen: nobody has computed this before",
        "      block 13  tokens 6,656-6,754: miss, shorter_than_a_block: the prompt's last, part-filled block",
    ]


def test_a_request_outside_the_trace_is_refused(few: Requests) -> None:
    with pytest.raises(ValueError, match="request 40 is not in the trace; it has requests 0 to 39"):
        explain(spec_of(), few, 40)


@pytest.mark.parametrize(
    ("clock", "timing"), [("rate_scale=0.2", False), ("rate_scale=0.2", True), ("concurrency=7", True)]
)
def test_watching_changes_nothing(few: Requests, clock: str, timing: bool) -> None:
    spec = spec_of(clock)
    work = ready(spec, few, timing=timing)
    part = part_of(work, worker_of(work), 0)
    for at in moments(work, part, timing=timing):
        last = at
    row = run(spec, few, timing=timing)
    assert int(last.state.stats[0, 2]) == row["reused_blocks"]
    assert int(last.state.stats[0, 7]) == row["offload_blocks"]


@pytest.mark.parametrize("timing", [False, True])
def test_a_subscriber_of_the_events_knows_every_block_the_cache_holds(few: Requests, timing: bool) -> None:
    work = ready(spec_of("rate_scale=0.2"), few, timing=timing)
    events: list[dict[str, Any]] = list(worker_events(work, 0, timing=timing))
    assert [event["event_id"] for event in events] == list(range(len(events)))
    index = RouterIndex()
    index.apply(events)
    for at in moments(work, part_of(work, worker_of(work), 0), timing=timing):
        last = at
    held = int((last.state.value[0, : last.state.tally[0]] >= 0).sum())
    assert index.lost == 0
    assert 200 <= held <= len(index.blocks[events[0]["window_size"]])  # leaks are TensorRT-LLM's: more, never fewer


def test_the_event_file_is_one_json_array_and_leaves_nothing_half_written(few: Requests, tmp_path: Path) -> None:
    target = tmp_path / "events.json"
    count = write_events(spec_of("workers=2"), few.head(10), target, timing=True)
    events = json.loads(target.read_text(encoding="utf-8"))
    assert len(events) == count
    assert {event["worker_id"] for event in events} == {0, 1}
    assert events[0]["data"] == {"type": "created", "num_blocks_per_cache_level": [200, 100]}
    with pytest.raises(ValueError, match="raise capacity"):
        write_events(spec_of("capacity.gpu_blocks=2"), few, tmp_path / "never.json", timing=False)
    assert [path.name for path in tmp_path.iterdir()] == ["events.json"]
