"""Recommending: what is kept, what is cheapest, what the runner-up loses, how sure, and words where nothing keeps the limits."""

import pandas as pd
import pytest

from reports.recommend import recommend, sentences
from tests.reports import sweeps

KEYS = ["tokens_per_block", "secondary_offload_min_priority"]


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.DataFrame(sweeps.rows()).convert_dtypes()


def test_least_traffic_that_keeps_the_limit_is_chosen(frame: pd.DataFrame) -> None:
    # TTFT p99 = 1 + threshold / 100: below 1.65 s are thresholds 0 to 60; traffic falls with the threshold, so 60.
    # At threshold 60 all block sizes move the same; block 16 has the highest hit rate, 0.5 - 0.06 - 0.04.
    advice = recommend(frame, KEYS, ["ttft_p99<1.65s"], [])
    assert [int(advice.chosen[key]) for key in KEYS] == [16, 60]
    assert advice.keeping == 12
    assert advice.next is not None
    assert [int(advice.next[key]) for key in KEYS] == [32, 60]
    assert advice.nearest is not None
    assert int(advice.nearest["secondary_offload_min_priority"]) == 80


def test_sentences_hold_the_numbers_of_the_choice(frame: pd.DataFrame) -> None:
    said = sentences(recommend(frame, KEYS, ["ttft_p99<1.65s"], []), known_error=0.01)
    assert said[0].startswith("block 16, threshold 60: moved between GPU and host 234.8 GiB, token hit rate 40 %")
    assert said[1].startswith(
        "12 of 17 configurations keep time to first token, p99 < 1.65 s; of these it has the lowest moved"
    )
    assert (
        said[2]
        == "The runner-up, block 32, threshold 60, has the same moved between GPU and host, -2.5 % token hit rate."
    )
    assert (
        said[3]
        == "The cheaper block 16, threshold 80 misses time to first token, p99 < 1.65 s: time to first token, p99 1.8 s."
    )
    assert said[4].startswith("How sure: 3 % to the nearest limit; one seed")
    assert said[4].endswith("good to about 1 %: enough for this very trace; --check tries others.")


def test_margin_below_the_models_error_is_called_a_coin_toss(frame: pd.DataFrame) -> None:
    said = sentences(recommend(frame, KEYS, ["ttft_p99<1.65s"], []), known_error=0.1)
    assert "NOT enough" in said[-1]


def test_counts_are_exact_so_a_narrow_limit_on_a_hit_rate_is_sure(frame: pd.DataFrame) -> None:
    said = sentences(recommend(frame, KEYS, ["hit_rate_tokens>43.9%"], []), known_error=0.1)
    assert said[-1].endswith("enough for this very trace; --check tries others.")
    assert "NOT" not in said[-1]


def test_preference_decides_and_can_be_turned_round(frame: pd.DataFrame) -> None:
    assert int(recommend(frame, KEYS, [], ["ttft_p99:min"]).chosen["secondary_offload_min_priority"]) == 0
    assert int(recommend(frame, KEYS, [], ["ttft_p99:max", "hit_rate_tokens"]).chosen["tokens_per_block"]) == 16


def test_without_limits_and_preferences_it_is_the_knee(frame: pd.DataFrame) -> None:
    # Block 16's line is the front. Hit rate falls evenly in the threshold, traffic by its square, so the bend lies at
    # the threshold whose distance to the chord is largest: (101-t)^2 is steepest early; 40 and 60 are its middle.
    advice = recommend(frame, KEYS, [], [])
    assert int(advice.chosen["tokens_per_block"]) == 16
    assert int(advice.chosen["secondary_offload_min_priority"]) in {40, 60}
    assert "it is the knee" in sentences(advice, 0.1)[1]


def test_configuration_keeps_a_limit_only_if_all_its_seeds_do(frame: pd.DataFrame) -> None:
    # Seed 2 is 0.1 s slower: with threshold 60 it takes 1.7 s, so threshold 40 (1.5 s) is the best that always keeps it.
    slower = frame.assign(seed=2, ttft_p99_s=frame["ttft_p99_s"] + 0.1, run=frame["run"] + 100)
    both = pd.concat([frame.assign(seed=1), slower], ignore_index=True)
    advice = recommend(both, [*KEYS, "seed"], ["ttft_p99<1.65s"], [])
    assert [int(advice.chosen[key]) for key in KEYS] == [16, 40]
    assert advice.seeds == 2
    assert advice.spread == pytest.approx(0.1 / 1.45)
    assert "2 seeds spread its figures by 6.9 %" in sentences(advice, 0.01)[-1]


def test_nothing_that_keeps_the_limits_names_the_nearest(frame: pd.DataFrame) -> None:
    with pytest.raises(
        ValueError, match=r"no run keeps .*p99 < 0\.5 s; the nearest, block 16, threshold 0, has .*p99 1 s"
    ):
        recommend(frame, KEYS, ["ttft_p99<0.5s"], [])


def test_preference_with_another_end_is_refused(frame: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match="write FIGURE:min or FIGURE:max"):
        recommend(frame, KEYS, [], ["ttft_p99:low"])
