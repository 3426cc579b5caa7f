"""Who sends what to whom between two parallel splits, drawn out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.layout import Split, conversion


def lines(
    sender: Split, receiver: Split, *, layers: int = 4, heads: int = 8, mla: bool = False
) -> list[tuple[int, int, float]]:
    made = conversion(layers, heads, sender, receiver, mla=mla)
    return [(m.sender, m.receiver, m.share) for m in made.messages]


def test_four_ranks_to_two_each_receiver_hears_from_two() -> None:
    assert lines(Split(4), Split(2)) == [(0, 0, 0.25), (1, 0, 0.25), (2, 1, 0.25), (3, 1, 0.25)]
    assert conversion(4, 8, Split(4), Split(2)).peers == 2


def test_two_ranks_to_four_each_sender_serves_two() -> None:
    assert lines(Split(2), Split(4)) == [(0, 0, 0.25), (0, 1, 0.25), (1, 2, 0.25), (1, 3, 0.25)]


def test_stages_send_their_own_layers() -> None:
    # 4 layers in two stages to one stage of two ranks: each receiver hears from a rank of each stage
    assert lines(Split(2, 2), Split(2)) == [(0, 0, 0.25), (2, 0, 0.25), (1, 1, 0.25), (3, 1, 0.25)]


def test_of_ranks_that_hold_the_same_heads_only_the_first_sends() -> None:
    # 2 heads on 4 ranks: ranks 0, 1 hold head 0; ranks 2, 3 hold head 1
    assert lines(Split(4), Split(1), heads=2) == [(0, 0, 0.5), (2, 0, 0.5)]
    # receivers with copies of their own each get one
    assert lines(Split(1), Split(4), heads=2) == [(0, 0, 0.5), (0, 1, 0.5), (0, 2, 0.5), (0, 3, 0.5)]


def test_mla_has_no_heads_to_split_and_one_sender() -> None:
    assert lines(Split(8), Split(2), mla=True) == [(0, 0, 1.0), (0, 1, 1.0)]
    assert lines(Split(8, 2), Split(1), mla=True) == [(0, 0, 0.5), (8, 0, 0.5)]


def test_context_parallel_ranks_send_their_part_of_the_tokens() -> None:
    assert lines(Split(1, 1, 2), Split(1)) == [(0, 0, 0.5), (1, 0, 0.5)]


def test_equal_splits_have_the_same_layout_and_one_peer() -> None:
    made = conversion(4, 8, Split(4), Split(4))
    assert made.same_layout
    assert made.peers == 1
    assert not conversion(4, 8, Split(4), Split(2, 2)).same_layout


def test_a_split_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="tensor is 0; it must be at least 1"):
        Split(0)


@given(
    sender=st.builds(Split, st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 3), st.integers(1, 2)),
    receiver=st.builds(Split, st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 3), st.integers(1, 2)),
    heads=st.sampled_from([1, 2, 4, 8]),
    mla=st.booleans(),
)
def test_every_receiver_gets_its_part_of_every_layer_and_head_once(
    sender: Split, receiver: Split, heads: int, mla: bool
) -> None:
    made = conversion(7, heads, sender, receiver, mla=mla)
    copies = receiver.tensor if mla else max(1, receiver.tensor // heads)
    assert sum(m.share for m in made.messages) == pytest.approx(copies)
    assert set(made.by_receiver) == set(range(receiver.gpus))
    assert max(made.by_sender) < sender.gpus
