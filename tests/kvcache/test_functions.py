"""Sizes and shares of `kvcache.functions`, worked by hand, and what they refuse."""

import pytest

from kvcache.functions import LifeCycle, chop_tokens, reused_tokens_by_tier, window_size_to_share


def test_only_the_partial_flag_keeps_a_short_last_block() -> None:
    """Ten tokens, nine usable, four a block: 4 + 4 + 1."""
    tokens = list(range(10))
    assert chop_tokens(tokens, 9, 4, allow_partial=True) == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert chop_tokens(tokens, 9, 4, allow_partial=False) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_no_usable_token_makes_no_block_and_all_of_them_may_be_usable() -> None:
    assert chop_tokens([7, 8], 0, 2, allow_partial=True) == []
    assert chop_tokens([7, 8], 2, 2, allow_partial=False) == [[7, 8]]


@pytest.mark.parametrize("usable", [-1, 3])
def test_more_usable_tokens_than_there_are_or_fewer_than_none_are_refused(usable: int) -> None:
    with pytest.raises(ValueError, match=f"^usable is {usable}; there are 2 tokens$"):
        chop_tokens([7, 8], usable, 2, allow_partial=True)


@pytest.mark.parametrize("tokens_per_block", [0, -4])
def test_a_block_of_less_than_one_token_is_refused(tokens_per_block: int) -> None:
    with pytest.raises(ValueError, match=f"^tokens_per_block is {tokens_per_block}; it must be at least 1$"):
        chop_tokens([7, 8], 2, tokens_per_block, allow_partial=True)


def test_a_window_of_half_the_length_and_thrice_the_bytes_gets_three_fifths() -> None:
    """64 tokens of 2 bytes cost 128, 32 of 6 cost 192; of 320 together that is 0.4 and 0.6."""
    assert window_size_to_share({64: 2, 32: 6}) == {64: 0.4, 32: 0.6}


def test_a_window_that_costs_nothing_gets_nothing_beside_one_that_costs() -> None:
    assert window_size_to_share({64: 2, 32: 0}) == {64: 1.0, 32: 0.0}


def test_sharing_among_no_windows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^cache_size_per_token is empty; there is at least one window$"):
        window_size_to_share({})


def test_sharing_among_windows_that_all_cost_nothing_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^cache_size_per_token is \{64: 0, 0: 5\}; sizes and windows must be above 0$"
    ):
        window_size_to_share({64: 0, 0: 5})


def test_a_page_that_is_not_there_is_counted_as_gpu_and_never_loaded() -> None:
    """Two life cycles, so each page of a block of 4 stands for 2 tokens.

    Pages: host 2 + disk 2, then gpu 2 and a missing page whose 2 fall to the GPU as the rest of 8.
    """
    reused = reused_tokens_by_tier([LifeCycle(), LifeCycle()], [(4, ["host", "disk"]), (4, ["gpu", None])], 8, 4)
    assert reused.by_tier == {"gpu": 4, "host": 2, "disk": 2}
    assert reused.loaded == [[True, True], [True, False]]


def test_an_odd_token_of_a_block_in_two_life_cycles_counts_as_gpu() -> None:
    """3 tokens over 2 pages: 1 for each page, both on the host; the third is the GPU's."""
    reused = reused_tokens_by_tier([LifeCycle(), LifeCycle()], [(3, ["host", "host"])], 3, 4)
    assert reused.by_tier == {"gpu": 1, "host": 2, "disk": 0}


def test_a_window_counts_the_blocks_it_left_behind_but_loads_only_sink_and_recent_ones() -> None:
    """12 tokens in blocks of 4, window 5: the next token is the 13th and sees positions 8 to 12.

    Blocks 0 and 1 lie behind it; block 0 is a sink block. All three lie on the host.
    """
    reused = reused_tokens_by_tier([LifeCycle(window=5, sink_blocks=1)], [(4, ["host"])] * 3, 12, 4)
    assert reused.by_tier == {"gpu": 0, "host": 12, "disk": 0}
    assert reused.loaded == [[True], [False], [True]]


def test_a_block_with_fewer_pages_than_life_cycles_is_refused_by_its_number() -> None:
    with pytest.raises(ValueError, match=r"^block 1 has 1 pages; there are 2 life cycles$"):
        reused_tokens_by_tier([LifeCycle(), LifeCycle()], [(4, ["gpu", "gpu"]), (4, ["gpu"])], 8, 4)
