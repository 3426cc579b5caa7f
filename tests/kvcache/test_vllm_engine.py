"""vLLM's iteration, timelines worked out by hand: 4 tokens a block, every step half a second.

A step shows who runs after it was scheduled, with the tokens each has computed once all scheduled steps have ended, and
the step's work: prompt tokens, sequences that make one token each.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.engine import is_idle
from kvcache.line import (
    DECODE_CONTEXT,
    DECODE_SEQS,
    N_ACTIVE,
    N_DONE,
    PAUSES,
    POSITION,
    PREFILL_PAIRS,
    PREFILL_TOKENS,
    REQUEST,
    Limits,
)
from kvcache.request import Requests
from kvcache.tables import (
    ALLOC_TOTAL,
    CAUSE_0,
    GEN_ALLOC,
    MISSED,
    REFS,
    REUSED,
    SHORT_BLOCK,
    STORED,
    T_FREE,
    Pool,
    Settings,
)
from kvcache.vllm_engine import vllm_begin, vllm_end, vllm_may_finish
from tests.kvcache.naive_vllm import NaiveVllm
from tests.kvcache.workloads import WIDE, Bench, assert_conserved, workload, workloads

FOUR = Settings(tokens_per_block=4, enable_partial_reuse=False)
Work = tuple[dict[int, int], int, int]


def prompt(name: int, tokens: int) -> list[int]:
    """A prompt that shares nothing with prompts of another name."""
    return [100 * name + i for i in range(tokens)]


class Vllm(Bench):
    """An engine under vLLM's scheduler."""

    def __init__(
        self,
        requests: Requests,
        gpu: int,
        *,
        ahead: bool = False,
        tokens: int = 64,
        seqs: int = 8,
        chunked: bool = True,
        rules: Settings = FOUR,
    ) -> None:
        policy = "VLLM_ASYNC" if ahead else "VLLM"
        limits = Limits(seqs, tokens, chunked, capacity_scheduler_policy=policy)
        super().__init__(requests, [Pool(WIDE, (gpu, 0))], rules, limits)

    def start(self, now_s: float) -> Work:
        """Begin a step."""
        vllm_begin(self.engine, now_s)
        line = self.engine.line
        rows = line.rows[line.active[: line.meter[N_ACTIVE]]]
        running = {int(row[REQUEST]): int(row[POSITION]) for row in rows}
        return running, int(line.plan[PREFILL_TOKENS]), int(line.plan[DECODE_SEQS])

    def end(self, now_s: float) -> None:
        """End the step."""
        may, done = vllm_may_finish(self.engine), int(self.engine.line.meter[N_DONE])
        vllm_end(self.engine, now_s)
        assert may or done == self.engine.line.meter[N_DONE]

    def whole(self, now_s: float) -> Work:
        """A step from begin to end."""
        work = self.start(now_s)
        self.end(now_s + 0.5)
        return work

    def all(self) -> int:
        """Step until idle; returns how many steps that took."""
        steps = 0
        while not is_idle(self.engine):
            assert vllm_begin(self.engine, float(steps))
            self.end(steps + 0.5)
            self.check()
            steps += 1
            assert steps < 10_000
        return steps

    @property
    def free(self) -> int:
        return int(self.engine.state.tier[0, 0, T_FREE])

    @property
    def preemptions(self) -> int:
        return int(self.engine.line.meter[PAUSES])

    def count(self, column: int) -> int:
        return int(self.engine.state.stats[0, column])


def vllm(prompts: list[list[int]], outputs: list[int], gpu: int, **limits: bool | int) -> Vllm:
    return Vllm(workload(prompts, outputs), gpu, **limits)  # type: ignore[arg-type]


class TestRunningFirst:
    def test_running_requests_take_their_tokens_before_anybody_starts(self) -> None:
        # 8 tokens a step. A: 6 prompt tokens, B: 9. B gets 2, then 8 less A's one token, the third step the rest.
        it = vllm([prompt(1, 6), prompt(2, 10)], [4, 1], 20, tokens=8)
        it.arrive(0, 1)
        assert it.whole(0) == ({0: 6, 1: 2}, 8, 0)
        assert it.whole(1) == ({0: 7, 1: 9}, 7, 1)
        assert it.whole(2) == ({0: 8, 1: 10}, 0, 2)  # one token left of B's prompt: the work of a decode
        assert it.whole(3) == ({0: 9}, 0, 1)
        assert is_idle(it.engine)
        assert it.engine.outcome.first_token_s.tolist() == [0.5, 2.5]
        assert it.engine.outcome.finish_s.tolist() == [3.5, 2.5]

    def test_work_of_a_later_chunk_counts_its_context(self) -> None:
        # A's last 4 tokens see 4 before them: 4 x (4 + 2) pairs. Then one token over 9 of context.
        it = vllm([prompt(1, 8)], [2], 20, tokens=4)
        it.arrive(0)
        it.whole(0)
        it.whole(1)
        assert it.engine.line.plan[PREFILL_PAIRS] == pytest.approx(24)
        it.whole(2)
        assert it.engine.line.plan[DECODE_CONTEXT] == pytest.approx(9)

    def test_blocks_are_taken_when_tokens_need_them_and_not_before(self) -> None:
        # 8 prompt tokens in chunks of 4: a block a chunk; the third block comes with the first generated token.
        it = vllm([prompt(1, 8)], [3], 9, tokens=4)
        it.arrive(0)
        free = []
        for t in range(4):
            it.start(t)
            free.append(it.free)
            it.end(t + 0.5)
        assert free == [8, 7, 6, 6]
        assert (it.free, it.count(GEN_ALLOC), it.count(ALLOC_TOTAL)) == (9, 1, 3)

    def test_at_most_max_num_seqs_run(self) -> None:
        it = vllm([prompt(1, 2), prompt(2, 2)], [2, 1], 9, seqs=1)
        it.arrive(0, 1)
        assert [it.whole(t)[0] for t in range(3)] == [{0: 2}, {0: 3}, {1: 2}]

    def test_a_request_without_output_makes_one_token_that_is_not_counted(self) -> None:
        it = vllm([prompt(1, 8)], [0], 9)
        it.arrive(0)
        assert it.whole(0) == ({0: 8}, 8, 0)
        assert is_idle(it.engine)
        assert it.count(STORED) == 2

    def test_nothing_to_do_is_said_so(self) -> None:
        it = vllm([prompt(1, 8)], [1], 9)
        assert not vllm_begin(it.engine, 0.0)


class TestAdmission:
    def test_the_whole_prompt_must_fit_though_only_a_chunk_is_computed(self) -> None:
        # 5 blocks. A holds 2. B's first chunk needs 1 block, its 13 tokens need 4: it waits, and so does C behind it.
        it = vllm([prompt(1, 8), prompt(2, 13), prompt(3, 4)], [2, 1, 1], 5, tokens=12)
        it.arrive(0, 1, 2)
        assert it.whole(0) == ({0: 8}, 8, 0)
        assert it.whole(1) == ({0: 9}, 0, 1)
        assert it.waiting == [1, 2]
        assert it.whole(2) == ({1: 12}, 12, 0)

    def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_takes_it_whole(self) -> None:
        it = vllm([prompt(1, 6), prompt(2, 6)], [1, 1], 9, tokens=8, chunked=False)
        it.arrive(0, 1)
        assert it.whole(0) == ({0: 6}, 6, 0)
        assert it.whole(1) == ({1: 6}, 6, 0)


class TestPrefixCache:
    def test_full_blocks_are_found_in_the_same_step_and_the_last_token_never(self) -> None:
        # B's 8 tokens are A's: one block is shared at once, the second computed for its last token. C: 9 tokens, both.
        same = prompt(1, 8)
        it = vllm([same, same, [*same, 7]], [1, 1, 1], 20)
        it.arrive(0, 1, 2)
        assert it.whole(0) == ({0: 8, 1: 8, 2: 9}, 8 + 4, 1)
        assert it.engine.outcome.reused.tolist() == [0, 4, 8]
        assert (it.count(REUSED), it.count(MISSED), it.count(CAUSE_0 + SHORT_BLOCK)) == (3, 4, 1)

    def test_a_shared_block_is_free_when_its_last_user_leaves(self) -> None:
        # 3 blocks; A: 5 + 2 tokens, 2 blocks; B shares the first one and takes the third.
        same = prompt(1, 5)
        it = vllm([same, same], [3, 1], 3)
        it.arrive(0, 1)
        it.start(0)
        assert (it.free, sorted(it.engine.state.blocks[:3, REFS].tolist())) == (0, [1, 1, 2])
        it.end(0.5)
        assert it.free == 1
        assert it.all() == 2
        assert it.free == 3

    def test_a_found_block_that_nobody_uses_counts_against_what_is_free(self) -> None:
        # 3 blocks. A leaves 2 behind, C takes the third. B: 12 tokens, 2 of 3 blocks found: they are the 2 free ones.
        it = vllm([prompt(1, 8), [*prompt(1, 8), 1, 2, 3, 4], prompt(3, 3)], [1, 1, 2], 3)
        it.arrive(0)
        it.whole(0)
        it.arrive(2, 1)
        assert it.whole(1) == ({2: 3}, 3, 0)
        assert it.waiting == [1]
        it.whole(2)
        assert it.whole(3)[0] == {1: 12}
        assert it.engine.outcome.reused[1] == 8

    def test_blocks_go_last_first_so_a_prefix_outlives_its_end(self) -> None:
        # 4 blocks, all A's. B takes 2 of them: A's last two. A again finds its first two.
        long = prompt(1, 16)
        it = vllm([long, prompt(2, 8), long], [1, 1, 1], 4)
        for r in range(3):
            it.arrive(r)
            it.whole(r)
        assert it.engine.outcome.reused.tolist() == [0, 0, 8]

    def test_generated_blocks_are_found_by_the_next_turn(self) -> None:
        # A: 6 prompt tokens and 4 generated: of the 9 computed, 8 fill two blocks. B continues.
        turn = workload([prompt(1, 6), [*prompt(1, 6), 7, 8, 9, 9, 5]], [[7, 8, 9, 9], [1]])
        it = Vllm(turn, 9)
        it.arrive(0)
        it.all()
        it.arrive(1)
        it.all()
        assert it.engine.outcome.reused.tolist() == [0, 8]

    def test_without_reuse_nothing_is_stored_or_found(self) -> None:
        same = prompt(1, 8)
        rules = FOUR._replace(enable_block_reuse=False)
        it = Vllm(workload([same, same], [1, 1]), 9, rules=rules)
        it.arrive(0, 1)
        it.all()
        assert it.count(STORED) == it.count(REUSED) == 0

    def test_a_miss_in_another_namespace_says_so(self) -> None:
        same = prompt(1, 8)
        it = Vllm(workload([same, same], [1, 1], salt=[1, 2]), 9)
        it.arrive(0, 1)
        it.all()
        assert it.count(REUSED) == 0


class TestPreemption:
    def test_the_last_running_request_loses_everything_and_is_computed_again(self) -> None:
        # 4 blocks, A and B hold 2 each (8 tokens). A's next token needs a block: B goes, to the head of the line before
        # C, and nobody starts. B's two blocks are free; A takes the one that held B's second block.
        it = vllm([prompt(1, 8), prompt(2, 8), prompt(3, 2)], [2, 2, 1], 4)
        it.arrive(0, 1, 2)
        assert it.whole(0) == ({0: 8, 1: 8}, 16, 0)
        assert it.whole(1) == ({0: 9}, 0, 1)
        assert (it.waiting, it.preemptions) == ([1, 2], 1)
        # B again: 8 prompt tokens and the one it made; its first block is still there.
        assert it.whole(2) == ({1: 9, 2: 2}, 5 + 2, 0)
        assert is_idle(it.engine)
        assert it.engine.outcome.finish_s.tolist() == [1.5, 2.5, 2.5]
        assert it.engine.outcome.first_token_s.tolist() == [0.5, 0.5, 2.5]

    def test_a_request_may_have_to_preempt_itself(self) -> None:
        # 4 blocks. A: 9 tokens, 3 blocks. B: 4 tokens, 1 block: its next token needs one more, and B is the last.
        it = vllm([prompt(1, 9), prompt(2, 4)], [3, 2], 4)
        it.arrive(0, 1)
        it.whole(0)
        assert it.whole(1) == ({0: 10}, 0, 1)
        assert (it.waiting, it.preemptions) == ([1], 1)
        it.all()
        assert it.preemptions == 1


class TestScheduledAhead:
    def test_who_arrives_during_a_step_runs_in_the_step_after_the_next(self) -> None:
        # Steps 1 and 2 are scheduled at 0. B comes during step 1: step 3 is its first.
        it = vllm([prompt(1, 4), prompt(2, 4)], [9, 1], 9, ahead=True)
        it.arrive(0)
        assert it.start(0) == ({0: 5}, 4, 0)  # step 1 computes the prompt; step 2, the token after it, is scheduled
        it.arrive(1)
        it.end(0.5)
        assert it.start(1) == ({0: 6, 1: 4}, 0, 1)
        it.end(1.5)
        assert it.start(2) == ({0: 7, 1: 4}, 4, 1)
        it.end(2.5)
        assert it.engine.outcome.start_s.tolist() == [0, 1]
        assert it.engine.outcome.first_token_s.tolist() == [0.5, 2.5]

    def test_blocks_of_the_finished_are_there_a_step_later(self) -> None:
        # 2 blocks. A: 8 tokens, one output: done after step 1. B needs both blocks: free at 0.5, scheduled then.
        it = vllm([prompt(1, 8), prompt(2, 8)], [1, 1], 2, ahead=True)
        it.arrive(0, 1)
        assert it.start(0) == ({0: 8}, 8, 0)
        it.end(0.5)
        assert it.whole(1) == ({1: 8}, 8, 0)
        assert is_idle(it.engine)

    def test_a_token_on_its_way_counts_though_its_request_is_preempted(self) -> None:
        # 4 blocks: A, B of 8 tokens. Step 2 is scheduled while step 1 makes both first tokens: A needs a block, B goes.
        # B's token of step 1 comes out all the same, and B starts again with 9 tokens.
        it = vllm([prompt(1, 8), prompt(2, 8)], [2, 3], 4, ahead=True)
        it.arrive(0, 1)
        assert it.start(0) == ({0: 9}, 16, 0)
        assert (it.waiting, it.preemptions) == ([1], 1)
        it.end(0.5)
        assert it.engine.outcome.first_token_s.tolist() == [0.5, 0.5]
        assert it.whole(1) == ({0: 9}, 0, 1)  # B needs 3 blocks: 2 of 4 are free, none of them found and in use
        assert it.whole(2)[0] == {1: 10}
        it.all()
        assert it.engine.outcome.finish_s[0] == pytest.approx(1.5)

    def test_a_request_preempted_while_its_last_token_is_made_waits_no_longer(self) -> None:
        # 8 blocks, 4 prompts of 8 tokens; the last one wants one token, and step 1 makes it. Step 2, scheduled
        # meanwhile: the first needs a block: the last goes and leaves one for the second; the third pre-empts itself.
        it = vllm([prompt(1, 8), prompt(4, 8), prompt(2, 8), prompt(3, 8)], [3, 3, 3, 1], 8, ahead=True)
        it.arrive(0, 1, 2, 3)
        assert it.start(0) == ({0: 9, 1: 9}, 32, 0)
        assert it.waiting == [2, 3]
        it.end(0.5)  # request 3 wanted one token and has it
        assert it.waiting == [2]
        assert it.engine.outcome.finish_s[3] == pytest.approx(0.5)
        it.all()
        assert is_idle(it.engine)
        assert it.free == 8

    def test_without_pressure_it_makes_the_same_tokens_as_step_by_step(self) -> None:
        prompts, outputs = [prompt(1, 9), prompt(2, 3), prompt(3, 6)], [4, 6, 1]
        both = [vllm(prompts, outputs, 20, ahead=ahead) for ahead in (False, True)]
        for it in both:
            it.arrive(0, 1, 2)
        assert [it.all() for it in both] == [6, 6]
        finish = [it.engine.outcome.finish_s.tolist() for it in both]
        assert finish[0] == finish[1]


@settings(max_examples=60, deadline=None)
@given(
    requests=workloads(),
    ahead=st.booleans(),
    tokens=st.integers(1, 12),
    seqs=st.integers(1, 4),
    blocks=st.integers(0, 6),
)
def test_every_request_finishes_and_blocks_are_conserved(
    requests: Requests, ahead: bool, tokens: int, seqs: int, blocks: int
) -> None:
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    it = Vllm(requests, -(-longest // 4) + blocks, ahead=ahead, tokens=tokens, seqs=seqs)
    it.arrive(*range(len(requests)))
    it.all()
    outcome = it.engine.outcome
    assert (outcome.finish_s >= outcome.first_token_s).all()
    assert (outcome.first_token_s > outcome.start_s).all()
    assert (outcome.reused < requests.prompt_tokens).all()
    assert_conserved(it.engine.state, all_free=True)


@settings(max_examples=150, deadline=None)
@given(
    requests=workloads(most=24),
    ahead=st.booleans(),
    tokens=st.integers(1, 24),
    seqs=st.integers(1, 6),
    blocks=st.integers(0, 9),
    arrivals=st.lists(st.integers(0, 30), min_size=24, max_size=24),
)
def test_every_step_is_that_of_a_plain_model(
    requests: Requests, ahead: bool, tokens: int, seqs: int, blocks: int, arrivals: list[int]
) -> None:
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    pool = -(-longest // 4) + blocks
    it = Vllm(requests, pool, ahead=ahead, tokens=tokens, seqs=seqs)
    plain = NaiveVllm(requests, pool, 4, tokens, seqs, ahead=ahead)
    order = sorted(range(len(requests)), key=lambda r: (arrivals[r], r))
    steps = 0
    while order or not is_idle(it.engine):
        while order and arrivals[order[0]] <= steps:
            r = order.pop(0)
            it.arrive(r)
            plain.waiting.append(plain.requests[r])
        assert vllm_begin(it.engine, float(steps)) == plain.begin()
        line = it.engine.line
        rows = line.rows[line.active[: line.meter[N_ACTIVE]]]
        assert [int(row[REQUEST]) for row in rows] == [request.number for request in plain.running]
        assert [int(row[POSITION]) for row in rows] == [request.computed for request in plain.running]
        assert it.waiting == [request.number for request in plain.waiting]
        assert it.free == len(plain.free)
        if plain.steps:
            it.end(steps + 0.5)
            plain.end(steps + 0.5)
        steps += 1
    outcome = it.engine.outcome
    assert it.preemptions == plain.preemptions
    assert outcome.reused.tolist() == [request.reused for request in plain.requests]
    assert outcome.first_token_s.tolist() == [request.first for request in plain.requests]
    assert outcome.finish_s.tolist() == [request.finish for request in plain.requests]
