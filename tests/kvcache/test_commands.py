"""The engine behind three calls: what it hands out, once, and that equal calls give equal decisions."""

import pytest

from kvcache.commands import K_KIND, K_SOURCE, K_TARGET, K_TOKENS, K_WINDOW, Commands, SansIOEngine, Step
from kvcache.tables import N_COPIES, OFFLOAD, Pool, Settings
from tests.kvcache.workloads import WIDE, Bench, workload

FOUR = Settings(tokens_per_block=4)


def engine() -> SansIOEngine:
    """3 GPU blocks, 6 host blocks; two prompts of 9 tokens that share nothing, 1 and 2 output tokens."""
    requests = workload([list(range(9)), list(range(20, 29))], [1, 2])
    return SansIOEngine(Bench(requests, [Pool(WIDE, (3, 6))], FOUR).engine)


def served(*, second_at: float = 1.0, swapped: bool = False) -> SansIOEngine:
    it = engine()
    for now_s, r in ((0.0, 1 if swapped else 0), (second_at, 0 if swapped else 1)):
        it.arrive(r)
        while not it.idle:
            step = it.next_commands(now_s).step
            assert step is not None
            it.finish(step, now_s + 0.25)
    return it


class TestSteps:
    def test_an_engine_without_requests_has_nothing_to_do_and_is_idle(self) -> None:
        it = engine()
        commands = it.next_commands(0.0)
        assert (len(commands.copies), commands.step, it.idle) == (0, None, True)

    def test_a_step_is_the_work_of_the_active_and_is_numbered_from_one(self) -> None:
        # Prefill of 9 tokens after none: 9 * 4.5 pairs. Then the second token of a request of 10 slots.
        it = engine()
        it.arrive(1)
        assert not it.idle
        first = it.next_commands(0.0).step
        assert first == Step(1, 9, 40.5, 40.5, 9, 0, 0, 0)
        assert it.finish(first, 0.5) == 1
        second = it.next_commands(0.5).step
        assert second == Step(2, 0, 0, 0, 0, 1, 10, 10)
        assert it.finish(second, 1.0) == 1
        assert it.idle

    def test_a_call_without_work_takes_no_number(self) -> None:
        it = engine()
        it.next_commands(0.0)
        it.arrive(0)
        step = it.next_commands(0.0).step
        assert step is not None
        assert step.number == 1

    def test_only_the_step_begun_last_can_end(self) -> None:
        it = engine()
        it.arrive(0)
        step = it.next_commands(0.0).step
        assert step is not None
        with pytest.raises(AssertionError, match="step 2 ended, but step 1 was the last one begun"):
            it.finish(step._replace(number=2), 0.5)
        assert it.finish(step, 0.5) == 1


class TestCopies:
    def second(self) -> tuple[SansIOEngine, Commands]:
        """The second prompt takes all three blocks of the first one."""
        it = engine()
        it.arrive(0)
        step = it.next_commands(0.0).step
        assert step is not None
        it.finish(step, 0.5)
        it.arrive(1)
        return it, it.next_commands(1.0)

    def test_what_a_start_pushes_out_is_copied_to_the_host_last_block_first(self) -> None:
        copies = self.second()[1].copies
        assert copies[:, [K_KIND, K_WINDOW, K_TOKENS]].tolist() == [[OFFLOAD, 0, 0]] * 3
        assert copies[:, [K_SOURCE, K_TARGET]].tolist() == [[2, 0], [1, 1], [0, 2]]

    def test_copies_are_handed_out_once_and_do_not_change_afterwards(self) -> None:
        it, commands = self.second()
        before = commands.copies.tolist()
        assert it.engine.state.tally[N_COPIES] == 0
        it.engine.state.copies[:] = -7
        assert commands.copies.tolist() == before
        assert commands.step is not None
        it.finish(commands.step, 1.5)
        assert len(it.next_commands(1.5).copies) == 0


class TestDecisions:
    def test_equal_calls_give_equal_digests(self) -> None:
        assert served().decisions == served().decisions

    def test_the_digest_is_of_what_was_decided_and_not_of_when(self) -> None:
        assert served(second_at=7.0).decisions == served().decisions

    def test_another_order_of_arrival_gives_another_digest(self) -> None:
        assert served(swapped=True).decisions != served().decisions

    def test_a_copy_changes_the_digest_even_where_the_step_is_the_same(self) -> None:
        # Without a host nothing is copied; every step is the same.
        without = SansIOEngine(
            Bench(workload([list(range(9)), list(range(20, 29))], [1, 2]), [Pool(WIDE, (3, 0))], FOUR).engine
        )
        with_host = engine()
        digests, steps = [], []
        for it in (without, with_host):
            it.arrive(0)
            first = it.next_commands(0.0).step
            assert first is not None
            it.finish(first, 0.5)
            digests.append(it.decisions)
            it.arrive(1)
            steps.append(it.next_commands(1.0).step)
            digests.append(it.decisions)
        assert steps[0] == steps[1]
        assert digests[0] == digests[2]
        assert digests[1] != digests[3]

    def test_every_step_changes_the_digest_and_an_empty_call_does_not(self) -> None:
        it = engine()
        start = it.decisions
        it.next_commands(0.0)
        assert it.decisions == start
        it.arrive(0)
        it.next_commands(0.0)
        assert it.decisions != start
