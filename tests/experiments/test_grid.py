"""Grids: what the user writes, and every combination of it."""

import pytest

from experiments.complaints import SpecError
from experiments.grid import axes, points


def test_range_includes_both_ends() -> None:
    grid = axes(["secondary_offload_min_priority=0:100:10"])
    assert grid == {"kv_cache_config.secondary_offload_min_priority": list(range(0, 101, 10))}


def test_range_of_fractions_has_no_rounding_dust() -> None:
    assert axes(["rate_scale=0.1:0.5:0.1"]) == {"workload.rate_scale": [0.1, 0.2, 0.3, 0.4, 0.5]}


def test_range_may_run_down_and_stops_before_it_passes_its_end() -> None:
    assert axes(["max_batch_size=10:1:-4"]) == {"scheduler.max_batch_size": [10, 6, 2]}


def test_lists_keep_their_order_and_drop_repeats() -> None:
    assert axes(["tokens_per_block=64,32,64"]) == {"kv_cache_config.tokens_per_block": [64, 32]}


def test_values_may_be_words_nulls_lists_and_short_numbers() -> None:
    assert axes(["profile=trtllm,trtllm-2025"])["profile"] == ["trtllm", "trtllm-2025"]
    assert axes(["max_attention_window=null,[4096,32768]"]) == {
        "kv_cache_config.max_attention_window": [None, [4096, 32768]]
    }
    assert axes(["gpu_tokens=1e6,3e6"]) == {"capacity.gpu_tokens": [1e6, 3e6]}


def test_every_combination_comes_once_with_the_last_key_fastest() -> None:
    found = points({"a": [1, 2], "b": ["x", "y"]})
    assert found == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["tokens_per_block="], "no values"),
        (["tokens_per_block"], "write it as key=value"),
        (["tokens_per_block=0:100"], "a range is start:stop:step"),
        (["tokens_per_block=0:100:0"], "do not lead from 0 to 100"),
        (["tokens_per_block=0:100:-1"], "do not lead from 0 to 100"),
        (["max_tokens=0:1e12:1"], "at most 100000"),
        (["tokens_per_block=32", "kv_cache_config.tokens_per_block=64"], "is given twice"),
        (["token_per_block=32"], "did you mean tokens_per_block"),
    ],
)
def test_bad_grid_is_refused_with_the_reason(texts: list[str], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        axes(texts)
