"""The free queues by themselves: order, expiry, and the heap behind it."""

import random

import pytest

from kvcache.queues import claim, front, next_expiry_us, refresh, release, unlink
from kvcache.tables import CLOCK_US, EXPIRED, LEVEL, N_HEAP, NEXT, PRIORITY, T_FREE, Pool, Settings, State, make_state


def new(gpu: int = 4, host: int = 2) -> State:
    return make_state((Pool(64, (gpu, host)),), Settings())


def drain(state: State, level: int = 0) -> list[int]:
    """Take every block of a level, in the order of eviction."""
    order = []
    while (block := int(front(state, 0, level))) != -1:
        claim(state, block, -1, -1)
        order.append(block)
    return order


class TestOrder:
    def test_lower_priorities_first_and_oldest_first_within_one(self) -> None:
        state = new()
        for block, priority in ((2, 10), (0, 90), (1, 10)):
            claim(state, block, priority, -1)
            release(state, block, False)
        assert drain(state) == [2, 1, 3, 0]

    def test_a_release_to_the_front_is_next(self) -> None:
        state = new()
        claim(state, 3, -1, -1)
        release(state, 3, True)
        assert drain(state) == [3, 0, 1, 2]

    def test_looking_takes_nothing_and_an_empty_level_has_no_front(self) -> None:
        state = new()
        assert [int(front(state, 0, 0)) for _ in range(2)] == [0, 0]
        drain(state)
        assert (int(front(state, 0, 0)), int(front(state, 0, 1))) == (-1, 4)

    def test_a_second_release_changes_nothing(self) -> None:
        state = new()
        release(state, 0, False)
        assert state.tier[0, 0, T_FREE] == 4
        assert drain(state) == [0, 1, 2, 3]

    def test_taking_a_block_twice_counts_once(self) -> None:
        state = new()
        unlink(state, 1)
        unlink(state, 1)
        assert state.tier[0, 0, T_FREE] == 3

    def test_a_block_goes_to_the_queue_of_the_level_it_lies_on(self) -> None:
        state = new()
        claim(state, 0, -1, -1)
        state.blocks[0, LEVEL] = 1
        release(state, 0, False)
        assert drain(state, 1) == [4, 5, 0]


class TestHeap:
    def test_a_full_heap_keeps_only_the_blocks_that_still_expire(self) -> None:
        state = new(4, 0)
        for _ in range(len(state.heap)):
            claim(state, 0, 90, 10)
            release(state, 0, False)
        claim(state, 1, 90, 5)
        release(state, 1, False)  # no room left: the stale entries of block 0 go
        assert state.tally[N_HEAP] <= 4
        assert next_expiry_us(state) == 5_000
        assert refresh(state, 10_000) == 2
        assert [int(state.blocks[b, EXPIRED]) for b in range(4)] == [1, 1, 0, 0]


class TestExpiry:
    def take_and_release(self, state: State, block: int, priority: int, duration_ms: int) -> None:
        claim(state, block, priority, duration_ms)
        release(state, block, False)

    def test_a_block_due_exactly_now_expires_and_one_due_later_does_not(self) -> None:
        state = new()
        self.take_and_release(state, 0, 90, 10)
        self.take_and_release(state, 1, 90, 11)
        assert next_expiry_us(state) == 10_000
        assert refresh(state, 10_000) == 1
        assert [int(state.blocks[b, PRIORITY]) for b in (0, 1)] == [35, 90]
        assert [int(state.blocks[b, EXPIRED]) for b in (0, 1)] == [1, 0]
        assert drain(state) == [2, 3, 0, 1]

    def test_without_entries_nothing_is_due(self) -> None:
        assert next_expiry_us(new()) == -1

    @pytest.mark.parametrize(("priority", "duration"), [(35, 10), (90, -1)])
    def test_the_default_priority_and_no_duration_never_expire(self, priority: int, duration: int) -> None:
        state = new()
        self.take_and_release(state, 0, priority, duration)
        assert refresh(state, 10**9) == 0

    def test_a_claim_forgets_the_duration_and_the_entry(self) -> None:
        state = new()
        self.take_and_release(state, 0, 90, 10)
        claim(state, 0, -1, -1)
        release(state, 0, False)
        assert refresh(state, 10**9) == 0
        assert state.blocks[0, PRIORITY] == 90

    def test_a_block_released_twice_at_the_same_instant_expires_once(self) -> None:
        state = new()
        for _ in range(2):
            self.take_and_release(state, 0, 90, 10)
        assert state.tally[N_HEAP] == 2
        assert refresh(state, 10_000) == 1

    def test_many_releases_never_outgrow_the_heap_and_expire_in_order(self) -> None:
        state, rng = new(8, 0), random.Random(5)
        due: dict[int, int] = {}
        for _ in range(2_000):
            state.tally[CLOCK_US] += 1
            block, duration = rng.randrange(8), rng.randrange(1, 500)
            self.take_and_release(state, block, 90, duration)
            due[block] = int(state.tally[CLOCK_US]) + 1000 * duration
            assert state.tally[N_HEAP] <= len(state.heap)
        refresh(state, 10**9)
        assert [int(state.blocks[b, NEXT] != -1) for b in range(8)] == [1] * 8
        assert drain(state) == sorted(due, key=lambda b: (due[b], b))
