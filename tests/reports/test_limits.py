"""Limits: units, names that people shorten, figures that are missing, words for what is wrong."""

import pandas as pd
import pytest

from reports.limits import Limit, limits


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.DataFrame({
        "ttft_p99_s": [0.5, 1.0, None],
        "tpot_p99_s": [0.03, 0.05, 0.01],
        "moved_bytes": [2.0**30, 2.0**31, 0.0],
        "hit_rate_tokens": [0.3, 0.2, 0.5],
    })


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("ttft_p99<1s", Limit("ttft_p99_s", "<", 1.0)),
        ("ttft_s.p99 <= 900ms", Limit("ttft_p99_s", "<=", 0.9)),
        ("tpot_p99_s<40 ms", Limit("tpot_p99_s", "<", 0.04)),
        ("moved<1.5GiB", Limit("moved_bytes", "<", 1.5 * 2**30)),
        ("hit_rate_tokens>=30%", Limit("hit_rate_tokens", ">=", 0.3)),
        ("hit_rate_tokens>3e-1", Limit("hit_rate_tokens", ">", 0.3)),
    ],
)
def test_limit_is_read_in_the_stored_unit(frame: pd.DataFrame, text: str, limit: Limit) -> None:
    (read,) = limits(frame, [text])
    assert (read.column, read.sign) == (limit.column, limit.sign)
    assert read.value == pytest.approx(limit.value)


def test_run_without_the_figure_does_not_keep_the_limit(frame: pd.DataFrame) -> None:
    first, second = limits(frame, ["ttft_p99<=1s,tpot_p99<40ms"])
    assert first.met(frame).tolist() == [True, True, False]
    assert second.met(frame).tolist() == [True, False, True]


def test_margin_is_a_share_of_the_limit_on_its_right_side(frame: pd.DataFrame) -> None:
    assert Limit("ttft_p99_s", "<", 2.0).margin(1.5) == pytest.approx(0.25)
    assert Limit("hit_rate_tokens", ">=", 0.4).margin(0.3) == pytest.approx(-0.25)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ttft_p99", "write FIGURE<VALUE"),
        ("ttft_p99=1", "write FIGURE<VALUE"),
        ("ttft_p99<1..2", r"1\.\.2 is no number"),
        ("ttft_p99<1parsec", "unit parsec is not known"),
        ("ttfft_p99_s<1", r"no column ttfft_p99_s; did you mean ttft_p99_s"),
    ],
)
def test_wrong_limit_says_what_is_wrong_with_it(frame: pd.DataFrame, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        limits(frame, [text])
