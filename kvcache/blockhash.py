"""TensorRT-LLM's 64-bit block hash: what events, the connector and the disaggregated lookup call a block.

The tree never uses it. Models `BlockKeyHasher`; the formula and its vectors are in `docs/fidelity.md`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MASK64 = (1 << 64) - 1
MASK32 = (1 << 32) - 1


@dataclass(frozen=True)
class MultimodalEntry:
    """One multimodal item that a block overlaps: 8 words of hash, offset of the block's first covered token in the item."""

    item_hash: tuple[int, ...]
    start_offset: int


def mix64(value: int, seed: int) -> int:
    """Fold a 64-bit value into the seed."""
    v = value & MASK64
    v = ((v ^ (v >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    v = ((v ^ (v >> 27)) * 0x94D049BB133111EB) & MASK64
    v ^= v >> 31
    return seed ^ ((v + 0x9E3779B9 + (seed << 6) + (seed >> 2)) & MASK64)


def mix32(value: int, seed: int) -> int:
    """Fold a 32-bit value into the seed: it is scrambled in 32 bits, added in 64."""
    v = value & MASK32
    v = (((v >> 16) ^ v) * 0x45D9F3B) & MASK32
    v = (((v >> 16) ^ v) * 0x45D9F3B) & MASK32
    v = (v >> 16) ^ v
    return seed ^ ((v + 0x9E3779B9 + (seed << 6) + (seed >> 2)) & MASK64)


def block_hash(
    tokens: Sequence[int],
    *,
    parent: int = 0,
    extra_ids: Sequence[int] | None = None,
    lora_id: int | None = None,
    cache_salt: int | None = None,
    multimodal: Sequence[MultimodalEntry] = (),
) -> int:
    """Hash of one block key chained to its parent's hash (0 at the root)."""
    seed = len(tokens) ^ ((parent * 0xBF58476D1CE4E5B9) & MASK64)
    if parent == 0 and cache_salt is not None:
        seed = mix64(cache_salt, seed)
    for i, token in enumerate(tokens):
        seed = mix32(token, seed)
        if extra_ids is not None:
            seed = mix64(extra_ids[i], seed)
    if lora_id is not None:
        seed = mix64(lora_id, seed)
    for entry in multimodal:
        # the 32 bytes are the words written big-endian; they are read back as little-endian words
        for word in entry.item_hash:
            seed = mix32(int.from_bytes((word & MASK32).to_bytes(4, "big"), "little"), seed)
        seed = mix64(entry.start_offset, seed)
    return seed
