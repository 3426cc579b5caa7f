"""Seconds of matrix products by their shape: how well tiles fill the multiprocessors, and what is read and written.

It knows no kernel by name and times nothing. One product of m x k by k x n on a card:

    computed   waves x (a x b x 2k FLOPs on every multiprocessor), waves = ceil(tiles / multiprocessors), of the tile
               shape a x b of `TILES` that takes the least time; then m x n results are written
    read       all three matrices pass the memory once
    seconds    the longer of the two

The first is tile and wave quantization as NVIDIA's "Matrix Multiplication Background User's Guide" describes it: a
narrow matrix fills its last wave badly, and a shallow one (small k) has little to hide the write behind. A machine's
efficiency is thus that of wide, deep products. Against 20,128 bf16 products on an H100 (aiconfigurator's table, TensorRT-LLM
1.3.0rc20; m from 1 to 32,768) the median error is 9 % at the preset's 0.76, half of them within 6 % at 0.84; one efficiency
without shapes is off by 14 % on average between 256 and 1,023 rows, this rule by 6 %.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kvcache.capacity import local_kv_heads
from sim.models import Model

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
"""Tile shapes a library chooses from."""
ELEMENT_BYTES = 2.0
"""Of what goes in and comes out beside the weights: 16 bits."""


@dataclass(frozen=True)
class Product:
    """One product of a layer on one rank: `inner` values in, `width` out, in `layers` layers."""

    width: float
    inner: float
    layers: int


@dataclass(frozen=True)
class Card:
    """What a product meets: FLOPs a second of wide ones, bytes a second of memory, multiprocessors, bytes of a weight."""

    flops_per_s: float
    bytes_per_s: float
    multiprocessors: float
    weight_bytes: float


def seconds(card: Card, rows: float, width: float, inner: float) -> float:
    """One product of `rows` by `inner` and `inner` by `width`."""
    waves = min(math.ceil(math.ceil(rows / a) * math.ceil(width / b) / card.multiprocessors) * a * b for a, b in TILES)
    written = ELEMENT_BYTES * rows * width / card.bytes_per_s
    computed = waves * card.multiprocessors * 2.0 * inner / card.flops_per_s
    read = (card.weight_bytes * inner * width + ELEMENT_BYTES * rows * inner) / card.bytes_per_s
    return max(computed, read) + written


def dense_seconds(card: Card, model: Model, rows: float, tensor_parallel: int = 1) -> float:
    """All products every token passes on one rank: attention's projections, dense MLPs, shared experts, routers."""
    each = products(model, tensor_parallel)
    return sum(product.layers * seconds(card, rows, product.width, product.inner) for product in each)


def products(model: Model, tensor_parallel: int = 1) -> Iterator[Product]:
    """Their shapes, gate and up as one product, and queries, keys and values as one."""
    h, tp = model.hidden_size, tensor_parallel
    if model.mla:
        yield from _latent_attention(model, tp)
    else:
        wide = model.heads / tp + 2 * local_kv_heads(model.kv_heads, tp)
        yield Product(wide * model.head_dim, h, model.layers)
        yield Product(h, model.heads * model.head_dim / tp, model.layers)
    if model.layers > model.moe_layers:
        yield from _mlp(h, model.intermediate_size / tp, model.layers - model.moe_layers)
    if model.moe_layers:
        yield Product(model.experts, h, model.moe_layers)
    if model.moe_layers and model.shared_experts:
        yield from _mlp(h, model.shared_experts * model.expert_size / tp, model.moe_layers)


def _mlp(hidden: float, width: float, layers: int) -> Iterator[Product]:
    yield Product(2 * width, hidden, layers)
    yield Product(hidden, width, layers)


def _latent_attention(model: Model, tp: int) -> Iterator[Product]:
    h, heads = model.hidden_size, model.heads / tp
    qk = model.qk_nope_head_dim + model.qk_rope_head_dim
    yield Product(model.q_lora_rank + model.kv_lora_rank + model.qk_rope_head_dim, h, model.layers)
    yield Product(heads * qk, model.q_lora_rank or h, model.layers)
    yield Product(heads * (model.qk_nope_head_dim + model.v_head_dim), model.kv_lora_rank, model.layers)
    yield Product(h, heads * model.v_head_dim, model.layers)
