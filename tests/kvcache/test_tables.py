"""Fresh tables: sizes, places, and what is refused."""

import numpy as np
import pytest

from kvcache.tables import (
    CAUSES,
    DEFAULT_PRIORITY,
    LEVEL,
    N_NODES,
    NEXT,
    PRIORITY,
    SLOT,
    T_FREE,
    T_SIZE,
    TRUNCATED,
    WINDOW,
    Pool,
    Settings,
    grow,
    make_state,
)


class TestFreshState:
    def test_blocks_are_free_at_priority_35_in_id_order_window_by_window(self) -> None:
        state = make_state((Pool(64, (3, 2)), Pool(8, (2, 1), sliding=True)), Settings())
        rows = state.blocks[:8]
        assert rows[:, WINDOW].tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
        assert rows[:, LEVEL].tolist() == [0, 0, 0, 1, 1, 0, 0, 1]
        assert rows[:, SLOT].tolist() == [0, 1, 2, 0, 1, 0, 1, 0]
        assert set(rows[:, PRIORITY].tolist()) == {DEFAULT_PRIORITY} == {35}
        assert rows[:2, NEXT].tolist() == [1, 2]
        assert state.tier[:, :, T_SIZE].tolist() == state.tier[:, :, T_FREE].tolist() == [[3, 2], [2, 1]]

    def test_the_host_tier_exists_even_if_it_is_not_named(self) -> None:
        assert make_state((Pool(64, (3,)),), Settings()).tier[0, :, T_SIZE].tolist() == [3, 0]

    def test_nothing_is_recorded_unless_asked_for(self) -> None:
        state = make_state((Pool(64, (3, 2)),), Settings())
        assert (len(state.copies), len(state.events)) == (1, 1)

    def test_one_call_that_fills_every_gpu_block_thrice_fits_twice_into_the_copies(self) -> None:
        state = make_state((Pool(64, (100, 1, 1)),), Settings(record_copies=True))
        assert len(state.copies) >= 2 * 3 * 100

    def test_every_fate_has_a_name(self) -> None:
        assert (CAUSES[0], CAUSES[TRUNCATED], len(set(CAUSES))) == ("never_seen", "truncated", len(CAUSES))


class TestRefusals:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            (Settings(tokens_per_block=0), "tokens_per_block is 0; it must be at least 1"),
            (Settings(secondary_offload_min_priority=102), "secondary_offload_min_priority is 102"),
            (Settings(cold_tier_offload_min_priority=-1), "cold_tier_offload_min_priority is -1"),
        ],
    )
    def test_a_setting_out_of_range(self, settings: Settings, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            make_state((Pool(64, (3, 2)),), settings)

    @pytest.mark.parametrize(
        ("pools", "message"),
        [
            ((), "at least one window"),
            ((Pool(64, (3, 2)), Pool(8, (3, 2, 1))), "every window needs the same tiers"),
            ((Pool(64, (0, 2)),), r"block counts are \(0, 2\)"),
            ((Pool(64, (1, -2)),), r"block counts are \(1, -2\)"),
        ],
    )
    def test_pools_that_cannot_be(self, pools: tuple[Pool, ...], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            make_state(pools, Settings())

    def test_101_means_never(self) -> None:
        make_state((Pool(64, (3, 2)),), Settings(secondary_offload_min_priority=101))


class TestGrow:
    def test_enough_room_changes_nothing(self) -> None:
        state = make_state((Pool(64, (3, 2)),), Settings(), nodes=16, runs=16)
        assert grow(state, 15, 16, 15) is state

    def test_room_at_least_doubles_and_old_rows_stay(self) -> None:
        state = make_state((Pool(64, (3, 2)),), Settings(), nodes=16, runs=16)
        state.value[0, 3] = 2
        state.runs[5] = (7, 8)
        state.tally[N_NODES] = 16
        bigger = grow(state, 1, 17, 1)
        assert (len(bigger.nodes), len(bigger.runs), bigger.value.shape[1]) == (32, 32, 32)
        assert bigger.value[0, 3] == 2
        assert (bigger.value[0, 16:] == -1).all()
        assert bigger.runs[5].tolist() == [7, 8]
        assert bigger.blocks is state.blocks
        assert np.array_equal(bigger.tables, np.full_like(bigger.tables, -1))
