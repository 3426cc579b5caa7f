"""Statistics agree with a plain count over sets of prefixes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.request import Requests
from traces.prefixes import Prefixes
from traces.read import read
from traces.stats import hits, measure, measured
from traces.stream import in_pieces


def workload(prompts: list[list[int]], salt: list[int] | None = None, unit_tokens: int = 4) -> Requests:
    lengths = [len(p) for p in prompts]
    return Requests(
        source="test",
        unit_tokens=unit_tokens,
        arrival_s=np.arange(len(prompts), dtype=np.float64),
        prompt_tokens=np.array([n * unit_tokens for n in lengths], np.int32),
        output_tokens=np.full(len(prompts), 10, np.int32),
        unit_offset=np.cumsum([0, *lengths], dtype=np.int64),
        units=np.array([u for p in prompts for u in p], np.int32),
        salt=np.array(salt if salt is not None else [-1] * len(prompts), np.int32),
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=6), st.integers(-1, 1)), max_size=12))
def test_hits_are_the_longest_prefix_seen_before_in_the_same_namespace(rows: list[tuple[list[int], int]]) -> None:
    seen: set[tuple[int, ...]] = set()
    expected = []
    for prompt, salt in rows:
        prefixes = [(salt, *prompt[: k + 1]) for k in range(len(prompt))]
        expected.append(sum(p in seen for p in prefixes))
        seen.update(prefixes)
    requests = workload([p for p, _ in rows], [s for _, s in rows])
    assert hits(requests).tolist() == expected
    assert measure(requests).unique_blocks == len(seen)


def test_a_small_workload_is_measured_as_by_hand() -> None:
    # Three prompts of 8, 12 and 8 tokens, one second apart. The second repeats both blocks of the first, the third one.
    stats = measure(workload([[1, 2], [1, 2, 3], [1, 9]]))
    assert (stats.requests, stats.span_s, stats.request_rate_rps) == (3, 2.0, 1.5)
    assert (stats.input_tokens, stats.output_tokens) == (28, 30)
    assert (stats.total_blocks, stats.unique_blocks, stats.hit_blocks, stats.hit_tokens) == (7, 4, 3, 12)
    assert stats.hit_token_share == pytest.approx(12 / 28)
    assert (stats.prompt_tokens.p50, stats.prompt_tokens.max) == (8, 12)
    assert (stats.sessions, stats.requests_with_session) == (0, 0)


def test_requests_at_one_instant_have_no_rate_and_none_have_no_statistics() -> None:
    assert np.isnan(measure(workload([[1]])).request_rate_rps)
    assert measure(workload([])).requests == 0
    assert measure(workload([])).hit_token_share == 0


def test_reuse_in_blocks_and_seconds_and_the_working_set_are_as_by_hand() -> None:
    # Second 0: a b. 1: c d e. 2: a b (3 blocks touched in between, 2 s). 3: c (d e untouched; between: a b, 2 s).
    stats = measure(workload([[1, 2], [3, 4, 5], [1, 2], [3]]))
    assert stats.reuse_distance_blocks.p50 == pytest.approx(3, rel=0.1)
    assert stats.reuse_distance_blocks.max == pytest.approx(3, rel=0.1)
    assert stats.reuse_distance_blocks.mean == pytest.approx(8 / 3, rel=0.1)
    assert stats.reuse_age_s.mean == pytest.approx(2, rel=0.1)
    assert stats.blocks_used_once == 2
    # Stretches of 3/128 s rounded up to a power of two: 1/32. a and b are needed from 0 to 2 s, c from 1 to 3 s.
    line = stats.timeline
    assert line.start_s[:2] == [0, 1 / 32]
    assert [line.working_set_blocks[k * 16] for k in range(7)] == [2, 2, 3, 3, 1, 1, 0]
    assert [line.unique_blocks[k * 32] for k in range(4)] == [2, 5, 5, 5]
    assert (sum(line.requests), sum(line.prompt_tokens), sum(line.hit_tokens)) == (4, 32, 12)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=12))
def test_reuse_distance_counts_the_blocks_of_the_requests_in_between(prompts: list[list[int]]) -> None:
    last: dict[tuple[int, ...], int] = {}
    touched: list[set[tuple[int, ...]]] = []
    distances = []
    for i, prompt in enumerate(prompts):
        blocks = {tuple(prompt[: k + 1]) for k in range(len(prompt))}
        distances += [len(set().union(*touched[last[b] + 1 : i])) for b in blocks if b in last]
        last |= dict.fromkeys(blocks, i)
        touched.append(blocks)
    prefixes = Prefixes(most=None)
    prefixes.follow(workload(prompts))
    assert np.flatnonzero(prefixes.distances).tolist() == sorted({d and 1 + int(8 * np.log2(d)) for d in distances})
    assert prefixes.distances.sum() == len(distances)


@pytest.mark.parametrize("n", [3, 50])
def test_statistics_do_not_depend_on_how_a_trace_is_cut_in_pieces(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read("llmservingsim_sharegpt300_blk16")
    monkeypatch.setattr("traces.prefixes.FIRST_REQUESTS", 64)  # so that idle requests must be forgotten
    cut = measured(in_pieces(whole, n))
    assert replace(cut, gap_cv=1) == replace(measure(whole), gap_cv=1)
    assert cut.gap_cv == pytest.approx(measure(whole).gap_cv)


def skewed(n: int) -> Requests:
    """A system prompt of three blocks that most requests share, then own blocks, of which a third come again once."""
    rng = np.random.default_rng(1)
    own = np.where(rng.random(n) < 1 / 3, np.maximum(np.arange(n) - rng.integers(1, 50, n), 0), np.arange(n))
    prompts = [([1, 2, 3] if i % 4 else [4]) + [int(5 + 3 * o + k) for k in range(3)] for i, o in enumerate(own)]
    return workload(prompts)


def test_a_sample_estimates_what_following_every_prefix_counts() -> None:
    whole = skewed(4000)
    exact, some = measured(in_pieces(whole), None), measured(in_pieces(whole, 500), 1000)
    assert exact.followed_share == 1
    assert (exact.unique_blocks_error, exact.hit_tokens_error) == (0, 0)
    assert some.followed_share < 0.25
    assert 0 < some.unique_blocks_error < 0.1 * exact.unique_blocks
    for name, error in (("unique_blocks", some.unique_blocks_error), ("hit_tokens", some.hit_tokens_error)):
        assert abs(getattr(some, name) - getattr(exact, name)) < 2 * error
    assert some.hit_blocks == some.total_blocks - some.unique_blocks
    assert some.blocks_used_once == pytest.approx(exact.blocks_used_once, rel=0.15)
    assert some.reuse_distance_blocks.p50 == pytest.approx(exact.reuse_distance_blocks.p50, rel=0.2)
    assert some.reuse_age_s.p90 == pytest.approx(exact.reuse_age_s.p90, rel=0.2)
    lines = [stats.timeline.unique_blocks for stats in (exact, some)]
    assert np.abs(np.subtract(*lines)).max() < 2 * some.unique_blocks_error


def test_what_is_used_most_stays_followed_whatever_its_hash() -> None:
    # Blocks 1, 2, 3 behind nothing, 1 and 1 2 are 3/4 of the requests' first three; block 4 is a quarter's first.
    prefixes = Prefixes(most=1000)
    for piece in in_pieces(skewed(4000), 500).pieces:
        prefixes.follow(piece)
    assert sorted(prefixes.uses[: prefixes.n].tolist())[-4:] == [1000, 3000, 3000, 3000]
    assert prefixes.weight[: prefixes.n][prefixes.uses[: prefixes.n] >= 1000].tolist() == [1] * 4


def test_estimates_are_right_on_average_over_many_samples() -> None:
    # Each namespace gives all blocks other names, hence another sample of the same workload.
    whole = skewed(800)
    exact = measured(in_pieces(whole), None)
    off = []
    for salt in range(40):
        some = measured(in_pieces(replace(whole, salt=np.full(800, salt, np.int32)), 100), 300)
        off.append([
            (some.unique_blocks - exact.unique_blocks) / some.unique_blocks_error,
            (some.hit_tokens - exact.hit_tokens) / some.hit_tokens_error,
        ])
    mean, within = np.mean(off, axis=0), np.mean(np.abs(off) < 1, axis=0)
    assert (np.abs(mean) < 4 / 1.96 / np.sqrt(40)).all()
    assert (within > 0.85).all()
    assert (within < 1).all()
