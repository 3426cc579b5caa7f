"""One kernel that copies many rows, between GPU memory and host memory that is mapped to the GPU, by their addresses.

Written in Triton, which comes with CUDA builds of torch. It checks nothing: a wrong address stops the process's use of the GPU.
The rows of one launch may be done in any order.
"""

from typing import Any

import numpy as np
import triton
import triton.language as tl
from numpy.typing import NDArray

WORDS = 1024  # of 8 bytes, a program copies at once


@triton.jit  # type: ignore[untyped-decorator]
def _copy(table: Any, words_at_once: tl.constexpr) -> None:
    row = tl.program_id(0)
    target = tl.load(table + 3 * row).to(tl.pointer_type(tl.int64))
    source = tl.load(table + 3 * row + 1).to(tl.pointer_type(tl.int64))
    words = tl.load(table + 3 * row + 2)
    at = tl.program_id(1) * words_at_once + tl.arange(0, words_at_once)
    inside = at < words
    tl.store(target + at, tl.load(source + at, mask=inside), mask=inside)


def copy_rows(torch: Any, rows: NDArray[np.int64], device: Any) -> None:
    """Copy `rows` [n, 3] (address to, address from, words of 8 bytes) on torch's current stream."""
    table = torch.from_numpy(rows)
    if device.type == "cuda":  # a copy from pinned memory does not hold up the caller
        table = table.pin_memory().to(device, non_blocking=True)
    _copy[len(rows), triton.cdiv(int(rows[:, 2].max()), WORDS)](table, words_at_once=WORDS)
