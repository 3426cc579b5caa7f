"""Seconds of a transfer on paper; and link profiles, each figure with its source."""

from pathlib import Path

import pytest

from sim.handover import Handover, LinkProfile, Transport, buffer_bytes, handover, link_names, load_link
from sim.hardware import load_hardware
from sim.layout import Split, conversion

LINK = LinkProfile("paper", 0.5, 0.1, 0.01, 1000.0, must_register=True, sources={})
H100 = load_hardware("h100-sxm")


def moved(transport: Transport, sender: Split, receiver: Split, blocks: int = 10, prefill_s: float = 0.0) -> Handover:
    """`blocks` blocks of 4 tokens of 10 bytes: 400 bytes in all for 10 blocks, over 4 layers and 8 heads."""
    return handover(transport, conversion(4, 8, sender, receiver), H100, blocks, 4, 10.0, 4, prefill_s)


def test_one_rank_to_one_pays_start_descriptor_and_bytes() -> None:
    # 0.1 s start, one buffer: 0.01 s, 400 bytes at 1,000 B/s
    parts = moved(Transport(LINK), Split(), Split())
    assert parts.wire_s == pytest.approx(0.1 + 0.01 + 0.4)
    assert parts.prepare_s == pytest.approx(0.5)
    assert parts.wire_bytes == pytest.approx(400)
    assert parts.convert_s == pytest.approx(2 * H100.kernel_latency_s, rel=1e-3)
    assert parts.seconds == pytest.approx(0.5 + 0.51 + parts.convert_s)


def test_ranks_send_side_by_side_and_a_rank_serves_its_targets_one_after_the_other() -> None:
    # 4 to 4: 100 bytes each. 1 to 4: four messages of 100 bytes one after the other: 4 x 0.11 + 0.4
    assert moved(Transport(LINK), Split(4), Split(4)).wire_s == pytest.approx(0.11 + 0.1)
    assert moved(Transport(LINK), Split(1), Split(4)).wire_s == pytest.approx(0.44 + 0.4)
    side_by_side = Transport(LINK, parallel=True)
    assert moved(side_by_side, Split(1), Split(4)).wire_s == pytest.approx(0.11 + 0.4)


def test_a_receiver_of_many_senders_is_bound_by_its_own_link() -> None:
    assert moved(Transport(LINK), Split(4), Split(1)).wire_s == pytest.approx(0.11 + 0.4)


def test_zero_copy_needs_no_kernels_but_a_descriptor_a_block_and_works_between_equal_layouts_only() -> None:
    zero = Transport(LINK, zero_copy=True)
    parts = moved(zero, Split(2), Split(2))
    assert (parts.gather_s, parts.scatter_s, parts.descriptors) == (0, 0, 10)
    assert parts.wire_s == pytest.approx(0.1 + 10 * 0.01 + 0.2)
    other = moved(zero, Split(2), Split(1))
    assert other.gather_s > 0
    assert other.descriptors == 1


def test_smaller_blocks_of_many_pieces_make_the_descriptors_the_cost() -> None:
    # R28's shape (5,000 tokens, 36 layers of two pieces each): 16 tokens a block make four times the pieces of 64
    def with_block(tokens: int) -> Handover:
        transport = Transport(LINK, zero_copy=True, pieces_per_block=72)
        return handover(transport, conversion(36, 8, Split(), Split()), H100, -(-5000 // tokens), tokens, 1.0, 36)

    small, large = with_block(16), with_block(64)
    assert (small.descriptors, large.descriptors) == (313 * 72, 79 * 72)
    assert small.wire_s > 3 * large.wire_s


def test_a_prompt_longer_than_the_buffer_goes_in_rounds() -> None:
    assert moved(Transport(LINK, buffer_tokens=16), Split(), Split()).descriptors == 3


def test_layer_by_layer_only_the_last_layer_is_left_when_the_prefill_is_long_enough() -> None:
    # user question 41: TTFT = prefill + whole transfer, against prefill + last layer
    whole = moved(Transport(LINK), Split(), Split(), prefill_s=10)
    last = moved(Transport(LINK, layerwise=True), Split(), Split(), prefill_s=10)
    moving = whole.seconds - 0.5
    assert last.seconds == pytest.approx(0.5 + moving / 4)
    short = moved(Transport(LINK, layerwise=True), Split(), Split(), prefill_s=0.1)
    assert short.seconds == pytest.approx(0.5 + moving - 0.1 * 3 / 4)


def test_registered_buffers_take_memory_and_others_do_not() -> None:
    split = conversion(4, 8, Split(4), Split(2))
    transport = Transport(LINK, buffer_tokens=100, send_buffers=2, receive_buffers=3)
    assert buffer_bytes(transport, 10.0, split, sends=True) == 2 * 100 * 10 // 4
    assert buffer_bytes(transport, 10.0, split, sends=False) == 3 * 100 * 10 // 2
    on_demand = LinkProfile("paper", 0.5, 0.1, 0.01, 1000.0, must_register=False, sources={})
    assert buffer_bytes(Transport(on_demand), 10.0, split, sends=True) == 0
    same = conversion(4, 8, Split(4), Split(4))
    assert buffer_bytes(Transport(LINK, zero_copy=True), 10.0, same, sends=True) == 0


@pytest.mark.parametrize("name", link_names())
def test_every_figure_of_a_profile_has_a_source(name: str) -> None:
    link = load_link(name)
    assert link.bandwidth_bytes_per_s > 1e9
    assert len(link.sources) == 5
    assert all(len(source) > 10 for source in link.sources.values())


def test_an_unknown_link_and_an_incomplete_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"link .ucxx. is not known.*ucx"):
        load_link("ucxx")
    file = tmp_path / "mine.yaml"
    file.write_text("start_s: {value: 1, source: me}\n")
    with pytest.raises(ValueError, match="it must hold exactly prepare_s, start_s"):
        load_link(str(file))
    text = (Path(__file__).parents[2] / "sim/links/ucx.yaml").read_text()
    file.write_text(text.replace("prepare_s: {value: 0.42e-3, source", "prepare_s: {value: 0.42e-3, sauce"))
    with pytest.raises(ValueError, match="prepare_s must hold value and source"):
        load_link(str(file))
