"""What a sweep file may vary, and that it says where a mistake stands."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from experiments.complaints import SpecError
from experiments.design import Between, Design, Sample
from experiments.study import is_study, study, with_setting
from experiments.trace import Trace

BLOCK, THRESHOLD = "kv_cache_config.tokens_per_block", "kv_cache_config.secondary_offload_min_priority"
GPU, HOST = "capacity.gpu_tokens", "capacity.host_tokens"


def points(**section: Any) -> list[dict[str, Any]]:
    return list(Design.model_validate(section).points())


def test_grid_takes_lists_and_ranges_by_short_names() -> None:
    found = points(grid={"tokens_per_block": [32, 64], "secondary_offload_min_priority": "0:100:50"})
    assert [(p[BLOCK], p[THRESHOLD]) for p in found] == [(32, 0), (32, 50), (32, 100), (64, 0), (64, 50), (64, 100)]


def test_zipped_keys_change_together_and_are_multiplied_with_the_rest() -> None:
    found = points(grid={"tokens_per_block": [32, 64]}, zip=[{"gpu_tokens": [1, 2], "host_tokens": [10, 20]}])
    assert [(p[BLOCK], p[GPU], p[HOST]) for p in found] == [(32, 1, 10), (32, 2, 20), (64, 1, 10), (64, 2, 20)]


def test_repeats_are_seeds_and_change_fastest() -> None:
    assert points(grid={"workload.workers": [1, 2]}, repeats=2) == [
        {"workload.workers": workers, "workload.seed": seed} for workers in (1, 2) for seed in (0, 1)
    ]


def test_latin_hypercube_puts_one_point_into_each_slice_of_every_key() -> None:
    sample = {"count": 20, "over": {"rate_scale": {"low": 1, "high": 3}, "workload.workers": [1, 2, 3, 4]}}
    found = points(sample=sample)
    slices = sorted(int((p["workload.rate_scale"] - 1) / 2 * 20) for p in found)
    assert slices == list(range(20))
    assert Counter(p["workload.workers"] for p in found) == {1: 5, 2: 5, 3: 5, 4: 5}


def test_sample_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    over: dict[str, Any] = {"rate_scale": {"low": 1, "high": 3}}
    draw = [points(sample={"count": 5, "over": over, "method": "random", "seed": seed}) for seed in (0, 0, 1)]
    assert draw[0] == draw[1] != draw[2]


def test_logarithmic_whole_stretch_has_its_ends_and_its_middle() -> None:
    stretch = Between(low=1, high=10_000, log=True, whole=True)
    assert [stretch.at(share) for share in (0, 0.5, 1)] == [1, 100, 10_000]


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"grid": {"workload.workers": [1]}, "zip": [{"workload.workers": [2]}]}, "workload.workers is varied twice"),
        ({"grid": {"workload.seed": [1, 2]}, "repeats": 2}, "workload.seed is varied twice"),
        ({"zip": [{"gpu_tokens": [1, 2], "host_tokens": [1]}]}, "need equally many values"),
        ({"grid": {"workload.workers": "1:1000:1", "max_batch_size": "1:1000:1"}}, "1000000 runs; at most 100000"),
        ({"sample": {"count": 2, "over": {}}}, "name at least one key"),
        ({"sample": {"count": 2, "over": {"workload.workers": {"low": 3, "high": 3}}}}, "low must be below high"),
    ],
)
def test_impossible_section_is_refused_with_the_reason(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Design.model_validate(section)


FILE = """trace: {name: NAME, limit: 5}
timing: false
kv_cache_config:
  tokens_per_block: 64
sweep:
  grid:
    secondary_offload_min_priority: [0, 50]
"""


def written(directory: Path, text: str) -> str:
    path = directory / "some.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_sweep_file_holds_spec_trace_and_what_varies(tmp_path: Path) -> None:
    found = study(written(tmp_path, FILE))
    assert found.trace == Trace("NAME", limit=5)
    assert not found.timing
    assert found.draft.data == {"kv_cache_config": {"tokens_per_block": 64}}
    assert [p[THRESHOLD] for p in found.design.points()] == [0, 50]


def test_trace_beside_the_sweep_file_is_found_from_everywhere(tmp_path: Path) -> None:
    (tmp_path / "NAME").touch()
    assert study(written(tmp_path, FILE)).trace.name == str(tmp_path / "NAME")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("grid:", "gird:", r"some.yaml:6: sweep.unknown key gird; did you mean grid"),
        ("secondary_offload_min_priority:", "secondary_offload_priority:", "unknown key secondary_offload_priority"),
        ("false", "maybe", "some.yaml:2: timing is 'maybe'; it must be true or false"),
        ("limit: 5", "limit: none", "some.yaml:1: trace.limit is 'none'"),
        ("limit: 5", "limits: 5", "some.yaml:1: unknown key trace.limits; did you mean limit"),
        ("trace: {name: NAME, limit: 5}", "model: llama-3.1-8b", "give `trace: NAME`"),
        ("sweep:", "swipe:", "no sweep section in it"),
        ("[0, 50]", "[]", "no values"),
    ],
)
def test_mistake_in_a_sweep_file_is_one_line_that_says_where(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(SpecError, match=words) as error:
        study(written(tmp_path, FILE.replace(old, new)))
    assert "\n" not in str(error.value)


def test_keys_of_the_trace_are_those_of_its_reader_and_of_its_generator() -> None:
    assert with_setting(Trace("a"), "trace", "b") == Trace("b")
    assert with_setting(Trace("a"), "trace.default_output", 7).options.default_output == 7
    generated = with_setting(Trace("synthetic:multitenant?requests=10&seed=1"), "trace.seed", 2)
    assert generated.name == "synthetic:multitenant?requests=10&seed=2"


def test_yaml_is_a_sweep_file_and_the_name_of_a_sample_is_not() -> None:
    assert is_study("my.yaml")
    assert is_study("mooncake_hour")
    assert not is_study("mooncake_conversation")
    assert not is_study("synthetic:mine.yaml")


def test_sample_over_nothing_but_an_empty_list_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        Sample.model_validate({"count": 2, "over": {"workload.workers": []}})
