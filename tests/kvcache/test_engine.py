"""Timelines worked out by hand: 4 tokens a block, every step half a second, tokens named by digits.

A step shows what each active request does in it: `(from, to)` tokens of its prompt are computed, or `(-1, g)`: g tokens
were generated before and one more is made now. n prompt and g output tokens are promised ceil((n + g) / 4) blocks.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.engine import DECODE_CONTEXT, DECODE_SEQS, PREFILL_PAIRS, PREFILL_TOKENS, STARVED, Limits, begin_step
from kvcache.request import Requests
from kvcache.retention import KvCacheRetentionConfig, TokenRangeRetentionConfig
from kvcache.tables import (
    INTRA_COPIES,
    MISSED,
    NEXT,
    OFFLOADED,
    PRIORITY,
    REUSED,
    STORED,
    T_FREE,
    Pool,
    Settings,
)
from tests.kvcache.workloads import WIDE, Bench, assert_conserved, serial, some_settings, workload, workloads

FOUR = Settings(tokens_per_block=4)


def prompt(name: int, tokens: int) -> list[int]:
    """A prompt that shares nothing with prompts of another name."""
    return [100 * name + i for i in range(tokens)]


def bench(
    prompts: list[list[int]], outputs: list[int], gpu: int, host: int = 0, rules: Settings = FOUR, **limits: Any
) -> Bench:
    return Bench(workload(prompts, outputs), [Pool(WIDE, (gpu, host))], rules, Limits(**limits))


class TestAdmission:
    def test_admission_stops_at_the_first_request_that_does_not_fit(self) -> None:
        # 6 blocks. A: 8 + 5 = 13 tokens, 4 blocks. B: 8 + 1, 3 blocks, 2 are left. C: 3 + 1, 1 block, would fit.
        it = bench([prompt(1, 8), prompt(2, 8), prompt(3, 3)], [5, 1, 1], 6)
        it.arrive(0, 1, 2)
        assert it.step(0) == {0: (0, 8)}
        assert it.waiting == [1, 2]
        assert [it.step(t) for t in (1, 2, 3, 4)] == [{0: (-1, g)} for g in (1, 2, 3, 4)]
        assert it.step(5) == {1: (0, 8), 2: (0, 3)}
        it.check()

    def test_a_block_promised_to_a_running_request_is_not_given_away(self) -> None:
        # 5 blocks. A: 4 + 9 = 13 tokens: holds 1 block, is promised 4. B: 4 + 1: 2 blocks, though 4 are free.
        it = bench([prompt(1, 4), prompt(2, 4)], [9, 1], 5)
        it.arrive(0, 1)
        it.step(0)
        assert int(it.engine.state.tier[0, 0, T_FREE]) == 4
        assert it.waiting == [1]
        steps = [it.step(t) for t in range(1, 9)]
        assert steps == [{0: (-1, g)} for g in range(1, 9)]
        assert it.step(9) == {1: (0, 4)}
        assert it.engine.line.meter[STARVED] == 0

    def test_blocks_that_a_running_request_shares_are_not_counted_twice(self) -> None:
        # 7 blocks. A: 13 + 4 = 17 tokens: 5 blocks, holds 4. Of the 3 free one is A's: 2 are left. B is A's prompt and
        # 3 more: 4 blocks, of which A uses 3: B needs 1.
        it = bench([prompt(1, 13), prompt(1, 13)], [4, 3], 7)
        it.arrive(0)
        it.step(0)
        it.arrive(1)
        assert it.step(1) == {0: (-1, 1), 1: (12, 13)}

    def test_without_sharing_the_same_request_has_to_wait(self) -> None:
        it = bench([prompt(1, 13), prompt(2, 13)], [4, 3], 7)
        it.arrive(0)
        it.step(0)
        it.arrive(1)
        assert it.step(1) == {0: (-1, 1)}

    def test_a_cached_block_that_nobody_uses_is_not_subtracted_because_it_is_counted_as_free(self) -> None:
        # 5 blocks. A ends in its first step and leaves 2 full blocks. C: 5 + 3: 2 blocks. B, A's prompt + 4: 13 tokens,
        # 4 blocks; 3 are free, A's two among them. B waits until C ends (3 tokens, steps 1 to 3), and then reuses 8.
        it = bench([prompt(1, 9), prompt(3, 5), prompt(1, 9)], [1, 3, 4], 5)
        it.arrive(0)
        it.step(0)
        it.arrive(1)
        it.step(1)
        it.arrive(2)
        assert it.step(2) == {1: (-1, 1)}
        assert it.step(3) == {1: (-1, 2)}
        assert it.step(4) == {2: (8, 9)}

    def test_no_more_than_max_batch_size_run_at_once(self) -> None:
        it = bench([prompt(i, 3) for i in (1, 2, 3)], [1, 2, 1], 20, max_batch_size=2)
        it.arrive(0, 1, 2)
        assert it.step(0) == {0: (0, 3), 1: (0, 3)}
        assert it.step(1) == {1: (-1, 1), 2: (0, 3)}
        assert it.run(2.0) == 0

    def test_a_request_for_which_blocks_run_out_goes_back_to_the_head_of_the_line(self) -> None:
        # 3 GPU blocks, host. A ends in step 0 and leaves a chain of 3 blocks: a, x, y. B (2 + 2 tokens, 1 block, steps
        # 1 and 2) pushes y, the oldest, to the host. C in step 2: a's tokens, two of x's, one more, and 1 output: 2
        # blocks, and 2 are free: a and x. x has a child, so C must copy it; a and x are claimed, B has the third:
        # nothing is free.
        a = prompt(1, 11)
        it = bench([a, prompt(2, 2), [*a[:6], 999], prompt(3, 2)], [1, 2, 1, 1], 3, 4)
        it.arrive(0)
        it.step(0)
        it.arrive(1)
        it.step(1)
        assert it.engine.state.stats[0, OFFLOADED] == 1
        it.arrive(2, 3)
        assert it.step(2) == {1: (-1, 1)}
        assert it.engine.line.meter[STARVED] == 1
        assert it.waiting == [2, 3]
        it.check()
        # B has ended: 3 free. C copies two tokens of x into B's block; D's block would be the fourth.
        assert it.step(3)[2] == (6, 7)
        assert it.engine.state.stats[0, INTRA_COPIES] == 1
        it.run(4.0)
        assert_conserved(it.engine.state, all_free=True)


class TestSkipRule:
    def test_of_two_requests_with_the_same_new_prefix_the_second_waits_a_step_and_reuses(self) -> None:
        it = bench([prompt(1, 9), prompt(1, 9), prompt(2, 9)], [3, 3, 3], 20)
        it.arrive(0, 1, 2)
        assert it.step(0) == {0: (0, 9), 2: (0, 9)}
        assert it.waiting == [1]
        assert it.step(1) == {0: (-1, 1), 2: (-1, 1), 1: (8, 9)}

    def test_who_was_passed_over_keeps_its_place(self) -> None:
        it = bench([prompt(1, 9), prompt(1, 9), prompt(2, 9), prompt(3, 9)], [1] * 4, 20, max_batch_size=2)
        it.arrive(0, 1, 2)
        assert it.step(0) == {0: (0, 9), 2: (0, 9)}
        it.arrive(3)
        assert it.waiting == [1, 3]
        assert list(it.step(1)) == [1, 3]

    def test_a_prompt_still_in_chunks_makes_others_wait_too(self) -> None:
        # 8 tokens a step. A: 0 to 8, and block 0 is stored. Step 1: A computes block 1 and the rest; B needs block 1
        # next.
        it = bench([prompt(1, 13), prompt(1, 13)], [2, 1], 20, max_num_tokens=8)
        it.arrive(0, 1)
        assert it.step(0) == {0: (0, 8)}
        assert it.step(1) == {0: (8, 13)}
        assert it.step(2) == {0: (-1, 1), 1: (12, 13)}

    def test_equal_blocks_behind_different_prefixes_delay_needlessly_as_in_may_2026(self) -> None:
        five = [5, 5, 5, 5, 9]
        it = bench([[1, 1, 1, 1, 0], [2, 2, 2, 2, 0], [1, 1, 1, 1, *five], [2, 2, 2, 2, *five]], [0] * 4, 20)
        it.arrive(0, 1)
        it.step(0)
        it.arrive(2, 3)
        assert it.step(1) == {2: (4, 9)}
        assert it.step(2) == {3: (4, 9)}

    def test_without_reuse_nobody_waits(self) -> None:
        it = bench([prompt(1, 9)] * 2, [1, 1], 20, rules=FOUR._replace(enable_block_reuse=False))
        it.arrive(0, 1)
        assert it.step(0) == {0: (0, 9), 1: (0, 9)}

    def test_with_several_windows_nobody_waits(self) -> None:
        pools = [Pool(WIDE, (20, 0)), Pool(8, (20, 0), sliding=True)]
        it = Bench(workload([prompt(1, 9)] * 2, [1, 1]), pools, FOUR)
        it.arrive(0, 1)
        assert it.step(0) == {0: (0, 9), 1: (0, 9)}


class TestTokens:
    def test_generating_requests_take_their_tokens_first_and_chunks_end_on_block_boundaries(self) -> None:
        # 8 tokens a step. Step 1: A takes 1, 7 are left, B gets 4 of them. Step 2: 7 left, 5 missing.
        it = bench([prompt(1, 4), prompt(2, 9)], [10, 2], 20, max_num_tokens=8)
        it.arrive(0)
        it.step(0)
        it.arrive(1)
        assert it.step(1) == {0: (-1, 1), 1: (0, 4)}
        assert it.step(2) == {0: (-1, 2), 1: (4, 9)}
        assert it.step(3) == {0: (-1, 3), 1: (-1, 1)}

    def test_a_second_prompt_gets_what_the_first_one_leaves(self) -> None:
        # 16 a step: A 9, 7 left: B 4. Then A 1, B takes all 9 that it lacks; of 6 left C gets 4.
        it = bench([prompt(1, 9), prompt(2, 13), prompt(3, 9)], [3, 1, 1], 20, max_num_tokens=16)
        it.arrive(0, 1, 2)
        assert it.step(0) == {0: (0, 9), 1: (0, 4)}
        assert it.step(1) == {0: (-1, 1), 1: (4, 13), 2: (0, 4)}

    def test_reused_tokens_cost_nothing_of_max_num_tokens(self) -> None:
        it = bench([prompt(1, 9), [*prompt(1, 9), *prompt(2, 6)]], [1, 1], 20, max_num_tokens=12)
        it.arrive(0)
        it.step(0)
        it.arrive(1)
        # 15 tokens, 8 of them cached: 7 to compute, fewer than 12. The tail of A (1 token, stored when it ended) is
        # reused by a partial match: 9.
        assert it.step(1) == {1: (9, 15)}

    def test_without_chunking_a_prompt_waits_until_it_fits_whole(self) -> None:
        it = bench([prompt(1, 6), prompt(2, 6)], [3, 1], 20, max_num_tokens=8, enable_chunked_prefill=False)
        it.arrive(0, 1)
        assert it.step(0) == {0: (0, 6)}
        assert it.step(1) == {0: (-1, 1), 1: (0, 6)}

    def test_the_last_block_of_a_chunk_is_stored_one_chunk_later(self) -> None:
        # 8 computed, 7 usable: block 0 only. 13 computed and the first token generated: blocks 0, 1, 2.
        it = bench([prompt(1, 13)], [2], 20, max_num_tokens=8)
        it.arrive(0)
        it.step(0)
        assert it.engine.state.stats[0, STORED] == 1
        it.step(1)
        assert it.engine.state.stats[0, STORED] == 3

    def test_the_plan_counts_tokens_pairs_and_contexts_of_the_step(self) -> None:
        # step 1: A generates with 4 tokens of prompt and the new one; B computes 4 tokens after 0 others: 4 * (0 + 2)
        # pairs
        it = bench([prompt(1, 4), prompt(2, 9)], [10, 2], 20, max_num_tokens=8)
        it.arrive(0)
        it.step(0)
        it.arrive(1)
        it.step(1)
        plan = it.engine.line.plan
        assert (plan[DECODE_SEQS], plan[DECODE_CONTEXT], plan[PREFILL_TOKENS], plan[PREFILL_PAIRS]) == (1, 5, 4, 8)
        it.step(2)  # 5 tokens after 4 others: 5 * (4 + 2.5)
        assert (plan[DECODE_CONTEXT], plan[PREFILL_TOKENS], plan[PREFILL_PAIRS]) == (6, 5, 32.5)

    def test_a_chunk_unit_that_cuts_blocks_is_refused(self) -> None:
        with pytest.raises(ValueError, match="chunk_unit is 6"):
            bench([prompt(1, 4)], [1], 8, chunk_unit=6)

    def test_chunks_are_multiples_of_the_unit(self) -> None:
        it = bench([prompt(1, 21)], [1], 20, max_num_tokens=15, chunk_unit=8)
        it.arrive(0)
        assert [it.step(t) for t in (0, 1)] == [{0: (0, 8)}, {0: (8, 21)}]

    def test_a_first_chunk_after_a_part_of_a_block_ends_on_a_block_boundary(self) -> None:
        # B finds A's block and 2 tokens of its next one; admission knows of the block only. A unit of 8 from 6 on ends
        # at 14, cut to 12; the next one at 20.
        shared = prompt(1, 9)
        it = bench([shared, [*shared[:6], *prompt(2, 20)]], [1, 1], 20, max_num_tokens=15, chunk_unit=8)
        it.arrive(0)
        it.step(0)
        it.arrive(1)
        assert [it.step(t) for t in (1, 2, 3)] == [{1: (6, 12)}, {1: (12, 26)}, {}]


class TestEnds:
    def test_a_request_without_output_ends_with_its_prefill_and_makes_no_token(self) -> None:
        it = bench([prompt(1, 5)], [0], 8)
        it.arrive(0)
        it.step(0)
        out = it.engine.outcome
        assert (out.start_s[0], out.first_token_s[0], out.finish_s[0]) == (0, 0.5, 0.5)
        assert it.engine.state.stats[0, STORED] == 1  # 4 of its 5 tokens are usable
        assert_conserved(it.engine.state, all_free=True)

    def test_one_output_token_comes_with_the_prefill(self) -> None:
        it = bench([prompt(1, 5)], [1], 8)
        it.arrive(0)
        it.step(0)
        assert it.engine.outcome.finish_s.tolist() == [0.5]
        assert it.engine.state.stats[0, STORED] == 2  # all 5 prompt tokens are usable: 4 and 1

    def test_the_second_token_takes_a_second_step(self) -> None:
        it = bench([prompt(1, 5)], [2], 8)
        it.arrive(0)
        it.step(0)
        it.step(1)
        out = it.engine.outcome
        assert (out.first_token_s[0], out.finish_s[0]) == (0.5, 1.5)

    def test_blocks_are_freed_last_first_when_a_request_ends(self) -> None:
        it = bench([prompt(1, 9)], [1], 5)
        it.arrive(0)
        it.step(0)
        order, at = [], 5 + 35  # the head of the ring of priority 35
        for _ in range(5):
            at = int(it.engine.state.blocks[at, NEXT])
            order.append(at)
        assert order == [3, 4, 2, 1, 0]

    def test_a_priority_expires_one_duration_after_the_end_and_in_the_next_step_only(self) -> None:
        # A ends at 0.5 and its block keeps priority 80 for 1 s, until 1.5. B's steps begin at 1.4 and 1.9.
        keep = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, 80, 1000)])
        it = Bench(workload([prompt(1, 5), prompt(2, 5)], [1, 3]), [Pool(WIDE, (8, 0))], FOUR, retention=[keep, None])
        it.arrive(0)
        it.step(0)
        it.arrive(1)
        priority = it.engine.state.blocks[:2, PRIORITY]
        it.step(1.4)
        assert priority.tolist() == [80, 80]
        it.step(1.9)
        assert priority.tolist() == [35, 35]

    @pytest.mark.parametrize(("partial", "work"), [(True, (7, 8)), (False, (4, 8))])
    def test_a_prompt_of_whole_blocks_that_is_cached_computes_its_last_token(
        self, partial: bool, work: tuple[int, int]
    ) -> None:
        # Admission counts on 7 reused tokens either way (both blocks are cached, the last token is never reused).
        # Without partial reuse only block 0 matches: the step is larger than planned.
        it = bench([prompt(1, 8)] * 2, [1, 2], 8, rules=FOUR._replace(enable_partial_reuse=partial))
        it.arrive(0)
        it.step(0)
        it.arrive(1)
        assert it.step(1) == {1: work}

    def test_nothing_to_do_is_no_step(self) -> None:
        it = bench([prompt(1, 5)], [1], 8)
        assert not begin_step(it.engine, 0.0)


class TestWindows:
    """Full attention beside a sliding window of 8 tokens."""

    def pools(self, sliding: int) -> list[Pool]:
        return [Pool(WIDE, (20, 0)), Pool(8, (sliding, 0), sliding=True)]

    def test_a_whole_window_behind_a_gap_is_enough_to_reuse_all(self) -> None:
        # 13 tokens: the sliding window keeps no block for tokens 0 to 3, holds 4-7, 8-11, 12. B: 12 reused in both
        # windows.
        it = Bench(workload([prompt(1, 13)] * 2, [1, 1]), self.pools(20), FOUR)
        it.arrive(0)
        it.step(0)
        assert it.engine.state.stats[:, MISSED].tolist() == [4, 3]
        it.arrive(1)
        assert it.step(1) == {1: (12, 13)}

    def test_a_request_reuses_what_its_worst_window_allows(self) -> None:
        # The sliding window has 4 blocks. A leaves 4-7 and 8-11 there; C (9 tokens, 3 blocks) takes the never used
        # one, A's tail and 8-11. For B full attention would reuse 12 tokens, the sliding window none: all 13 are
        # computed.
        it = Bench(workload([prompt(1, 13), prompt(2, 9), prompt(1, 13)], [1, 1, 1]), self.pools(4), FOUR)
        for r in (0, 1):
            it.arrive(r)
            it.step(r)
        it.arrive(2)
        assert it.step(2) == {2: (0, 13)}
        assert it.engine.outcome.reused[2] == 0
        assert it.engine.state.stats[:, REUSED].tolist() == [3, 0]
        assert_conserved(it.engine.state, all_free=True)

    def test_a_sliding_window_gives_back_blocks_while_its_request_generates(self) -> None:
        # Prompt 8: 2 blocks. Token 9 takes a third; at 12 slots the first lies behind the window and is given back, so
        # the window never holds more than 3, while full attention holds 5 at 20 slots.
        it = Bench(workload([prompt(1, 8)], [13]), self.pools(3), FOUR)
        it.arrive(0)
        held = []
        for t in range(13):
            it.begin(t)
            free = it.engine.state.tier[:, 0, T_FREE]
            held.append((20 - int(free[0]), 3 - int(free[1])))
            it.end(t + 0.5)
        assert held[:6] == [(2, 2), (3, 3), (3, 3), (3, 3), (3, 2), (4, 3)]
        assert held[-1] == (5, 2)
        assert_conserved(it.engine.state, all_free=True)

    def test_a_start_that_fails_in_the_second_window_leaves_nothing_behind_in_the_first(self) -> None:
        # The shortage of one window again, in the sliding one: 4 blocks hold a, x, z and B's, and y is on the host. C
        # wants a and two tokens of x, D wants z: 2 + 1 blocks, 3 are free, and all three are claimed when C looks for
        # a block to copy into. Both have taken their blocks of the full window by then.
        a, z = prompt(1, 11), prompt(3, 3)
        it = Bench(
            workload([a, z, prompt(2, 2), [*a[:6], 999], [*z, 998]], [1, 1, 2, 1, 0]),
            [Pool(WIDE, (40, 4)), Pool(12, (4, 4), sliding=True)],
            FOUR,
        )
        for r in range(3):
            it.arrive(r)
            it.step(r)
        it.arrive(3, 4)
        assert it.step(3) == {2: (-1, 1)}
        assert it.engine.line.meter[STARVED] == 2
        assert it.waiting == [3, 4]
        assert_conserved(it.engine.state, all_free=True)
        # D's match in the full window was z, in place: z had left the tree there and is not found again.
        assert it.step(4) == {3: (6, 7), 4: (0, 4)}


class TestAgainstSerialReplay:
    @given(data=st.data(), requests=workloads(), rules=some_settings(), tokens=st.sampled_from([16, 24, 1000]))
    @settings(max_examples=60, deadline=None)
    def test_one_request_at_a_time_is_the_serial_replay(
        self, data: st.DataObject, requests: Requests, rules: Settings, tokens: int
    ) -> None:
        tpb = rules.tokens_per_block
        pool = Pool(WIDE, (27 // tpb + 4 + data.draw(st.integers(0, 10)), data.draw(st.integers(0, 12))))
        state, reused = serial(requests, [pool], rules)
        it = Bench(requests, [pool], rules, Limits(max_num_tokens=tokens))
        for r in range(len(requests)):
            it.arrive(r)
            it.run(float(r))
        assert it.engine.outcome.reused.tolist() == reused
        assert it.engine.state.stats.tolist() == state.stats.tolist()
        assert_conserved(it.engine.state, all_free=True)

    @given(data=st.data(), requests=workloads(), rules=some_settings(), tokens=st.sampled_from([16, 24, 1000]))
    @settings(max_examples=60, deadline=None)
    def test_whatever_runs_together_every_request_ends_and_every_block_is_free_again(
        self, data: st.DataObject, requests: Requests, rules: Settings, tokens: int
    ) -> None:
        tpb = rules.tokens_per_block
        gpu = 27 // tpb + 4 + data.draw(st.integers(0, 10))
        pools = [Pool(WIDE, (gpu, 6))]
        if data.draw(st.booleans()):
            pools.append(Pool(8, (gpu, 3), sliding=True, chunk_tokens=data.draw(st.sampled_from([0, 8]))))
        it = Bench(requests, pools, rules, Limits(max_batch_size=4, max_num_tokens=tokens))
        it.arrive(*range(len(requests)))
        it.run()
        out, stats = it.engine.outcome, it.engine.state.stats[0]
        assert (out.finish_s >= out.first_token_s).all()
        assert (out.first_token_s > out.start_s).all()
        assert (out.reused < requests.prompt_tokens).all()
        if it.engine.line.meter[STARVED] == 0:
            assert stats[REUSED] + stats[MISSED] == (-(-requests.prompt_tokens // tpb)).sum()
        assert_conserved(it.engine.state, all_free=True)
