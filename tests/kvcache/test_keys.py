"""Equal content under an equal prefix gets the same node, different content a different one."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.keys import Rows, check_block_size, grow, intern, intern_all, intern_prefix, key_offsets, plain, rebuild
from kvcache.tables import (
    CONTENT,
    GROUP,
    N_NODES,
    N_RUNS,
    N_TABLE,
    PARENT,
    ROOT,
    RUN_ID,
    RUN_TOKENS,
    TOKENS,
    Pool,
    Settings,
    State,
    make_state,
)

QUICK = settings(max_examples=150, deadline=None, derandomize=True, database=None)


def new(tpb: int = 4, *, nodes: int = 64, runs: int = 256, **rules: Any) -> State:
    return make_state((Pool(1 << 20, (4, 0)),), Settings(tokens_per_block=tpb, **rules), nodes=nodes, runs=runs)


def name(state: State, parent: int, content: list[int], *, space: int = 0, extras: int = -1) -> int:
    """Node of a key whose runs are single tokens."""
    at = int(state.tally[N_RUNS])
    for i, token in enumerate(content):
        state.runs[at + i] = (token, 1)
    return int(intern(state, parent, space, extras, len(content)))


class TestIntern:
    def test_the_same_key_is_found_again_and_keeps_no_second_copy_of_its_content(self) -> None:
        state = new()
        first = name(state, ROOT, [1, 2, 3, 4])
        runs = int(state.tally[N_RUNS])
        assert name(state, ROOT, [1, 2, 3, 4]) == first
        assert (int(state.tally[N_RUNS]), int(state.tally[N_NODES])) == (runs, 2)

    def test_parent_namespace_items_content_and_length_all_count(self) -> None:
        state = new()
        top = name(state, ROOT, [1, 2, 3, 4])
        nodes = {
            top,
            name(state, top, [1, 2, 3, 4]),
            name(state, ROOT, [1, 2, 3, 4], space=1),
            name(state, ROOT, [1, 2, 3, 4], extras=0),
            name(state, ROOT, [1, 2, 3, 4], extras=1),
            name(state, ROOT, [1, 2, 3, 5]),
            name(state, ROOT, [1, 2, 3]),
            name(state, ROOT, []),
        }
        assert len(nodes) == 8

    def test_a_run_of_two_tokens_is_not_two_runs_of_one(self) -> None:
        state = new()
        single = name(state, ROOT, [5, 5])
        at = int(state.tally[N_RUNS])
        state.runs[at] = (5, 2)
        double = int(intern(state, ROOT, 0, -1, 1))
        assert double != single
        assert (int(state.nodes[single, TOKENS]), int(state.nodes[double, TOKENS])) == (2, 2)

    def test_a_first_child_made_right_after_its_parent_needs_no_table_entry(self) -> None:
        state = new()
        parent = ROOT
        for i in range(10):
            parent = name(state, parent, [i])
        assert int(state.tally[N_TABLE]) == 0
        assert name(state, ROOT, [99]) == 11
        assert int(state.tally[N_TABLE]) == 1

    def test_siblings_that_start_alike_share_a_group_and_others_do_not(self) -> None:
        state = new()
        a = name(state, ROOT, [1, 2, 3, 4])
        b = name(state, ROOT, [1, 9])
        c = name(state, ROOT, [2, 2])
        d = name(state, ROOT, [2, 7, 7])
        salted = name(state, ROOT, [1, 2], space=1)
        salted_too = name(state, ROOT, [1, 3], space=1)
        below = name(state, a, [1, 2])
        group = [int(state.nodes[n, GROUP]) for n in (a, b, c, d, salted, salted_too, below)]
        assert group == [a, a, c, c, salted, salted, below]

    def test_keys_with_items_are_not_plain_and_stand_in_groups_of_their_own(self) -> None:
        state = new()
        item = name(state, ROOT, [1, 2], extras=0)  # the root's first child: plain siblings may not join it
        a = name(state, ROOT, [1, 2])
        b = name(state, ROOT, [1, 3])
        other = name(state, ROOT, [1, 4], extras=0)
        assert [plain(state, n) for n in (item, a, b, other)] == [False, True, True, False]
        assert state.nodes[b, GROUP] == a
        assert state.nodes[other, GROUP] != a

    def test_an_empty_key_is_a_group_by_itself(self) -> None:
        state = new()
        name(state, ROOT, [1])
        empty = name(state, ROOT, [])
        again = name(state, ROOT, [2])
        assert [int(state.nodes[n, GROUP]) for n in (empty, again)] == [empty, again]

    def test_a_child_of_no_tokens_right_after_its_parent_heads_no_group(self) -> None:
        state = new()
        name(state, ROOT, [])  # row 1; its content points at whatever comes next
        a = name(state, ROOT, [3, 3])
        b = name(state, ROOT, [3, 4])
        assert [int(state.nodes[n, GROUP]) for n in (a, b)] == [a, a]


class TestPrefixOfAKey:
    def test_the_first_tokens_of_a_key_are_the_same_node_as_that_short_key(self) -> None:
        state = new()
        top = name(state, ROOT, [9, 9])
        whole = name(state, top, [1, 2, 3, 4], space=1)
        assert intern_prefix(state, whole, 2) == name(state, top, [1, 2], space=1)
        assert intern_prefix(state, whole, 4) == whole

    def test_a_run_of_several_tokens_may_be_cut(self) -> None:
        state = new()
        at = int(state.tally[N_RUNS])
        state.runs[at : at + 2] = ((7, 8), (5, 8))
        node = int(intern_prefix(state, int(intern(state, ROOT, 0, -1, 2)), 11))
        content = int(state.nodes[node, CONTENT])
        assert state.runs[content : content + 2].tolist() == [[7, 8], [5, 3]]

    @pytest.mark.parametrize(("nodes", "runs"), [(2, 64), (64, 5)])
    def test_without_room_for_a_node_or_its_runs_there_is_none(self, nodes: int, runs: int) -> None:
        state = new(nodes=nodes, runs=runs)
        whole = name(state, ROOT, [1, 2, 3, 4])
        assert intern_prefix(state, whole, 2) == -1


class TestGrowing:
    @QUICK
    @given(
        st.lists(
            st.tuples(st.integers(0, 400), st.lists(st.integers(0, 3), min_size=1, max_size=3), st.integers(0, 1)),
            max_size=80,
        )
    )
    def test_every_node_is_found_again_and_groups_go_on_after_growing(
        self, keys: list[tuple[int, list[int], int]]
    ) -> None:
        small, large = new(nodes=4, runs=8), new(nodes=1024, runs=4096)
        made: dict[tuple[int, tuple[int, ...], int], int] = {}
        for at, content, space in keys:
            small = grow(small, 1, len(content))
            parent = at % int(small.tally[N_NODES])
            node = name(small, parent, content, space=space)
            assert node == name(large, parent, content, space=space)
            assert made.setdefault((parent, tuple(content), space), node) == node
        n = int(small.tally[N_NODES])
        assert n == len(made) + 1
        assert (small.nodes[1:n, : GROUP + 1] == large.nodes[1:n, : GROUP + 1]).all()
        for (parent, content, space), node in made.items():
            small = grow(small, 1, len(content))
            assert name(small, parent, list(content), space=space) == node

    def test_growing_runs_alone_keeps_the_hash_tables(self) -> None:
        state = new(nodes=64, runs=2)
        a = name(state, ROOT, [1, 2])
        bigger = grow(state, 1, 100)
        assert bigger.tables is state.tables
        assert len(bigger.runs) >= 102
        assert name(bigger, ROOT, [1, 2]) == a

    def test_rebuild_enters_what_has_no_shorter_way(self) -> None:
        state = new()
        a = name(state, ROOT, [1])
        name(state, a, [2])
        b = name(state, ROOT, [3])
        empty = name(state, ROOT, [])
        state.tables[:] = -1
        rebuild(state)
        assert sorted(int(n) for n in state.tables[0] if n >= 0) == [b, empty]
        assert [int(n) for n in state.tables[1] if n >= 0] == [b]

    def test_hundreds_of_siblings_are_found_again_although_their_places_collide(self) -> None:
        state = new(nodes=8, runs=8)
        made = {}
        for token in range(400):
            state = grow(state, 1, 2)
            made[token] = name(state, ROOT, [token, token])
        assert len(set(made.values())) == 400
        for token, node in made.items():
            assert name(state, ROOT, [token, token]) == node
            assert state.nodes[node, GROUP] == node

    def test_children_keep_their_places_when_descendants_are_tracked(self) -> None:
        state = new(nodes=2, evict_descendants=True)
        state.kids[1, 0] = 77
        bigger = grow(state, 100, 0)
        assert len(bigger.kids) == len(bigger.nodes)
        assert bigger.kids[1, 0] == 77
        assert (bigger.kids[2:] == -1).all()


# ---- content of traces ----------------------------------------------------------------------------------------------


Units = list[int]


def rows_of(unit: int, requests: list[dict[str, Any]], *, outputs: bool) -> Rows:
    """Columns of requests given as dicts: prompt, output, units, output_units, space."""

    def column(key: str) -> Any:
        return np.array([r[key] for r in requests], np.int32)

    def packed(key: str) -> tuple[Any, Any]:
        lists: list[Units] = [r[key] for r in requests]
        return (
            np.concatenate([[0], np.cumsum([len(x) for x in lists])]).astype(np.int64),
            np.array([u for x in lists for u in x], np.int32),
        )

    nothing = (np.empty(0, np.int64), np.empty(0, np.int32))
    return Rows(
        unit,
        column("prompt"),
        column("output"),
        *packed("units"),
        *(packed("out") if outputs else nothing),
        column("space"),
    )


def identity(
    unit: int, r: int, request: dict[str, Any], t: int, *, outputs: bool, prompt_only: bool
) -> tuple[Any, ...]:
    """What token t is: (unit, place in it) where the trace knows it, else a token that only this request has."""
    j, full = t // unit, request["prompt"] // unit
    if j < full and j < len(request["units"]):
        return request["units"][j], t % unit
    if j >= full and outputs and not prompt_only:
        if j - full < len(request["out"]):
            return request["out"][j - full], t % unit
    elif j >= full and t < request["prompt"] and j < len(request["units"]):
        return request["units"][j], t % unit
    return "private", r, t


def expected_keys(unit: int, tpb: int, r: int, request: dict[str, Any], *, outputs: bool) -> list[Any]:
    """Each key as (namespace, the identities of all tokens up to its end); None where there is no such key."""
    prompt, total = request["prompt"], request["prompt"] + request["output"]

    def key(stop: int, prompt_only_from: int) -> tuple[Any, ...]:
        tokens = [
            identity(unit, r, request, t, outputs=outputs, prompt_only=t >= prompt_only_from) for t in range(stop)
        ]
        return (request["space"], *tokens)

    full = total // tpb
    keys: list[Any] = [key((i + 1) * tpb, total) for i in range(full)]
    keys.append(key(prompt - 1, (prompt - 1) // tpb * tpb) if (prompt - 1) % tpb else None)
    end = max(prompt - 1, total - 1)
    keys.append(key(end, total) if end % tpb else None)
    return keys


@st.composite
def workloads(draw: st.DrawFn) -> tuple[int, int, bool, list[dict[str, Any]]]:
    unit, tpb = draw(st.sampled_from(((8, 4), (8, 8), (8, 16), (1, 4), (1, 3))))
    outputs = draw(st.booleans())
    some_units = st.integers(0, 2)
    requests = []
    for _ in range(draw(st.integers(1, 5))):
        prompt, output = draw(st.integers(1, 40)), draw(st.integers(0, 20))
        whole, ceil = prompt // unit, -(-prompt // unit)
        n = draw(st.sampled_from((whole, ceil)))
        m = -(-(prompt + output) // unit) - whole
        out = draw(st.lists(some_units, min_size=m, max_size=m))
        if draw(st.booleans()):
            out = out[: len(out) // 2]
        units = draw(st.lists(some_units, min_size=n, max_size=n))
        requests.append({
            "prompt": prompt,
            "output": output,
            "units": units,
            "out": out,
            "space": draw(st.integers(0, 1)),
        })
    return unit, tpb, outputs, requests


class TestTraceContent:
    @QUICK
    @given(workloads())
    def test_two_keys_are_one_node_exactly_when_all_their_tokens_are_the_same(
        self, workload: tuple[int, int, bool, list[dict[str, Any]]]
    ) -> None:
        unit, tpb, outputs, requests = workload
        state = new(tpb, nodes=1024, runs=4096)
        rows = rows_of(unit, requests, outputs=outputs)
        offset = key_offsets(rows.prompt, rows.output, tpb)
        keys = np.full(int(offset[-1]), -9, np.int32)
        intern_all(state, rows, offset, keys, np.zeros(len(requests), np.int64))
        node_of: dict[Any, int] = {}
        for r, request in enumerate(requests):
            got = keys[offset[r] : offset[r + 1]].tolist()
            for content, node in zip(expected_keys(unit, tpb, r, request, outputs=outputs), got, strict=True):
                if content is None:
                    assert node == -1
                else:
                    assert node_of.setdefault(content, node) == node, (content, got)
        assert len(set(node_of.values())) == len(node_of)

    def test_a_full_block_and_two_short_keys_of_a_known_prompt(self) -> None:
        # 8-token units, 8 a block, prompt 19 = 2 units and 3 tokens, 7 generated: 26 tokens
        requests = [{"prompt": 19, "output": 7, "units": [5, 6, 7], "out": [], "space": 0}]
        state = new(8, nodes=64, runs=256)
        rows = rows_of(8, requests, outputs=False)
        offset = key_offsets(rows.prompt, rows.output, 8)
        keys = np.zeros(int(offset[-1]), np.int32)
        intern_all(state, rows, offset, keys, np.zeros(1, np.int64))
        assert offset.tolist() == [0, 5]
        assert [int(state.nodes[k, TOKENS]) for k in keys] == [8, 8, 8, 2, 1]
        assert [int(state.nodes[k, PARENT]) for k in keys] == [ROOT, keys[0], keys[1], keys[1], keys[2]]
        known = state.runs[: int(state.tally[N_RUNS])]
        assert (5, 8) in {(int(run[RUN_ID]), int(run[RUN_TOKENS])) for run in known}

    def test_unknown_tails_of_two_requests_are_never_the_same(self) -> None:
        requests = [{"prompt": 11, "output": 0, "units": [5], "out": [], "space": 0} for _ in range(2)]
        state = new(4, nodes=64, runs=256)
        rows = rows_of(8, requests, outputs=False)
        offset = key_offsets(rows.prompt, rows.output, 4)
        keys = np.zeros(int(offset[-1]), np.int32)
        intern_all(state, rows, offset, keys, np.zeros(2, np.int64))
        first, second = keys[:4].tolist(), keys[4:].tolist()
        assert first[:2] == second[:2]
        assert first[2] != second[2]

    def test_content_that_the_trace_does_not_name_is_private(self) -> None:
        # two prompts of 16 tokens = 2 units, of which only the first is named
        requests = [{"prompt": 16, "output": 0, "units": [5], "out": [], "space": 0} for _ in range(2)]
        state = new(8, nodes=64, runs=256)
        rows = rows_of(8, requests, outputs=False)
        offset = key_offsets(rows.prompt, rows.output, 8)
        keys = np.zeros(int(offset[-1]), np.int32)
        intern_all(state, rows, offset, keys, np.zeros(2, np.int64))
        first, second = keys[:4].tolist(), keys[4:].tolist()
        assert first[0] == second[0]
        assert first[1] != second[1]


class TestBlockSizes:
    @pytest.mark.parametrize(("unit", "tpb"), [(512, 16), (512, 512), (512, 1024), (1, 7), (16, 48)])
    def test_whole_units_and_whole_fractions_fit(self, unit: int, tpb: int) -> None:
        check_block_size(unit, tpb)

    def test_another_size_is_refused_with_the_sizes_that_work(self) -> None:
        with pytest.raises(ValueError, match=r"tokens_per_block is 24.*blocks of 16 tokens.*: 8, 16, 32, 64, and"):
            check_block_size(16, 24)
        with pytest.raises(ValueError, match="tokens_per_block is 96"):
            check_block_size(512, 96)
