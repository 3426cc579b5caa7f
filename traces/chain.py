"""Chained 64-bit names of blocks: equal where the block and everything before it are equal.

For formats whose hashes name prefixes. The mixing is that of `kvcache.keys` (62 bits), not any engine's hash.
"""

import numpy as np
from numpy.typing import NDArray

from kvcache.compiled import compiled
from kvcache.request import Int32, Int64, Requests

MULTIPLIER = 0x369DEA0F31A53F85
MASK62 = (1 << 62) - 1


def chained(piece: Requests) -> NDArray[np.int64]:
    """One name a prompt unit, in the order of `units`."""
    names = np.empty(len(piece.units), np.int64)
    _chain(piece.unit_offset, piece.units, piece.salt, piece.lora, names)
    return names


@compiled
def _chain(offset: Int64, units: Int32, salt: Int32, lora: Int32, names: Int64) -> None:
    for i in range(len(offset) - 1):
        h = 1
        for j in range(int(offset[i]) - 2, int(offset[i + 1])):
            in_prompt = j >= offset[i]
            x = int(units[j]) if in_prompt else int(salt[i] if j == offset[i] - 2 else lora[i])
            h = ((h ^ (x + 2)) * MULTIPLIER) & MASK62
            h ^= h >> 29
            if in_prompt:
                names[j] = h
