"""The verdict of a validation, on transfers that are made up: when it is right, wrong, or not to be judged."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.validate import _other_way
from experiments.verdict import TOO_NOISY, Bounds, compare, second_over_first
from hw.device import Report

N = 40


def verdict(measured: list[float], *, predicted: float = 1.0, load: float = 0.0, each: float = 0.0) -> dict[str, Any]:
    """N transfers; repeat r takes `measured[r]` of a second each, alternately `each` more and less."""
    sign = np.where(np.arange(N) % 2, 1.0, -1.0)
    seconds = np.array([one * (1 + each * sign) for one in measured])
    frame = pd.DataFrame({"predicted_s": predicted, "bytes": 4096, "blocks": 1, "direction": "offload"}, index=range(N))
    frame["measured_s"] = np.quantile(seconds, 0.25, axis=0)
    frame["repeat_spread"] = second_over_first(seconds)
    return compare(frame, seconds, Bounds(), load)


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ({"measured": [1.0, 1.02, 1.05]}, "within bounds"),
        ({"measured": [1.0, 1.02, 9.0]}, "within bounds"),  # one disturbed repeat changes nothing
        ({"measured": [1.0, 1.02, 1.05], "predicted": 1.3}, "outside bounds"),  # total 30 % off
        ({"measured": [1.0, 1.02, 1.05], "each": 0.35}, "outside bounds"),  # total right, each transfer about 40 % off
        ({"measured": [1.0, 1.2, 1.3], "predicted": 1.5}, TOO_NOISY),  # no two repeats agree
        ({"measured": [1.0], "predicted": 1.5}, TOO_NOISY),  # nothing to compare with
        ({"measured": [1.0, 1.0, 1.0], "predicted": 1.5, "load": 0.4}, TOO_NOISY),  # repeats agree, on a busy machine
        ({"measured": [1.0, 1.0, 1.0], "load": 0.4}, "within bounds"),  # and still it is right
    ],
)
def test_the_verdict_follows_errors_repeats_and_load(case: dict[str, Any], said: str) -> None:
    assert verdict(**case)["verdict"] == said


def test_errors_are_shares_of_the_measured_time() -> None:
    figures = verdict([2.0, 2.0], predicted=1.5)
    assert figures["all"]["total_error"] == pytest.approx(-0.25)
    assert figures["all"]["mape"] == pytest.approx(0.25)
    assert figures["all"]["bias"] == pytest.approx(-0.25)


@pytest.mark.parametrize(
    ("copies", "source", "said"),
    [
        ("cudaMemcpyBatchAsync", "measured, device cuda:0, cudaMemcpyBatchAsync; line: R2 0.99", 0),
        ("cudaMemcpyBatchAsync", "measured, device cuda:0, cudaMemcpyAsync, a call a block; line: R2 0.99", 1),
        (None, "a blog", 0),  # the cpu device copies in one way only
    ],
)
def test_a_profile_measured_with_another_way_of_copying_is_named(copies: str | None, source: str, said: int) -> None:
    work: Any = SimpleNamespace(plan=SimpleNamespace(hardware=SimpleNamespace(sources={"links.host.h2d": source})))
    report = Report("cuda:0", facts={} if copies is None else {"copies": copies})
    assert len(_other_way(work, report)) == said
