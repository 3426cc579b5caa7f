"""What kernels reach on the processor, by size, so that the whole path from measuring to a simulation can be tried without a GPU.

float32 by numpy on all cores; clock time. Sizes are small: minutes matter more here than peaks.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hw.measure import Cell

Kernel = tuple[Cell, float, Callable[[int], list[float]]]
"""What is measured, its work (FLOPs or bytes), and a function that gives seconds of so many repeats."""

Floats = NDArray[Any]

WIDTH, HEADS, HEAD = 2048, 4, 64
LINEAR_TOKENS = (1, 4, 16, 64, 256, 1024)
PREFILL_TOKENS = (64, 256, 1024)
DECODE_CONTEXTS = ((1, 256), (1, 4096), (8, 4096), (16, 8192))  # sequences, tokens each


T = TypeVar("T")


def spread(sizes: Sequence[T], most: int) -> list[T]:
    """`most` of them at most, the first and the last among them."""
    return [
        sizes[i] for i in np.unique(np.linspace(0, len(sizes) - 1, min(most, len(sizes))).round().astype(int)).tolist()
    ]


def kernels(most: int) -> Iterator[Kernel]:
    """Names, sizes and work as in `compute.measured` of a hardware file; `most` sizes of each."""
    rng = np.random.default_rng(0)

    def made(*shape: int) -> Floats:
        return rng.standard_normal(shape, np.float32)

    weights = made(WIDTH, WIDTH)
    for tokens in spread(LINEAR_TOKENS, most):
        work = partial(np.matmul, made(tokens, WIDTH), weights)
        yield Cell("linear", tokens, 1, "kernel"), 2.0 * tokens * WIDTH**2, partial(seconds, work)
    for tokens in spread(PREFILL_TOKENS, most):
        q = made(HEADS, tokens, HEAD)
        flops = 4.0 * HEADS * HEAD * tokens * tokens / 2
        yield Cell("prefill_attention", tokens // 2, 1, "kernel"), flops, partial(seconds, partial(prefill, q, q, q))
    for sequences, context in spread(DECODE_CONTEXTS, most):
        q, kv = made(sequences, HEADS, 1, HEAD), made(2, sequences, HEADS, context, HEAD)
        work = partial(attention, q, kv[0], kv[1])
        yield Cell("decode_attention", kv.nbytes, 1, "kernel"), float(kv.nbytes), partial(seconds, work)


def attention(q: Floats, k: Floats, v: Floats, mask: Floats | None = None) -> Floats:
    """Plain attention; `mask` is added to the scores."""
    scores = q @ k.swapaxes(-1, -2) / np.float32(np.sqrt(q.shape[-1]))
    if mask is not None:
        scores += mask
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    result: Floats = scores @ v
    return result


def prefill(q: Floats, k: Floats, v: Floats, rows: int = 64) -> Floats:
    """Causal attention of a prompt, `rows` queries at a time over the keys they may see."""
    out = np.empty_like(q)
    inside = np.triu(np.full((rows, rows), -np.inf, np.float32), 1)
    for first in range(0, q.shape[-2], rows):
        last = min(first + rows, q.shape[-2])
        mask = np.zeros((last - first, last), np.float32)
        mask[:, first:] = inside[: last - first, : last - first]
        out[:, first:last] = attention(q[:, first:last], k[:, :last], v[:, :last], mask)
    return out


def seconds(work: Callable[[], object], times: int) -> list[float]:
    """Of single calls, on the clock, after a warm-up; short ones are repeated up to 2 ms."""
    begun = time.perf_counter()
    work()
    calls = max(1, round(2e-3 / max(1e-6, time.perf_counter() - begun)))
    spent = []
    for _ in range(times):
        begun = time.perf_counter()
        for _ in range(calls):
            work()
        spent.append((time.perf_counter() - begun) / calls)
    return spent
