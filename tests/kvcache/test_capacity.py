"""Capacity against TensorRT-LLM's arithmetic, worked by hand, and against what engines logged."""

from dataclasses import replace

import pytest

from kvcache.capacity import (
    AttentionLayers,
    ModelShape,
    block_counts,
    bytes_per_token,
    copy_bytes,
    local_kv_heads,
    stage,
    temporary_window_tokens,
    transfer_buffer_bytes,
    window_shares,
    with_windows,
)

GIB = 1024**3


def gqa(layers: int, kv_heads: int, head_dim: int, name: str = "model") -> ModelShape:
    return ModelShape(name, (AttentionLayers(None, layers, kv_heads, head_dim),))


LLAMA_70B = gqa(80, 8, 128, "Llama-3-70B")
LLAMA_8B = gqa(32, 8, 128, "Llama-3.1-8B")
DEEPSEEK_R1 = ModelShape("DeepSeek-R1", (AttentionLayers(None, 61, 128, 128),), "mla", 512, 64)
# 36 layers, sliding and full by turns, 8 KV heads of 64
GPT_OSS = ModelShape(
    "gpt-oss-120b", (AttentionLayers(128, 18, 8, 64), AttentionLayers(None, 18, 8, 64)), layer_order=(0, 1)
)


# --- bytes a token ---------------------------------------------------------------------------------------------------


def test_llama_70b_fp8_on_eight_ranks_takes_20480_bytes_a_token():
    # one head a rank: 2 x 1 x 128 x 1 B = 256 B a layer, x 80 layers = 20,480 B; x 32 tokens = 655,360 B
    assert bytes_per_token(LLAMA_70B, "fp8", 8) == {None: 20_480}
    assert copy_bytes(LLAMA_70B, "fp8", 8, tokens_per_block=32) == {None: (655_360,)}


def test_mla_is_not_divided_by_tensor_parallel():
    # (512 + 64) x 2 B = 1,152 B a layer, x 61 layers = 70,272 B; x 32 tokens = 2,248,704 B
    assert bytes_per_token(DEEPSEEK_R1, "bf16", 1) == {None: 70_272}
    assert bytes_per_token(DEEPSEEK_R1, "bf16", 8) == {None: 70_272}
    assert copy_bytes(DEEPSEEK_R1, "bf16", 8, tokens_per_block=32) == {None: (2_248_704,)}


@pytest.mark.parametrize(
    ("dtype", "bytes_a_token"),
    [
        ("fp16", 131_072),  # 32 layers x 2 x 8 x 128 x 2 B
        ("bf16", 131_072),
        ("bfloat16", 131_072),
        ("fp8", 65_536),
        ("int8", 65_536),
        ("nvfp4", 36_864),  # 32 x 2 x 8 x (64 + 8) B = 0.5625 B an element
    ],
)
def test_llama_8b_takes_the_bytes_of_its_dtype(dtype: str, bytes_a_token: int):
    assert bytes_per_token(LLAMA_8B, dtype) == {None: bytes_a_token}


def test_nvfp4_copies_values_and_scales_apart():
    # 32 tokens x 32 layers x 2 x 8 x 64 B = 1,048,576 B of values; an eighth of that in scales
    assert copy_bytes(LLAMA_8B, "nvfp4", tokens_per_block=32) == {None: (1_048_576, 131_072)}


def test_nvfp4_mla_rounds_values_and_scales_up():
    # 576 elements: 288 + 36 = 324 B a layer, x 61 = 17,568 + 2,196
    assert copy_bytes(DEEPSEEK_R1, "nvfp4") == {None: (17_568, 2_196)}
    odd = replace(DEEPSEEK_R1, kv_lora_rank=513)  # 577 elements: 289 + 37
    assert bytes_per_token(odd, "nvfp4") == {None: 61 * 326}


def test_nvfp4_refuses_a_head_that_is_no_multiple_of_16():
    with pytest.raises(ValueError, match="head_dim is 72; nvfp4 needs a multiple of 16"):
        bytes_per_token(gqa(2, 8, 72), "nvfp4")


def test_more_ranks_than_heads_replicate_a_head():
    assert [local_kv_heads(8, tp) for tp in (1, 3, 8, 16)] == [8, 3, 1, 1]


def test_attention_dp_keeps_all_heads_on_every_rank():
    assert local_kv_heads(8, 8, attention_dp=True) == 8
    assert bytes_per_token(LLAMA_70B, "fp8", 8, attention_dp=True) == {None: 163_840}


def test_head_counts_of_one_window_have_a_pool_each_and_heads_ascend():
    mixed = ModelShape("mixed", (AttentionLayers(None, 3, 8, 128), AttentionLayers(None, 2, 4, 128)))
    # 4 heads: 2 layers x 2 x 4 x 128 x 2 B = 4,096; 8 heads: 3 x 2 x 8 x 128 x 2 B = 12,288
    assert copy_bytes(mixed, "fp16") == {None: (4_096, 12_288)}
    # values of both pools, then scales of both
    assert copy_bytes(mixed, "nvfp4") == {None: (1_024, 3_072, 128, 384)}


def test_windows_have_bytes_of_their_own():
    # each half: 18 layers x 2 x 8 x 64 x 2 B
    assert list(bytes_per_token(GPT_OSS, "bf16").items()) == [(128, 36_864), (None, 36_864)]


# --- layers ----------------------------------------------------------------------------------------------------------


def test_pipeline_stage_counts_only_its_layers():
    # 61 layers on 4 ranks: 16, 15, 15, 15
    assert [stage(DEEPSEEK_R1, 4, rank).layers for rank in range(4)] == [16, 15, 15, 15]
    assert bytes_per_token(stage(LLAMA_70B, 2, 1), "fp8", 8) == {None: 10_240}


def test_pipeline_stage_keeps_the_order_of_windows():
    # 36 layers on 5 ranks: 8, 7, 7, 7, 7; rank 1 starts at layer 8, a sliding one: s f s f s f s
    part = stage(GPT_OSS, 5, 1)
    assert {g.window_tokens: g.layers for g in part.groups} == {128: 4, None: 3}
    assert part.order() == [0, 1, 0, 1, 0, 1, 0]


def test_max_attention_window_repeats_over_the_layers():
    # 5 layers under [512, 4096, 100000], longest sequence 8,192: 512, 4096, full, 512, 4096
    shape = with_windows(gqa(5, 8, 128), (512, 4096, 100_000), 8_192)
    assert {g.window_tokens: g.layers for g in shape.groups} == {512: 2, 4096: 2, None: 1}


def test_a_window_as_long_as_the_sequence_is_full_attention():
    assert with_windows(LLAMA_8B, (8_192,), 8_192).groups == LLAMA_8B.groups


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AttentionLayers(None, 0, 8, 128), "layers is 0"),
        (lambda: AttentionLayers(0, 1, 8, 128), "window_tokens is 0"),
        (lambda: ModelShape("m", ()), "groups is empty"),
        (lambda: replace(LLAMA_8B, kind="mqa"), "kind is 'mqa'; known kinds: gqa, mla"),
        (lambda: replace(DEEPSEEK_R1, kv_lora_rank=0), "kv_lora_rank is 0"),
        (lambda: replace(GPT_OSS, layer_order=(0, 0, 1)), r"\[24, 12\] layers; they have \[18, 18\]"),
        (lambda: stage(LLAMA_8B, 33, 0), "pipeline_parallel is 33; Llama-3.1-8B has 32 layers"),
        (lambda: stage(LLAMA_8B, 2, 2), "pipeline rank is 2"),
        (lambda: with_windows(LLAMA_8B, (), 8_192), "max_attention_window is empty"),
        (lambda: bytes_per_token(LLAMA_8B, "fp4"), "dtype is 'fp4'; known: fp16, bf16, fp8, int8, nvfp4"),
        (lambda: bytes_per_token(LLAMA_8B, "fp8", 0), "tensor_parallel is 0"),
    ],
)
def test_an_impossible_shape_is_refused(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()


# --- window shares ---------------------------------------------------------------------------------------------------

# 1 layer of 1,024 tokens, 3 of 4,096, 2 of 8,192, all alike: the example in TensorRT-LLM's header
HEADER_EXAMPLE = {1_024: 100, 4_096: 300, 8_192: 200}


def test_shares_by_need_follow_the_header_example():
    # 1 x 1024 : 3 x 4096 : 2 x 8192 = 1024 : 12288 : 16384
    assert window_shares(HEADER_EXAMPLE, "need", 8_192) == pytest.approx((0.0345, 0.4138, 0.5517), abs=5e-5)


def test_a_window_beyond_the_longest_sequence_counts_as_that_sequence():
    # 4,096 tokens at most: 1 x 1024 : 3 x 4096 : 2 x 4096 = 1024 : 12288 : 8192
    assert window_shares(HEADER_EXAMPLE, "need", 4_096) == pytest.approx((1 / 21, 12 / 21, 8 / 21))


def test_a_long_prompt_in_work_widens_sliding_windows():
    assert temporary_window_tokens(128, 8_192, 131_072) == 8_192
    assert temporary_window_tokens(128, 8_192, 1_024) == 896
    assert temporary_window_tokens(128, 8_192, 100) == 0
    # 128 + 896 = 1,024 against 1,024 for full attention
    assert window_shares({128: 5, None: 5}, "need", 1_024, 8_192) == (0.5, 0.5)


def test_older_rule_shares_equally():
    assert window_shares(HEADER_EXAMPLE, "equal") == pytest.approx((1 / 3, 1 / 3, 1 / 3))


def test_given_shares_are_normalised():
    assert window_shares(HEADER_EXAMPLE, (1, 1, 2)) == (0.25, 0.25, 0.5)


def test_one_window_takes_all_without_knowing_the_sequence_length():
    assert window_shares({None: 7}, "need") == (1.0,)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("need", "max_sequence_len is not set"),
        ((1, 1), "it needs 3 numbers above 0"),
        ((1, 1, 0), "it needs 3 numbers above 0"),
    ],
)
def test_unusable_shares_are_refused(rule, message: str):
    with pytest.raises(ValueError, match=message):
        window_shares(HEADER_EXAMPLE, rule)


# --- block counts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "dtype", "gib", "tokens_per_block", "logged_blocks"),
    [
        # NVIDIA/TensorRT-LLM#2894: 57,344 B a token = 28 layers x 2 x 4 x 128 x 2 B
        (gqa(28, 4, 128), "fp16", 28.59, 64, 7_528),
        # #2268, Qwen1.5-7B: 524,288 B a token = 32 x 2 x 32 x 128 x 2 B
        (gqa(32, 32, 128), "fp16", 21.89, 64, 631),
        # #4275: 65,536 B a token
        (LLAMA_8B, "fp8", 17.83, 32, 8_219),
    ],
)
def test_engine_logs_are_met_within_a_thousandth(shape, dtype, gib, tokens_per_block, logged_blocks):
    # 0.9 of the GiB printed, which have two digits
    counts = block_counts(shape, dtype, int(gib * GIB), tokens_per_block=tokens_per_block, route="cpp")
    assert counts.windows[0].primary_blocks == pytest.approx(logged_blocks, rel=1e-3)


def test_631_blocks_in_21_89_gib_is_the_cpp_route_rounding_up():
    # NVIDIA/TensorRT-LLM#2268: 0.9 x 21.89 GiB / (64 x 512 KiB) = 630.4
    cpp = block_counts(gqa(32, 32, 128), "fp16", int(21.89 * GIB), tokens_per_block=64, route="cpp")
    python = block_counts(gqa(32, 32, 128), "fp16", int(21.89 * GIB), tokens_per_block=64, route="python")
    assert (cpp.windows[0].primary_blocks, python.windows[0].primary_blocks) == (631, 630)


def test_tokens_of_an_engine_log_are_met():
    # NVIDIA/TensorRT-LLM#6294: 52.51 GiB of cache hold 860,320 tokens of 65,536 B
    counts = block_counts(LLAMA_8B, "fp8", int(52.51 / 0.9 * GIB))
    assert counts.primary_tokens == pytest.approx(860_320, rel=1e-3)


def test_explain_names_every_step():
    counts = block_counts(
        gqa(1, 1, 128), "fp8", 100_000, tokens_per_block=4, host_cache_size=10_240, max_tokens=90, transfer_bytes=10_000
    )
    # 90,000 - 10,000 = 80,000 B / 256 B = 312 tokens, capped at 90: 22 blocks; host 10,240 / 1,024 = 10
    assert counts.explain() == [
        "0.9 (free_gpu_memory_fraction) x 100000 B available = 90000 B",
        "less 10000 B of transfer buffers = 80000 B",
        "full attention: 1.0000 x 80000 B / 256 B a token = 312 tokens",
        "full attention: max_tokens caps it at 90 tokens",
        "full attention: / 4 tokens a block = 22 GPU blocks (rounded down)",
        "full attention: host 1.0000 x 10240 B / 1024 B a block = 10 host blocks",
    ]
    assert counts.windows[0].secondary_blocks == 10
    assert counts.primary_tokens == 88


def test_max_gpu_total_bytes_caps_the_budget():
    counts = block_counts(gqa(1, 1, 128), "fp8", 100_000, tokens_per_block=1, max_gpu_total_bytes=2_560)
    assert counts.windows[0].primary_blocks == 10
    assert "max_gpu_total_bytes caps it at 2560 B" in counts.explain()


def test_host_blocks_round_down_on_both_routes():
    # 40 GiB / (32 x 65,536 B) = 20,480 blocks; one byte less is 20,479
    for route in ("python", "cpp"):
        full = block_counts(LLAMA_8B, "fp8", GIB, host_cache_size=40 * GIB, route=route)
        less = block_counts(LLAMA_8B, "fp8", GIB, host_cache_size=40 * GIB - 1, route=route)
        assert (full.windows[0].secondary_blocks, less.windows[0].secondary_blocks) == (20_480, 20_479)


def test_several_windows_round_up_and_ignore_max_tokens_on_the_python_route():
    # Equal shares of 0.5 x 1,000,000 B: 250,000 / 36,864 = 6 tokens each; 4 a block: 2 blocks, rounded up.
    counts = block_counts(
        GPT_OSS, "bf16", 1_000_000, free_gpu_memory_fraction=0.5, tokens_per_block=4, max_tokens=1, shares="equal"
    )
    assert [(w.window_tokens, w.primary_blocks, w.descriptors) for w in counts.windows] == [(128, 2, 1), (None, 2, 1)]
    assert any("max_tokens 1 is ignored" in step for step in counts.explain())


def test_several_windows_without_max_tokens_say_nothing_of_it():
    counts = block_counts(GPT_OSS, "bf16", 10**9, max_sequence_len=131_072)
    # 128 : 131,072 by need
    assert counts.windows[0].share == pytest.approx(128 / 131_200)
    assert not any("ignored" in step for step in counts.explain())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"free_gpu_memory_fraction": 1.0}, r"free_gpu_memory_fraction is 1.0; it must be in \(0, 1\)"),
        ({"free_gpu_memory_fraction": 0.0}, "free_gpu_memory_fraction is 0.0"),
        ({"tokens_per_block": 0}, "tokens_per_block is 0; it must be at least 1"),
        ({"available_bytes": 0}, "available_bytes is 0"),
        ({"host_cache_size": -1}, "host_cache_size is -1; it must be at least 0"),
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
        ({"available_bytes": 1_000_000}, "GPU pool of 900000 bytes holds no block of 2097152 bytes"),
        ({"transfer_bytes": 2 * GIB}, "raise free_gpu_memory_fraction"),
        # NVIDIA/TensorRT-LLM#2225: a host pool was set, none came, and the engine crashed later
        ({"host_cache_size": 1_000_000}, "host_cache_size gives it 1000000 bytes and a block takes 2097152"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(settings: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        block_counts(LLAMA_8B, "fp8", **{"available_bytes": GIB, **settings})


def test_transfer_buffers_hold_the_tokens_they_are_given():
    # full attention: 4,096 x 10 B; window 128 in blocks of 32: 160 tokens x 10 B; 3 buffers
    assert transfer_buffer_bytes({128: 10, None: 10}, 32, 4_096) == 3 * (1_600 + 40_960)
    assert transfer_buffer_bytes({None: 10}, 32) == 3 * 512 * 1024 * 1024
