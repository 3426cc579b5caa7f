"""MAX_UTILIZATION and the other policies, and pools that are too small: timelines worked out by hand, 4 tokens a block.

A step shows what each active request does in it: `(from, to)` tokens of its prompt are computed (a resumed prompt is all
its tokens so far), or `(-1, g)`: g tokens were generated before and one more is made now. Steps take half a second.
A request of n prompt tokens that has made g holds n + g - 1 slots: its last token has none yet.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kvcache.engine import begin_step, end_step
from kvcache.line import (
    DECODE_SEQS,
    GENERATED,
    GENERATING,
    N_ACTIVE,
    PAUSES,
    POSITION,
    PREFILL_TOKENS,
    REQUEST,
    STARVED,
    TARGET,
    Limits,
)
from kvcache.load import longest_blocks, prepare
from kvcache.retention import RetentionColumns
from kvcache.sequences import make_matches, make_sequences, pin
from kvcache.serve import replay_serial
from kvcache.tables import ONBOARDED, REUSED, STORED, T_FREE, Pool, Settings, State
from tests.kvcache.workloads import WIDE, Bench, assert_conserved, workload

FOUR = Settings(tokens_per_block=4)
Work = dict[int, tuple[int, int]]


def prompt(name: int, tokens: int) -> list[int]:
    """A prompt that shares nothing with prompts of another name."""
    return [100 * name + i for i in range(tokens)]


class Watched(Bench):
    """A bench that also tells a resumed prompt from a generating request, and counts the tokens made."""

    made = 0

    def step(self, now_s: float) -> Work:
        begin_step(self.engine, now_s)
        line, out = self.engine.line, {}
        for seq in line.active[: line.meter[N_ACTIVE]]:
            row = line.rows[seq]
            generating = row[GENERATING] == 1
            work = (-1, int(row[GENERATED])) if generating else (int(row[POSITION]), int(row[TARGET]))
            out[int(row[REQUEST])] = work
        self.made += end_step(self.engine, now_s + 0.5)
        return out

    @property
    def pauses(self) -> int:
        return int(self.engine.line.meter[PAUSES])

    @property
    def free(self) -> list[int]:
        return [int(x) for x in self.engine.state.tier[:, 0, T_FREE]]


def bench(
    prompts: list[list[int]], outputs: list[int], pools: Sequence[Pool] | int, rules: Settings = FOUR, **limits: Any
) -> Watched:
    pools = [Pool(WIDE, (pools, 0))] if isinstance(pools, int) else pools
    limits = {"capacity_scheduler_policy": "MAX_UTILIZATION"} | limits
    return Watched(workload(prompts, outputs), pools, rules, Limits(**limits))


class TestPauses:
    def two(self) -> Watched:
        # 5 blocks. A and B: 8 + 5 tokens, 2 blocks each now, a third with the second token: one block is left for two.
        it = bench([prompt(1, 8), prompt(2, 8)], [5, 5], 5)
        it.arrive(0, 1)
        assert it.step(0) == {0: (0, 8), 1: (0, 8)}
        return it

    def test_both_start_though_only_one_of_them_can_be_promised_its_last_block(self) -> None:
        assert self.two().free == [1]
        it = bench([prompt(1, 8), prompt(2, 8)], [5, 5], 5, capacity_scheduler_policy="GUARANTEED_NO_EVICT")
        it.arrive(0, 1)
        assert it.step(0) == {0: (0, 8)}

    def test_the_latest_starter_is_paused_in_the_step_whose_blocks_run_out_and_waits_at_the_head(self) -> None:
        it = self.two()
        assert it.step(1) == {0: (-1, 1)}
        assert (it.pauses, it.waiting) == (1, [1])
        assert it.free == [2]  # B's two; A took the one that was left
        it.check()

    def test_it_resumes_when_the_other_ends_and_computes_only_what_was_not_stored(self) -> None:
        # B, 9 tokens by now, needs 3 blocks; 2 are free until A ends with its fifth token in step 4. B's first 8
        # tokens are still there, the ninth was made but its slot never was.
        it = self.two()
        assert [it.step(t) for t in (1, 2, 3, 4)] == [{0: (-1, g)} for g in (1, 2, 3, 4)]
        assert it.step(5) == {1: (8, 9)}
        assert it.engine.state.stats[0, REUSED] == 2
        assert [it.step(t) for t in (6, 7, 8)] == [{1: (-1, g)} for g in (2, 3, 4)]
        assert it.step(9) == {}
        assert it.made == 10
        assert it.engine.outcome.finish_s.tolist() == [4.5, 8.5]
        assert it.pauses == 1
        assert_conserved(it.engine.state, all_free=True)

    def test_a_pause_changes_neither_start_nor_first_token_nor_the_reuse_of_the_first_start(self) -> None:
        it = self.two()
        for t in range(1, 9):
            it.step(t)
        out = it.engine.outcome
        assert (out.start_s.tolist(), out.first_token_s.tolist(), out.reused.tolist()) == ([0, 0], [0.5, 0.5], [0, 0])

    @pytest.mark.parametrize(("host", "found"), [(0, 8), (4, 10)])
    def test_the_short_last_block_of_a_paused_request_is_stored_and_found_unless_it_was_evicted(
        self, host: int, found: int
    ) -> None:
        # 6 blocks. A: 8 + 9, takes its third block in step 1, its fourth in step 5. B: 6 + 8, third block in step 3.
        # Step 5: 3 + 3 are taken, so B is paused with 5 tokens made: 10 slots are stored, 4 + 4 + 2; at its prompt's
        # end only its first block was (6 tokens). A takes the 2 at once: they are lost, or go to the host.
        it = bench([prompt(1, 8), prompt(2, 6)], [9, 8], [Pool(WIDE, (6, host))])
        it.arrive(0, 1)
        assert it.step(0) == {0: (0, 8), 1: (0, 6)}
        assert [it.step(t) for t in range(1, 5)] == [{0: (-1, g), 1: (-1, g)} for g in range(1, 5)]
        assert it.engine.state.stats[0, STORED] == 3
        assert it.step(5) == {0: (-1, 5)}
        assert it.engine.state.stats[0, STORED] == 5
        assert [it.step(t) for t in (6, 7, 8)] == [{0: (-1, g)} for g in (6, 7, 8)]
        assert it.step(9) == {1: (found, 11)}
        assert it.engine.state.stats[0, ONBOARDED] == (1 if host else 0)
        assert [it.step(t) for t in (10, 11)] == [{1: (-1, 6)}, {1: (-1, 7)}]
        assert it.made == 17
        assert it.engine.outcome.finish_s.tolist() == [8.5, 11.5]
        assert_conserved(it.engine.state, all_free=True)

    @pytest.mark.parametrize(("host", "found"), [(0, 12), (4, 13)])
    def test_so_is_one_in_the_block_that_the_request_will_never_fill(self, host: int, found: int) -> None:
        # 7 blocks. A: 5 + 10, blocks in steps 0 (2), 4, 8. B: 6 + 9, blocks in steps 0 (2), 3, 7. Step 8: B, 8 made,
        # has 13 slots: 4 + 4 + 4 + 1, and of its fourth block only 3 tokens will ever exist.
        it = bench([prompt(1, 5), prompt(2, 6)], [10, 9], [Pool(WIDE, (7, host))])
        it.arrive(0, 1)
        it.step(0)
        assert [it.step(t) for t in range(1, 8)] == [{0: (-1, g), 1: (-1, g)} for g in range(1, 8)]
        assert [it.step(8), it.step(9)] == [{0: (-1, 8)}, {0: (-1, 9)}]
        assert it.step(10) == {1: (found, 14)}
        assert it.made == 19
        assert it.engine.outcome.finish_s.tolist() == [9.5, 10.5]

    def test_of_two_paused_in_one_step_the_earlier_starter_waits_first(self) -> None:
        # 5 blocks: 2 + 2 + 1. Step 1: all three need one more. C's one goes to A; B finds none and is paused itself.
        it = bench([prompt(1, 8), prompt(2, 8), prompt(3, 4)], [3, 3, 3], 5)
        it.arrive(0, 1, 2)
        it.step(0)
        assert it.step(1) == {0: (-1, 1)}
        assert (it.pauses, it.waiting) == (2, [1, 2])
        assert it.engine.line.meter[STARVED] == 0

    def test_a_block_reserved_for_an_earlier_starter_is_not_given_to_a_later_one_after_a_pause(self) -> None:
        # 8 blocks: 2 + 2 + 2 + 1, one is free. Step 1: all need one more. A gets the free one, B that of D, which is
        # paused; for C none is left, so C is paused too.
        it = bench([prompt(1, 8), prompt(2, 8), prompt(3, 8), prompt(4, 4)], [3] * 4, 8)
        it.arrive(0, 1, 2, 3)
        it.step(0)
        assert it.step(1) == {0: (-1, 1), 1: (-1, 1)}
        assert (it.pauses, it.waiting) == (2, [2, 3])
        assert it.engine.line.meter[STARVED] == 0

    def test_a_prompt_paused_between_two_chunks_finds_all_but_the_last_token_of_what_it_computed(self) -> None:
        # 5 blocks, 12 tokens a step. A: 4 + 3. B: 13, of which 8 in step 0. Step 1: A needs a block, B is paused: 7
        # tokens are usable, 4 + 3, and the 3 are the start of a whole block of its prompt. A takes B's last, empty one.
        it = bench([prompt(1, 4), prompt(2, 13)], [3, 1], 5, max_num_tokens=12)
        it.arrive(0, 1)
        assert it.step(0) == {0: (0, 4), 1: (0, 8)}
        assert it.engine.state.stats[0, STORED] == 2
        assert it.step(1) == {0: (-1, 1)}
        assert it.engine.state.stats[0, STORED] == 3
        assert [it.step(2), it.step(3)] == [{0: (-1, 2)}, {1: (7, 13)}]
        assert it.made == 4
        assert_conserved(it.engine.state, all_free=True)

    def test_a_step_with_a_pause_starts_nobody_though_the_paused_one_would_fit_again(self) -> None:
        # Two windows, 5 blocks each; equal prompts start together (no skip rule), so B holds copies of A's 2 blocks.
        # Step 1: A takes the last block, B is paused: 2 are free, and B, which may share A's blocks, would need 1.
        pools = [Pool(WIDE, (5, 0)), Pool(1000, (5, 0), sliding=True)]
        it = bench([prompt(1, 8)] * 2, [5, 5], pools)
        it.arrive(0, 1)
        assert it.step(0) == {0: (0, 8), 1: (0, 8)}
        assert it.step(1) == {0: (-1, 1)}
        assert it.free == [2, 2]
        assert it.step(2) == {0: (-1, 2), 1: (8, 9)}
        assert it.free == [1, 1]
        assert [it.step(t) for t in (3, 4, 5)] == [{0: (-1, 3), 1: (-1, 2)}, {0: (-1, 4), 1: (-1, 3)}, {1: (-1, 4)}]
        assert (it.made, it.pauses) == (10, 1)
        assert_conserved(it.engine.state, all_free=True)

    def test_a_prompt_in_chunks_needs_no_new_block_and_is_not_paused_for_itself(self) -> None:
        # 8 tokens a step, 5 blocks: A has all its 4 blocks from the start, though the prompt takes two steps.
        it = bench([prompt(1, 13)], [2], 4, max_num_tokens=8)
        it.arrive(0)
        assert [it.step(t) for t in (0, 1, 2)] == [{0: (0, 8)}, {0: (8, 13)}, {0: (-1, 1)}]
        assert it.pauses == 0

    def test_a_pause_after_one_computed_token_stores_nothing(self) -> None:
        # Blocks of one token, 3 tokens a step, 5 blocks. A: 2 + 3. B: 3 + 1, gets 1 token of the first step. A's
        # second token needs a sixth block. Of B's one computed token none is usable (the last one never is).
        it = bench([prompt(1, 2), prompt(2, 3)], [3, 1], 5, Settings(tokens_per_block=1), max_num_tokens=3)
        it.arrive(0, 1)
        assert it.step(0) == {0: (0, 2), 1: (0, 1)}
        assert it.step(1) == {0: (-1, 1)}
        assert (it.engine.state.stats[0, STORED], it.pauses, it.waiting) == (2, 1, [1])
        assert it.step(2) == {0: (-1, 2)}
        assert it.step(3) == {1: (0, 3)}
        assert it.made == 4

    def test_a_request_alone_for_which_the_pool_is_too_small_pauses_itself(self) -> None:
        it = bench([prompt(1, 8)], [5], 2)
        it.arrive(0)
        it.step(0)
        assert not begin_step(it.engine, 1.0)
        assert (it.pauses, it.waiting, it.free) == (1, [0], [2])


class TestStaticBatch:
    def test_nobody_starts_while_anybody_is_active_whatever_would_fit(self) -> None:
        it = bench([prompt(1, 5), prompt(2, 5)], [3, 1], 20, capacity_scheduler_policy="STATIC_BATCH")
        it.arrive(0)
        it.step(0)
        it.arrive(1)
        assert [it.step(t) for t in (1, 2, 3)] == [{0: (-1, 1)}, {0: (-1, 2)}, {1: (0, 5)}]


class TestLimits:
    def test_an_unknown_policy_is_refused_with_the_known_ones(self) -> None:
        known = "known policies: GUARANTEED_NO_EVICT, MAX_UTILIZATION, STATIC_BATCH, VLLM, VLLM_ASYNC"
        with pytest.raises(ValueError, match=f"capacity_scheduler_policy is MAX; {known}"):
            bench([prompt(1, 4)], [1], 8, capacity_scheduler_policy="MAX")

    def test_a_prompt_that_gets_no_whole_unit_waits_without_holding_up_the_others(self) -> None:
        # Units of 8 tokens, 9 tokens a step. A and B generate: 7 are left, C would need 8; D behind it needs 1. Then
        # three generate. When A and B have ended, D alone leaves 8.
        limits: dict[str, Any] = {
            "max_num_tokens": 9,
            "chunk_unit": 8,
            "capacity_scheduler_policy": "GUARANTEED_NO_EVICT",
        }
        prompts = [prompt(1, 1), prompt(2, 1), prompt(3, 20), prompt(4, 1)]
        it = bench(prompts, [3, 3, 1, 4], 40, **limits)
        it.arrive(0, 1)
        assert it.step(0) == {0: (0, 1), 1: (0, 1)}
        it.arrive(2, 3)
        assert it.step(1) == {0: (-1, 1), 1: (-1, 1), 3: (0, 1)}
        plan = it.engine.line.plan
        assert (plan[PREFILL_TOKENS], plan[DECODE_SEQS]) == (1, 2)
        assert it.step(2) == {0: (-1, 2), 1: (-1, 2), 3: (-1, 1)}
        assert [it.step(t) for t in (3, 4)] == [{3: (-1, 2), 2: (0, 8)}, {3: (-1, 3), 2: (8, 16)}]
        assert it.step(5) == {2: (16, 20)}


class TestSequentialClaim:
    @pytest.mark.parametrize(("sequential", "found"), [(False, 4), (True, 0)])
    def test_one_by_one_an_earlier_start_takes_the_block_that_a_later_one_would_reuse(
        self, sequential: bool, found: int
    ) -> None:
        # 4 blocks. A leaves one, X (12 tokens) the other three: A's is the next to be evicted. B needs 2 blocks; C
        # begins with A's 4 tokens and needs 2. Claimed together, A's block is out of B's reach.
        rules = FOUR._replace(sequential_claim=sequential)
        prompts = [prompt(1, 4), prompt(2, 12), prompt(3, 5), [*prompt(1, 4), 999]]
        it = bench(prompts, [1] * 4, 4, rules, capacity_scheduler_policy="GUARANTEED_NO_EVICT")
        for r in (0, 1):
            it.arrive(r)
            it.step(r)
        it.arrive(2, 3)
        assert it.step(2) == {2: (0, 5), 3: (found, 5)}
        assert_conserved(it.engine.state, all_free=True)

    def test_one_by_one_who_stands_behind_a_request_without_blocks_does_not_start_either(self) -> None:
        # As with all at once (`test_engine`): 3 blocks, of which C reuses one, must copy from another, and B has one.
        a = prompt(1, 11)
        rules, policy = FOUR._replace(sequential_claim=True), "GUARANTEED_NO_EVICT"
        prompts = [a, prompt(2, 2), [*a[:6], 999], prompt(3, 2)]
        it = bench(prompts, [1, 2, 1, 1], [Pool(WIDE, (3, 4))], rules, capacity_scheduler_policy=policy)
        for r in (0, 1):
            it.arrive(r)
            it.step(r)
        it.arrive(2, 3)
        assert it.step(2) == {1: (-1, 1)}
        assert (it.waiting, it.free) == ([2, 3], [3])
        it.check()


class TestTooSmallAPool:
    def test_a_token_for_which_no_block_is_free_is_counted_and_made_all_the_same(self) -> None:
        # 3 blocks: A (8 + 2) holds 2 and is promised the third; somebody outside the engine pins it.
        it = bench([prompt(1, 8)], [2], 3, capacity_scheduler_policy="GUARANTEED_NO_EVICT")
        it.arrive(0)
        it.step(0)
        assert it.free == [1]
        pin(it.engine.state, 2)
        assert it.free == [0]
        assert it.step(1) == {0: (-1, 1)}
        assert it.engine.line.meter[STARVED] == 1
        assert it.engine.outcome.finish_s.tolist() == [1.5]
        assert it.free == [2]

    def served(self, prompts: list[list[int]], outputs: list[int], pools: list[Pool]) -> tuple[int, list[int], State]:
        """Serial replay: where it stopped, the reused tokens, the tables."""
        requests, n = workload(prompts, outputs), len(prompts)
        state, load = prepare(requests, RetentionColumns.none(n), tuple(pools), FOUR)
        positions, reused = longest_blocks(requests, 4), np.full(n, -1, np.int64)
        q, m, at = make_sequences(len(pools), 1, positions), make_matches(1, positions), np.zeros(n, np.int64)
        return replay_serial(state, q, m, load, np.zeros((3, 1), np.int64), at, 0, n, reused), reused.tolist(), state

    def test_serial_replay_stops_at_a_prompt_that_does_not_fit_and_leaves_every_block_free(self) -> None:
        done, reused, state = self.served([prompt(1, 5), prompt(2, 9), prompt(3, 1)], [1, 1, 1], [Pool(WIDE, (2, 0))])
        assert (done, reused) == (1, [0, -1, -1])
        assert_conserved(state, all_free=True)

    @pytest.mark.parametrize(("output", "done"), [(5, 2), (6, 1)])
    def test_it_stops_at_an_output_that_does_not_fit(self, output: int, done: int) -> None:
        # 2 blocks: 4 prompt tokens and the slots of all but the last output token, 8 or 9.
        pool = [Pool(WIDE, (2, 0))]
        assert self.served([prompt(1, 4), prompt(2, 4)], [1, output], pool)[:2] == (done, [0, 0])

    @pytest.mark.parametrize(("output", "done"), [(9, 2), (10, 1)])
    def test_it_does_so_beside_a_sliding_window(self, output: int, done: int) -> None:
        # 3 blocks of full attention: 12 slots, not 13. A window of 8 tokens never holds more than 3 blocks.
        pools = [Pool(WIDE, (3, 0)), Pool(8, (3, 0), sliding=True)]
        assert self.served([prompt(1, 4), prompt(2, 4)], [1, output], pools)[:2] == (done, [0, 0])
