"""The prefix index by itself: existence of nodes, leaves, and the longest common start."""

from typing import Any

import pytest

from kvcache.keys import intern
from kvcache.sequences import parent_block
from kvcache.tables import (
    CHAIN_DETACHED,
    EVICTED_GPU,
    FATE,
    KEY,
    LIVE,
    N_RUNS,
    NODE,
    REFS,
    RESIDENT,
    ROOT,
    Pool,
    Settings,
    State,
    make_state,
)
from kvcache.tree import attach, best_partial, children, common_tokens, detach, detach_below, in_tree, is_leaf


def new(*, windows: int = 1, **settings: Any) -> State:
    pools = tuple(Pool(64 >> w, (8, 0), sliding=w > 0) for w in range(windows))
    return make_state(pools, Settings(tokens_per_block=4, **settings))


def node(state: State, parent: int, *runs: tuple[int, int] | int, extras: int = -1) -> int:
    at = int(state.tally[N_RUNS])
    for i, run in enumerate(runs):
        state.runs[at + i] = run if isinstance(run, tuple) else (run, 1)
    return int(intern(state, parent, 0, extras, len(runs)))


def put(state: State, block: int, where: int) -> None:
    state.blocks[block, KEY] = where
    attach(state, block, where)


class TestExistence:
    def test_a_node_exists_while_it_or_a_descendant_holds_a_block(self) -> None:
        state = new()
        a = node(state, ROOT, 1)
        b = node(state, a, 2)
        put(state, 0, a)
        put(state, 1, b)
        detach(state, 0, EVICTED_GPU)
        assert [int(state.nodes[n, LIVE]) for n in (a, b)] == [1, 1]
        assert state.nodes[a, FATE] == EVICTED_GPU
        detach(state, 1, EVICTED_GPU)
        assert [int(state.nodes[n, LIVE]) for n in (a, b, ROOT)] == [0, 0, 1]

    def test_a_value_in_another_window_keeps_the_node(self) -> None:
        state = new(windows=2)
        a = node(state, ROOT, 1)
        put(state, 0, a)
        put(state, 8, a)
        detach(state, 0, EVICTED_GPU)
        assert (int(state.nodes[a, LIVE]), int(state.value[0, a]), int(state.value[1, a])) == (1, -1, 8)
        assert int(children(state, a)) == 0

    def test_a_block_that_is_not_attached_is_a_leaf_and_detaching_it_changes_nothing(self) -> None:
        state = new()
        assert is_leaf(state, 3)
        detach(state, 3, EVICTED_GPU)
        assert state.blocks[3, NODE] == -1

    def test_a_block_is_no_leaf_while_any_descendant_exists(self) -> None:
        state = new()
        a = node(state, ROOT, 1)
        b = node(state, a, 2)
        c = node(state, b, 3)
        put(state, 0, a)
        put(state, 1, c)  # b exists without a value
        assert not is_leaf(state, 0)
        assert is_leaf(state, 1)
        detach(state, 1, EVICTED_GPU)
        assert is_leaf(state, 0)

    def test_a_new_value_makes_the_node_resident(self) -> None:
        state = new()
        a = node(state, ROOT, 1)
        put(state, 0, a)
        assert state.nodes[a, FATE] == RESIDENT


class TestInTree:
    def test_a_child_whose_parent_position_is_empty_is_attached_but_not_in_the_tree(self) -> None:
        state = new()
        a = node(state, ROOT, 1)
        b = node(state, a, 2)
        put(state, 0, a)
        put(state, 1, b)
        assert [bool(in_tree(state, x)) for x in (0, 1, 2)] == [True, True, False]
        assert [int(parent_block(state, x)) for x in (0, 1, 2)] == [-1, 0, -1]
        detach(state, 0, EVICTED_GPU)
        assert state.blocks[1, NODE] == b
        assert not in_tree(state, 1)


class TestCommonStart:
    @pytest.mark.parametrize(
        ("a", "b", "tokens"),
        [
            ([1, 2, 3, 4], [1, 2, 9, 9], 2),
            ([1, 2, 3, 4], [1, 2], 2),
            ([1, 2, 3, 4], [9], 0),
            ([(7, 3), (8, 1)], [(7, 2)], 2),  # runs of several tokens: a shorter run is the start of a longer one
            ([(7, 3), (8, 1)], [(7, 2), (8, 2)], 2),
            ([(7, 2), (8, 2)], [(7, 2), (8, 1)], 3),
        ],
    )
    def test_equal_runs_count_until_the_first_difference(self, a: list[Any], b: list[Any], tokens: int) -> None:
        state = new()
        x, y = node(state, ROOT, *a), node(state, ROOT, *b)
        assert common_tokens(state, x, y) == common_tokens(state, y, x) == tokens


class TestBestPartial:
    def test_the_longest_wins_and_of_equals_the_newest(self) -> None:
        state = new()
        for block, tail in enumerate((3, 4, 5)):
            put(state, block, node(state, ROOT, 1, 2, tail))
        put(state, 3, node(state, ROOT, 1, 9, 9))
        assert best_partial(state, 0, node(state, ROOT, 1, 2, 7)) == (2, 2)
        assert best_partial(state, 0, node(state, ROOT, 1, 2, 4, 4)) == (1, 3)
        assert best_partial(state, 0, node(state, ROOT, 6)) == (-1, 0)

    def test_an_exact_start_ends_the_search(self) -> None:
        state = new()
        put(state, 0, node(state, ROOT, 1, 2, 3))
        put(state, 1, node(state, ROOT, 1, 2, 4))
        assert best_partial(state, 0, node(state, ROOT, 1, 2)) == (1, 2)

    def test_a_key_with_items_never_takes_part(self) -> None:
        state = new()
        put(state, 0, node(state, ROOT, 1, 2, 3, extras=0))
        put(state, 1, node(state, ROOT, 1, 2, 4))
        assert best_partial(state, 0, node(state, ROOT, 1, 2, extras=0)) == (-1, 0)
        detach(state, 1, EVICTED_GPU)
        assert best_partial(state, 0, node(state, ROOT, 1, 2, 9)) == (-1, 0)

    def test_without_copies_blocks_in_use_and_inner_blocks_are_passed_over(self) -> None:
        state = new(copy_on_partial_reuse=False)
        inner = node(state, ROOT, 1, 2, 3)
        put(state, 0, inner)
        put(state, 1, node(state, inner, 5))
        put(state, 2, node(state, ROOT, 1, 2, 4))
        state.blocks[2, REFS] = 1
        put(state, 3, node(state, ROOT, 1, 9))
        assert best_partial(state, 0, node(state, ROOT, 1, 2, 3, 3)) == (3, 1)

    def test_a_node_without_a_block_of_the_window_is_passed_over(self) -> None:
        state = new(windows=2)
        put(state, 8, node(state, ROOT, 1, 2, 3))  # the other window only
        put(state, 0, node(state, ROOT, 1, 9))
        assert best_partial(state, 0, node(state, ROOT, 1, 2, 9)) == (0, 1)


class TestDetachBelow:
    def test_every_descendant_goes_and_nothing_else(self) -> None:
        #        a            x
        #      /   \
        #     b     c(no value)
        #    / \     \
        #   d   e     f
        state = new(evict_descendants=True)
        a, x = node(state, ROOT, 1), node(state, ROOT, 2)
        b, c = node(state, a, 1), node(state, a, 2)
        d, e, f = node(state, b, 1), node(state, b, 2), node(state, c, 1)
        for block, where in enumerate((a, b, d, e, f, x)):
            put(state, block, where)
        detach_below(state, 0, a)
        assert [int(state.blocks[block, NODE]) for block in range(6)] == [a, -1, -1, -1, -1, x]
        assert [int(state.nodes[n, FATE]) for n in (b, d, e, f)] == [CHAIN_DETACHED] * 4
        assert (int(children(state, a)), int(state.nodes[c, LIVE])) == (0, 0)
        put(state, 1, c)  # the list of children is still sound
        put(state, 2, b)
        detach_below(state, 0, ROOT)
        assert [int(state.blocks[block, NODE]) for block in (0, 1, 2, 5)] == [-1, -1, -1, -1]

    def test_children_that_leave_one_by_one_stay_out_of_the_list(self) -> None:
        state = new(evict_descendants=True)
        nodes = [node(state, ROOT, i) for i in range(4)]
        for block, where in enumerate(nodes):
            put(state, block, where)
        for block in (1, 3, 0):  # a middle child, the newest, the oldest
            detach(state, block, EVICTED_GPU)
        detach_below(state, 0, ROOT)
        assert [int(state.nodes[n, FATE]) for n in nodes] == [EVICTED_GPU, EVICTED_GPU, CHAIN_DETACHED, EVICTED_GPU]

    def test_blocks_of_another_window_stay(self) -> None:
        state = new(windows=2, evict_descendants=True)
        a = node(state, ROOT, 1)
        b = node(state, a, 2)
        put(state, 0, a)
        put(state, 1, b)
        put(state, 9, b)
        detach_below(state, 0, a)
        assert (int(state.blocks[1, NODE]), int(state.blocks[9, NODE])) == (-1, b)
