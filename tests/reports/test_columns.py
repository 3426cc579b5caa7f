"""Every figure has one flat name with its unit, a title, and a better end."""

import json
from pathlib import Path

import pandas as pd
import pytest

from reports.columns import column, flat
from reports.table import read_sweep, require


def test_nested_figures_get_names_that_carry_their_unit() -> None:
    line = flat({
        "ttft_s": {"p50": 1.5},
        "hit_tokens_by_tier": {"host": 3},
        "misses_by_cause": {"evicted": 4},
        "notes": ["a", "b"],
        "spec": {"kv_cache_config": {}},
    })
    assert line == {"ttft_p50_s": 1.5, "hit_tokens_host": 3, "misses_evicted_blocks": 4, "notes": "a; b"}


def test_bytes_moved_are_those_of_both_directions() -> None:
    assert flat({"offload_bytes": 3, "onboard_bytes": 4})["moved_bytes"] == 7


def test_times_that_were_not_measured_stay_empty() -> None:
    assert flat({"ttft_s": None}) == {"ttft_s": None}


@pytest.mark.parametrize(
    ("name", "title", "better"),
    [
        ("hit_rate_tokens", "token hit rate (% of prompt tokens)", "higher"),
        ("ttft_p99_s", "time to first token, p99 (s)", "lower"),
        ("tpot_mean_s", "time per output token, mean (ms)", "lower"),
        ("output_tokens_per_s", "output rate (tokens/s)", "higher"),
        ("misses_evicted_blocks", "misses, evicted (blocks)", "lower"),
        ("kv_cache_config.tokens_per_block", "block size (tokens)", "lower"),
        ("something_new", "something new", "lower"),
    ],
)
def test_column_says_what_unit_and_which_end_is_better(name: str, title: str, better: str) -> None:
    assert (column(name).title, column(name).better) == (title, better)


def test_milliseconds_are_shown_for_time_per_output_token() -> None:
    assert 0.02 / column("tpot_p50_s").divisor == pytest.approx(20)


FRAME = pd.DataFrame({
    "offload_bytes": [1, 2],
    "ttft_p50_s": [None, None],
    "error": ["", "x"],
    "retention.0.priority": [1, 2],
})


def test_wrong_column_names_the_near_ones() -> None:
    with pytest.raises(ValueError, match="no column offload_byte; did you mean offload_bytes"):
        require(FRAME, "offload_byte")


def test_column_without_numbers_says_why() -> None:
    with pytest.raises(ValueError, match="ttft_p50_s holds nothing"):
        require(FRAME, "ttft_p50_s")
    with pytest.raises(ValueError, match="error holds no numbers"):
        require(FRAME, "error")


def test_last_part_of_a_dotted_column_will_do() -> None:
    assert require(FRAME, "priority") == "retention.0.priority"


def test_empty_directory_missing_directory_and_empty_table_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such directory"):
        read_sweep(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"no sweep\.parquet in it"):
        read_sweep(tmp_path)
    pd.DataFrame({"run": []}).to_parquet(tmp_path / "sweep.parquet")
    with pytest.raises(ValueError, match="the sweep has no rows"):
        read_sweep(tmp_path)


def test_sweep_without_about_can_still_be_read(tmp_path: Path) -> None:
    pd.DataFrame({"run": [0]}).to_parquet(tmp_path / "sweep.parquet")
    assert read_sweep(tmp_path)[1] == {}
    (tmp_path / "about.json").write_text(json.dumps({"trace": "t"}), encoding="utf-8")
    assert read_sweep(tmp_path)[1] == {"trace": "t"}


def test_a_column_known_by_its_full_name_is_not_taken_for_another_that_ends_alike() -> None:
    assert column("cluster.context.workers").short == "context"
    assert column("cluster.generation.workers").short == "generation"
    assert column("workload.workers").short == "workers"
