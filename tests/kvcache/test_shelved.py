"""Every policy inside the cache manager: nothing is lost, nothing in use goes, nobody beats the bound, equal runs are equal."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import config

from experiments.prepared import shared_tables
from kvcache.bound import min_hits
from kvcache.feed import Feed
from kvcache.load import names_of, prepare, renewed
from kvcache.policies import POLICIES
from kvcache.queues import claim, front, refresh, release
from kvcache.request import Labels, Requests
from kvcache.retention import KvCacheRetentionConfig, RetentionColumns, TokenRangeRetentionConfig
from kvcache.sequences import make_matches, make_sequences
from kvcache.serve import replay_serial
from kvcache.shelf import CATEGORY, CONTENT, COUNT, FREE_ITEMS, QUEUED, STATE
from kvcache.tables import (
    CLOCK_US,
    DROPPED,
    DROPPED_BELOW_THRESHOLD,
    EXPIRED,
    FULL_REUSED,
    KEY,
    LEVEL,
    NEXT,
    NODE,
    OFFLOADED,
    ONBOARDED,
    PRIORITY,
    QUEUE_LEVEL,
    REFS,
    REUSED,
    SLOT,
    T_FREE,
    T_SIZE,
    Pool,
    Settings,
    State,
)
from kvcache.tree import attach
from tests.kvcache.test_curve import requests_of

pytestmark = pytest.mark.skipif(not config.DISABLE_JIT, reason="run by test_without_compiler.py")

TPB = 4
PROMPTS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=14)
few = settings(max_examples=20 if config.DISABLE_JIT else 40, deadline=None, database=None)


def rules(policy: str | None, **more) -> Settings:
    eviction = None if policy is None else POLICIES[policy]
    return Settings(tokens_per_block=TPB, enable_partial_reuse=False, eviction=eviction, **more)


def serve(state: State, load, n: int) -> None:
    q, m = make_sequences(1, 1, 16), make_matches(1, 16)
    arrival_us = np.arange(n, dtype=np.int64) * 1_000_000
    assert replay_serial(state, q, m, load, np.zeros((3, 1), np.int64), arrival_us, 0, n, np.zeros(n, np.int64)) == n


def replayed(requests: Requests, wanted: Settings, blocks: tuple[int, ...], retention=None):
    state, load = prepare(requests, retention or RetentionColumns.none(len(requests)), (Pool(1 << 20, blocks),), wanted)
    serve(state, load, len(requests))
    return state, load


def check(state: State) -> None:
    """Architecture's invariants 1 and 2, and that the policy's tables say what the manager's say."""
    rows = state.blocks[: int(state.tier[0, :, T_SIZE].sum())]
    queued = rows[:, NEXT] != -1
    assert not (queued & (rows[:, REFS] > 0)).any(), "a block in use waits to be taken"
    assert (rows[queued, LEVEL] == rows[queued, QUEUE_LEVEL]).all()
    for level in range(state.tier.shape[1]):
        mine = rows[:, LEVEL] == level
        assert sorted(rows[mine, SLOT]) == list(range(int(state.tier[0, level, T_SIZE])))
        assert int((mine & queued).sum()) == int(state.tier[0, level, T_FREE])
        if state.shelf is None:
            continue
        shelved = mine & queued & (rows[:, NEXT] == np.arange(len(rows)))
        assert int(state.shelf.shelf.meter[level, FREE_ITEMS]) == int(shelved.sum())
        table = state.shelf.shelf.rows[level, : len(rows)]
        assert (table[shelved, STATE] == QUEUED).all(), "a free block has no place in the order"
        attached = shelved & (rows[:, NODE] != -1)
        assert (table[attached, CONTENT] == rows[attached, NODE]).all()


def drained(state: State, level: int = 0) -> list[int]:
    """Take every free block of a level, in the order of eviction."""
    order = []
    while (block := int(front(state, 0, level))) != -1:
        assert int(front(state, 0, level)) == block, "looking took something"
        assert state.blocks[block, REFS] == 0
        state.blocks[block, NODE] = -1
        claim(state, block, -1, -1)
        order.append(block)
    return order


def best(load, blocks: int) -> int:
    """Full blocks that MIN finds in the same run: prompts are looked up, all full blocks are made."""
    contents, looked_up = [], []
    for r in range(len(load.prompt)):
        keys = load.keys[load.key_offset[r] : load.key_offset[r + 1] - 2].tolist()
        contents += keys
        looked_up += [i < (int(load.prompt[r]) - 1) // TPB for i in range(len(keys))]
    return int(min_hits(np.array(contents, np.int32), np.array(looked_up, np.bool_), blocks).sum())


@pytest.mark.parametrize("policy", POLICIES)
@few
@given(prompts=PROMPTS, gpu=st.integers(7, 14), host=st.integers(0, 8), cut=st.integers(0, 3), output=st.integers(0, 6))
def test_every_policy_keeps_the_books_and_stays_below_the_bound(policy, prompts, gpu, host, cut, output):
    requests = requests_of(prompts, TPB, cut)
    requests.output_tokens[:] = output
    state, load = replayed(requests, rules(policy), (gpu, host))
    check(state)
    assert state.stats[0, FULL_REUSED] <= best(load, gpu + host)
    again, _ = replayed(requests, rules(policy), (gpu, host))
    assert (again.stats == state.stats).all()
    assert (again.blocks == state.blocks).all()
    free = int(state.tier[0, 0, T_FREE])
    assert len(set(drained(state))) == free == gpu


@few
@given(prompts=PROMPTS, gpu=st.integers(7, 14), cut=st.integers(0, 3))
def test_lru_is_tensorrt_llms_order_without_priorities_and_with_empty_blocks_first(prompts, gpu, cut):
    requests = requests_of(prompts, TPB, cut)
    ours, _ = replayed(requests, rules("lru"), (gpu, 0))
    theirs, _ = replayed(requests, rules(None, detached_first=True), (gpu, 0))
    assert ours.stats[0, REUSED] == theirs.stats[0, REUSED]
    assert ours.stats[0, DROPPED] == theirs.stats[0, DROPPED]


def two_blocks_hot(policy: str, **more) -> State:
    """Blocks 0 and 1 used three times, then a scan of ten others, 6 on the GPU and 4 on the host."""
    prompts = [[0, 1]] * 3 + [[10 + i] for i in range(10)]
    return replayed(requests_of(prompts, TPB), rules(policy, **more), (6, 4))[0]


def test_a_policy_chooses_on_the_gpu_and_on_the_host() -> None:
    # Prompts end with their block, whose last token is never looked up: [0, 1] finds 0 in full twice, by LFU the scan goes.
    frequent, recent = two_blocks_hot("lfu"), two_blocks_hot("lru")
    assert frequent.stats[0, OFFLOADED] > 0
    for state, there in ((frequent, True), (recent, False)):
        hot = [b for b in range(6) if state.blocks[b, LEVEL] == 0 and state.shelf.shelf.rows[0, b, COUNT] >= 3]
        assert bool(hot) == there


def test_the_threshold_asks_for_the_victims_own_priority() -> None:
    low = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 20)])
    requests = requests_of([[i] for i in range(12)], TPB)
    retention = RetentionColumns.of([low if i % 2 else None for i in range(12)])
    state, _ = replayed(requests, rules("fifo"), (6, 6), retention)
    assert state.stats[0, DROPPED_BELOW_THRESHOLD] == 3
    assert state.stats[0, OFFLOADED] == 3


def test_an_expired_block_keeps_its_place() -> None:
    soon = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 90, 10)])
    requests = requests_of([[i] for i in range(4)], TPB)
    state, _ = replayed(requests, rules("lru"), (6, 0), RetentionColumns.of([soon] * 4))
    order = [b for b in range(6) if state.blocks[b, KEY] != -1]
    refresh(state, 10**9)
    assert (state.blocks[order, PRIORITY] == 35).all()
    assert (state.blocks[order, EXPIRED] == 1).all()
    check(state)
    assert [b for b in drained(state) if b in order] == order


def test_a_block_that_comes_back_from_the_host_brings_its_uses_along() -> None:
    # 6 GPU blocks: 0 and 1 go to the host when the others come, and are brought back by the last prompt.
    prompts = [[0, 1, 2], [3], [4], [5], [6], [7], [0, 1, 2]]
    state, _ = replayed(requests_of(prompts, TPB), rules("lfu"), (6, 6))
    assert state.stats[0, ONBOARDED] > 0
    check(state)
    counts = [int(state.shelf.shelf.rows[0, b, COUNT]) for b in range(12) if state.blocks[b, LEVEL] == 0]
    assert max(counts) >= 2


def test_a_block_with_other_content_starts_anew() -> None:
    state = replayed(requests_of([[0], [1], [2]], TPB), rules("lfu"), (6, 0))[0]
    block = next(b for b in range(6) if state.blocks[b, NODE] != -1)
    other = next(b for b in range(6) if state.blocks[b, NODE] not in {-1, state.blocks[block, NODE]})
    node = int(state.blocks[other, NODE])
    claim(state, block, -1, -1)
    claim(state, other, -1, -1)
    state.value[0, state.blocks[block, NODE]] = -1
    state.value[0, node] = -1
    state.blocks[other, NODE] = -1
    attach(state, block, node)
    state.blocks[block, KEY] = node
    release(state, block, False)
    release(state, other, False)
    assert int(state.shelf.shelf.rows[0, block, COUNT]) == 1
    check(state)


def test_tables_of_a_run_serve_another_policy_afterwards() -> None:
    requests, pools = requests_of([[0, 1, 2], [0, 1, 3], [4, 5]], TPB), (Pool(1 << 20, (8, 4)),)
    state, load = prepare(requests, RetentionColumns.none(3), pools, rules(None))
    names = names_of(state)
    serve(state, load, 3)
    state = renewed(state, names, pools, rules("arc"))
    serve(state, load, 3)
    fresh, _ = replayed(requests, rules("arc"), (8, 4))
    assert (state.stats == fresh.stats).all()
    check(state)


@pytest.mark.parametrize("policy", ["arc", "gdsf", "w-tinylfu"])
def test_a_stream_whose_keys_are_recycled_keeps_its_order(policy: str) -> None:
    feed = Feed((Pool(1 << 20, (8, 4)),), rules(policy), remembered=1)
    for piece in range(150):
        requests = requests_of([[i % 7, 100 * piece + i, i] for i in range(12)], TPB)
        state, load = feed.load(requests, RetentionColumns.none(12))
        serve(state, load, 12)
        check(state)
    assert feed.forgotten > 0
    assert state.tally[CLOCK_US] == 11_000_000


def labelled(kinds: str, prompts: list[list[int]]) -> Requests:
    codes = np.array(["ab".index(kind) for kind in kinds], np.int32)
    return requests_of(prompts, TPB, labels={"type": Labels(codes, ("a", "b"))})


def test_content_is_of_the_kind_of_the_first_request_that_has_it_in_a_stream_and_in_tables_used_again() -> None:
    # Block 0 comes with kind b first; 1 with a; 2 with b. Categories: 2 x label, no sessions.
    requests = labelled("bab", [[0, 9], [0, 1, 9], [2, 9]])
    with shared_tables() as give:
        give(requests, RetentionColumns.none(3), (Pool(1 << 20, (8, 4)),), rules("arc"))
    with shared_tables() as give:
        again, load = give(requests, RetentionColumns.none(3), (Pool(1 << 20, (8, 4)),), rules("workload-aware"))
    feed = Feed((Pool(1 << 20, (8, 4)),), rules("workload-aware"))
    feed.load(labelled("b", [[0, 9]]), RetentionColumns.none(1))
    state, later = feed.load(labelled("ab", [[0, 1, 9], [2, 9]]), RetentionColumns.none(2))
    first = load.keys[load.key_offset[1] :]
    for tables, keys in ((again, first), (state, later.keys)):
        assert tables.shelf.shelf.facts[keys[[0, 1]], CATEGORY].tolist() == [2, 0]
        assert tables.shelf.shelf.facts[keys[int(later.key_offset[1])], CATEGORY] == 2


def test_the_workload_aware_policy_gives_up_the_kind_that_does_not_come_back() -> None:
    # Two prompts of kind a in turns, a new one of kind b between any two. A prompt takes three blocks with its answer, so 7
    # hold two prompts and a part of the third: told apart, b's blocks go and both prompts of a stay; else the oldest goes.
    prompts = [p for k in range(30) for p in ([1 + k % 2, 90], [100 + k, 90])]
    found = []
    for policy, kinds in (("workload-aware", "ab" * 30), ("workload-aware", "a" * 60), ("lru", "ab" * 30)):
        state, _ = replayed(labelled(kinds, prompts), rules(policy), (7, 0))
        found.append(int(state.stats[0, REUSED]))
    assert found[0] > found[1] == found[2]
