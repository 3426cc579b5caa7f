"""Sizes a deployment plans with: blocks a sequence may hold, the window that fits, what share of a pool a window gets.

Pure functions of integers; no cache is looked at. They model the static helpers of `KVCacheManager`
(`chopVectorIntoBlocks`, `calculateMaxBlockRequirements`, `calculateMaxAttentionWindow`, `calculateWindowSizeToShare`)
and, for `reused_tokens_by_tier`, V2's attribution of reused tokens. Nothing differs, but sink tokens only ever appear
here: the manager itself refuses them, as TensorRT-LLM's does.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")

EXTRA_BLOCK = 1  # kSWAExtraBlock: a sliding window takes its next block before it gives up its oldest


def chop_tokens(tokens: Sequence[T], usable: int, tokens_per_block: int, *, allow_partial: bool) -> list[list[T]]:
    """The first `usable` tokens cut in blocks; a short last one only if `allow_partial`."""
    if not 0 <= usable <= len(tokens):
        raise ValueError(f"usable is {usable}; there are {len(tokens)} tokens")
    if tokens_per_block < 1:
        raise ValueError(f"tokens_per_block is {tokens_per_block}; it must be at least 1")
    stop = usable if allow_partial else usable - usable % tokens_per_block
    return [list(tokens[i : min(i + tokens_per_block, stop)]) for i in range(0, stop, tokens_per_block)]


def _sink_bubble(sink_tokens: int, tokens_per_block: int) -> int:
    """Sink tokens stand in blocks of their own: the rest of their last block stays empty."""
    return -sink_tokens % tokens_per_block


def max_blocks_per_beam(sequence_length: int, sink_tokens: int, window: int, tokens_per_block: int) -> int:
    """Most blocks a beam ever holds; one more than the window needs once the sequence outgrows it."""
    tokens = min(sequence_length, window) + _sink_bubble(sink_tokens, tokens_per_block)
    return -(-tokens // tokens_per_block) + (EXTRA_BLOCK if sequence_length > window else 0)


def max_blocks(
    input_length: int, output_length: int, sink_tokens: int, window: int, beam_width: int, tokens_per_block: int
) -> int:
    """Most blocks a request ever holds. Beams share the full blocks of the prompt and nothing else."""
    whole = input_length + output_length
    if beam_width == 1:
        return max_blocks_per_beam(whole, sink_tokens, window, tokens_per_block)
    if window <= output_length:
        return beam_width * max_blocks_per_beam(output_length, sink_tokens, window, tokens_per_block)
    context = min(window, whole) - output_length
    shared = (context + _sink_bubble(sink_tokens, tokens_per_block)) // tokens_per_block
    own = -(-(output_length + context - shared * tokens_per_block) // tokens_per_block)
    return shared + beam_width * (own + (EXTRA_BLOCK if whole > window else 0))


def max_attention_window(
    input_length: int,
    output_length: int,
    sink_tokens: int,
    block_capacity: int,
    beam_width: int,
    tokens_per_block: int,
) -> int:
    """Largest window of which one request still fits in `block_capacity` blocks."""
    output_blocks = max_blocks(0, output_length, sink_tokens, output_length, beam_width, tokens_per_block)
    if output_blocks > block_capacity:
        return block_capacity // beam_width * tokens_per_block
    return min(output_length + (block_capacity - output_blocks) * tokens_per_block, input_length + output_length)


def window_size_to_share(cache_size_per_token: Mapping[int, int]) -> dict[int, float]:
    """Share of the pool of each window, by what one full window costs: window times bytes a token, normalised."""
    if not cache_size_per_token:
        raise ValueError("cache_size_per_token is empty; there is at least one window")
    need = {window: window * size for window, size in cache_size_per_token.items()}
    total = sum(need.values())
    if total <= 0:
        raise ValueError(f"cache_size_per_token is {dict(cache_size_per_token)}; sizes and windows must be above 0")
    return {window: n / total for window, n in need.items()}


class LifeCycle(NamedTuple):
    """Layers whose pages live equally long (V2): window in tokens (None: full attention) and leading sink blocks."""

    window: int | None = None
    sink_blocks: int = 0


class ReusedTokens(NamedTuple):
    """Where the reused tokens of one request lay, and which pages it takes along."""

    by_tier: dict[str, int]
    loaded: list[list[bool]]  # a block, a life cycle


def reused_tokens_by_tier(
    life_cycles: Sequence[LifeCycle],
    blocks: Sequence[tuple[int, Sequence[str | None]]],
    num_tokens: int,
    tokens_per_block: int,
    tiers: Sequence[str] = ("gpu", "host", "disk"),
) -> ReusedTokens:
    """Split `num_tokens` reused tokens over the tiers of the matched blocks' pages (V2, `_setup_for_reuse`).

    A block is (its tokens, the tier of each life cycle's page). Each page stands for an equal part of the block's
    tokens; what does not divide counts as GPU. Blocks that a window has left behind count too, but their pages are not
    taken.
    """
    by_tier = dict.fromkeys(tiers, 0)
    loaded = []
    for ordinal, (tokens, pages) in enumerate(blocks):
        if len(pages) != len(life_cycles):
            raise ValueError(f"block {ordinal} has {len(pages)} pages; there are {len(life_cycles)} life cycles")
        for tier in pages:
            if tier is not None:
                by_tier[tier] += tokens // len(life_cycles)
        loaded.append([
            tier is not None and not _stale(life_cycle, ordinal, num_tokens, tokens_per_block)
            for life_cycle, tier in zip(life_cycles, pages, strict=True)
        ])
    by_tier[tiers[0]] += num_tokens - sum(by_tier.values())
    return ReusedTokens(by_tier, loaded)


def _stale(life_cycle: LifeCycle, ordinal: int, num_tokens: int, tokens_per_block: int) -> bool:
    """The block lies behind the window of the next token, and is no sink block."""
    if life_cycle.window is None:
        return False
    return life_cycle.sink_blocks <= ordinal < (num_tokens + 1 - life_cycle.window) // tokens_per_block
