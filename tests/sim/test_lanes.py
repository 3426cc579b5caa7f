"""Copies on their lanes, worked out by hand.

An offload takes 3 s, an onboard 2 s, a disk write 5 s, a disk read 4 s, a copy inside the GPU 1 s. Partial copies:
inside the GPU 0.1 s and 0.01 s a token, from the host 0.2 s and 0.05 s a token.
"""

import numpy as np
import pytest

from kvcache.tables import (
    DISK_READ,
    DISK_WRITE,
    INTRA_COPY,
    N_COPIES,
    OFFLOAD,
    ONBOARD,
    Pool,
    Settings,
    State,
    make_state,
)
from sim.lanes import LANE_DISK_READ, LANE_DISK_WRITE, LANE_OFFLOAD, LANE_ONBOARD, Lanes, copies_seconds, make_lanes
from sim.transfer import LinkDirection, link_params

Copy = (
    tuple[int, int, int] | tuple[int, int, int, int]
)  # kind, source place, destination place, tokens of a partial one


Burst = tuple[tuple[float, float], ...]


def lanes_of(windows: int = 1, down: float = 1.0, up: float = 1.0, burst: Burst = ()) -> tuple[State, Lanes]:
    pools = tuple(Pool(1 << 20, (4, 4, 4), sliding=w > 0) for w in range(windows))
    state = make_state(pools, Settings(record_copies=True))
    cost = np.zeros((5, windows, 3))
    cost[OFFLOAD, :, 0], cost[ONBOARD, :, 0], cost[DISK_WRITE, :, 0], cost[DISK_READ, :, 0] = 3, 2, 5, 4
    cost[INTRA_COPY] = (1, 0.1, 0.01)
    cost[ONBOARD, :, 1:] = (0.2, 0.05)
    links = [link_params(LinkDirection(0.0, 1e9, duplex_factor=share, burst=burst)) for share in (down, up)]
    return state, make_lanes(state, cost, *links, [100.0] * windows)


def seconds(state: State, lanes: Lanes, copies: list[Copy], window: int = 0) -> float:
    for i, (kind, source, target, *tokens) in enumerate(copies):
        state.copies[i] = (kind, window, source, target, *(tokens or [0]), -1)
    state.tally[N_COPIES] = len(copies)
    took = copies_seconds(state, lanes)
    assert state.tally[N_COPIES] == 0
    assert not lanes.read_s.any()  # nothing is left for the next step
    assert not lanes.write_s.any()
    return took


def took(*copies: Copy, down: float = 1.0, up: float = 1.0) -> float:
    return seconds(*lanes_of(down=down, up=up), list(copies))


class TestOrder:
    def test_no_copy_takes_no_time(self) -> None:
        assert took() == 0

    def test_copies_of_one_lane_follow_each_other(self) -> None:
        assert took((OFFLOAD, 0, 0), (OFFLOAD, 1, 1)) == 6

    def test_copies_of_two_lanes_run_side_by_side(self) -> None:
        assert took((OFFLOAD, 0, 0), (OFFLOAD, 1, 1), (ONBOARD, 2, 2)) == 6

    def test_copies_inside_the_gpu_run_on_the_onboard_lane(self) -> None:
        assert took((INTRA_COPY, 0, 1), (ONBOARD, 0, 2)) == 3
        assert took((INTRA_COPY, 0, 1), (OFFLOAD, 2, 2)) == 3

    def test_each_disk_direction_is_a_lane_of_its_own(self) -> None:
        assert took((DISK_WRITE, 0, 0), (DISK_READ, 1, 1), (OFFLOAD, 2, 2), (ONBOARD, 3, 3)) == 5

    def test_a_partial_copy_pays_by_the_token(self) -> None:
        assert took((INTRA_COPY, 0, 1, 20)) == pytest.approx(0.3)
        assert took((ONBOARD, 0, 1, 20)) == pytest.approx(1.2)


class TestHazards:
    def test_reading_what_is_still_being_written_waits(self) -> None:
        # host place 0 is filled until 3, then read for 2
        assert took((OFFLOAD, 0, 0), (ONBOARD, 0, 1)) == 5

    def test_writing_where_somebody_still_reads_waits(self) -> None:
        # GPU place 0 is read until 3; the onboard into it ends at 5
        assert took((OFFLOAD, 0, 0), (ONBOARD, 1, 0)) == 5

    def test_two_writes_of_one_place_follow_each_other(self) -> None:
        # GPU place 0 is filled from the host until 2, then from disk for 4
        assert took((ONBOARD, 0, 0), (DISK_READ, 0, 0)) == 6

    def test_two_reads_of_one_place_do_not_wait(self) -> None:
        assert took((OFFLOAD, 0, 0), (INTRA_COPY, 0, 1)) == 3

    def test_a_copy_that_waits_holds_up_its_lane(self) -> None:
        # the onboard waits for the offload until 3, ends at 5; the next one, which needs nothing, ends at 7
        assert took((OFFLOAD, 0, 0), (ONBOARD, 0, 1), (ONBOARD, 2, 2)) == 7

    def test_what_host_memory_passes_on_to_disk_leaves_before_it_is_overwritten(self) -> None:
        # host place 0 is read for the disk until 5; the offload into it ends at 8
        assert took((DISK_WRITE, 0, 0), (OFFLOAD, 0, 0)) == 8

    def test_the_longest_of_several_reads_is_waited_for(self) -> None:
        # GPU place 0 is read by the offload until 3 and by the copy until 1; an onboard into it starts at 3
        assert took((OFFLOAD, 0, 0), (INTRA_COPY, 0, 1), (ONBOARD, 1, 0)) == 5

    def test_places_of_different_tiers_and_windows_are_different_places(self) -> None:
        state, lanes = lanes_of(windows=2)
        for i, copy in enumerate([(OFFLOAD, 0, 0, 0, 0, -1), (ONBOARD, 1, 0, 1, 0, -1)]):
            state.copies[i] = copy  # window 1 reads its own host place 0, not the one that window 0 fills
        state.tally[N_COPIES] = 2
        assert copies_seconds(state, lanes) == 3
        assert took((OFFLOAD, 0, 1), (ONBOARD, 0, 1)) == 3  # host place 0, GPU place 1: nobody else's

    def test_a_later_step_waits_for_nothing_of_an_earlier_one(self) -> None:
        state, lanes = lanes_of()
        assert seconds(state, lanes, [(OFFLOAD, 0, 0)]) == 3
        assert seconds(state, lanes, [(ONBOARD, 0, 0)]) == 2


class TestBurst:
    """Blocks have 100 bytes, a tile of 16 of 32 tokens 50; 100 bytes take their time, 400 and more twice that."""

    def test_a_lane_with_more_bytes_takes_longer_a_block(self) -> None:
        state, lanes = lanes_of(burst=((100, 1.0), (400, 2.0)))
        assert seconds(state, lanes, [(OFFLOAD, 0, 0)]) == pytest.approx(3)
        # 200 bytes lie halfway in log: sqrt(2)
        assert seconds(state, lanes, [(OFFLOAD, 0, 0), (OFFLOAD, 1, 1)]) == pytest.approx(6 * 2**0.5)
        assert seconds(state, lanes, [(OFFLOAD, i, i) for i in range(4)]) == pytest.approx(24)

    def test_each_lane_counts_its_own_bytes_and_parts_of_blocks_as_parts(self) -> None:
        state, lanes = lanes_of(burst=((100, 1.0), (400, 2.0)))
        assert seconds(state, lanes, [(OFFLOAD, 0, 0), (ONBOARD, 1, 1), (DISK_WRITE, 2, 2)]) == pytest.approx(5)
        # two halves are 100 bytes: (0.2 s + 16 tokens x 0.05 s) x 2, no longer
        assert seconds(state, lanes, [(ONBOARD, 0, 0, 16), (ONBOARD, 1, 1, 16)]) == pytest.approx(2)


class TestDuplex:
    def test_equal_lanes_share_the_link_all_the_time(self) -> None:
        # two offloads of 3 s, three onboards of 2 s: 6 s each alone; at 3/4 of the speed, 8 s
        copies: list[Copy] = [(OFFLOAD, i, i) for i in range(2)] + [(ONBOARD, 2, 2), (ONBOARD, 3, 3), (ONBOARD, 2, 3)]
        assert took(*copies, down=0.75, up=0.75) == pytest.approx(8)

    def test_the_longer_lane_is_slowed_only_while_the_shorter_one_works(self) -> None:
        # onboard: 2 s at half speed, 4 s. Offload: 9 s of work, 4 s x 0.5 = 2 s done by then, 7 s left: 11 s.
        copies: list[Copy] = [(OFFLOAD, 0, 0), (OFFLOAD, 1, 1), (OFFLOAD, 2, 2), (ONBOARD, 3, 3)]
        assert took(*copies, down=0.5, up=0.5) == pytest.approx(11)

    def test_each_direction_keeps_its_own_share(self) -> None:
        # onboard: 2 s at 0.8, 2.5 s. Offload: 3 s; 2.5 s x 0.4 = 1 s done by then, 2 s left: 4.5 s.
        assert took((OFFLOAD, 0, 0), (ONBOARD, 1, 1), down=0.4, up=0.8) == pytest.approx(4.5)

    def test_a_lane_alone_has_the_whole_link(self) -> None:
        assert took((OFFLOAD, 0, 0), down=0.5, up=0.5) == 3

    def test_copies_inside_the_gpu_do_not_use_the_link(self) -> None:
        assert took((OFFLOAD, 0, 0), (INTRA_COPY, 1, 2), down=0.5, up=0.5) == 3

    def test_disk_copies_are_not_slowed_by_the_host_link(self) -> None:
        assert took((OFFLOAD, 0, 0), (DISK_READ, 0, 1), down=0.5, up=0.5) == 4


class TestDiskReadsOnTheLink:
    """A disk read of 4 s that takes a quarter of the link towards the GPU while it lasts."""

    def took(self, *copies: Copy) -> float:
        state, lanes = lanes_of()
        lanes.disk_share[:] = 0.25
        return seconds(state, lanes, list(copies))

    def test_an_onboard_that_ends_first_runs_on_the_rest_of_the_link(self) -> None:
        # 2 s at three quarters: 2.67 s, hidden behind the 4 s of the read; its lane has worked 2.67 s
        state, lanes = lanes_of()
        lanes.disk_share[:] = 0.25
        assert seconds(state, lanes, [(DISK_READ, 0, 1), (ONBOARD, 0, 2)]) == 4
        assert lanes.work_s[LANE_ONBOARD] == pytest.approx(2 / 0.75)

    def test_onboards_that_outlast_the_read_lose_what_its_bytes_take(self) -> None:
        # three onboards of 2 s: 3 s of them done after 4 s of reading, 3 s left at full speed
        copies: list[Copy] = [(DISK_READ, 0, 3), (ONBOARD, 0, 0), (ONBOARD, 1, 1), (ONBOARD, 2, 2)]
        assert self.took(*copies) == pytest.approx(7)

    def test_offloads_and_disk_writes_do_not_share_that_direction(self) -> None:
        assert self.took((DISK_READ, 0, 1), (OFFLOAD, 2, 2)) == 4
        assert self.took((DISK_WRITE, 0, 0), (ONBOARD, 1, 1)) == 5


def test_the_work_of_each_lane_adds_up_over_the_steps() -> None:
    state, lanes = lanes_of()
    seconds(state, lanes, [(OFFLOAD, 0, 0), (ONBOARD, 1, 1), (DISK_WRITE, 2, 2)])
    seconds(state, lanes, [(OFFLOAD, 0, 0), (INTRA_COPY, 1, 2), (DISK_READ, 2, 3)])
    work = lanes.work_s
    assert work[[LANE_OFFLOAD, LANE_ONBOARD, LANE_DISK_WRITE, LANE_DISK_READ]].tolist() == [6, 3, 5, 4]
