"""What kernels reach on a GPU, by size: matrix products, prefill attention, decode attention; and a large copy, a launch.

It decides nothing. Torch's own kernels, timed by events; bf16. Not yet run on a GPU.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from hw.cpu_kernels import Kernel, spread
from hw.cuda_torch import need_torch
from hw.measure import Cell

WIDTH, HEADS, HEAD = 8192, 32, 128
KV_HEADS = 8
LINEAR_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384)
PREFILL_TOKENS = (128, 512, 2048, 8192, 32768)
DECODE_CONTEXTS = ((1, 256), (1, 4096), (8, 4096), (32, 4096), (64, 8192))  # sequences, tokens each
GIB = 1 << 30


def kernels(number: int, most: int) -> Iterator[Kernel]:
    """The three of `compute.measured`, `most` sizes of each; `copy`, whose bytes are those read and written; `launch`, a kernel
    without work.
    """
    torch = need_torch()
    device, bf16 = torch.device("cuda", number), torch.bfloat16
    timed = partial(event_seconds, torch)

    def made(*shape: int) -> Any:
        return torch.randn(shape, dtype=bf16, device=device)

    weights = made(WIDTH, WIDTH)
    for tokens in spread(LINEAR_TOKENS, most):
        work = partial(torch.matmul, made(tokens, WIDTH), weights)
        yield Cell("linear", tokens, 1, "kernel"), 2.0 * tokens * WIDTH**2, partial(timed, work)
    attend = torch.nn.functional.scaled_dot_product_attention
    for tokens in spread(PREFILL_TOKENS, most):
        q = made(1, HEADS, tokens, HEAD)
        flops = 4.0 * HEADS * HEAD * tokens * tokens / 2
        work = partial(attend, q, q, q, is_causal=True)
        yield Cell("prefill_attention", tokens // 2, 1, "kernel"), flops, partial(timed, work)
    for sequences, context in spread(DECODE_CONTEXTS, most):
        q, kv = made(sequences, KV_HEADS, 1, HEAD), made(2, sequences, KV_HEADS, context, HEAD)
        size = 2 * kv.numel()
        work = partial(attend, q, kv[0], kv[1])
        yield Cell("decode_attention", size, 1, "kernel"), float(size), partial(timed, work)
    large = torch.empty(GIB, dtype=torch.uint8, device=device)
    yield Cell("copy", 2 * GIB, 1, "kernel"), 2.0 * GIB, partial(timed, partial(torch.empty_like(large).copy_, large))
    yield Cell("launch", 1, 1, "kernel"), 1.0, partial(timed, partial(large[:8].add_, 0))


def event_seconds(torch: Any, work: Callable[[], Any], times: int) -> list[float]:
    """Seconds of `work`, by events around single calls, after a warm-up."""
    spent = []
    for _ in range(times + 3):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        work()
        last.record()
        last.synchronize()
        spent.append(float(first.elapsed_time(last)) * 1e-3)
    return spent[3:]
