"""Blocks of another size: coarser ones are exact, finer ones a lower bound, others refused with the sizes that work."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.traces.test_stats import workload
from traces.errors import TraceError
from traces.read import opened, read
from traces.recut import recut
from traces.stats import measured
from traces.stream import in_pieces, joined


def test_pairs_of_blocks_of_8_are_the_blocks_of_16_to_the_last_count() -> None:
    pairs = measured(recut(opened("llmservingsim_sharegpt300_blk8"), 16))
    true = measured(opened("llmservingsim_sharegpt300_blk16"))
    for name in ("total_blocks", "unique_blocks", "blocks_used_once", "hit_blocks", "hit_tokens", "timeline"):
        assert getattr(pairs, name) == getattr(true, name)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), max_size=7), min_size=1, max_size=8), st.sampled_from([2, 3]))
def test_coarse_blocks_are_equal_where_all_tokens_up_to_their_end_are(prompts: list[list[int]], factor: int) -> None:
    coarse = joined(recut(in_pieces(workload(prompts)), 4 * factor))
    names: dict[int, tuple[int, ...]] = {}
    for i, prompt in enumerate(prompts):
        wanted = [tuple(prompt[: k + factor]) for k in range(0, len(prompt), factor)]
        assert len(coarse.prompt_units(i)) == len(wanted)
        for unit, prefix in zip(coarse.prompt_units(i).tolist(), wanted, strict=True):
            assert names.setdefault(unit, prefix) == prefix
    assert len(set(names.values())) == len(names)


def test_finer_blocks_share_whole_trace_blocks_only_and_that_is_noted() -> None:
    # 10 tokens in blocks of 4, 4 and 2: five blocks of 2. The second prompt shares the first trace block: two of 2.
    stream = recut(in_pieces(workload([[1, 2, 3], [1, 5, 6]])), 2)
    stats = measured(stream)
    assert (stats.total_blocks, stats.hit_blocks, stats.hit_tokens) == (12, 2, 4)
    assert "lower bound" in stats.notes[0]


def test_a_size_that_is_no_multiple_is_refused_with_those_that_work() -> None:
    with pytest.raises(TraceError, match="sizes that work: 8, 16, 32, 64"):
        recut(in_pieces(read("llmservingsim_sharegpt300_blk16")), 24)
