"""The curve against other simulators' counts, against a per-block model in plain Python, and against hand counts."""

from functools import cache
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config

from kvcache.curve import INCLUSIONS, INFINITE, VIEWS, CurveRow, curve, prefix_blocks
from kvcache.policies import POLICIES
from kvcache.request import Requests
from traces.read import read

# Hits of 288,500 accesses of mooncake_conversation by capacity in blocks. `flat` LRU: libCacheSim, LMCache's
# cache-simulator and cklxx/kvcache-sim agree; `tree` LRU: prefixlens. FIFO: libCacheSim.
FLAT_LRU = {
    1_000: 12_831,
    100: 11_645,
    500: 12_168,
    2_000: 15_487,
    5_000: 31_840,
    10_000: 60_921,
    20_000: 82_939,
    30_000: 93_967,
    50_000: 102_290,
    100_000: 104_924,
    None: 105_710,
}
TREE_LRU = {
    1_000: 12_847,
    100: 12_071,
    500: 12_168,
    2_000: 15_665,
    5_000: 32_260,
    10_000: 61_046,
    20_000: 83_035,
    30_000: 93_978,
    50_000: 102_290,
    100_000: 104_924,
    None: 105_710,
}
FLAT_FIFO = {1_000: 12_559, 5_000: 30_780, 10_000: 53_812, 30_000: 87_152, 50_000: 98_096}
FLAT_LFU_RATE = {1_000: 0.048080, 5_000: 0.092291, 10_000: 0.131761, 50_000: 0.343809}
# Rates of an independent replay, published with four digits.
TREE_LFU_RATE = {1_000: 0.0481, 5_859: 0.0969, 10_000: 0.1317, 30_000: 0.2760}
TREE_STRICT_FIFO_RATE = {1_000: 0.0436, 5_859: 0.1250, 10_000: 0.1813, 30_000: 0.2937}
# Share of hit tokens and evictions, by capacity.
CONVERSATION = {
    1_000: (0.0454, 274_653),
    10_000: (0.2157, 217_454),
    30_000: (0.3322, 164_522),
    100_000: (0.3708, 83_576),
}
ARXIV = {100: (0.2553, 14_704), 1_000: (0.2910, 13_121), 3_000: (0.3081, 10_792), 10_000: (0.3894, 2_233)}


def affordable(points) -> list:
    """All points; interpreted loops (NUMBA_DISABLE_JIT) take seconds a point on the long trace, so only the first."""
    return list(points)[: 1 if config.DISABLE_JIT else None]


@cache
def trace(name: str) -> Requests:
    return read(name)


@cache
def conversation(view: str, policy: str, capacity: int | None, *host) -> CurveRow:
    tiers = dict(zip(("host_capacity_blocks", "inclusion"), host, strict=False))
    return curve(trace("mooncake_conversation"), view=view, policy=policy, capacity_blocks=capacity, **tiers)


@pytest.mark.parametrize(("capacity", "hits"), affordable(FLAT_LRU.items()))
def test_flat_lru_hits_what_general_cache_simulators_hit(capacity, hits):
    row = conversation("flat", "lru", capacity)
    assert (row.hit_blocks, row.lookup_blocks) == (hits, 288_500)


@pytest.mark.parametrize(("capacity", "hits"), affordable(TREE_LRU.items()))
def test_tree_lru_hits_what_a_leaf_only_prefix_trie_hits(capacity, hits):
    row = conversation("tree", "lru", capacity)
    assert (row.hit_blocks, row.lookup_blocks) == (hits, 288_500)


@pytest.mark.parametrize(("capacity", "hits"), affordable(FLAT_FIFO.items()))
def test_flat_fifo_hits_what_libcachesim_hits(capacity, hits):
    assert conversation("flat", "fifo", capacity).hit_blocks == hits


@pytest.mark.parametrize(("capacity", "rate"), affordable(FLAT_LFU_RATE.items()))
def test_flat_lfu_breaks_ties_as_libcachesim_does(capacity, rate):
    assert round(conversation("flat", "lfu", capacity).hit_rate_blocks, 6) == rate


@pytest.mark.parametrize(("capacity", "rate"), affordable(TREE_LFU_RATE.items()))
def test_tree_lfu_reproduces_the_published_rates(capacity, rate):
    assert round(conversation("tree", "lfu", capacity).hit_rate_blocks, 4) == rate


@pytest.mark.parametrize(("capacity", "rate"), affordable(TREE_STRICT_FIFO_RATE.items()))
def test_tree_strict_fifo_reproduces_the_published_rates(capacity, rate):
    assert round(conversation("tree", "strict-fifo", capacity).hit_rate_blocks, 4) == rate


@pytest.mark.parametrize(("view", "policy"), affordable([(v, p) for v in ("tree", "flat") for p in POLICIES]))
def test_an_infinite_cache_hits_105710_blocks_in_every_view(view, policy):
    row = conversation(view, policy, None)
    assert (row.hit_blocks, row.evictions, row.capacity_blocks) == (105_710, 0, INFINITE)


@pytest.mark.parametrize(("inclusion", "one_tier"), affordable([("exclusive", 18_000), ("inclusive", 12_000)]))
def test_two_tiers_on_the_long_trace_hit_what_one_tier_hits(inclusion, one_tier):
    two = conversation("tree", "lru", 6_000, 12_000, inclusion)
    assert two.hit_blocks == conversation("tree", "lru", one_tier).hit_blocks
    assert round(two.hit_rate_blocks, 4) == {"exclusive": 0.2760, "inclusive": 0.2303}[inclusion]


@pytest.mark.parametrize(("capacity", "expected"), affordable(CONVERSATION.items()))
def test_tree_lru_hit_tokens_and_evictions_of_the_conversation_trace(capacity, expected):
    row = conversation("tree", "lru", capacity)
    assert (round(row.hit_rate_tokens, 4), row.evictions) == expected
    assert row.prompt_tokens == 144_793_823


@pytest.mark.parametrize(("capacity", "expected"), ARXIV.items())
def test_tree_lru_hit_tokens_and_evictions_of_the_arxiv_trace(capacity, expected):
    row = curve(trace("mooncake_arxiv_first1000"), view="tree", policy="lru", capacity_blocks=capacity)
    assert (round(row.hit_rate_tokens, 4), row.evictions, row.lookup_blocks) == (*expected, 19_686)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("policy", POLICIES)
def test_an_infinite_cache_hits_every_repeated_block_and_token_of_the_arxiv_trace(view, policy):
    row = curve(trace("mooncake_arxiv_first1000"), view=view, policy=policy, capacity_blocks=None)
    assert (row.hit_blocks, row.hit_tokens, row.prompt_tokens) == (7_479, 3_826_202, 9_792_030)


# --- a model with one Python object a block -------------------------------------------------------------------------


def requests_of(prompts: list[list[int]], unit_tokens: int = 4, cut: int = 0, **columns) -> Requests:
    """Prompts of whole units, the last of which misses `cut` tokens."""
    n = len(prompts)
    tokens = [max(0, len(p) * unit_tokens - cut) for p in prompts]
    return Requests(
        source="test",
        unit_tokens=unit_tokens,
        arrival_s=np.arange(n, dtype=np.float64),
        prompt_tokens=np.array(tokens, np.int32),
        output_tokens=np.zeros(n, np.int32),
        unit_offset=np.array([0, *accumulate(len(p) for p in prompts)], np.int64),
        units=np.array([u for p in prompts for u in p], np.int32),
        **columns,
    )


class Tier(dict):
    """Block (a tuple: itself and all before it) -> [frequency, stamp]; the stamp of a block without a place is None."""

    def __init__(self, capacity: int | None) -> None:
        self.capacity = 10**9 if capacity is None else capacity

    def victim(self, leaves_only: bool, pinned) -> tuple | None:
        inner = {block[:-1] for block in self} if leaves_only else set()
        free = [block for block in self if block not in inner and block not in pinned]
        return min(free, key=lambda block: self[block], default=None)


class Model:
    """The definitions of `kvcache.curve`, each step a scan."""

    def __init__(self, view, policy, capacity, host, inclusion):
        self.view, self.policy = view, POLICIES[policy].rule
        self.tiers = [Tier(capacity)] + ([] if host is None else [Tier(host)])
        self.inclusion = inclusion
        self.touched = self.tiers if inclusion == "inclusive" else self.tiers[:1]
        self.clock, self.hits, self.evictions, self.copied_down = 0, [0, 0], 0, 0

    def serve(self, prompt):
        blocks = [tuple(prompt[: depth + 1]) for depth in range(len(prompt))]
        for path in [blocks] if self.view == "tree" else [[block] for block in blocks]:
            self.serve_path(path)

    def serve_path(self, path):
        for block in path:
            level = next((i for i, tier in enumerate(self.tiers) if block in tier), None)
            if level is None:
                break
            self.hits[level] += 1
        for tier in self.touched:
            for block in path:
                if block not in tier:
                    colder = self.tiers[-1].get(block) if self.inclusion != "inclusive" else None
                    if self.inclusion == "exclusive":
                        self.tiers[-1].pop(block, None)
                    tier[block] = [colder[0] if colder else 0, None]
                    self.copied_down += tier is not self.tiers[0]
        self.trim(path)
        for tier in self.touched:
            for block in (b for b in reversed(path) if b in tier):
                self.touch(tier[block])
        self.trim([])

    def touch(self, entry):
        self.clock += 1
        if self.policy.counts or entry[0] == 0:
            entry[0] += 1
        if self.policy.renews or entry[1] is None:
            entry[1] = self.clock

    def trim(self, path):
        leaves_only = self.policy.leaves_only and self.view == "tree"
        for level, tier in enumerate(self.tiers):
            mine = path if level < len(self.touched) else []
            protects = [b for b in mine if b in tier and (self.policy.leaves_only or tier[b][1] is None)]
            while len(tier) > tier.capacity and (block := tier.victim(leaves_only, protects)):
                frequency, _ = tier.pop(block)
                if self.inclusion != "inclusive" and level + 1 < len(self.tiers):
                    self.clock += 1
                    self.copied_down += block not in self.tiers[level + 1]
                    self.tiers[level + 1][block] = [frequency, self.clock]
                elif not any(block in other for other in self.tiers):
                    self.evictions += 1


def chained(prompts: list[list[int]]) -> list[list[int]]:
    """The same prompts with one number for each distinct prefix."""
    numbers: dict[tuple, int] = {}
    return [[numbers.setdefault(tuple(p[: d + 1]), len(numbers)) for d in range(len(p))] for p in prompts]


PROMPTS = st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=16)
SMALL = st.integers(0, 12)
checked = settings(max_examples=50 if config.DISABLE_JIT else 200, deadline=None, database=None)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("policy", ["lru", "fifo", "lfu", "strict-fifo"])
@pytest.mark.parametrize("inclusion", INCLUSIONS)
@checked
@given(prompts=PROMPTS, capacity=SMALL | st.none(), host=SMALL | st.none())
def test_compiled_loops_count_what_the_model_counts(view, policy, inclusion, prompts, capacity, host):
    row = curve(
        requests_of(prompts),
        view=view,
        policy=policy,
        capacity_blocks=capacity,
        host_capacity_blocks=host,
        inclusion=inclusion,
    )
    model = Model(view, policy, capacity, host, inclusion if host is not None else "exclusive")
    for prompt in prompts:
        model.serve(prompt)
    assert (row.hit_blocks_by_tier, row.evictions) == (tuple(model.hits), model.evictions)
    assert row.copied_down == model.copied_down


@pytest.mark.parametrize("view", VIEWS)
@checked
@given(prompts=PROMPTS, capacity=SMALL, host=SMALL)
def test_exclusive_lru_tiers_hit_what_one_tier_of_the_sum_hits(view, prompts, capacity, host):
    two = point(prompts, view, "lru", capacity, host, "exclusive")
    one = point(prompts, view, "lru", capacity + host)
    assert (two.hit_blocks, two.hit_tokens, two.evictions) == (one.hit_blocks, one.hit_tokens, one.evictions)


@pytest.mark.parametrize("view", VIEWS)
@checked
@given(prompts=PROMPTS, capacity=SMALL, host=SMALL)
def test_inclusive_lru_tiers_hit_what_the_larger_tier_hits(view, prompts, capacity, host):
    two = point(prompts, view, "lru", capacity, host, "inclusive")
    one = point(prompts, view, "lru", max(capacity, host))
    assert (two.hit_blocks, two.hit_tokens, two.evictions) == (one.hit_blocks, one.hit_tokens, one.evictions)


@pytest.mark.parametrize("policy", POLICIES)
@checked
@given(prompts=PROMPTS, capacity=SMALL)
def test_no_cache_hits_more_than_the_infinite_one_which_misses_each_block_once(policy, prompts, capacity):
    prefixes = {tuple(p[: d + 1]) for p in prompts for d in range(len(p))}
    for view in VIEWS:
        infinite = point(prompts, view, policy, None)
        assert infinite.hit_blocks == infinite.lookup_blocks - len(prefixes)
        assert point(prompts, view, policy, capacity).hit_blocks <= infinite.hit_blocks


@checked
@given(prompts=PROMPTS, capacity=SMALL)
def test_unchained_unit_numbers_count_as_their_chained_form(prompts, capacity):
    for view in VIEWS:
        assert point(prompts, view, "lru", capacity) == point(chained(prompts), view, "lru", capacity)


def point(prompts, view, policy, capacity, host=None, inclusion="exclusive", low_watermark=1.0) -> CurveRow:
    return curve(
        requests_of(prompts),
        view=view,
        policy=policy,
        capacity_blocks=capacity,
        host_capacity_blocks=host,
        inclusion=inclusion,
        low_watermark=low_watermark,
    )


# --- hand counts ----------------------------------------------------------------------------------------------------


def test_the_tree_counts_no_hit_behind_a_missing_block():
    # 3 blocks, oldest first after each prompt: [1, 0], then [1, 0, 2] (0 is hit), [0, 2, 3], [2, 3, 4]. The last prompt
    # misses 0, so 2, which is still there, does not count.
    assert point([[0, 1], [0, 2], [3], [4], [0, 2]], "tree", "strict-fifo", 3).hit_blocks == 1


def test_the_flat_view_counts_a_hit_behind_a_missing_block():
    # LFU, 2 blocks: 0 and 1 are each asked twice (2 hits); 2 pushes 0 out; 0 misses and pushes 2 out; 1 is hit.
    assert point([[0, 1], [0, 1], [2], [0, 1]], "flat", "lfu", 2).hit_blocks == 3


def test_a_flat_miss_may_push_out_the_block_that_the_prompt_asks_next():
    # LRU, 2 blocks: 2 pushes 0 out; 0 misses and pushes 1 out, so 1 misses too. The tree gives up 1, and 0 is hit.
    assert point([[0, 1], [2], [0, 1]], "flat", "lru", 2).hit_blocks == 0
    assert point([[0, 1], [2], [0, 1]], "tree", "lru", 2).hit_blocks == 1


def test_leaf_only_fifo_keeps_an_old_block_that_others_continue():
    # 2 blocks: 0 is the oldest, but 1 continues it when 2 arrives, so 1 goes and 0 is hit again.
    prompts = [[0], [0, 1], [2], [0]]
    assert point(prompts, "tree", "fifo", 2).hit_blocks == 2
    assert point(prompts, "tree", "strict-fifo", 2).hit_blocks == 1


def test_a_running_request_loses_no_block_to_itself_while_others_remain():
    # 2 blocks, both asked twice when 2 arrives (2 hits): LFU could as well evict the newcomer, and would miss it again.
    assert point([[0], [0], [1], [1], [2], [2]], "tree", "lfu", 2).hit_blocks == 3


def test_a_request_larger_than_the_cache_leaves_its_first_blocks():
    row = point([[0, 1, 2, 3], [0, 1, 2, 3]], "tree", "lru", 2)
    assert (row.hit_blocks, row.evictions) == (2, 4)


@pytest.mark.parametrize("view", VIEWS)
def test_a_cache_of_no_blocks_hits_nothing(view):
    row = point([[0, 1], [0, 1]], view, "lfu", 0)
    assert (row.hit_blocks, row.evictions) == (0, 4)


@pytest.mark.parametrize("view", VIEWS)
def test_the_short_last_block_counts_the_tokens_it_has(view):
    requests = requests_of([[0, 1], [0, 1]], unit_tokens=4, cut=1)
    row = curve(requests, view=view, policy="lru", capacity_blocks=None)
    assert (row.hit_tokens, row.prompt_tokens, row.hit_rate_tokens) == (7, 14, 0.5)


def test_a_tail_without_identity_counts_as_prompt_and_never_as_hit():
    requests = requests_of([[0], [0]], unit_tokens=4, cut=-3)
    row = curve(requests, view="flat", policy="lru", capacity_blocks=None)
    assert (row.hit_tokens, row.prompt_tokens) == (4, 14)


def test_equal_content_under_another_salt_or_adapter_is_another_block():
    salted = requests_of([[0, 1], [0, 1], [0, 1]], salt=np.array([-1, 5, -1], np.int32))
    adapted = requests_of([[0, 1], [0, 1], [0, 1]], lora=np.array([0, 1, 1], np.int32))
    assert curve(salted, view="tree", policy="lru", capacity_blocks=None).hit_blocks == 2
    assert curve(adapted, view="tree", policy="lru", capacity_blocks=None).hit_blocks == 2


def test_blocks_of_a_chained_trace_are_its_units():
    blocks, parents = prefix_blocks(requests_of([[0, 1], [0, 2]]))
    assert (blocks.tolist(), parents.tolist()) == ([0, 1, 0, 2], [-1, 0, 0])


def test_a_unit_under_two_parents_is_two_blocks():
    blocks, parents = prefix_blocks(requests_of([[0, 1], [1, 1]]))
    assert (blocks.tolist(), parents.tolist()) == ([0, 1, 2, 3], [-1, 0, -1, 2])


def test_a_row_says_which_tier_hit_and_what_was_asked():
    # Exclusive, 1 + 1 blocks: 0 then 1 pushes 0 to the host; 0 is hit there and pushes 1 down; 0 again is hit above.
    row = point([[0], [1], [0], [0]], "tree", "lru", 1, 1, "exclusive")
    assert row == CurveRow("tree", "lru", 1, 1, "exclusive", 2, 4, (1, 1), 0, 8, 16, 2)
    assert (row.hit_rate_blocks, row.hit_rate_tokens) == (0.5, 0.5)


def test_a_block_keeps_its_frequency_when_it_moves_between_exclusive_tiers():
    # LFU, 1 + 2 blocks: 0 is asked three times (2 warm hits) and moves down at 1. At 3 the host holds 0, 1, 2 and
    # loses 1, asked once, so 0 is hit there. It moves down again at 4; 5 and 6 push out blocks asked once; 0 is hit.
    prompts = [[0], [0], [0], [1], [2], [3], [0], [4], [5], [6], [0]]
    assert point(prompts, "flat", "lfu", 1, 2, "exclusive").hit_blocks_by_tier == (2, 2)


def test_a_shadow_saves_the_second_copy_of_a_block_that_goes_back_and_forth():
    # LRU, 1 + 2 blocks. 0 comes, 1 pushes it down (a copy), 0 is loaded and pushes 1 down (a copy), and so on. Exclusive
    # tiers copy each victim; with shadows 0 and 1 have their places below after one copy each. 2 and 3 push both out below.
    prompts = [[0], [1], [0], [1], [0], [2], [3], [2], [3]]
    exclusive, shadow, inclusive = (point(prompts, "flat", "lru", 1, 2, how) for how in INCLUSIONS)
    assert [row.hit_blocks_by_tier for row in (exclusive, shadow, inclusive)] == [(0, 5)] * 3
    assert exclusive.copied_down == 8  # all but the last request push out what was there
    assert shadow.copied_down == 4  # 0 and 1, then 2 and 3, once each
    assert inclusive.copied_down == 4  # each miss is written below at once


@pytest.mark.parametrize("view", VIEWS)
@checked
@given(prompts=PROMPTS, capacity=SMALL, host=SMALL)
def test_shadows_hit_no_less_than_the_warm_tier_alone_and_copy_no_more_than_exclusive_tiers_evict(
    view, prompts, capacity, host
):
    shadow = point(prompts, view, "lru", capacity, host, "shadow")
    alone = point(prompts, view, "lru", capacity)
    assert shadow.hit_blocks >= alone.hit_blocks
    assert shadow.hit_blocks_by_tier[0] == alone.hit_blocks_by_tier[0]
    assert shadow.copied_down <= alone.evictions


def test_a_watermark_evicts_the_oldest_half_at_once():
    # LRU, 4 blocks, half: 4 overflows and 0, 1, 2 go, down to 2 blocks; 3 and 4 are hit, 0 is not.
    row = point([[0], [1], [2], [3], [4], [3], [4], [0]], "flat", "lru", 4, low_watermark=0.5)
    assert (row.hit_blocks, row.evictions) == (2, 3)


def test_without_a_host_tier_the_inclusion_is_none():
    row = point([[0]], "flat", "lru", 3, None, "inclusive")
    assert (row.capacity_blocks, row.host_capacity_blocks, row.inclusion) == (3, 0, "none")


@pytest.mark.parametrize("view", VIEWS)
def test_an_empty_workload_has_rates_of_zero(view):
    row = point([], view, "lru", 5)
    assert (row.lookup_blocks, row.hit_rate_blocks, row.hit_rate_tokens) == (0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"view": "trie"}, "view is 'trie'; known are flat, tree"),
        ({"policy": "mru"}, "policy is 'mru'; known are lru, fifo, lfu, lfu-da, sieve, "),
        ({"inclusion": "both"}, "inclusion is 'both'; known are exclusive, inclusive, shadow"),
        ({"low_watermark": 0.0}, "low_watermark is 0; it must be above 0 and at most 1"),
        ({"capacity_blocks": -1}, "capacity_blocks is -1; it must be at least 0"),
        ({"host_capacity_blocks": -2}, "host_capacity_blocks is -2; it must be at least 0"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name_and_the_known_ones(wrong, message):
    asked = {"view": "tree", "policy": "lru", "capacity_blocks": 5} | wrong
    with pytest.raises(ValueError, match=message):
        curve(requests_of([[0]]), **asked)
