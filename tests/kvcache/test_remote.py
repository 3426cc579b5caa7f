"""Content that comes from elsewhere: who waits, who pins, who frees, and that it happens once."""

import numpy as np
import pytest

from kvcache.engine import Engine, Limits, arrive, begin_step, end_step
from kvcache.line import GENERATING, HELD, N_ACTIVE, N_FREE_ROWS, WAIT_HEAD, WAIT_TAIL
from kvcache.remote import blocks_to_send, give_up, go_on, pin_prompt, prompt_blocks, unpin_prompt
from kvcache.tables import REFS, T_FREE, Settings
from tests.kvcache.engines import engine_of, requests_of


def free(e: Engine) -> int:
    return int(e.state.tier[0, 0, T_FREE])


def prompts(*lengths: int) -> list[list[int]]:
    return [[100 * i + t for t in range(n)] for i, n in enumerate(lengths)]


def ended(e: Engine, r: int, at_s: float = 0.0) -> None:
    """Run request r alone to its end."""
    arrive(e, r)
    while e.outcome.finish_s[r] < 0:
        assert begin_step(e, at_s)
        end_step(e, at_s + 1)


class TestSender:
    def test_three_blocks_in_flight_stay_pinned_until_the_transfer_ends_and_are_freed_once(self) -> None:
        # R6: a context request of 3 blocks ends while its transfer is under way
        e = engine_of(requests_of(prompts(12), [1]), (6, 0))
        ended(e, 0)
        assert free(e) == 6
        assert pin_prompt(e, 0) == 3
        assert free(e) == 3
        assert unpin_prompt(e, 0) == 3
        assert free(e) == 6
        assert int(e.state.blocks[:6, REFS].sum()) == 0

    def test_pinned_blocks_survive_a_pool_that_others_need(self) -> None:
        # 6 blocks: 3 pinned, so that a request of 4 blocks cannot start; after the unpin it can
        e = engine_of(requests_of(prompts(12, 13), [1, 1]), (6, 0))
        ended(e, 0)
        pin_prompt(e, 0)
        arrive(e, 1)
        assert not begin_step(e, 5)
        unpin_prompt(e, 0)
        assert begin_step(e, 6)

    def test_the_short_last_block_is_pinned_too_and_a_missing_one_is_passed_over(self) -> None:
        e = engine_of(requests_of(prompts(10), [1]), (6, 0))
        assert prompt_blocks(e, 0) == 3
        assert pin_prompt(e, 0) == 0  # nothing is cached yet
        assert unpin_prompt(e, 0) == 0
        ended(e, 0)
        assert pin_prompt(e, 0) == 3
        unpin_prompt(e, 0)

    @pytest.mark.parametrize(("there", "sent"), [(0, 3), (4, 2), (7, 2), (8, 1), (9, 1), (12, 1)])
    def test_only_what_the_receiver_lacks_is_sent_but_at_least_the_last_block(self, there: int, sent: int) -> None:
        assert blocks_to_send(engine_of(requests_of(prompts(10), [1]), (6, 0)), 0, there) == sent


def held(output: int = 3, blocks: int = 6, remote: int = 10) -> Engine:
    """A request of 10 prompt tokens whose first `remote` come from elsewhere, after its first step."""
    e = engine_of(requests_of(prompts(10), [output]), (blocks, 0))
    e.load.remote[0] = remote
    arrive(e, 0)
    assert not begin_step(e, 1.0)
    return e


class TestReceiver:
    def test_blocks_are_taken_before_anything_is_sent_and_nothing_is_computed(self) -> None:
        e = held()
        assert e.line.rows[e.line.active[0], GENERATING] == HELD
        assert free(e) == 3
        assert not begin_step(e, 2.0)
        assert e.outcome.start_s[0] == pytest.approx(1.0)

    def test_with_the_whole_prompt_there_it_goes_on_as_a_generating_request(self) -> None:
        # 3 tokens: the first came from the sender at 7, so two steps are left
        e = held()
        assert go_on(e, 0, 10, 7.0)
        assert e.outcome.first_token_s[0] == pytest.approx(7.0)
        for now in (7.0, 8.0):
            assert begin_step(e, now)
            end_step(e, now + 1)
        assert e.outcome.finish_s[0] == pytest.approx(9.0)
        assert free(e) == 6

    def test_a_step_that_ran_when_it_came_gives_it_no_token_and_takes_no_block(self) -> None:
        e = engine_of(requests_of(prompts(10, 5), [3, 9]), (9, 0))
        e.load.remote[0] = 10
        arrive(e, 0)
        arrive(e, 1)
        assert begin_step(e, 1.0)
        assert go_on(e, 0, 10, 1.5)
        assert end_step(e, 2.0) == 1  # the other's first token
        assert int(e.sequences.slots[e.line.active[0]]) == 10
        assert begin_step(e, 2.0)
        assert end_step(e, 3.0) == 2

    def test_with_a_part_there_it_computes_the_rest(self) -> None:
        e = held(remote=8)
        assert go_on(e, 0, 8, 3.0)
        assert begin_step(e, 3.0)
        assert e.line.plan[0] == 2  # prefill tokens
        end_step(e, 4.0)
        assert e.outcome.first_token_s[0] == pytest.approx(4.0)

    def test_it_goes_on_only_once(self) -> None:
        e = held()
        assert go_on(e, 0, 10, 7.0)
        assert not go_on(e, 0, 10, 8.0)
        assert e.outcome.first_token_s[0] == pytest.approx(7.0)

    def test_one_whose_content_is_in_its_own_cache_already_does_not_wait(self) -> None:
        e = engine_of(requests_of([list(range(10))] * 2, [1, 1]), (9, 0))
        ended(e, 0)
        e.load.remote[1] = 8
        arrive(e, 1)
        assert begin_step(e, 5.0)
        assert not go_on(e, 1, 8, 6.0)

    def test_a_request_that_waits_for_content_does_not_hold_up_one_that_computes(self) -> None:
        e = engine_of(requests_of(prompts(10, 5), [3, 1]), (9, 0))
        e.load.remote[0] = 10
        arrive(e, 0)
        arrive(e, 1)
        assert begin_step(e, 1.0)
        assert e.line.plan[0] == 5

    def test_under_max_utilization_it_counts_as_one_that_has_its_blocks(self) -> None:
        limits = Limits(max_batch_size=4, capacity_scheduler_policy="MAX_UTILIZATION")
        e = engine_of(requests_of(prompts(10), [3]), (6, 0), limits=limits)
        e.load.remote[0] = 10
        arrive(e, 0)
        assert not begin_step(e, 1.0)
        assert not begin_step(e, 2.0)
        assert free(e) == 3


class TestGivingUp:
    def test_a_failed_transfer_frees_the_receivers_blocks_exactly_once(self) -> None:
        e = held()
        rows = int(e.line.meter[N_FREE_ROWS])
        assert give_up(e, 0)
        assert free(e) == 6
        assert int(e.line.meter[N_FREE_ROWS]) == rows + 1
        assert not give_up(e, 0)
        assert free(e) == 6
        assert not go_on(e, 0, 10, 9.0)

    def test_nothing_of_it_is_stored(self) -> None:
        e = held()
        give_up(e, 0)
        assert (e.state.value[0] == -1).all()

    def test_one_that_waits_leaves_the_line_and_the_others_keep_their_order(self) -> None:
        e = engine_of(requests_of(prompts(5, 5, 5), [1] * 3), (9, 0))
        for r in range(3):
            arrive(e, r)
        assert give_up(e, 1)
        head, tail = e.line.meter[[WAIT_HEAD, WAIT_TAIL]]
        assert e.line.waiting[head:tail].tolist() == [0, 2]

    def test_one_among_several_active_ones_leaves_the_others_in_order(self) -> None:
        # R5: cancelled after its blocks were taken, before anything was stored
        e = engine_of(requests_of(prompts(5, 6, 7), [4] * 3), (9, 0), settings=Settings(tokens_per_block=4))
        for r in range(3):
            arrive(e, r)
        assert begin_step(e, 0.0)
        assert free(e) == 3
        assert give_up(e, 1)
        assert free(e) == 5
        end_step(e, 1.0)
        assert e.line.meter[N_ACTIVE] == 2
        assert np.isfinite(e.outcome.first_token_s[[0, 2]]).all()
        assert e.outcome.first_token_s.tolist() == [1.0, -1.0, 1.0]
