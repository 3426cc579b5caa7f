"""How a row is folded from what a worker leaves behind: sums and quantiles on paper."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from experiments.outcome import Served, fold
from experiments.pools import Plan, plan
from experiments.spec import Spec
from kvcache.engine import make_outcome
from kvcache.request import Requests
from kvcache.tables import HIT_TOKENS_GPU, HIT_TOKENS_HOST, MISSED, OFFLOADED, PARTIAL_FROM_HOST, REUSED, make_state

SPEC = Spec.model_validate({
    "kv_cache_config": {"tokens_per_block": 16},
    "capacity": {"gpu_blocks": 9, "host_blocks": 4},
})


def requests_of(prompts: list[int]) -> Requests:
    n = len(prompts)
    return Requests(
        "test",
        1,
        np.arange(n, dtype=np.float64),
        np.array(prompts, np.int32),
        np.full(n, 5, np.int32),
        np.zeros(n + 1, np.int64),
        np.empty(0, np.int32),
    )


def served(the_plan: Plan, rows: list[int], stats: dict[int, int], reused: list[int]) -> Served:
    state = make_state(the_plan.pools, the_plan.settings)
    for column, count in stats.items():
        state.stats[0, column] = count
    outcome = make_outcome(len(rows))
    outcome.reused[:] = reused
    return Served(np.array(rows, np.int64), state, outcome, None)


def test_counts_of_all_workers_are_summed() -> None:
    the_plan = plan(SPEC, 100)
    parts = [
        served(
            the_plan, [0, 2], {REUSED: 3, MISSED: 4, HIT_TOKENS_GPU: 30, HIT_TOKENS_HOST: 10, OFFLOADED: 2}, [30, 10]
        ),
        served(the_plan, [1], {REUSED: 1, MISSED: 2, HIT_TOKENS_GPU: 5, PARTIAL_FROM_HOST: 1}, [5]),
    ]
    row = fold(SPEC, requests_of([50, 30, 20]), the_plan, parts, wall_s=2.0)
    assert (row["lookup_blocks"], row["reused_blocks"], row["hit_rate_blocks"]) == (10, 4, 0.4)
    assert (row["hit_tokens"], row["hit_rate_tokens"]) == (45, 0.45)
    assert row["hit_tokens_by_tier"] == {"gpu": 35, "host": 10, "disk": 0}
    assert (row["offload_blocks"], row["onboard_blocks"]) == (2, 1)
    assert row["offload_bytes"] == 2 * 16 * 131_072


def test_a_row_without_any_lookup_has_rates_of_zero() -> None:
    the_plan = plan(SPEC, 100)
    row = fold(SPEC, requests_of([1]), the_plan, [served(the_plan, [0], {}, [0])], wall_s=1.0)
    assert row["hit_rate_blocks"] == row["hit_rate_tokens"] == 0


def test_space_left_in_last_blocks_is_told_in_tokens() -> None:
    # 50 + 5 = 55 of 64; 11 + 5 = 16 of 16
    the_plan = plan(SPEC, 100)
    row = fold(SPEC, requests_of([50, 11]), the_plan, [served(the_plan, [0, 1], {}, [0, 0])], wall_s=1.0)
    assert row["tail_tokens"] == 9


def test_speed_is_counted_over_the_wall_time() -> None:
    the_plan = plan(SPEC, 100)
    part = served(the_plan, [0], {REUSED: 7}, [0])
    assert fold(SPEC, requests_of([1]), the_plan, [part], wall_s=4.0)["events_per_s"] == pytest.approx(2)


@dataclass(frozen=True)
class Timed:
    """A worker that took no steps."""

    clock: NDArray[np.float64] = field(default_factory=lambda: np.zeros(6))
    steps: int = 0
    pauses: int = 0


def row_with(slo: dict[str, float]) -> dict[str, Any]:
    """Four requests of 5 tokens from 0, 1, 2, 3 s on; first tokens after 1, 1, 3 and 1 s, then 0.5, 1, 0.5 s a token; the last
    one's transfer failed."""
    spec = Spec.model_validate({**SPEC.model_dump(exclude_none=True), "slo": slo})
    the_plan = plan(spec, 100)
    part = served(the_plan, [0, 1, 2, 3], {}, [0] * 4)
    part.outcome.sent_s[:] = [0, 1, 2, 3]
    part.outcome.first_token_s[:] = [1, 2, 5, 4]
    part.outcome.finish_s[:] = [3, 6, 7, np.nan]
    timed = Served(part.rows, part.state, part.outcome, Timed())
    return fold(spec, requests_of([50] * 4), the_plan, [timed], wall_s=1.0)


def test_goodput_counts_requests_within_both_limits() -> None:
    # over 7 s: the first keeps both, the second has 1 s a token, the third waits 3 s, the fourth has no answer
    both = row_with({"ttft_s": 2, "tpot_s": 0.5})
    assert (both["goodput_requests_per_s"], both["goodput_share"]) == (pytest.approx(1 / 7), 0.25)
    assert row_with({"ttft_s": 2})["goodput_share"] == pytest.approx(0.5)
    assert row_with({"tpot_s": 0.5})["goodput_share"] == pytest.approx(0.5)
    assert "goodput_share" not in row_with({})


def test_a_request_without_an_answer_has_no_times_and_no_tokens() -> None:
    row = row_with({})
    assert row["ttft_s"]["mean"] == pytest.approx((1 + 1 + 3) / 3)
    assert row["tpot_s"]["mean"] == pytest.approx((0.5 + 1 + 0.5) / 3)
    assert row["output_tokens_per_s"] == pytest.approx(15 / 7)
