"""The profile vllm: what of a spec it takes over, and what it refuses."""

import pytest

from experiments.engines import policy_of
from experiments.explain import explain
from experiments.load import load
from experiments.pools import plan
from experiments.trace import Trace

SMALL = ["profile=vllm", "gpu_blocks=2588", "tokens_per_block=16", "max_num_tokens=2048"]


def test_one_block_is_the_null_block_and_the_run_says_so() -> None:
    the_plan = plan(load(None, SMALL)[0], 100)
    assert the_plan.pools[0].blocks == (2587, 0)
    assert any("null block" in note for note in the_plan.notes)


def test_parts_of_blocks_are_not_matched_whatever_the_spec_says() -> None:
    assert load(None, SMALL)[0].kv_cache_config.enable_partial_reuse
    assert not plan(load(None, SMALL)[0], 100).settings.enable_partial_reuse


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("host_blocks=10", "no host or disk tier"),
        ("disk_blocks=10", "no host or disk tier"),
        ("gpu_blocks=1", "vLLM keeps one for itself"),
        ("model=gpt-oss-120b", "full attention only"),
    ],
)
def test_what_vllm_has_not_or_we_do_not_model_is_refused(setting: str, message: str) -> None:
    spec = load(None, [*SMALL, setting])[0]
    with pytest.raises(ValueError, match=message):
        plan(spec, 100)


def test_scheduling_ahead_is_the_default_and_can_be_switched_off() -> None:
    assert policy_of(load(None, SMALL)[0]) == "VLLM_ASYNC"
    assert policy_of(load(None, [*SMALL, "async_scheduling=false"])[0]) == "VLLM"
    assert policy_of(load(None)[0]) == "GUARANTEED_NO_EVICT"


def test_a_lookup_is_explained_block_by_block() -> None:
    trace = Trace("llmservingsim_sharegpt300_blk16", limit=40)
    story = explain(load(None, [*SMALL, "hardware=rtx4090"])[0], trace.requests(), 39, timing=True)
    assert story.blocks
    assert {block.outcome for block in story.blocks} <= {"gpu", "miss"}
