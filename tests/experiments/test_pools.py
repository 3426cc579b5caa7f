"""From a spec to pools: overrides, refusals, windows."""

from typing import Any

import pytest

from experiments.pools import plan
from experiments.spec import Spec

GIB = 1 << 30


def planned(longest: int = 1000, **spec: Any) -> Any:
    return plan(Spec.model_validate(spec), longest)


def test_memory_left_after_weights_times_the_fraction_makes_the_gpu_pool() -> None:
    # Llama-3.1-8B, bf16: 128 KiB a token, 4 MiB a block of 32. H100: 80 GB less 16.06 GB of weights, 90 %: 57.5 GB.
    the_plan = planned()
    free = the_plan.hardware.hbm_bytes - the_plan.model.weight_bytes("bf16", 1)
    assert the_plan.block_bytes == (4 << 20,)
    assert the_plan.pools[0].blocks[0] == pytest.approx(0.9 * free / (4 << 20), abs=1)
    assert the_plan.pools[0].blocks[1] == 0


def test_host_memory_makes_the_host_pool() -> None:
    assert planned(kv_cache_config={"host_cache_size": 10 * GIB}).pools[0].blocks[1] == 10 * GIB // (4 << 20)


def test_capacity_overrides_memory_tier_by_tier() -> None:
    the_plan = planned(kv_cache_config={"host_cache_size": 10 * GIB}, capacity={"gpu_tokens": 3210, "host_blocks": 7})
    assert the_plan.pools[0].blocks == (100, 7)  # 100 blocks of 32 and ten tokens that make no block
    assert planned(kv_cache_config={"host_cache_size": 10 * GIB}, capacity={"host_blocks": 0}).pools[0].blocks[1] == 0


def test_half_as_large_elements_make_twice_as_many_blocks() -> None:
    wide, narrow = planned(), planned(kv_cache_config={"dtype": "fp8"})
    assert narrow.block_bytes[0] * 2 == wide.block_bytes[0]
    assert narrow.pools[0].blocks[0] == pytest.approx(2 * wide.pools[0].blocks[0], abs=2)


def test_a_pool_of_less_than_one_block_is_refused() -> None:
    with pytest.raises(ValueError, match="holds 0 blocks of 512 tokens"):
        planned(kv_cache_config={"tokens_per_block": 512}, capacity={"gpu_tokens": 100})


def test_weights_that_do_not_fit_are_refused_unless_the_pool_is_given() -> None:
    spec: dict[str, Any] = {"model": "llama-3.1-70b", "hardware": "h100-sxm"}
    with pytest.raises(ValueError, match=r"weights of llama-3.1-70b \(14\d GB a GPU at tensor_parallel_size=1\)"):
        planned(**spec)
    assert planned(**spec, capacity={"gpu_blocks": 50}).pools[0].blocks[0] == 50
    assert planned(**spec, parallel={"tensor_parallel_size": 4}).pools[0].blocks[0] > 0


def test_a_disk_that_adds_capacity_exists_in_the_cascade_only() -> None:
    capacity = {"gpu_blocks": 8, "host_blocks": 8, "disk_blocks": 9}
    with pytest.raises(ValueError, match=r"profile trtllm has no disk tier.*use profile=cascade"):
        planned(capacity=capacity)
    assert planned(capacity=capacity, profile="cascade").pools[0].blocks == (8, 8, 9)
    size = planned(kv_cache_config={"disk_cache_size": GIB}, profile="cascade").pools[0].blocks[2]
    assert size == GIB // (4 << 20)


def test_each_window_gets_a_pool_full_attention_first() -> None:
    the_plan = planned(model="gpt-oss-120b", hardware="h200")
    full, sliding = the_plan.pools
    assert (full.sliding, sliding.sliding, sliding.window_tokens) == (False, True, 128)
    assert sliding.chunk_tokens == 8192  # while a long prompt is in work: max_num_tokens
    assert len(the_plan.block_bytes) == 2


def test_capacity_of_a_model_with_windows_says_that_each_gets_as_much() -> None:
    the_plan = planned(model="gpt-oss-120b", hardware="h200", capacity={"gpu_blocks": 500})
    assert [pool.blocks[0] for pool in the_plan.pools] == [500, 500]
    assert "each of them a pool of that size" in the_plan.notes[0]


def test_settings_carry_the_profile_and_the_threshold_in_force() -> None:
    settings = planned(profile="cascade", kv_cache_config={"secondary_offload_min_priority": 50}).settings
    assert (settings.secondary_offload_min_priority, settings.emptied_host_slot_front) == (50, True)
    assert planned().settings.secondary_offload_min_priority == 30
    assert planned(profile="trtllm-2025").settings.evict_descendants


def test_a_sequence_may_be_as_long_as_the_longest_request_or_the_model() -> None:
    assert planned(longest=500_000).max_seq_len == 500_000
    assert planned(longest=500).max_seq_len == 131_072
    assert planned(longest=500, scheduler={"max_seq_len": 4096}).max_seq_len == 4096


def test_a_split_that_runs_do_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match=r"parallel\.enable_attention_dp is true; runs do not know it"):
        plan(Spec.model_validate({"parallel": {"enable_attention_dp": True}}), 4096)


def test_a_pipeline_stage_keeps_its_own_layers_only() -> None:
    # 32 layers over 3 stages: the first two keep 11 of them, 11 / 32 of 4,194,304 B a block of 32 tokens
    assert planned().block_bytes == (4_194_304,)
    assert planned(parallel={"pipeline_parallel_size": 3}).block_bytes == (4_194_304 * 11 // 32,)
    with pytest.raises(ValueError, match="pipeline_parallel is 33"):
        planned(parallel={"pipeline_parallel_size": 33})
