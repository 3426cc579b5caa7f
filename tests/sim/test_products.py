"""Matrix products by their shape, worked out by hand on a small card, and against measured ones."""

import pytest

from sim.models import load_model
from sim.products import Card, Product, dense_seconds, products, seconds

# 1 TFLOP/s of 10 multiprocessors (0.1 each), 1 GB/s of memory; weights of 2 bytes
CARD = Card(1e12, 1e18, 10, 2.0)


def test_tiles_that_fill_their_waves_run_at_the_full_rate() -> None:
    # 1280 x 2560 in tiles of 256 x 128: 5 x 20 = 100 tiles, 10 waves of 10; 2 x 1280 x 2560 x 1000 FLOPs
    assert seconds(CARD, 1280, 2560, 1000) == pytest.approx(2 * 1280 * 2560 * 1000 / 1e12)


def test_a_last_wave_with_one_tile_takes_as_long_as_a_full_one() -> None:
    # 11 tiles of 64 x 64: two waves of them, 20 x 64 x 64 x 2 x 1000. Larger tiles: 1 x 6 of 64 x 128 (or 128 x 128), one
    # wave, 10 x 64 x 128 x 2 x 1000, the same; so 20 x 64 x 64 x 2000 FLOPs' time
    assert seconds(CARD, 64, 11 * 64, 1000) == pytest.approx(20 * 64 * 64 * 2000 / 1e12)


def test_one_row_takes_as_long_as_a_tile_of_them_and_reads_the_weights() -> None:
    assert seconds(CARD, 1, 640, 1000) == pytest.approx(seconds(CARD, 64, 640, 1000))
    slow = Card(1e12, 1e9, 10, 2.0)
    # 2 x 1000 x 640 B of weights, 2,000 B in, 1,280 B out at 1 GB/s
    assert seconds(slow, 1, 640, 1000) == pytest.approx((1_280_000 + 2_000 + 1_280) / 1e9)
    assert seconds(Card(1e12, 1e9, 10, 0.5), 1, 640, 1000) == pytest.approx((320_000 + 2_000 + 1_280) / 1e9)


def test_results_are_written_after_they_are_computed() -> None:
    card = Card(1e12, 1e12, 10, 2.0)
    assert seconds(card, 1280, 2560, 1000) == pytest.approx((2 * 1280 * 2560 * 1000 + 2 * 1280 * 2560) / 1e12)


@pytest.mark.parametrize(
    ("rows", "width", "inner", "measured_us"),
    [
        (512, 1536, 4096, 15.4),
        (2048, 1536, 4096, 35.0),
        (4096, 1536, 4096, 67.7),
        (512, 4096, 512, 6.2),
        (2048, 4096, 512, 16.5),
        (4096, 4096, 512, 31.7),
        (4096, 4096, 1024, 56.0),
        (4096, 4096, 1536, 71.9),
        (4096, 2560, 4096, 108.9),
    ],
)
def test_narrow_and_shallow_products_meet_aiconfigurators_h100(
    rows: int, width: int, inner: int, measured_us: float
) -> None:
    # aiconfigurator-core 0.12.0, h100_sxm, TensorRT-LLM 1.3.0rc20, bf16; single products reach 0.84 of the peak, and a
    # launch costs 3 us
    h100 = Card(0.84 * 989e12, 0.8 * 3.35e12, 132, 2.0)
    assert 3.0 + 1e6 * seconds(h100, rows, width, inner) == pytest.approx(measured_us, rel=0.21)


def test_a_dense_layer_is_four_products() -> None:
    model = load_model("llama-3.1-8b")
    # 32 query and 8 + 8 key and value heads of 128; 14,336 twice
    assert list(products(model)) == [
        Product(6144, 4096, 32),
        Product(4096, 4096, 32),
        Product(28672, 4096, 32),
        Product(4096, 14336, 32),
    ]
    assert next(iter(products(model, 16))) == Product((2 + 2) * 128, 4096, 32)  # each KV head on two ranks


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-32b", "deepseek-r1", "gpt-oss-120b"])
def test_the_shapes_hold_all_parameters_that_every_token_passes(name: str) -> None:
    model = load_model(name)
    shapes = sum(p.width * p.inner * p.layers for p in products(model))
    routers = model.moe_layers * model.hidden_size * model.experts
    assert shapes == model.layers * model.attention_parameters() + model.dense_mlp_parameters + routers


def test_more_rows_never_take_less_time() -> None:
    card, model = Card(989e12, 2.68e12, 132, 2.0), load_model("llama-3.1-8b")
    times = [dense_seconds(card, model, rows, 8) for rows in range(1, 3000, 7)]
    assert times == sorted(times)
