"""The edge that no cache crosses: counted by hand, and above a run with room for everything."""

import numpy as np
import pytest

from experiments.load import load
from experiments.run import run
from experiments.unlimited import unlimited_hit_rate
from kvcache.request import Requests
from traces.read import read


def workload(prompts: list[list[int]], answers: list[list[int]] | None = None, tail: int = 0) -> Requests:
    """Requests of 4-token units, a second apart; `tail` tokens more in every prompt."""
    offset = np.cumsum([0, *map(len, prompts)])
    more = {}
    if answers is not None:
        more = {
            "output_offset": np.cumsum([0, *map(len, answers)]),
            "output_units": np.array(sum(answers, []), np.int32),  # ruff: ignore[quadratic-list-summation]
        }
    return Requests(
        "made",
        4,
        np.arange(len(prompts), dtype=np.float64),
        np.array([4 * len(units) + tail for units in prompts], np.int32),
        np.array([4 * len(units) for units in answers or prompts], np.int32),
        offset,
        np.array(sum(prompts, []), np.int32),  # ruff: ignore[quadratic-list-summation]
        **more,
    )


def test_each_content_is_computed_once_and_found_ever_after() -> None:
    # 1 2 3, 1 2 4, 1 2 3: different prefixes are 1, 12, 123, 124; four units of nine are computed.
    assert unlimited_hit_rate(workload([[1, 2, 3], [1, 2, 4], [1, 2, 3]])) == pytest.approx(1 - 4 / 9)


def test_equal_content_behind_another_beginning_is_another() -> None:
    assert unlimited_hit_rate(workload([[1, 2], [3, 2]])) == 0


def test_what_an_answer_holds_need_never_be_computed_as_a_prompt() -> None:
    # The answer 5 to the prompt 1 is what the second prompt 1 5 6 asks for: only 1 and 156 are computed, of 1 + 3 units.
    assert unlimited_hit_rate(workload([[1], [1, 5, 6]], [[5], [7]])) == pytest.approx(1 - 2 / 4)


def test_one_token_of_every_prompt_is_computed_whatever_is_known() -> None:
    # Eight times the same unit of 4 tokens: one whole unit is 4 tokens, but eight prompts compute a token each.
    assert unlimited_hit_rate(workload([[1]] * 8)) == pytest.approx(1 - 8 / 32)


@pytest.mark.parametrize("trace", ["mooncake_arxiv_first1000", "llmservingsim_sharegpt300_blk16"])
def test_a_run_with_room_for_everything_stays_below_and_comes_near(trace: str) -> None:
    requests = read(trace).head(150)
    edge = unlimited_hit_rate(requests)
    spec, _ = load(None, ["capacity.gpu_tokens=3000000", f"tokens_per_block={min(requests.unit_tokens, 128)}"])
    found = run(spec, requests, timing=False)["hit_rate_tokens"]
    assert edge is not None
    assert found <= edge < found + 0.02
