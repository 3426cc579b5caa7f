"""A workload in the loops' terms: 4 tokens a block."""

from dataclasses import replace

import numpy as np
import pytest

from kvcache.load import Load, longest_blocks, names_of, prepare, renewed, rows_of, with_retention
from kvcache.retention import KvCacheRetentionConfig, RetentionColumns, TokenRangeRetentionConfig
from kvcache.tables import PARENT, ROOT, TOKENS, Pool, Settings, State
from tests.kvcache.workloads import WIDE, workload


def loaded(*args: object, **more: object) -> tuple[State, Load]:
    requests = workload(*args, **more)  # type: ignore[arg-type]
    pools = (Pool(WIDE, (8, 0)),)
    return prepare(requests, RetentionColumns.none(len(requests)), pools, Settings(tokens_per_block=4))


def keys(load: Load, r: int) -> list[int]:
    return load.keys[load.key_offset[r] : load.key_offset[r + 1]].tolist()


def test_a_prompt_of_9_and_3_generated_tokens_fill_3_blocks_and_end_11_tokens_in() -> None:
    # tokens 0..8 | 9 10 11: full blocks 0-3, 4-7, 8-11. Looking up the prompt uses its first 8: no short key. At the
    # end 11 tokens are usable (the last generated one was never computed): the final short key has 3 tokens.
    state, load = loaded([list(range(9))], [[9, 10, 11]])
    first, second, third, short, final = keys(load, 0)
    assert [state.nodes[node, TOKENS] for node in (first, second, third, final)] == [4, 4, 4, 3]
    assert short == -1
    assert [state.nodes[node, PARENT] for node in (first, second, third, final)] == [ROOT, first, second, second]


def test_a_prompt_of_two_whole_blocks_is_looked_up_by_one_block_and_three_tokens() -> None:
    state, load = loaded([list(range(8))], [[9]])
    first, _second, short, final = keys(load, 0)
    assert (state.nodes[short, TOKENS], state.nodes[short, PARENT]) == (3, first)
    assert final == -1  # 8 usable tokens at the end: whole blocks


def test_a_prompt_of_one_token_has_no_key_to_look_up() -> None:
    _, load = loaded([[7]], [[]])
    assert keys(load, 0) == [-1, -1]


def test_requests_with_the_same_prefix_share_nodes_and_differ_after_it() -> None:
    _, load = loaded([[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 0, 0, 0, 0, 0]], [[], []])
    one, other = keys(load, 0), keys(load, 1)
    assert one[0] == other[0]
    assert one[1] != other[1]


def test_generated_tokens_of_one_request_are_the_prompt_of_the_next() -> None:
    _, load = loaded([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9]], [[6, 7, 8], [0]])
    assert keys(load, 0)[:2] == keys(load, 1)[:2]


def test_generated_tokens_that_nobody_knows_are_shared_with_nobody() -> None:
    _, load = loaded([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]], [3, 3])
    one, other = keys(load, 0), keys(load, 1)
    assert one[0] == other[0]
    assert one[1] != other[1]


@pytest.mark.parametrize(("salt", "shared"), [((0, 0), True), ((0, 1), False), ((-1, 0), False)])
def test_two_requests_share_blocks_only_under_the_same_salt(salt: tuple[int, int], shared: bool) -> None:
    _, load = loaded([[1, 2, 3, 4, 5]] * 2, [[], []], salt=salt)
    assert (keys(load, 0)[0] == keys(load, 1)[0]) is shared


def test_lora_adapters_and_salts_are_different_namespaces() -> None:
    requests = workload([[1]] * 4, [0] * 4, salt=[0, 0, 1, 1])
    requests = replace(requests, lora=np.array([0, 1, 0, 0], np.int32))
    space = rows_of(requests, {}).space.tolist()
    assert space[2] == space[3]
    assert len({space[0], space[1], space[2]}) == 3


def test_longest_blocks_leaves_room_for_the_longest_request() -> None:
    # 9 + 4 = 13 tokens: 4 blocks of 4, and two positions to spare
    assert longest_blocks(workload([[1] * 9, [1] * 2], [[1] * 4, [1] * 9]), 4) == 6
    assert longest_blocks(workload([], []), 4) == 3


def test_a_block_size_that_cuts_a_unit_unevenly_is_refused() -> None:
    requests = replace(workload([[1, 2]], [1]), unit_tokens=512)
    with pytest.raises(ValueError, match="tokens_per_block is 48"):
        prepare(requests, RetentionColumns.none(1), (Pool(WIDE, (8, 0)),), Settings(tokens_per_block=48))


@pytest.mark.parametrize("later", [Settings(4), Settings(4, evict_descendants=True)])
@pytest.mark.parametrize("pools", [(Pool(WIDE, (3, 2)),), (Pool(WIDE, (3, 0)), Pool(8, (3, 0), sliding=True))])
def test_renewed_tables_are_those_of_a_first_run(pools: tuple[Pool, ...], later: Settings) -> None:
    requests = workload([[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 0, 0, 0, 0, 0]], [[1], [2, 3]])
    nothing = RetentionColumns.none(len(requests))
    state, _ = prepare(requests, nothing, (Pool(WIDE, (8, 0)),), Settings(tokens_per_block=4))
    names, used = names_of(state), int(state.tally[0])
    state.nodes[:used, 2:6] = state.nodes[:used, 11] = state.value[:, :used] = 1  # as a run leaves them
    state.tables[:, :5] = 2
    state.tally[:] += 3
    found = renewed(state, names, pools, later)
    wanted, _ = prepare(requests, nothing, pools, later)
    for name, array in wanted._asdict().items():
        if array is None:
            assert getattr(found, name) is None
            continue
        known = used if name == "nodes" else len(array)
        if name == "runs":
            known = int(wanted.tally[1])
        if name not in {"heap", "copies", "events"}:  # their rows hold nothing yet
            np.testing.assert_array_equal(getattr(found, name)[:known], array[:known], name)


def test_same_workload_with_other_priorities_starts_before_its_first_request() -> None:
    _, load = loaded([list(range(9))], [[9, 10, 11]])
    load.resumed[0] = 2
    other = RetentionColumns.of([KvCacheRetentionConfig([TokenRangeRetentionConfig(0, 4, 80)], 20)])
    found = with_retention(load, other)
    assert (found.resumed.tolist(), found.decode_priority.tolist(), found.ranges.tolist()) == (
        [0],
        [20],
        [[0, 4, 80, -1]],
    )
    assert found.keys is load.keys
