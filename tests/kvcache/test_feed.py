"""A workload in pieces is served as the whole is, and tables follow what is cached, not what was asked."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.feed import Feed
from kvcache.keys import MOST_PRIVATE, reserve_private
from kvcache.load import Load, extend, longest_blocks
from kvcache.recycle import recycle
from kvcache.request import Requests
from kvcache.retention import KvCacheRetentionConfig, RetentionColumns, TokenRangeRetentionConfig
from kvcache.sequences import make_matches, make_sequences
from kvcache.serve import replay_serial
from kvcache.tables import (
    C_BLOCKS,
    CAUSE_0,
    CAUSES,
    FATE,
    GROUP,
    KEY,
    N_COPIES,
    N_NODES,
    N_PRIVATE,
    N_RUNS,
    NEVER_SEEN,
    NODE,
    PARENT,
    TOKENS,
    Pool,
    Settings,
    State,
    make_state,
)
from tests.kvcache.workloads import WIDE, assert_conserved, serial, some_settings, workload, workloads

FOUR = Settings(tokens_per_block=4)
NOTHING = np.empty(0, np.int32)
RANGES = KvCacheRetentionConfig(
    [TokenRangeRetentionConfig(0, 4, 80, 10), TokenRangeRetentionConfig(4, None, 20)], 50, 20
)
CAUSE_OF = dict(zip(CAUSES, range(CAUSE_0, CAUSE_0 + len(CAUSES)), strict=True))


def serve(state: State, load: Load, requests: Requests) -> list[int]:
    """Serve a piece; each request's reused tokens."""
    n, windows = len(requests), len(state.window)
    positions = longest_blocks(requests, int(state.conf[0]))
    reused = np.zeros(n, np.int64)
    q, m, scratch = make_sequences(windows, 1, positions), make_matches(1, positions), np.zeros((3, 1), np.int64)
    arrival_us = np.asarray(requests.arrival_s * 1e6).astype(np.int64)
    assert replay_serial(state, q, m, load, scratch, arrival_us, 0, n, reused) == n
    return reused.tolist()  # type: ignore[no-any-return]


def in_pieces(
    requests: Requests,
    size: int,
    pools: Sequence[Pool],
    rules: Settings,
    retention: Sequence[KvCacheRetentionConfig | None],
) -> tuple[State, list[int]]:
    """As `tests.kvcache.workloads.serial`, a few requests at a time, with every row freed between them that can be."""
    state, namespaces, reused = make_state(tuple(pools), rules), dict[tuple[int, int], int](), list[int]()
    columns = RetentionColumns.of(retention)
    for first in range(0, len(requests), size):
        rows = np.arange(first, min(first + size, len(requests)))
        piece = requests.take(rows)
        recycle(state, NOTHING)
        state, load = extend(state, piece, columns.take(rows), namespaces)
        reused += serve(state, load, piece)
    return state, reused


def same_but_causes(one: State, other: State) -> None:
    """Everything counted is equal; a miss whose key was forgotten may only have become one never seen."""
    assert one.stats[:, :CAUSE_0].tolist() == other.stats[:, :CAUSE_0].tolist()
    assert one.by_priority.tolist() == other.by_priority.tolist()
    assert one.tier.tolist() == other.tier.tolist()
    assert one.blocks[:, :NODE].tolist() == other.blocks[:, :NODE].tolist()
    assert one.stats[:, CAUSE_0:].sum() == other.stats[:, CAUSE_0:].sum()
    assert (one.stats[:, CAUSE_OF["never_seen"]] <= other.stats[:, CAUSE_OF["never_seen"]]).all()


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(workloads(), st.integers(1, 4), some_settings(), st.integers(0, 6), st.booleans(), st.booleans(), st.booleans())
def test_pieces_with_every_row_freed_between_them_are_served_as_the_whole(
    requests: Requests, size: int, rules: Settings, host: int, salted: bool, two_windows: bool, says: bool
) -> None:
    if salted:
        requests = replace(requests, salt=np.arange(len(requests), dtype=np.int32) // 2 % 3)
    tpb = rules.tokens_per_block
    gpu = 28 // tpb + 4
    pools = [Pool(WIDE, (gpu, host))]
    if two_windows:
        pools.append(Pool(2 * tpb, (gpu, host), sliding=True))
    retention = [RANGES if says and i % 2 else None for i in range(len(requests))]
    whole, reused = serial(requests, pools, rules, retention)
    state, again = in_pieces(requests, size, pools, rules, retention)
    assert again == reused
    same_but_causes(whole, state)
    assert_conserved(state, all_free=True)


def test_a_key_that_is_kept_says_why_its_block_went_and_a_forgotten_one_was_never_seen() -> None:
    # A pool of 3 blocks. The first prompt (2 blocks) is pushed out by the second.
    first, second = workload([[1] * 8], [1]), workload([[2] * 12], [1])
    for forget, cause in ((False, "evicted_from_gpu"), (True, "never_seen")):
        state, namespaces = make_state((Pool(WIDE, (3, 0)),), FOUR), dict[tuple[int, int], int]()
        for piece in (first, second):
            state, load = extend(state, piece, RetentionColumns.none(1), namespaces)
            serve(state, load, piece)
        before = int(state.stats[0, CAUSE_OF[cause]])
        if forget:
            recycle(state, NOTHING)
        state, load = extend(state, first, RetentionColumns.none(1), namespaces)
        serve(state, load, first)
        assert int(state.stats[0, CAUSE_OF[cause]]) == before + 2  # both blocks of the first prompt


class TestRecycle:
    def loaded(self, *prompts: list[int]) -> tuple[State, Load]:
        requests = workload(prompts, [1] * len(prompts))
        return extend(make_state((Pool(WIDE, (4, 0)),), FOUR), requests, RetentionColumns.none(len(prompts)), {})

    def test_what_nobody_names_or_holds_is_forgotten(self) -> None:
        state, _ = self.loaded([1] * 9, [2] * 9)
        number = recycle(state, NOTHING)
        assert number.tolist() == [0] + [-1] * (len(number) - 1)
        assert (state.tally[N_NODES], state.tally[N_RUNS]) == (1, 0)

    def test_held_nodes_stay_with_their_parents_and_are_found_again(self) -> None:
        # Prompts 1 1 1 1 | 2 2 2 2 | 3 and 1 1 1 1 | 5 5 5 5 | 3: the node of the fives and of its parent are held.
        prompts = [1, 1, 1, 1, 2, 2, 2, 2, 3], [1, 1, 1, 1, 5, 5, 5, 5, 3]
        state, load = self.loaded(*prompts)
        ones, fives = load.keys[load.key_offset[1] : load.key_offset[1] + 2].tolist()
        number = recycle(state, np.array([-1, fives], np.int32))
        assert (number[ones], number[fives], state.tally[N_NODES]) == (1, 2, 3)
        assert state.nodes[1:3, TOKENS].tolist() == [4, 4]
        assert state.nodes[1:3, PARENT].tolist() == [0, 1]
        requests = workload(prompts, [1, 1])
        state, load = extend(state, requests, RetentionColumns.none(2), {})
        assert load.keys[load.key_offset[1] : load.key_offset[1] + 2].tolist() == [1, 2]
        assert load.keys[0] == 1
        assert load.keys[1] > 2

    def test_the_representative_of_a_kept_node_stays(self) -> None:
        # Two second blocks that start alike: 2 2 2 2 leads the group that 2 2 2 3 is in.
        state, load = self.loaded([1, 1, 1, 1, 2, 2, 2, 2, 9], [1, 1, 1, 1, 2, 2, 2, 3, 9])
        leader, node = int(load.keys[1]), int(load.keys[load.key_offset[1] + 1])
        assert state.nodes[node, GROUP] == leader
        number = recycle(state, np.array([node], np.int32))
        assert number[leader] >= 0
        assert state.nodes[number[node], GROUP] == number[leader]

    def test_content_of_blocks_outside_the_tree_keeps_its_key(self) -> None:
        state, load = self.loaded([1] * 9)
        state.blocks[2, KEY] = load.keys[0]
        number = recycle(state, NOTHING)
        assert state.blocks[2, KEY] == number[load.keys[0]] == 1
        assert (state.blocks[: state.conf[C_BLOCKS], NODE] == -1).all()

    def test_copies_nobody_has_read_are_a_fault(self) -> None:
        state, _ = self.loaded([1] * 9)
        state.tally[N_COPIES] = 1
        with pytest.raises(AssertionError, match="not read"):
            recycle(state, NOTHING)


class TestFeed:
    def one(self, token: int) -> Requests:
        return workload([[token] * 17], [[token] * 4])

    def test_tables_stop_growing_when_what_is_cached_does_not_grow(self) -> None:
        feed, sizes = Feed((Pool(WIDE, (20, 20)),), FOUR, remembered=1500), []
        for token in range(1800):
            piece = self.one(token)
            assert serve(*feed.load(piece, RetentionColumns.none(1)), piece) == [0]
            sizes.append((len(feed.state.nodes), len(feed.state.runs), feed.state.tables.shape[1]))
        assert feed.forgotten > 5000
        assert sizes[-1] == sizes[900]

    def test_rows_are_made_once_where_a_long_workload_comes_in_alike_pieces(self) -> None:
        feed = Feed((Pool(WIDE, (20, 0)),), FOUR, remembered=8000)
        for token in range(3000):
            feed.load(self.one(token), RetentionColumns.none(1))
            assert (len(feed.state.nodes), int(feed.state.tally[N_NODES]) <= 8000) == (8002, True)
        assert feed.forgotten > 5000

    def test_what_is_cached_is_found_however_often_rows_are_used_again(self) -> None:
        # 20 blocks of 4 hold the last three requests (5 full blocks, and the short one goes with its last owner)
        feed = Feed((Pool(WIDE, (20, 0)),), FOUR, remembered=0)
        for token in range(900):
            for piece, found in ((self.one(token), 0), (self.one(token), 16)):
                assert serve(*feed.load(piece, RetentionColumns.none(1)), piece) == [found]
        assert feed.forgotten > 0

    def test_nodes_that_somebody_holds_are_renumbered_in_place(self) -> None:
        feed = Feed((Pool(WIDE, (20, 0)),), FOUR, remembered=0)
        feed.load(self.one(1), RetentionColumns.none(1))
        held = feed.load(self.one(2), RetentionColumns.none(1))[1].keys
        content = [int(feed.state.nodes[node, TOKENS]) for node in held if node >= 0]
        before = held.tolist()
        for token in range(3, 900):
            feed.load(self.one(token), RetentionColumns.none(1), [held])
        assert [int(feed.state.nodes[node, TOKENS]) for node in held if node >= 0] == content
        assert held.tolist() != before
        assert feed.load(self.one(2), RetentionColumns.none(1))[1].keys[0] == held[0]

    def test_a_second_namespace_may_come_late(self) -> None:
        # The same prompt under salts 0 and 1: the second finds nothing and is told why, as when both come at once.
        feed = Feed((Pool(WIDE, (20, 0)),), FOUR)
        for salt in (0, 1):
            piece = workload([[7] * 9], [1], salt=[salt])
            serve(*feed.load(piece, RetentionColumns.none(1)), piece)
        assert feed.state.stats[0, CAUSE_OF["other_salt_or_lora"]] == 2
        assert len(feed.state.twin) == len(feed.state.nodes)

    def test_a_piece_of_no_requests_changes_nothing(self) -> None:
        feed = Feed((Pool(WIDE, (20, 0)),), FOUR)
        assert len(feed.load(workload([], []), RetentionColumns.none(0))[1].keys) == 0
        assert feed.state.tally[N_NODES] == 1


def test_names_that_do_not_fit_31_bits_are_refused() -> None:
    requests = replace(workload([[2**28]], [1]), unit_tokens=512, prompt_tokens=np.array([512], np.int32))
    for tpb, fits in ((64, False), (512, True)):
        state = make_state((Pool(WIDE, (8, 0)),), Settings(tokens_per_block=tpb))
        if fits:
            extend(state, requests, RetentionColumns.none(1), {})
        else:
            with pytest.raises(
                ValueError, match="tokens_per_block is 64; a trace of 268435457 different blocks of 512"
            ):
                extend(state, requests, RetentionColumns.none(1), {})


def test_private_names_begin_anew_before_they_do_not_fit() -> None:
    state = make_state((Pool(WIDE, (8, 0)),), FOUR)
    state.tally[N_PRIVATE] = MOST_PRIVATE + 1
    assert reserve_private(state, 8) == 0
    assert reserve_private(state, 8) == 2 * (8 // 4 + 1)


def test_a_twin_is_never_seen_until_its_content_is() -> None:
    feed = Feed((Pool(WIDE, (20, 0)),), FOUR)
    _, load = feed.load(workload([[7] * 9] * 2, [1, 1], salt=[0, 1]), RetentionColumns.none(2))
    assert feed.state.nodes[feed.state.twin[load.keys[0]], FATE] == NEVER_SEEN
    assert feed.state.twin[load.keys[0]] == feed.state.twin[load.keys[load.key_offset[1]]]
