"""MIN against every possible cache, counted by brute force, and against figures computed elsewhere."""

from functools import cache
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config

from kvcache.bound import least_cost, min_hits, most_saved
from kvcache.curve import VIEWS, prefix_blocks
from kvcache.distances import hits_by_size, lru_distances, sampled
from kvcache.policies import POLICIES
from tests.kvcache.test_curve import PROMPTS, chained, point, trace

checked = settings(max_examples=30 if config.DISABLE_JIT else 150, deadline=None, database=None)
SHORT = st.lists(st.integers(0, 4), max_size=9)


def best(accesses: tuple[int, ...], capacity: int, *, may_bypass: bool, worth: tuple[float, ...]) -> float:
    """The most worth of hits that any cache of `capacity` contents gets, trying every choice."""

    @cache
    def from_step(i: int, held: frozenset[int]) -> float:
        if i == len(accesses):
            return 0.0
        x = accesses[i]
        if x in held:
            got, full = worth[i], held
        else:
            got, full = 0.0, held | {x}
        choices = [full] if len(full) <= capacity else [frozenset(c) for c in combinations(sorted(full), capacity)]
        if not may_bypass:
            choices = [c for c in choices if x in c]
        return got + max((from_step(i + 1, c) for c in choices), default=0.0)

    return from_step(0, frozenset())


def found(accesses: list[int], capacity: int, *, may_bypass: bool) -> int:
    contents = np.array(accesses, np.int32)
    return int(min_hits(contents, np.ones(len(contents), np.bool_), capacity, may_bypass=may_bypass).sum())


@pytest.mark.parametrize("may_bypass", [False, True])
@checked
@given(accesses=SHORT, capacity=st.integers(1, 4))
def test_min_hits_as_often_as_the_best_of_all_caches(may_bypass, accesses, capacity):
    every = best(tuple(accesses), capacity, may_bypass=may_bypass, worth=(1.0,) * len(accesses))
    assert found(accesses, capacity, may_bypass=may_bypass) == every


@checked
@given(accesses=SHORT, capacity=st.integers(1, 4), seed=st.integers(0, 99))
def test_no_cache_saves_more_than_the_bound_of_worths(accesses, capacity, seed):
    worth = np.random.default_rng(seed).integers(1, 9, len(accesses)).astype(np.float64)
    every = best(tuple(accesses), capacity, may_bypass=True, worth=tuple(worth))
    contents = np.array(accesses, np.int32)
    assert most_saved(contents, np.ones(len(contents), np.bool_), worth, capacity) >= every - 1e-9


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=8 if config.DISABLE_JIT else 60, deadline=None, database=None)
@given(prompts=PROMPTS, capacity=st.integers(0, 12), host=st.integers(0, 6) | st.none())
def test_no_policy_beats_the_bound_of_its_tiers(view, policy, prompts, capacity, host):
    accesses = [block for prompt in chained(prompts) for block in prompt]
    row = point(prompts, view, policy, capacity, host)
    assert row.hit_blocks_by_tier[0] <= found(accesses, capacity, may_bypass=True)
    assert row.hit_blocks <= found(accesses, capacity + (host or 0), may_bypass=True)


@checked
@given(prompts=PROMPTS, capacity=st.integers(1, 8))
def test_every_hit_of_min_with_bypass_is_a_prefix_hit(prompts, capacity):
    prompts = chained(prompts)
    contents = np.array([block for prompt in prompts for block in prompt], np.int32)
    hit, at = min_hits(contents, np.ones(len(contents), np.bool_), capacity), 0
    for prompt in prompts:
        mine = hit[at : at + len(prompt)].tolist()
        assert mine == sorted(mine, reverse=True)
        at += len(prompt)


def test_a_block_that_is_only_made_counts_no_hit_but_can_be_hit_later():
    # 7 is made (generated), then looked up; 8 is looked up, then only made again.
    contents, looked_up = np.array([7, 7, 8, 8], np.int32), np.array([False, True, True, False])
    assert min_hits(contents, looked_up, 2).tolist() == [False, True, False, False]


def test_the_worth_that_fits_in_part_is_bought_in_part():
    # One place, 6 steps. Intervals: a 0-2 (2 steps, worth 4), b 1-5 (4 steps, worth 2), c 3-4 (1 step, worth 3):
    # by worth a step c, a, b: 3 + 4 use 3 of 6 steps; b gets 3 of its 4 steps.
    contents = np.array([0, 1, 0, 2, 2, 1], np.int32)
    worth = np.array([0, 0, 4, 0, 3, 2.0])
    assert most_saved(contents, np.ones(6, np.bool_), worth, 1) == pytest.approx(3 + 4 + 2 * 3 / 4)


def test_without_enough_room_only_a_part_of_the_best_is_bought():
    contents = np.array([0, 1, 1, 1, 1, 0], np.int32)
    worth = np.array([0, 0, 1, 1, 1, 9.0])
    assert most_saved(contents, np.ones(6, np.bool_), worth, 1) == pytest.approx(9 + 1 * 1)
    assert most_saved(contents, np.ones(6, np.bool_), worth, 0) == 0


@pytest.mark.parametrize(("load", "cost"), [(2.0, 4 * 10 + 3 * 2.0), (99.0, (4 + 3) * 10)])
def test_ten_lookups_cost_at_least_their_misses_and_loads(load, cost):
    # 6 found, 3 of them warm: 4 computed at 10, 3 loaded at 2; where loading costs more, computing is as good.
    assert least_cost(10, 3, 6, load, 10.0) == cost


def test_a_cache_of_no_blocks_and_an_empty_trace_hit_nothing():
    assert found([1, 1], 0, may_bypass=True) == 0
    assert found([], 3, may_bypass=False) == 0


# Prefix hits of 288,500, computed by another program: every miss inserted, or bypassed where that is better.
MIN = {1_000: (54_994, 55_019), 5_000: (98_444, 98_448), 8_000: (105_571, 105_572), 10_000: (105_710, 105_710)}


@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="minutes without machine code")
@pytest.mark.parametrize("capacity", MIN)
def test_min_hits_on_the_conversation_trace_are_the_published_ones(capacity):
    blocks, _ = prefix_blocks(trace("mooncake_conversation"))
    counts = [min_hits(blocks, np.ones(len(blocks), np.bool_), capacity, may_bypass=b).sum() for b in (False, True)]
    assert tuple(counts) == MIN[capacity]


# --- all sizes of LRU at once ---------------------------------------------------------------------------------------


def curve_of(prompts: list[list[int]], view: str) -> list[int]:
    blocks = np.array([b for p in chained(prompts) for b in p], np.int32)
    ends = np.cumsum([len(p) for p in prompts]) if view == "tree" else np.arange(1, len(blocks) + 1)
    offset = np.concatenate([[0], ends]).astype(np.int64)
    return hits_by_size(lru_distances(blocks, offset, int(blocks.max(initial=-1)) + 1)).tolist()


@pytest.mark.parametrize("view", VIEWS)
@checked
@given(prompts=PROMPTS)
def test_distances_give_the_hits_of_lru_at_every_size(view, prompts):
    found = curve_of(prompts, view)
    for capacity in range(len(found) + 2):
        hits = found[min(capacity, len(found) - 1)]
        assert hits == point(prompts, view, "lru", capacity).hit_blocks


def test_weights_are_summed_where_blocks_hit():
    assert hits_by_size(np.array([0, 1, 2, 1], np.int32), np.array([9.0, 2, 3, 4])).tolist() == [0, 6, 9]


@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="minutes without machine code")
def test_a_sample_of_a_tenth_finds_the_hit_rate_within_two_points():
    # LRU, 10,000 of 182,790 blocks: 0.2112 of all accesses hit. The sample's rate is that of 1,000 of its blocks; the
    # one block of all prompts (4 % of accesses) is in it or not, so hits and lookups are counted without it.
    requests = trace("mooncake_conversation")
    blocks, _ = prefix_blocks(requests)
    some = sampled(requests, blocks, 0.1, seed=1)
    assert 0.08 < len(some.units) / len(blocks) < 0.15
    offset = np.arange(len(some.units) + 1, dtype=np.int64)
    hits = hits_by_size(lru_distances(some.units, offset, int(some.units.max()) + 1))
    first = np.count_nonzero(some.units == 0)
    full = np.count_nonzero(blocks == 0)
    rate = (hits[1_000] - max(0, first - 1)) / (len(some.units) - first)
    assert abs(rate - (60_921 - full + 1) / (288_500 - full)) < 0.02
    assert (np.diff(some.unit_offset) * 512 == some.prompt_tokens).all()
