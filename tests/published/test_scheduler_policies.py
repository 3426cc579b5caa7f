"""MAX_UTILIZATION against GUARANTEED_NO_EVICT over pool sizes: the signs somebody measured, and where they begin."""

import pytest

from experiments.published.scheduling import OVERSUBSCRIBED, Service, service

KEEP, MOST = "GUARANTEED_NO_EVICT", "MAX_UTILIZATION"


def both(oversubscribed: float) -> tuple[Service, Service]:
    return service(KEEP, oversubscribed), service(MOST, oversubscribed)


@pytest.mark.parametrize("oversubscribed", [0.5, 1.0])
def test_off_pressure_the_two_are_one(oversubscribed: float) -> None:
    # measured: 574.7 and 576.1 tok/s
    keep, most = both(oversubscribed)
    assert most == keep
    assert most.pauses == 0


@pytest.mark.parametrize("around", [OVERSUBSCRIBED - 0.02, OVERSUBSCRIBED, 1.56])
def test_under_pressure_it_starts_sooner_serves_less_and_makes_some_wait_long_between_tokens(around: float) -> None:
    # measured: 161.0 to 95.7 tok/s, TTFT p50 35.8 to 27.1 s, TPOT p99 122 to 1,111 ms
    keep, most = both(around)
    assert keep.pauses == 0 < most.pauses
    assert most.tokens_per_s < keep.tokens_per_s
    assert most.ttft_p50_s < 0.96 * keep.ttft_p50_s
    assert most.tpot_p99_s > 1.1 * keep.tpot_p99_s
    assert most.tpot_p99_s / most.tpot_p50_s > 1.1 * keep.tpot_p99_s / keep.tpot_p50_s


def test_the_steady_policy_is_foretold_within_ten_percent() -> None:
    # with no parameter but the size of the pool
    keep = service(KEEP, OVERSUBSCRIBED)
    assert keep.tokens_per_s == pytest.approx(161.0, rel=0.1)
    assert keep.ttft_p50_s == pytest.approx(35.8, rel=0.1)
    assert keep.tpot_p99_s == pytest.approx(0.122, rel=0.1)
