"""The overlap scheduler, by hand and against the engine without it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.commands import SansIOEngine
from kvcache.engine import Limits, begin_step, is_idle
from kvcache.line import DECODE_SEQS, N_FLIGHT, PAUSES, PREFILL_TOKENS, STEPS
from kvcache.overlap import overlap_ahead, overlap_begin, overlap_end, overlap_may_finish
from kvcache.rules import iteration
from kvcache.tables import GEN_ALLOC, Pool, Settings
from kvcache.vllm_engine import vllm_begin
from tests.kvcache.workloads import WIDE, Bench, assert_conserved, workload

FOUR = Settings(tokens_per_block=4)


def prompt(name: int, tokens: int) -> list[int]:
    return [100 * name + i for i in range(tokens)]


class Ahead(Bench):
    """A bench whose steps overlap: each takes a second, the next is scheduled when it begins."""

    def tick(self, now_s: float) -> tuple[int, int] | None:
        """One step: its prompt tokens and its generating sequences; None if there is nothing to do."""
        e = self.engine
        if not overlap_begin(e, now_s):
            return None
        work = int(e.line.plan[PREFILL_TOKENS]), int(e.line.plan[DECODE_SEQS])
        overlap_ahead(e, now_s)
        before = int((e.outcome.finish_s >= 0).sum())
        may = overlap_may_finish(e)
        overlap_end(e, now_s + 1)
        assert may or int((e.outcome.finish_s >= 0).sum()) == before
        return work

    def ticks(self) -> list[tuple[int, int]]:
        """All steps until nothing is left."""
        out = []
        while (work := self.tick(len(out))) is not None:
            out.append(work)
            assert len(out) < 10_000
        assert is_idle(self.engine)
        assert self.engine.line.meter[N_FLIGHT + 1] == 0
        return out


def bench(prompts: list[list[int]], outputs: list[int], gpu: int, rules: Settings = FOUR, **limits: Any) -> Ahead:
    limits = {"disable_overlap_scheduler": False, **limits}
    return Ahead(workload(prompts, outputs), [Pool(WIDE, (gpu, 0))], rules, Limits(**limits))


class TestByHand:
    def test_a_finished_request_is_in_one_more_step(self) -> None:
        # prefill, two tokens after it, and the step that was scheduled before its end was known
        it = bench([prompt(1, 6)], [3], 10)
        it.arrive(0)
        assert it.ticks() == [(6, 0), (0, 1), (0, 1), (0, 1)]
        out = it.engine.outcome
        assert (out.start_s[0], out.first_token_s[0], out.finish_s[0]) == (0, 1, 3)
        assert_conserved(it.engine.state, all_free=True)

    def test_who_arrives_while_a_step_runs_starts_with_the_step_after_the_next(self) -> None:
        # A: 0 to 1, and on. The step from 1 to 2 is scheduled at 0. B comes at 0.5: scheduled at 1, runs from 2 to 3.
        it = bench([prompt(1, 6), prompt(2, 6)], [9, 1], 20)
        it.arrive(0)
        assert it.tick(0) == (6, 0)
        it.arrive(1)
        assert [it.tick(1), it.tick(2)] == [(0, 1), (6, 1)]
        assert it.engine.outcome.first_token_s[1] == 3
        assert it.engine.outcome.start_s[1] == 1

    def test_blocks_of_a_finished_request_serve_the_admission_after_the_next(self) -> None:
        # 3 blocks. A: 8 + 1 tokens, all of them. It ends at 1; its extra step, scheduled at 0, runs until 2. B is
        # admitted at 1 and runs from 2 on.
        it = bench([prompt(1, 8), prompt(2, 8)], [1, 1], 3)
        it.arrive(0, 1)
        assert it.ticks() == [(8, 0), (0, 1), (8, 0), (0, 1)]
        assert it.engine.outcome.finish_s.tolist() == [1, 3]
        assert it.engine.outcome.start_s.tolist() == [0, 1]

    def test_the_extra_step_may_take_a_block(self) -> None:
        # 4 + 5 tokens: slots 5 to 8 for the first four tokens, a ninth for the extra step
        plain = Bench(workload([prompt(1, 4)], [5]), [Pool(WIDE, (10, 0))], FOUR, Limits())
        plain.arrive(0)
        plain.run()
        it = bench([prompt(1, 4)], [5], 10)
        it.arrive(0)
        it.ticks()
        assert (plain.engine.state.stats[0, GEN_ALLOC], it.engine.state.stats[0, GEN_ALLOC]) == (1, 2)

    def test_a_context_block_can_be_found_two_steps_later(self) -> None:
        # A: 0 to 1. B, the same prompt, is put off at 0 twice: A computes its first block, and is not generating for the
        # scheduler yet when step 1 is made; when step 2 is made it is, and B starts: nothing is stored yet, it computes
        # all. C comes at 1, when A's blocks are stored, and finds 8 tokens.
        it = bench([prompt(1, 9), prompt(1, 9), prompt(1, 9)], [3, 1, 1], 20)
        it.arrive(0, 1)
        assert it.tick(0) == (9, 0)
        it.arrive(2)
        assert [it.tick(1), it.tick(2)] == [(9, 1), (1, 2)]
        assert it.engine.outcome.reused.tolist() == [0, 0, 8]

    def test_a_long_prompt_takes_its_chunks_in_steps_that_follow_each_other(self) -> None:
        # 20 tokens, 8 a step: chunks of 8, 8 and 4, each scheduled while the one before runs
        it = bench([prompt(1, 20)], [2], 20, max_num_tokens=8)
        it.arrive(0)
        assert it.ticks() == [(8, 0), (8, 0), (4, 0), (0, 1), (0, 1)]
        assert (it.engine.outcome.first_token_s[0], it.engine.outcome.finish_s[0]) == (3, 4)

    @pytest.mark.parametrize("plain", [False, True])
    def test_a_prompt_whose_chunk_finds_no_room_is_not_in_the_step(self, plain: bool) -> None:
        # Units of 8, 10 tokens a step. A, 16 tokens, B and C: 8 + 1 + 1. Then B and C take 4 with their drafts, and A gets
        # nothing of the other 6 until they have ended.
        limits: dict[str, Any] = {"max_num_tokens": 10, "chunk_unit": 8, "max_draft_len": 1}
        it = bench(
            [prompt(1, 16), prompt(2, 1), prompt(3, 1)], [1, 3, 3], 20, disable_overlap_scheduler=plain, **limits
        )
        it.arrive(0, 1, 2)
        if plain:
            assert it.step(0) == {0: (0, 8), 1: (0, 1), 2: (0, 1)}
            assert it.step(1) == {0: (8, 8), 1: (-1, 1), 2: (-1, 1)}
            assert it.run(2) == 2
        else:
            assert it.ticks() == [(10, 0), (0, 4), (0, 4), (0, 4), (8, 0), (0, 2)]

    def test_the_three_calls_schedule_ahead_too(self) -> None:
        it = bench([prompt(1, 6)], [2], 10)
        engine = SansIOEngine(it.engine)
        assert isinstance(iteration(it.engine).ahead, type(overlap_ahead))
        engine.arrive(0)
        steps = []
        while (step := engine.next_commands(float(len(steps))).step) is not None:
            steps.append((step.prefill_tokens, step.decode_seqs))
            engine.finish(step, len(steps))
        assert steps == [(6, 0), (0, 1), (0, 1)]
        assert it.engine.outcome.finish_s[0] == 2

    def test_a_request_without_output_ends_with_its_prefill(self) -> None:
        it = bench([prompt(1, 5)], [0], 8)
        it.arrive(0)
        it.ticks()
        assert it.engine.outcome.finish_s[0] == 1

    def test_a_token_made_while_its_request_is_paused_counts(self) -> None:
        # 4 blocks of 4, two prompts of 7. Slots 8, 8, then 9, 9: the second does not fit, and is paused while it makes
        # a token. Both get all their tokens.
        it = bench(
            [prompt(1, 7), prompt(2, 7)], [6, 6], 4, capacity_scheduler_policy="MAX_UTILIZATION", max_num_tokens=100
        )
        it.arrive(0, 1)
        it.ticks()
        assert it.engine.line.meter[PAUSES] >= 1
        assert (it.engine.outcome.finish_s > 0).all()
        assert_conserved(it.engine.state, all_free=True)

    def test_who_makes_his_last_token_while_paused_leaves_the_line(self) -> None:
        # As above, but the second wants 2 tokens: the pause, at 1, hits it while the second one is made, from 1 to 2.
        it = bench(
            [prompt(1, 7), prompt(2, 7)], [9, 2], 4, capacity_scheduler_policy="MAX_UTILIZATION", max_num_tokens=100
        )
        it.arrive(0, 1)
        it.ticks()
        assert it.engine.line.meter[PAUSES] == 1
        assert it.engine.outcome.finish_s[1] == 2
        assert it.waiting == []


@st.composite
def systems(draw: st.DrawFn) -> dict[str, Any]:
    n = draw(st.integers(1, 12))
    drafts = draw(st.sampled_from([0, 0, 1, 3]))
    return {
        "prompts": [
            prompt(draw(st.integers(1, 3)), draw(st.integers(1, 14))) + draw(st.lists(st.integers(0, 2), max_size=3))
            for _ in range(n)
        ],
        "outputs": draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)),
        "gpu": draw(st.integers(10, 20)),
        "max_batch_size": draw(st.sampled_from([1, 3, 8])),
        "max_num_tokens": draw(st.sampled_from([40, 100])),
        "capacity_scheduler_policy": draw(st.sampled_from(["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"])),
        "context_chunking_policy": draw(st.sampled_from(["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"])),
        "max_draft_len": drafts,
        "accepted_per_step": drafts * draw(st.sampled_from([0.0, 0.4, 1.0])),
    }


@given(system=systems(), overlap=st.booleans())
@settings(max_examples=120, deadline=None)
def test_every_request_gets_its_tokens_and_every_block_comes_back(system: dict[str, Any], overlap: bool) -> None:
    outputs = system["outputs"]
    it: Bench = bench(**system, disable_overlap_scheduler=not overlap)
    it.arrive(*range(len(outputs)))
    if isinstance(it, Ahead) and overlap:
        it.ticks()
    else:
        it.run()
    e = it.engine
    assert (e.outcome.finish_s >= e.outcome.first_token_s).all()
    assert (e.outcome.first_token_s > e.outcome.start_s).all()
    assert sorted(e.line.done.tolist()) == list(range(len(outputs)))
    assert_conserved(e.state, all_free=True)


class TestDrafts:
    def finish(self, output: int, drafts: int, accepted: float, **more: Any) -> tuple[float, int]:
        """When one request of so many tokens ends, and the slots computed while generating."""
        limits = {"max_draft_len": drafts, "accepted_per_step": accepted, "disable_overlap_scheduler": True, **more}
        it = bench([prompt(1, 6)], [output], 40, **limits)
        it.arrive(0)
        slots = 0
        for t in range(100):
            if not it.step(t):
                break
            slots += int(it.engine.line.plan[DECODE_SEQS])
        assert_conserved(it.engine.state, all_free=True)
        return float(it.engine.outcome.finish_s[0]), slots

    def test_accepted_drafts_are_tokens_of_the_same_step(self) -> None:
        # The first token is the prompt's. 12 more: one a step; with all of 3 drafts right, 4 a step; with one and a
        # half right on average 2, 3, 2, 3, 2 a step.
        assert self.finish(13, 0, 0) == (12.5, 12)
        assert self.finish(13, 3, 3) == (3.5, 12)
        assert self.finish(13, 3, 1.5)[0] == pytest.approx(5.5)

    def test_every_draft_costs_as_much_as_a_token(self) -> None:
        # None right: 12 steps of 1 + 2 slots. Slots end with prompt + output: in the last step, with 17 of 19 taken, 2 are
        # left. With 3 outputs and 3 drafts 3 are left of the 9, then 2.
        assert self.finish(13, 2, 0) == (12.5, 11 * 3 + 2)
        assert self.finish(3, 3, 0) == (2.5, 3 + 2)

    def test_a_budget_is_charged_for_drafts_too(self) -> None:
        # 9 tokens a step. A generates with 3 drafts: 4. B's 8 tokens do not fit into the other 5: one unit of 4.
        limits = {"max_draft_len": 3, "accepted_per_step": 0, "disable_overlap_scheduler": True, "max_num_tokens": 9}
        it = bench([prompt(1, 6), prompt(2, 8)], [9, 1], 40, **limits)
        it.arrive(0)
        it.step(0)
        it.arrive(1)
        assert it.step(1) == {0: (-1, 1), 1: (0, 4)}

    def test_slots_of_wrong_drafts_are_given_back(self) -> None:
        # 7 + 9 tokens in blocks of 4: the step after the prompt takes slots 8 to 11, a block, and gives 9 to 11 back.
        limits = {"max_draft_len": 3, "accepted_per_step": 0, "disable_overlap_scheduler": True}
        it = bench([prompt(1, 7)], [9], 40, **limits)
        it.arrive(0)
        it.step(0)
        it.begin(1)
        assert (it.engine.sequences.slots.max(), it.engine.sequences.length.max()) == (11, 3)
        it.end(1.5)
        assert (it.engine.sequences.slots.max(), it.engine.sequences.length.max()) == (8, 2)

    def test_more_accepted_than_drafted_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"accepted_per_step is 2; it must be from 0 to max_draft_len \(1\)"):
            bench([prompt(1, 4)], [1], 8, max_draft_len=1, accepted_per_step=2)


def test_without_arrivals_meanwhile_only_the_extra_steps_are_more() -> None:
    rng = np.random.default_rng(2)
    prompts = [prompt(i, int(n)) for i, n in enumerate(rng.integers(3, 30, 8))]
    outputs = [7] * 8
    plain = Bench(workload(prompts, outputs), [Pool(WIDE, (200, 0))], FOUR, Limits(max_num_tokens=500))
    plain.arrive(*range(8))
    steps = plain.run()
    ahead = bench(prompts, outputs, 200, max_num_tokens=500)
    ahead.arrive(*range(8))
    assert len(ahead.ticks()) == steps + 1 == ahead.engine.line.meter[STEPS]


def test_each_policy_has_its_own_iteration() -> None:
    def rules(**limits: Any) -> Any:
        return iteration(bench([prompt(1, 4)], [1], 9, **limits).engine)

    assert rules().begin is overlap_begin
    assert rules(disable_overlap_scheduler=True).begin is begin_step
    assert rules(disable_overlap_scheduler=True, capacity_scheduler_policy="VLLM").begin is vllm_begin
