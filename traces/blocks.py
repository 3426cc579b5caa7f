"""Decides how many tokens one hash id of a trace stands for, and refuses counts of ids that do not fit the prompts.

It does not look at the ids themselves. A prompt of n tokens has ceil(n / block) ids, or floor(n / block) in traces that
leave a short last block out, or none at all where its content is unknown.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcache.request import Int64
from traces.errors import Place, TraceError

GUESSES = tuple(2**k for k in range(17))
OPTION = "--trace-block-size"


@dataclass(frozen=True)
class Block:
    """The decision: tokens of a block, and whether the file or the user said so."""

    tokens: int
    is_stated: bool = False


def fitting(prompt_tokens: Int64, n_ids: Int64, block_tokens: int) -> NDArray[np.bool_]:
    """Which rows have a number of ids that this block size explains."""
    floor = prompt_tokens // block_tokens
    ceil = -(-prompt_tokens // block_tokens)
    fits: NDArray[np.bool_] = (n_ids == floor) | (n_ids == ceil) | (n_ids == 0)
    return fits


def guessed(prompt_tokens: Int64, n_ids: Int64) -> Block | None:
    """The only power of two that fits all rows, if there is exactly one."""
    fits = [size for size in GUESSES if fitting(prompt_tokens, n_ids, size).all()]
    return Block(fits[0]) if len(fits) == 1 else None


def misfit(place: Place, field: str, tokens: int, n_ids: int, block_tokens: int) -> TraceError:
    """The error about one row whose number of ids is wrong."""
    floor, ceil = tokens // block_tokens, -(-tokens // block_tokens)
    expected = f"{ceil}" if floor in {ceil, 0} else f"{floor} or {ceil}"
    return place.error(
        f"{field} has {n_ids} ids for {tokens} tokens; blocks of {block_tokens} tokens make it {expected}; "
        f"{sizes_that_fit(tokens, n_ids)}; set {OPTION}"
    )


def sizes_that_fit(prompt_tokens: int, n_ids: int) -> str:
    """The block sizes that explain a number of ids, in words: a short last block counted, or left out."""
    if n_ids > prompt_tokens:
        return "no block size fits more ids than tokens"
    counted = _span(-(-prompt_tokens // n_ids), -(-prompt_tokens // (n_ids - 1)) - 1 if n_ids > 1 else None)
    left_out = _span(prompt_tokens // (n_ids + 1) + 1, prompt_tokens // n_ids)
    if counted is None or left_out is None:
        return f"sizes {counted or left_out or 'that fit: none'} would fit"
    return f"sizes {counted} would fit (or {left_out} if a short last block has no id)"


def _span(low: int, high: int | None) -> str | None:
    if high is None:
        return f"from {low} on"
    if low > high:
        return None
    return f"{low}" if low == high else f"{low} to {high}"
