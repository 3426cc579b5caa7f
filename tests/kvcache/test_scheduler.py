"""Admission decisions worked by hand: who waits for another's block, where a first chunk ends."""

import pytest

from kvcache.cache_request import CacheRequest
from kvcache.manager import KVCacheManager
from kvcache.scheduler import POLICIES, first_chunk
from kvcache.tables import Pool, Settings


def admitted(policy: str, *prompts: list[int]) -> list[int]:
    """Numbers of the prompts that start at once in an empty cache of 16 blocks of 4 tokens."""
    manager = KVCacheManager([Pool(64, (16, 0))], Settings(4))
    active = [CacheRequest(i, prompt, max_new_tokens=1) for i, prompt in enumerate(prompts)]
    return [request.request_id for request in POLICIES[policy](manager, active, 8).scheduled]


@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization"])
def test_equal_prompts_too_short_for_a_full_block_start_together(policy: str) -> None:
    """3 tokens fill no block of 4: there is nothing the second could reuse, so it does not wait."""
    assert admitted(policy, [1, 2, 3], [1, 2, 3]) == [0, 1]


@pytest.mark.parametrize("policy", ["guaranteed_no_evict", "max_utilization"])
def test_a_short_prompt_between_two_equal_long_ones_keeps_neither_from_its_rule(policy: str) -> None:
    """The third's first block is the first's, so it waits; the second has none and starts."""
    assert admitted(policy, [1, 2, 3, 4, 5], [1, 2, 3], [1, 2, 3, 4, 6]) == [0, 1]


def test_a_static_batch_starts_equal_prompts_together() -> None:
    assert admitted("static_batch", [1, 2, 3, 4, 5], [1, 2, 3, 4, 6]) == [0, 1]


@pytest.mark.parametrize(
    ("position", "chunk", "prompt", "expected"),
    [
        (8, 6, 100, 4),  # 8 + 6 = 14, back to 12
        (8, 8, 100, 8),  # 16 is a boundary already
        (5, 6, 100, 3),  # a partly reused block: 11, back to 8
    ],
)
def test_a_first_chunk_after_reuse_ends_on_a_block_boundary(
    position: int, chunk: int, prompt: int, expected: int
) -> None:
    assert first_chunk(position, chunk, prompt, 4) == expected


def test_a_first_chunk_without_reuse_is_taken_whole() -> None:
    """6 is no boundary of blocks of 4."""
    assert first_chunk(0, 6, 100, 4) == 6


@pytest.mark.parametrize(("position", "chunk", "expected"), [(8, 6, 6), (8, 7, 6), (0, 14, 14), (0, 20, 14)])
def test_a_chunk_that_reaches_the_end_of_the_prompt_ends_there_even_inside_a_block(
    position: int, chunk: int, expected: int
) -> None:
    """A prompt of 14 tokens in blocks of 4."""
    assert first_chunk(position, chunk, 14, 4) == expected
