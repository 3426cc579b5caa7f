"""Each policy against its source's algorithm in plain Python, against libCacheSim's counts, and against hand counts."""

import importlib.util
from collections import Counter, OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config

from kvcache.categories import categories
from kvcache.curve import VIEWS, curve
from kvcache.policies import POLICIES, pointer, policy_named
from kvcache.request import Labels
from tests.golden.libcachesim_counts import accesses, counted, recorded
from tests.kvcache.test_curve import PROMPTS, point, requests_of, trace

checked = settings(max_examples=30 if config.DISABLE_JIT else 200, deadline=None, database=None)
HITS = recorded()["hits"]


# --- libCacheSim ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="minutes without machine code")
@pytest.mark.parametrize("name", HITS)
@pytest.mark.parametrize("policy", [p for p in HITS["mooncake_conversation"] if p != "min"])
def test_flat_hits_are_those_of_libcachesim_on_every_recorded_trace_and_size(name, policy):
    sizes = HITS[name][policy]
    ours = {s: curve(trace(name), view="flat", policy=policy, capacity_blocks=int(s)).hit_blocks for s in sizes}
    assert ours == sizes


@pytest.mark.parametrize("name", HITS)
def test_min_hits_are_those_of_libcachesims_belady(name):
    from kvcache.bound import min_hits

    if config.DISABLE_JIT and name == "mooncake_conversation":
        pytest.skip("minutes without machine code")
    blocks = np.array(accesses(name), np.int32)
    looked_up = np.ones(len(blocks), np.bool_)
    ours = {s: int(min_hits(blocks, looked_up, int(s), may_bypass=False).sum()) for s in HITS[name]["min"]}
    assert ours == HITS[name]["min"]


@pytest.mark.skipif(importlib.util.find_spec("libcachesim") is None, reason="libcachesim is not installed")
@pytest.mark.parametrize("policy", HITS["mooncake_conversation"])
def test_the_recorded_counts_are_those_of_the_installed_libcachesim(policy):
    name = "mooncake_arxiv_first1000"
    blocks = accesses(name)
    assert {size: counted(blocks, policy, int(size)) for size in HITS[name][policy]} == HITS[name][policy]


# --- the sources' algorithms ----------------------------------------------------------------------------------------


def sieve(blocks: list[int], capacity: int) -> int:
    queue: list[int] = []  # oldest first
    visited: dict[int, bool] = {}
    hand, hits = 0, 0
    for x in blocks:
        if x in visited:
            visited[x] = True
            hits += 1
            continue
        if len(queue) == capacity:
            hand = hand if hand < len(queue) else 0
            while visited[queue[hand]]:
                visited[queue[hand]] = False
                hand = (hand + 1) % len(queue)
            del visited[queue.pop(hand)]
            hand = hand if hand < len(queue) else 0  # past the newest it starts again
        queue.append(x)
        visited[x] = False
    return hits


def s3_fifo(blocks: list[int], capacity: int) -> int:
    small, main, ghost = OrderedDict[int, int](), OrderedDict[int, int](), OrderedDict[int, None]()
    small_room, ghost_room = int(capacity * 0.1), int(capacity * 0.9)
    full, hits = False, 0
    for x in blocks:
        if x in small or x in main:
            (small if x in small else main)[x] += 1
            hits += 1
            continue
        known = x in ghost
        ghost.pop(x, None)
        while len(small) + len(main) == capacity:
            full = True
            if len(main) > capacity - small_room or not small:
                block, uses = main.popitem(last=False)
                if uses:
                    main[block] = min(uses, 3) - 1
                continue
            while small:
                block, uses = small.popitem(last=False)
                if uses < 2:
                    ghost[block] = None
                    while len(ghost) > ghost_room:
                        ghost.popitem(last=False)
                    break
                main[block] = 0
        to_main = known or (not full and len(small) >= small_room)
        (main if to_main else small)[x] = 0
    return hits


def arc(blocks: list[int], c: int) -> int:
    t1, t2, b1, b2 = (OrderedDict[int, None]() for _ in range(4))
    p, hits = 0.0, 0

    def replace(in_b2: bool) -> None:
        if t1 and (len(t1) > p or (in_b2 and len(t1) == p)):
            b1[t1.popitem(last=False)[0]] = None
        else:
            b2[t2.popitem(last=False)[0]] = None

    for x in blocks:
        if x in t1 or x in t2:
            hits += 1
            t1.pop(x, None)
            t2.pop(x, None)
            t2[x] = None
        elif x in b1 or x in b2:
            from_b2 = x in b2
            step = max(len(b1) / len(b2), 1) if from_b2 else max(len(b2) / len(b1), 1)
            p = max(0.0, p - step) if from_b2 else min(c, p + step)
            replace(from_b2)
            b1.pop(x, None)
            b2.pop(x, None)
            t2[x] = None
        else:
            if len(t1) + len(b1) == c:
                if len(t1) < c:
                    b1.popitem(last=False)
                    replace(False)
                else:
                    t1.popitem(last=False)
            elif len(t1) + len(t2) == c:
                if len(t1) + len(t2) + len(b1) + len(b2) >= 2 * c:
                    b2.popitem(last=False)
                replace(False)
            t1[x] = None
    return hits


def scored(policy: str):
    def run(blocks: list[int], capacity: int) -> int:
        """The lowest score goes, of equal ones the oldest; a flat block lies at depth 0 unless the prompt says more."""
        score = POLICIES[policy].score
        held: dict[int, tuple[float, int]] = {}
        uses: Counter[int] = Counter()
        floor, hits = 0.0, 0
        for now, x in enumerate(blocks):
            hits += x in held
            if x not in held and len(held) == capacity:
                block = min(held, key=held.__getitem__)
                floor = max(floor, held.pop(block)[0])
                del uses[block]
            uses[x] += 1
            held[x] = (score(float(now), uses[x], 0, 35, floor), now)
        return hits

    return run


def tiny_lfu(blocks: list[int], capacity: int) -> int:
    """Window of one place below 200, probation, protected; counts up to 15, halved after ten uses a place."""
    window, probation, protected = OrderedDict[int, None](), OrderedDict[int, None](), OrderedDict[int, None]()
    seen: Counter[int] = Counter()
    used, hits, most = 0, 0, int((capacity - 1) * 0.8)
    for x in blocks:
        part = next((part for part in (window, probation, protected) if x in part), None)
        if part is None and len(window) + len(probation) + len(protected) == capacity:
            while len(window) > 1:
                newcomer = window.popitem(last=False)[0]
                main = next(iter(probation or protected), None)
                if main is not None and seen[newcomer] <= seen[main]:
                    break  # the newcomer itself goes
                probation[newcomer] = None
                if main is not None:
                    del (probation if main in probation else protected)[main]
                    break
            else:
                (probation or protected or window).popitem(last=False)
        seen[x] = min(15, seen[x] + 1)
        used += 1
        if used >= 10 * capacity:
            used, seen = 0, Counter({b: n // 2 for b, n in seen.items()})
        if part is None:
            window[x] = None
            continue
        hits += 1
        del part[x]
        (window if part is window else protected)[x] = None
        if len(protected) > most:
            probation[protected.popitem(last=False)[0]] = None
    return hits


MODELS = {"sieve": sieve, "s3-fifo": s3_fifo, "arc": arc} | {p: scored(p) for p in ("lfu-da", "gdsf", "length-aware")}
BLOCKS = st.lists(st.integers(0, 30).map(lambda n: n % 17 if n % 3 else n % 5), max_size=120)


@pytest.mark.parametrize("policy", MODELS)
@checked
@given(blocks=BLOCKS, capacity=st.integers(1, 14))
def test_flat_hits_are_those_of_the_sources_algorithm(policy, blocks, capacity):
    prompts = [[block] for block in blocks]
    assert point(prompts, "flat", policy, capacity).hit_blocks == MODELS[policy](blocks, capacity)


# --- every policy ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=8 if config.DISABLE_JIT else 60, deadline=None, database=None)
@given(prompts=PROMPTS, capacity=st.integers(0, 12), host=st.integers(0, 6) | st.none(), inclusive=st.booleans())
def test_every_policy_conserves_blocks_and_repeats_itself(view, policy, prompts, capacity, host, inclusive):
    inclusion = "inclusive" if inclusive else "exclusive"
    row = point(prompts, view, policy, capacity, host, inclusion)
    assert row == point(prompts, view, policy, capacity, host, inclusion)
    infinite = point(prompts, view, policy, None)
    assert row.hit_blocks <= infinite.hit_blocks
    room = capacity + (host or 0)
    if view == "flat" and not inclusive:  # every miss comes in; what came in and did not go is there
        assert 0 <= row.lookup_blocks - row.hit_blocks - row.evictions <= room


def test_an_unknown_policy_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"policy is 'lru2'; known are priority, lru, fifo, lfu, "):
        policy_named("lru2")
    assert policy_named("lru") is POLICIES["lru"]


def test_every_policy_says_where_it_comes_from_and_its_score_is_compiled_once():
    for policy in POLICIES.values():
        assert policy.about
        assert pointer(policy.score) is pointer(policy.score)


# --- by hand --------------------------------------------------------------------------------------------------------


def test_gdsf_keeps_the_block_that_costs_more_to_compute_again():
    # Units of 32,768 tokens: the second block of a prompt costs twice the first. 3 places hold 0, 1 (behind 0), 2; all used
    # once, so scores 1, 2, 1: 3 pushes out the oldest of the cheap, 0, which 0 misses (pushing out 2); 1 is there.
    row = curve(requests_of([[0, 1], [2], [3], [0, 1]], 32_768), view="flat", policy="gdsf", capacity_blocks=3)
    assert row.hit_blocks == 1


def test_length_aware_gives_up_the_end_of_a_prompt_first():
    # 3 places: 0, 1, 2 of one prompt, then 3 pushes out 2 (deepest): 0 and 1 are hit, which LRU would hit too in the tree;
    # flat LRU would have pushed out 0.
    prompts = [[0, 1, 2], [3], [0, 1]]
    assert point(prompts, "flat", "length-aware", 3).hit_blocks == 2
    assert point(prompts, "flat", "lru", 3).hit_blocks == 0


def test_tinylfu_does_not_let_a_scan_push_out_what_is_used_often():
    # 4 places. 1 and 2 are used three times each (4 hits), then 20 others once each: LRU forgets 1 and 2. Here the window
    # holds 1, 2, 10, 11 when 12 comes: 1 moves to the empty main part, 2 asks against it with as many uses, and goes.
    prompts = [[b] for b in [1, 2] * 3 + list(range(10, 30)) + [1, 2]]
    assert point(prompts, "flat", "w-tinylfu", 4).hit_blocks == 5
    assert point(prompts, "flat", "lru", 4).hit_blocks == 4


def test_tinylfu_lets_a_block_in_that_is_used_more_often_than_the_main_victim():
    # 2 places, window of 1. a, b fill both; c comes: a (1 use, leaves the window) against nobody: a moves on, b and so on.
    # 5 is used again and again: it must be found at last.
    prompts = [[b] for b in [1, 2, 3, 5, 1, 5, 2, 5, 3, 5, 4, 5]]
    assert point(prompts, "flat", "w-tinylfu", 2).hit_blocks >= 2


@checked
@given(blocks=BLOCKS, capacity=st.integers(2, 14))
def test_tinylfu_is_the_described_algorithm(blocks, capacity):
    prompts = [[block] for block in blocks]
    assert point(prompts, "flat", "w-tinylfu", capacity).hit_blocks == tiny_lfu(blocks, capacity)


def labelled(kinds: str, prompts: list[list[int]]):
    codes = np.array(["abc".index(k) for k in kinds], np.int32)
    return requests_of(prompts, labels={"type": Labels(codes, ("a", "b", "c"))})


def test_workload_aware_gives_up_the_kind_that_is_not_used_again():
    # One request a second, two places. Block 1 (kind a) comes back every 2 s: 4 hits. Every b block is new. At 10 s LRU
    # pushes out 1, used at 8 s, for 8; the policy has seen no b block come back, and pushes out 7, used at 9 s.
    requests = labelled("ab" * 5 + "ba", [[b] for b in [1, 3, 1, 4, 1, 5, 1, 6, 1, 7, 8, 1]])
    hits = {p: curve(requests, view="flat", policy=p, capacity_blocks=2).hit_blocks for p in ("lru", "workload-aware")}
    assert hits == {"lru": 4, "workload-aware": 5}


def test_of_three_kinds_the_one_never_seen_again_goes_though_it_is_the_newest():
    # Three places hold 1 (kind a) and 2 (b), both used twice, and 3 (c). 4 comes: LRU pushes out 1, then 2 for 1, then 3 for 2.
    requests = labelled("aabbccab", [[b] for b in [1, 1, 2, 2, 3, 4, 1, 2]])
    hits = {p: curve(requests, view="flat", policy=p, capacity_blocks=3).hit_blocks for p in ("lru", "workload-aware")}
    assert hits == {"lru": 2, "workload-aware": 4}


def test_categories_are_a_label_and_whether_the_session_is_known():
    requests = requests_of([[0]] * 4, session=np.array([0, 0, -1, 1], np.int32))
    assert categories(requests).tolist() == [0, 1, 0, 0]
    many = labelled("ab", [[0], [1]])
    assert categories(many).tolist() == [0, 2]
