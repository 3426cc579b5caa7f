"""Chunks of prompts: TensorRT-LLM's own cases (`microBatchSchedulerTest.cpp`), small sums, and what must always hold."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.engine import Limits
from kvcache.line import GENERATING, N_ACTIVE, POSITION, PREFILL_TOKENS, TARGET
from kvcache.tables import Pool, Settings
from tests.kvcache.workloads import WIDE, Bench, workload


def bench(prompts: list[list[int]], outputs: list[int], tpb: int, **limits: Any) -> Bench:
    rules = Settings(tokens_per_block=tpb, enable_block_reuse=False)
    return Bench(workload(prompts, outputs), [Pool(WIDE, (100, 0))], rules, Limits(**limits))


def prompt(name: int, tokens: int) -> list[int]:
    return [100 * name + i for i in range(tokens)]


class TestEqualProgress:
    def test_simple_no_overlap_max_num_tokens(self) -> None:
        # the case of that name: two prompts of 12, 5 outputs, 7 tokens a step, units of 5
        it = bench(
            [prompt(1, 12), prompt(2, 12)],
            [5, 5],
            5,
            max_batch_size=2,
            max_num_tokens=7,
            context_chunking_policy="EQUAL_PROGRESS",
        )
        it.arrive(0, 1)
        assert it.step(0) == {0: (0, 5)}
        assert it.step(1) == {0: (5, 12)}  # the last chunk may be larger than a unit
        assert it.step(2) == {0: (-1, 1), 1: (0, 5)}
        assert it.step(3) == {0: (-1, 2), 1: (5, 10)}  # 7 are left of the prompt, 6 of the step
        assert it.step(4) == {0: (-1, 3), 1: (10, 12)}
        assert it.step(5) == {0: (-1, 4), 1: (-1, 1)}
        assert [it.step(t) for t in (6, 7, 8)] == [{1: (-1, g)} for g in (2, 3, 4)]

    def test_each_prompt_gets_a_unit_in_turn_where_in_turn_the_first_gets_all(self) -> None:
        # Units of 4, 20 tokens a step. Equal: A, B and C 4 each, then A and B 4 more. C, 5 tokens, has 1 left: 0.
        prompts = [prompt(1, 30), prompt(2, 30), prompt(3, 5)]
        equal = bench(prompts, [1] * 3, 4, max_num_tokens=20, context_chunking_policy="EQUAL_PROGRESS")
        equal.arrive(0, 1, 2)
        assert equal.step(0) == {0: (0, 8), 1: (0, 8), 2: (0, 4)}
        assert equal.step(1) == {0: (8, 16), 1: (16 - 8, 16), 2: (4, 5)}
        turn = bench(prompts, [1] * 3, 4, max_num_tokens=20)
        turn.arrive(0, 1, 2)
        assert turn.step(0) == {0: (0, 20)}
        assert turn.step(1) == {0: (20, 30), 1: (0, 8)}

    def test_what_all_can_have_all_get(self) -> None:
        it = bench([prompt(1, 9), prompt(2, 3)], [1, 1], 4, max_num_tokens=12, context_chunking_policy="EQUAL_PROGRESS")
        it.arrive(0, 1)
        assert it.step(0) == {0: (0, 9), 1: (0, 3)}

    def test_a_prompt_for_which_no_unit_is_left_stays_in_the_line_in_its_place(self) -> None:
        it = bench(
            [prompt(i, 8) for i in (1, 2, 3)], [1] * 3, 4, max_num_tokens=6, context_chunking_policy="EQUAL_PROGRESS"
        )
        it.arrive(2, 0, 1)
        assert it.step(0) == {2: (0, 4)}
        assert it.waiting == [0, 1]

    def test_without_chunks_a_prompt_runs_whole_or_not_at_all(self) -> None:
        it = bench(
            [prompt(1, 8), prompt(2, 8)],
            [1, 1],
            4,
            max_num_tokens=12,
            enable_chunked_prefill=False,
            context_chunking_policy="EQUAL_PROGRESS",
        )
        it.arrive(0, 1)
        assert [it.step(t) for t in (0, 1)] == [{0: (0, 8)}, {1: (0, 8)}]

    def test_nobody_new_starts_where_a_pause_made_room_but_prompts_in_progress_go_on(self) -> None:
        limits = {"max_num_tokens": 6, "capacity_scheduler_policy": "MAX_UTILIZATION"}
        it = bench([prompt(1, 12), prompt(2, 4)], [1, 1], 4, context_chunking_policy="EQUAL_PROGRESS", **limits)
        it.arrive(0)
        assert it.step(0) == {0: (0, 4)}
        assert it.step(1) == {0: (4, 8)}


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="context_chunking_policy is FAIR; known policies: FIRST_COME_FIRST_SERVED"):
        bench([prompt(1, 4)], [1], 4, context_chunking_policy="FAIR")


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    outputs=st.integers(1, 4),
    tokens=st.integers(10, 30),
    units=st.sampled_from([4, 8]),
    policy=st.sampled_from(["FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS"]),
)
@settings(max_examples=60, deadline=None)
def test_chunks_keep_the_budget_and_the_unit_and_leave_nothing_that_fits(
    lengths: list[int], outputs: int, tokens: int, units: int, policy: str
) -> None:
    it = bench(
        [prompt(i, n) for i, n in enumerate(lengths)],
        [outputs] * len(lengths),
        4,
        max_num_tokens=tokens,
        chunk_unit=units,
        context_chunking_policy=policy,
        max_batch_size=8,
    )
    it.arrive(*range(len(lengths)))
    for step in range(400):
        if not it.begin(step):
            break
        line = it.engine.line
        rows = line.rows[line.active[: line.meter[N_ACTIVE]]]
        contexts = rows[rows[:, GENERATING] == 0]
        chunks = contexts[:, TARGET] - contexts[:, POSITION]
        left = tokens - int((rows[:, GENERATING] == 1).sum()) - int(chunks.sum())
        assert left >= 0
        assert line.plan[PREFILL_TOKENS] == chunks.sum()
        for row, chunk in zip(contexts, chunks, strict=True):
            rest = lengths[int(row[0])] - int(row[TARGET])
            assert rest == 0 or chunk % units == 0
            assert rest == 0 or left < min(units, rest) or policy == "FIRST_COME_FIRST_SERVED"
        it.end(step + 0.5)
    assert (it.engine.outcome.finish_s >= 0).all()
