"""Further rules for moving to the host: used often enough, reachable, not too old. Timelines by hand."""

import numpy as np
import pytest
from numba import config

from kvcache.feed import Feed
from kvcache.gate import OffloadRule
from kvcache.load import names_of, prepare, renewed
from kvcache.retention import KvCacheRetentionConfig, RetentionColumns, TokenRangeRetentionConfig
from kvcache.tables import (
    CAUSE_0,
    DROPPED_BELOW_THRESHOLD,
    EXPIRED_FATE,
    LEVEL,
    NODE,
    OFFLOADED,
    ONBOARDED,
    PARENT,
    ROOT,
    Pool,
    Settings,
    State,
)
from tests.kvcache.test_curve import requests_of
from tests.kvcache.test_shelved import TPB, check, replayed, serve

pytestmark = pytest.mark.skipif(not config.DISABLE_JIT, reason="run by test_without_compiler.py")


def run(prompts: list[list[int]], rule: OffloadRule | None, gpu: int, host: int, retention=None) -> State:
    wanted = Settings(tokens_per_block=TPB, enable_partial_reuse=False, offload=rule)
    return replayed(requests_of(prompts, TPB), wanted, (gpu, host), retention)[0]


def unreachable(state: State) -> int:
    """Host blocks with a predecessor that no tier holds."""
    count = 0
    for block in np.flatnonzero((state.blocks[:, LEVEL] == 1) & (state.blocks[:, NODE] > 0)):
        node = int(state.nodes[state.blocks[block, NODE], PARENT])
        while node != ROOT and state.value[0, node] != -1:
            node = int(state.nodes[node, PARENT])
        count += node != ROOT
    return count


def test_content_used_once_does_not_go_to_the_host() -> None:
    # 7 blocks on the GPU; [0, 1] is asked for twice, so 0 is computed and found, and what is stored of 1 (the prompt less its
    # last token) is taken in place and stored again: two uses each. The others have one.
    prompts = [[0, 1], [0, 1], *[[10 + i] for i in range(12)]]
    assert run(prompts, None, 7, 8).stats[0, OFFLOADED] > 2
    state = run(prompts, OffloadRule(min_uses=2), 7, 8)
    assert state.stats[0, OFFLOADED] == 2
    assert state.stats[0, DROPPED_BELOW_THRESHOLD] > 0
    check(state)


def test_only_what_stays_reachable_goes_to_the_host() -> None:
    # The first block of each prompt has priority 10, below the threshold of 30: it is dropped, and what follows it is lost.
    low_start = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, TPB, 10)])
    prompts = [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(8)]
    retention = RetentionColumns.of([low_start] * 8)
    free, strict = (run(prompts, rule, 7, 12, retention) for rule in (None, OffloadRule(contiguous=True)))
    assert unreachable(free) > 0
    assert unreachable(strict) == 0
    assert strict.stats[0, OFFLOADED] < free.stats[0, OFFLOADED]
    check(strict)


def test_a_block_whose_predecessors_stay_goes_to_the_host() -> None:
    prompts = [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(8)]
    free, strict = (run(prompts, rule, 7, 24) for rule in (None, OffloadRule(contiguous=True)))
    assert strict.stats[0, OFFLOADED] == free.stats[0, OFFLOADED] > 0


@pytest.mark.parametrize(("ttl_s", "found"), [(100, True), (3, False)])
def test_a_copy_that_is_too_old_is_dropped_where_it_is_looked_up(ttl_s: float, found: bool) -> None:
    # [0, 1, 2] comes at 0 s and goes to the host within 3 s; it is asked for again at 12 s.
    prompts = [[0, 1, 2], *[[10 + i] for i in range(11)], [0, 1, 2]]
    state = run(prompts, OffloadRule(ttl_us=ttl_s * 1_000_000), 5, 20)
    assert (state.stats[0, ONBOARDED] > 0) == found
    assert (state.stats[0, CAUSE_0 + EXPIRED_FATE] > 0) != found
    check(state)


def test_min_uses_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="min_uses is 0; content that is evicted has been used at least once"):
        run([[0]], OffloadRule(min_uses=0), 5, 5)


def test_uses_follow_the_keys_when_their_rows_are_used_again() -> None:
    wanted = Settings(tokens_per_block=TPB, enable_partial_reuse=False, offload=OffloadRule(min_uses=2))
    feed = Feed((Pool(1 << 20, (9, 4)),), wanted, remembered=1)
    for piece in range(150):
        state, load = feed.load(
            requests_of([[1, 2, 1000 + 12 * piece + i] for i in range(12)], TPB), RetentionColumns.none(12)
        )
        serve(state, load, 12)
    assert feed.forgotten > 0
    assert state.gate is not None
    assert state.gate.uses[load.keys[0]] == 150 * 12


def test_tables_of_a_run_serve_another_rule_afterwards() -> None:
    requests, pools = requests_of([[0, 1]] * 3, TPB), (Pool(1 << 20, (8, 4)),)
    plain = Settings(tokens_per_block=TPB)
    state, load = prepare(requests, RetentionColumns.none(3), pools, plain)
    names = names_of(state)
    serve(state, load, 3)
    state = renewed(state, names, pools, plain._replace(offload=OffloadRule(min_uses=2)))
    serve(state, load, 3)
    assert state.gate is not None
    assert state.gate.uses[load.keys[0]] == 3
