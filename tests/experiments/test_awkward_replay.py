"""Oddities of traces that only a replay can answer for: prompts longer than any pool, turns too early, one instant."""

from pathlib import Path

import pytest

from experiments.published.runs import served
from experiments.run import run
from experiments.spec import Capacity, KvCacheConfig, Scheduler, Spec, Workload
from traces.read import read

AWKWARD = Path(__file__).parents[1] / "traces" / "awkward"
SPEC = Spec(
    model="llama-3.1-8b",
    hardware="h100-sxm",
    kv_cache_config=KvCacheConfig(tokens_per_block=512),
    capacity=Capacity(gpu_tokens=100_000, host_tokens=0),
    scheduler=Scheduler(max_num_tokens=8192),
)


def spec_with(**changes: object) -> Spec:
    return SPEC.model_copy(update=changes)


def test_20_a_prompt_longer_than_the_pool_is_refused_dropped_or_truncated_and_never_waits() -> None:
    requests = read(AWKWARD / "20_longer_than_model.jsonl")
    with pytest.raises(ValueError, match=r"191378 prompt .* too_long=drop or too_long=truncate"):
        run(spec_with(too_long="error"), requests)
    with pytest.raises(ValueError, match="every request is longer"):
        run(spec_with(too_long="drop"), requests)
    row = run(spec_with(too_long="truncate"), requests)
    assert row["requests"] == 1
    assert any("truncated 1" in note for note in row["notes"])


def test_32_an_early_turn_starts_when_its_predecessor_is_computed_or_ended() -> None:
    requests = read(AWKWARD / "32_turn_before_previous_ended.jsonl")
    # Open loop: the second turn comes at 10 ms, in the middle of the step that computes the first one's 1,024 tokens; it
    # starts with the next step, finds them, and has its first token long before the first turn's 2,000 are generated.
    outcome = served(SPEC, requests)
    assert outcome.reused.tolist() == [0, 1024]
    assert outcome.first_token_s[0] > 0.010
    assert outcome.first_token_s[0] < outcome.first_token_s[1] < outcome.finish_s[0]
    # Turns that wait: it comes when the first one has ended, and the whole run is longer for it.
    waiting, open_loop = (run(spec_with(workload=Workload(wait_for_turns=w)), requests) for w in (True, False))
    assert waiting["hit_tokens"] == 1024
    assert waiting["makespan_s"] > open_loop["makespan_s"]


def test_39_the_second_of_one_instant_waits_for_what_the_first_computes() -> None:
    requests = read(AWKWARD / "39_same_instant.jsonl")
    # TensorRT-LLM holds a request back while another computes the blocks it could reuse. 511: all but the last token.
    outcome = served(SPEC, requests)
    assert outcome.reused.tolist() == [0, 511, 511, 511, 511, 511]
    assert outcome.first_token_s[0] < outcome.first_token_s[1]
    # Spread over their 3 s, each comes when the one before has long been computed.
    assert run(spec_with(workload=Workload(spread_arrivals=True)), requests)["hit_tokens"] == 5 * 511
