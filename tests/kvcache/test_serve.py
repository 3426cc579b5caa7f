"""Serial replay, the cache-only view: examples by hand, and the same decisions as the manager driven call by call."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.cache_request import CacheRequest
from kvcache.manager import KVCacheManager
from kvcache.request import Requests
from kvcache.retention import KvCacheRetentionConfig, TokenRangeRetentionConfig
from kvcache.tables import (
    GEN_ALLOC,
    MISSED,
    OFFLOADED,
    ONBOARDED,
    PARTIAL_REUSED,
    PRIORITY,
    REUSED,
    STORED,
    Pool,
    Settings,
    State,
)
from tests.kvcache.workloads import WIDE, assert_conserved, serial, some_settings, workload, workloads

FOUR = Settings(tokens_per_block=4)


def driven(
    requests: Requests, pools: Sequence[Pool], rules: Settings, retention: Sequence[KvCacheRetentionConfig | None] = ()
) -> tuple[State, list[int]]:
    """The same service by calls of the manager, with real tokens."""
    manager = KVCacheManager(pools, rules)
    reused, outputs, at = [], requests.output_units, requests.output_offset
    assert outputs is not None
    assert at is not None
    for r in range(len(requests)):
        manager.refresh(int(requests.arrival_s[r] * 1e6) / 1e6)
        prompt, output = requests.prompt_units(r).tolist(), outputs[at[r] : at[r + 1]].tolist()
        request = CacheRequest(
            r, prompt, max_new_tokens=len(output), retention=retention[r] if retention else None, cache_salt=None
        )
        reused += manager.add_sequence_batch([request])
        request.position = len(prompt)
        manager.append_tokens(r, output[:1])
        manager.store_context_blocks(r)
        manager.add_tokens(r, output[1:])
        manager.release(r)
    return manager.state, reused


@st.composite
def retentions(draw: st.DrawFn) -> KvCacheRetentionConfig | None:
    if draw(st.booleans()):
        return None
    ranges, start = [], 0
    for _ in range(draw(st.integers(0, 3))):
        start += draw(st.integers(0, 4))
        end = start + draw(st.integers(1, 6))
        ranges.append(TokenRangeRetentionConfig(start, end, draw(priorities), draw(durations)))
        start = end
    return KvCacheRetentionConfig(ranges, draw(priorities), draw(durations))


priorities = st.sampled_from([0, 29, 30, 35, 80, 100])
durations = st.sampled_from([None, 0, 10, 2000])


class TestByHand:
    def test_a_conversation_reuses_its_first_turn_and_its_answer(self) -> None:
        # Turn 1: 5 + 4 tokens; 8 usable at the end: blocks 0-3 and 4-7 are stored. Turn 2: those 9 and 3 more: 8
        # reused.
        first, answer = [1, 2, 3, 4, 5], [6, 7, 8, 9]
        state, reused = serial(workload([first, [*first, *answer, 1, 1, 1]], [answer, [0]]), [Pool(WIDE, (8, 0))], FOUR)
        assert reused == [0, 8]
        # slots 1 to 5, then 3 more: no new block. 2 + 1 blocks missed, 2 reused; the second turn ends with 3 full
        # blocks.
        assert state.stats[0, [MISSED, REUSED, GEN_ALLOC, STORED]].tolist() == [3, 2, 0, 3]

    def test_generated_tokens_take_a_block_at_each_boundary(self) -> None:
        # Prompt 5, output 9: 8 slots more, 13 in all. Blocks are entered at slots 9 and 13.
        state, _ = serial(workload([[1] * 5], [9]), [Pool(WIDE, (8, 0))], FOUR)
        assert state.stats[0, [MISSED, GEN_ALLOC]].tolist() == [2, 2]

    def test_what_the_gpu_has_to_give_up_comes_back_from_the_host(self) -> None:
        # 3 blocks. A: 3 blocks (4, 4, 1 tokens). B: 3 blocks, all of A's go to the host, tail first. A again: blocks
        # 0-3, 4-7 and the tail of 1 (9 tokens look up 8): two come back, one is new; each of the three pushes one of
        # B's out.
        a, b = list(range(9)), list(range(20, 29))
        state, reused = serial(workload([a, b, a], [1, 1, 1]), [Pool(WIDE, (3, 6))], FOUR)
        assert reused == [0, 0, 8]
        assert state.stats[0, [OFFLOADED, ONBOARDED]].tolist() == [6, 2]

    def test_blocks_below_the_threshold_do_not_come_back(self) -> None:
        a, b = list(range(9)), list(range(20, 29))
        low = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 29)], 29)
        state, reused = serial(workload([a, b, a], [1, 1, 1]), [Pool(WIDE, (3, 6))], FOUR, [low] * 3)
        assert reused == [0, 0, 0]
        assert state.stats[0, OFFLOADED] == 0

    def test_a_priority_has_expired_when_the_next_request_comes_after_its_duration(self) -> None:
        keep = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 80, 1000)])
        for arrival_s, priority in ((0.999, 80), (1.0, 35)):
            requests = workload([[1, 2, 3], [4]], [0, 0], [0.0, arrival_s])
            state, _ = serial(requests, [Pool(WIDE, (4, 0))], FOUR, [keep, None])
            assert state.blocks[0, PRIORITY] == priority

    def test_a_last_block_of_whole_tokens_matches_all_but_its_last_token(self) -> None:
        state, reused = serial(workload([list(range(8))] * 2, [1, 1]), [Pool(WIDE, (4, 0))], FOUR)
        assert reused == [0, 7]
        assert state.stats[0, PARTIAL_REUSED] == 1

    def test_without_reuse_nothing_is_reused_or_stored(self) -> None:
        rules = FOUR._replace(enable_block_reuse=False)
        state, reused = serial(workload([list(range(8))] * 2, [1, 1]), [Pool(WIDE, (4, 0))], rules)
        assert reused == [0, 0]
        assert state.stats[0, STORED] == 0


class TestAgainstTheManager:
    @given(data=st.data(), requests=workloads(), rules=some_settings())
    @settings(max_examples=80, deadline=None)
    def test_serial_replay_decides_as_the_manager_driven_with_tokens(
        self, data: st.DataObject, requests: Requests, rules: Settings
    ) -> None:
        n, tpb = len(requests), rules.tokens_per_block
        sizes = (27 // tpb + 4 + data.draw(st.integers(0, 10)), data.draw(st.integers(0, 12)))
        if data.draw(st.booleans()):
            sizes = (*sizes, data.draw(st.integers(1, 12)))  # type: ignore[assignment]
        retention = data.draw(st.lists(retentions(), min_size=n, max_size=n))
        mine, reused = serial(requests, [Pool(WIDE, sizes)], rules, retention)
        theirs, reused_there = driven(requests, [Pool(WIDE, sizes)], rules, retention)
        assert reused == reused_there
        assert mine.stats.tolist() == theirs.stats.tolist()
        assert_conserved(mine, all_free=True)
        assert mine.stats[0, REUSED] + mine.stats[0, MISSED] == (-(-requests.prompt_tokens // tpb)).sum()

    @given(data=st.data(), requests=workloads(), rules=some_settings(tokens_per_block=4, evict_descendants=False))
    @settings(max_examples=40, deadline=None)
    def test_it_does_so_with_sliding_windows(self, data: st.DataObject, requests: Requests, rules: Settings) -> None:
        gpu = 10 + data.draw(st.integers(0, 10))
        chunk = data.draw(st.sampled_from([0, 8]))
        pools = [
            Pool(WIDE, (gpu, 4)),
            Pool(8, (9, 3), sliding=True, chunk_tokens=chunk),
            Pool(16, (9, 3), sliding=True, chunk_tokens=chunk),
        ]
        mine, reused = serial(requests, pools, rules)
        theirs, reused_there = driven(requests, pools, rules)
        assert reused == reused_there
        assert mine.stats.tolist() == theirs.stats.tolist()
        assert_conserved(mine, all_free=True)
