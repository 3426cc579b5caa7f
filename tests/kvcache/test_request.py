"""Requests as columns: what must fit together, and parts of a workload."""

from typing import Any

import numpy as np
import pytest

from kvcache.request import Labels, Requests


def three(**more: Any) -> Requests:
    columns: dict[str, Any] = {
        "source": "test",
        "unit_tokens": 4,
        "arrival_s": np.array([0.0, 1.0, 2.5]),
        "prompt_tokens": np.array([8, 5, 4], np.int32),
        "output_tokens": np.array([1, 2, 3], np.int32),
        "unit_offset": np.array([0, 2, 4, 5], np.int64),
        "units": np.array([10, 11, 10, 12, 13], np.int32),
    }
    return Requests(**(columns | more))


WITH_OUTPUTS = {
    "output_offset": np.array([0, 1, 2, 4], np.int64),
    "output_units": np.array([20, 21, 22, 23], np.int32),
}


class TestMissingColumns:
    def test_sessions_salts_and_loras_default_to_unknown(self) -> None:
        requests = three()
        assert [getattr(requests, name).tolist() for name in ("session", "salt", "lora")] == [[-1, -1, -1]] * 3

    def test_think_times_default_to_unknown(self) -> None:
        assert np.isnan(three().think_s).tolist() == [True] * 3

    def test_think_times_go_with_their_requests(self) -> None:
        requests = three(think_s=np.array([np.nan, 2.0, 3.0]))
        assert requests.head(2).think_s.tolist()[1:] == [2]
        assert requests.take(np.array([1, 2])).think_s.tolist() == [2, 3]

    def test_given_columns_stay(self) -> None:
        assert three(salt=np.array([1, 2, 3], np.int32)).salt.tolist() == [1, 2, 3]

    def test_an_empty_workload_is_a_workload(self) -> None:
        nobody = three().head(0)
        assert (len(nobody), nobody.units.tolist(), nobody.unit_offset.tolist()) == (0, [], [0])


class TestRefusals:
    def test_units_of_no_tokens(self) -> None:
        with pytest.raises(ValueError, match="unit_tokens is 0; it must be at least 1"):
            three(unit_tokens=0)

    def test_offsets_that_do_not_fit_the_requests(self) -> None:
        with pytest.raises(ValueError, match="unit_offset has 3 entries for 3 requests; it needs 4"):
            three(unit_offset=np.array([0, 2, 4], np.int64))

    @pytest.mark.parametrize("name", ["output_offset", "output_units"])
    def test_half_of_the_output_columns(self, name: str) -> None:
        with pytest.raises(ValueError, match="come together or not at all"):
            three(**{name: WITH_OUTPUTS[name]})


class TestParts:
    def test_units_of_one_prompt(self) -> None:
        assert [three().prompt_units(i).tolist() for i in range(3)] == [[10, 11], [10, 12], [13]]

    def test_a_head_keeps_contents_outputs_and_labels(self) -> None:
        labels = {"tenant": Labels(np.array([0, 1, 0], np.int32), ("a", "b"))}
        head = three(labels=labels, **WITH_OUTPUTS).head(2)
        assert (len(head), head.units.tolist(), head.prompt_tokens.tolist()) == (2, [10, 11, 10, 12], [8, 5])
        assert head.output_offset is not None
        assert head.output_units is not None
        assert (head.output_offset.tolist(), head.output_units.tolist()) == ([0, 1, 2], [20, 21])
        assert head.labels["tenant"].codes.tolist() == [0, 1]

    def test_a_head_longer_than_the_workload_is_the_workload(self) -> None:
        assert len(three().head(9)) == 3

    def test_taken_rows_keep_their_contents(self) -> None:
        labels = {"tenant": Labels(np.array([0, 1, 0], np.int32), ("a", "b"))}
        taken = three(labels=labels, **WITH_OUTPUTS).take(np.array([0, 2], np.int64))
        assert (taken.units.tolist(), taken.unit_offset.tolist()) == ([10, 11, 13], [0, 2, 3])
        assert taken.output_units is not None
        assert taken.output_units.tolist() == [20, 22, 23]
        assert taken.labels["tenant"].codes.tolist() == [0, 0]
        assert three().take(np.array([1], np.int64)).output_units is None
