"""A workload that was written as Parquet comes back exactly; other Parquet files are refused."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvcache.request import Labels, Requests
from traces.errors import TraceError
from traces.options import ReadOptions
from traces.parquet import read_requests, write_requests
from traces.read import read

ARRAYS = ("arrival_s", "prompt_tokens", "output_tokens", "unit_offset", "units", "session", "salt", "lora", "think_s")
int32 = st.integers(-(2**31), 2**31 - 1)


@st.composite
def workloads(draw: st.DrawFn) -> Requests:
    n = draw(st.integers(0, 6))

    def column(values: st.SearchStrategy[int], dtype: type) -> np.ndarray:  # type: ignore[type-arg]
        return np.array(draw(st.lists(values, min_size=n, max_size=n)), dtype)

    def ragged() -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
        lists = draw(st.lists(st.lists(int32, max_size=4), min_size=n, max_size=n))
        return np.cumsum([0, *map(len, lists)], dtype=np.int64), np.array([u for row in lists for u in row], np.int32)

    offset, units = ragged()
    output_offset, output_units = ragged() if draw(st.booleans()) else (None, None)
    names = tuple(draw(st.lists(st.text(st.characters(codec="utf-8"), max_size=4), unique=True, max_size=3)))
    return Requests(
        source=draw(st.text(st.characters(codec="utf-8"))),
        unit_tokens=draw(st.integers(1, 512)),
        arrival_s=np.sort(np.array(draw(st.lists(st.floats(0, 1e9), min_size=n, max_size=n)), np.float64)),
        prompt_tokens=column(int32, np.int32),
        output_tokens=column(int32, np.int32),
        unit_offset=offset,
        units=units,
        output_offset=output_offset,
        output_units=output_units,
        session=column(int32, np.int32),
        salt=column(int32, np.int32),
        lora=column(int32, np.int32),
        think_s=column(st.just(np.nan) | st.floats(0, 1e6), np.float64),
        labels={"tenant": Labels(column(st.integers(-1, len(names) - 1), np.int32), names)},
        notes=tuple(draw(st.lists(st.text(st.characters(codec="utf-8")), max_size=2))),
    )


def assert_same(one: Requests, other: Requests) -> None:
    for name in ARRAYS:
        assert getattr(one, name).dtype == getattr(other, name).dtype, name
        assert np.array_equal(getattr(one, name), getattr(other, name), equal_nan=name == "think_s"), name
    for name in ("output_offset", "output_units"):
        assert (getattr(one, name) is None) == (getattr(other, name) is None)
        assert getattr(one, name) is None or np.array_equal(getattr(one, name), getattr(other, name))
    for name in ("source", "unit_tokens", "notes"):
        assert getattr(one, name) == getattr(other, name)
    assert one.labels.keys() == other.labels.keys()
    for name, label in one.labels.items():
        assert label.names == other.labels[name].names
        assert np.array_equal(label.codes, other.labels[name].codes)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(workload=workloads())
def test_any_workload_survives_a_round_trip(tmp_path: Path, workload: Requests) -> None:
    path = tmp_path / "w.parquet"
    write_requests(workload, path)
    assert_same(workload, read_requests(path))


@pytest.mark.parametrize("name", ["mooncake_arxiv_first1000", "llmservingsim_sharegpt300_blk16", "claude_code_weka_a"])
def test_sample_survives_a_round_trip_under_any_file_name(tmp_path: Path, name: str) -> None:
    workload = read(name)
    write_requests(workload, tmp_path / "anything")
    assert_same(workload, read(tmp_path / "anything"))


def test_part_of_a_workload_survives_a_round_trip(tmp_path: Path) -> None:
    workload = read("llmservingsim_sharegpt300_blk16").head(7)
    write_requests(workload, tmp_path / "w")
    assert_same(workload, read(tmp_path / "w"))


def test_parquet_of_others_and_damaged_parquet_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    other, damaged = tmp_path / "other", tmp_path / "damaged"
    pq.write_table(pa.table({"prompt": ["x"]}), other)
    with pytest.raises(TraceError, match="only files that kvtier wrote can be read"):
        read(other)
    damaged.write_bytes(other.read_bytes()[:40])
    with pytest.raises(TraceError, match="damaged Parquet file"):
        read(damaged)
    with pytest.raises(TraceError, match="no such file"):
        read_requests(tmp_path / "nowhere")


def test_options_are_refused_for_a_file_that_says_everything(tmp_path: Path) -> None:
    write_requests(read("mooncake_arxiv_first1000").head(2), tmp_path / "w")
    with pytest.raises(TraceError, match="--trace-block-size does not apply"):
        read(tmp_path / "w", options=ReadOptions(trace_block_size=16))
