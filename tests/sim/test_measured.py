"""Steps put together from kernels that were timed."""

from dataclasses import replace

import pytest

from sim import cost
from sim.cost import decode_seconds, dense_seconds, is_beyond, prefill_seconds, step_seconds
from sim.cost_models import COST_MODELS, cost_model
from sim.hardware import Hardware, load_hardware
from sim.measured import MeasuredCost
from sim.models import load_model
from sim.products import Card, seconds
from sim.roofline import RooflineCost

H100, LLAMA = load_hardware("h100-sxm"), load_model("llama-3.1-8b")


def product_rate(rows: float, times: float = 1.0) -> tuple[float, float]:
    """What a calibration would have measured if a product took `times` as long as the rule says."""
    card = Card(H100.flops["bf16"] * H100.linear_efficiency, H100.hbm_bytes_per_s * H100.hbm_efficiency, 132, 2.0)
    return rows, 2 * rows * 8192**2 / (times * seconds(card, rows, 8192, 8192))


def machine(times: float = 1.0, **tables: tuple[tuple[float, float], ...]) -> Hardware:
    measured = {
        "linear": tuple(product_rate(2.0**n, times) for n in range(15)),
        "prefill_attention": ((64.0, 100e12), (65536.0, 400e12)),
        "decode_attention": ((1e6, 1e12), (1e9, 2e12)),
    }
    return replace(H100, measured={**measured, **tables})


def test_products_measured_as_the_rule_says_cost_as_the_roofline() -> None:
    ours, theirs = MeasuredCost(LLAMA, machine()).params, RooflineCost(LLAMA, H100).params
    for tokens in (1.0, 64.0, 512.0, 8192.0):
        assert dense_seconds(ours, tokens, 1.0) == pytest.approx(dense_seconds(theirs, tokens, 1.0))


def test_products_measured_twice_as_slow_take_twice_as_long_on_any_split() -> None:
    for ranks in (1, 8):
        quick, slow = (MeasuredCost(LLAMA, machine(times), tensor_parallel=ranks).params for times in (1.0, 2.0))
        rest = 512 * (quick[cost.ACTIVATION_S_PER_TOKEN] + quick[cost.REDUCE_S_PER_TOKEN]) + quick[cost.HEAD_READ_S]
        once, twice = (dense_seconds(params, 512.0, 1.0) - rest for params in (quick, slow))
        assert twice == pytest.approx(2 * once)


def test_fp8_is_looked_up_where_it_lies_at_the_same_place_between_memory_and_peak() -> None:
    # half the bytes, twice the FLOPs (1979 / 989): the same rows, half the time
    bf16, fp8 = (MeasuredCost(LLAMA, machine(), dtype).params for dtype in ("bf16", "fp8"))
    rest = 64 * bf16[cost.ACTIVATION_S_PER_TOKEN] + bf16[cost.HEAD_READ_S]
    ratio = (dense_seconds(fp8, 64.0, 1.0) - rest) / (dense_seconds(bf16, 64.0, 1.0) - rest)
    assert ratio == pytest.approx(0.5, abs=0.02)


def test_prefill_attention_runs_at_the_rate_of_its_mean_context() -> None:
    params = MeasuredCost(LLAMA, machine()).params
    # 1,000 tokens after 63,536: mean context 64,036; 4 x 32 heads x 128 FLOPs a pair, 32 layers, about 400 TFLOPS
    pairs = 1000 * (65_036 - 500.0)
    took = prefill_seconds(params, 1000.0, pairs, pairs, 64_536.0)
    assert took == pytest.approx(32 * 4 * 32 * 128 * pairs / 400e12, rel=0.01)


def test_decode_attention_reads_at_the_rate_of_one_layers_bytes() -> None:
    params = MeasuredCost(LLAMA, machine()).params
    # 4,096 B of a layer a token; 244,140.625 tokens are 1e9 B, read at 2 TB/s in each of 32 layers
    assert decode_seconds(params, 8.0, 1e9 / 4096, 0.0) == pytest.approx(32 * 1e9 / 2e12)
    # 1e6 B at 1 TB/s
    assert decode_seconds(params, 8.0, 1e6 / 4096, 0.0) == pytest.approx(32 * 1e6 / 1e12)


def test_sliding_layers_read_their_window() -> None:
    model = load_model("gpt-oss-120b")
    params = MeasuredCost(model, machine(decode_attention=((1.0, 1e12), (1e12, 1e12))), "mxfp4").params
    # 18 full layers of 10,000 tokens and 18 of 128, 2 x 8 x 64 x 2 B each
    expected = 18 * (10_000 + 128) * 2048 / 1e12
    assert decode_seconds(params, 1.0, 10_000.0, 128.0) == pytest.approx(expected)


def test_steps_beyond_what_was_measured_are_known() -> None:
    params = MeasuredCost(LLAMA, machine()).params
    inside = (2000.0, 2000 * 5000.0, 0.0, 4.0, 100_000.0)
    assert not is_beyond(params, *inside)
    assert is_beyond(params, 20_000.0, 20_000 * 5000.0, 0.0, 0.0, 0.0)  # more tokens than 16,384
    assert is_beyond(params, 2000.0, 2000 * 70_000.0, 0.0, 0.0, 0.0)  # longer contexts than 65,536
    assert is_beyond(params, 0.0, 0.0, 0.0, 4.0, 10.0)  # fewer bytes than 1e6
    assert not is_beyond(params, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert not is_beyond(RooflineCost(LLAMA, H100).params, 1e9, 1e12, 0.0, 0.0, 0.0)


def test_it_says_where_its_seconds_come_from() -> None:
    found = replace(machine(), sources={"compute.measured.linear": "measured, device cuda:0"})
    [note] = MeasuredCost(LLAMA, found).notes
    assert note == "steps: products and attention as measured (measured, device cuda:0); the rest by the roofline"


def test_a_machine_without_measured_kernels_is_refused() -> None:
    with pytest.raises(ValueError, match=r"hardware h100-sxm has no compute.measured: give hardware the file"):
        MeasuredCost(LLAMA, H100)


def test_an_unknown_model_lists_the_known() -> None:
    with pytest.raises(ValueError, match="cost_model is 'magic'; known: roofline, table, aiconfigurator"):
        cost_model("magic", LLAMA, H100, "bf16", "bf16", 1, 1)
    assert cost_model("roofline", LLAMA, H100, "bf16", "bf16", 1, 1).notes == ()
    assert list(COST_MODELS)[:2] == ["roofline", "table"]


class TestPipeline:
    """Two stages: the batch goes through as two micro-batches, each over all layers, while the other is elsewhere."""

    ONE, TWO = (RooflineCost(LLAMA, H100, pipeline_parallel=stages).params for stages in (1, 2))
    HOP_S = H100.link("nvlink").h2d.latency_s
    HIDDEN_S = 4096 * 2 / H100.link("nvlink").h2d.bandwidth_bytes_per_s

    def test_two_sequences_take_as_long_as_one_of_them_does_alone(self) -> None:
        pair, alone = step_seconds(self.TWO, 0, 0, 2, 2000), step_seconds(self.ONE, 0, 0, 1, 1000)
        assert pair == pytest.approx(alone + self.HOP_S + self.HIDDEN_S)

    def test_a_prompt_alone_gains_nothing(self) -> None:
        split, whole = (step_seconds(params, 4096, 4096**2 / 2, 0, 0) for params in (self.TWO, self.ONE))
        assert split == pytest.approx(whole + self.HOP_S + 4096 * self.HIDDEN_S)

    def test_a_large_batch_gains_where_it_computes_and_not_where_it_reads_weights(self) -> None:
        reading, computing = (
            step_seconds(self.TWO, 0, 0, n, n * 10) / step_seconds(self.ONE, 0, 0, n, n * 10) for n in (8, 8192)
        )
        assert 0.95 < reading < 1.05
        assert computing < 0.6
