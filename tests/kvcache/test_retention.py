"""Token ranges become priorities of blocks by the block's first token."""

import numpy as np
import pytest

from kvcache.retention import KvCacheRetentionConfig, RetentionColumns, TokenRangeRetentionConfig

Range = TokenRangeRetentionConfig


class TestProbe:
    @pytest.mark.parametrize(
        ("ranges", "priorities"),
        [
            ([Range(0, 17, 80)], [80, 80, -1, -1]),  # token 16 starts block 1
            ([Range(8, 40, 80)], [-1, 80, 80, -1]),  # a range that starts inside block 0 leaves it alone
            ([Range(16, 17, 80)], [-1, 80, -1, -1]),  # one token is enough if it is the first
            ([Range(17, 32, 80)], [-1, -1, -1, -1]),
            ([Range(32, None, 5), Range(0, 16, 90)], [90, -1, 5, 5]),  # given in any order, holes are fine
            ([Range(0, 16, 1), Range(16, 32, 2), Range(32, 48, 3)], [1, 2, 3, -1]),
            ([], [-1, -1, -1, -1]),
        ],
    )
    def test_a_block_takes_the_range_that_holds_its_first_token(
        self, ranges: list[TokenRangeRetentionConfig], priorities: list[int]
    ) -> None:
        priority, duration = KvCacheRetentionConfig(ranges).per_block(16, 50)
        assert priority.tolist() == priorities
        assert duration.tolist() == [-1] * 4

    def test_durations_follow_their_ranges(self) -> None:
        _, duration = KvCacheRetentionConfig([Range(0, 16, 1, 500), Range(16, None, 2)]).per_block(16, 33)
        assert duration.tolist() == [500, -1, -1]


class TestRefusals:
    @pytest.mark.parametrize("priority", [-1, 101])
    def test_priorities_outside_0_to_100(self, priority: int) -> None:
        with pytest.raises(ValueError, match=f"priority is {priority}; priorities run from 0 to 100"):
            Range(0, 1, priority)
        with pytest.raises(ValueError, match=f"decode_retention_priority is {priority}"):
            KvCacheRetentionConfig([], priority)

    def test_ranges_that_start_before_the_prompt_or_end_before_they_start(self) -> None:
        with pytest.raises(ValueError, match="token_start is -1"):
            Range(-1, 1, 35)
        with pytest.raises(ValueError, match="token_end is 4; it must be greater than token_start 4"):
            Range(4, 4, 35)

    def test_overlapping_ranges_and_one_behind_an_open_end(self) -> None:
        with pytest.raises(ValueError, match=r"token ranges overlap: \[0, 9\) and the one from 8"):
            KvCacheRetentionConfig([Range(8, 12, 1), Range(0, 9, 2)])
        with pytest.raises(ValueError, match=r"token ranges overlap: \[0, None\) and the one from 8"):
            KvCacheRetentionConfig([Range(0, None, 1), Range(8, 12, 2)])

    def test_touching_ranges_are_fine(self) -> None:
        config = KvCacheRetentionConfig([Range(8, 12, 1), Range(0, 8, 2)])
        assert [r.token_start for r in config.ranges] == [0, 8]

    def test_an_unknown_transfer_mode_lists_the_known_ones(self) -> None:
        with pytest.raises(ValueError, match="transfer_mode is 'NVME'; known modes: DRAM, GDS, POSIX_DEBUG_FALLBACK"):
            KvCacheRetentionConfig([], transfer_mode="NVME")


class TestColumns:
    def columns(self) -> RetentionColumns:
        loud = KvCacheRetentionConfig([Range(0, 4, 90, 100), Range(8, None, 10)], 60, 50)
        return RetentionColumns.of([None, loud, KvCacheRetentionConfig()])

    def test_requests_become_slices_of_one_table(self) -> None:
        columns = self.columns()
        assert columns.range_offset.tolist() == [0, 0, 2, 2]
        assert columns.ranges.tolist() == [[0, 4, 90, 100], [8, -1, 10, -1]]
        assert columns.decode_priority.tolist() == [35, 60, 35]
        assert columns.decode_duration_ms.tolist() == [-1, 50, -1]

    def test_saying_nothing_is_the_same_as_no_configuration(self) -> None:
        nothing, none = RetentionColumns.none(2), RetentionColumns.of([None, None])
        for name in ("range_offset", "ranges", "decode_priority", "decode_duration_ms"):
            a, b = getattr(nothing, name), getattr(none, name)
            assert np.array_equal(a, b)
            assert a.dtype == b.dtype

    def test_taking_rows_keeps_each_request_its_ranges(self) -> None:
        taken = self.columns().take(np.array([1, 2], np.int64))
        assert taken.range_offset.tolist() == [0, 2, 2]
        assert taken.ranges.tolist() == [[0, 4, 90, 100], [8, -1, 10, -1]]
        assert taken.decode_priority.tolist() == [60, 35]
