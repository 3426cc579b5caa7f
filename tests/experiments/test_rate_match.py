"""The rate-matched curve on paper, and against what TensorRT-LLM's blog claims."""

import pytest

from experiments.published.handover import deepseek_gains
from experiments.rate_match import (
    Load,
    Machine,
    Point,
    aggregated,
    batches,
    best_at,
    context_rate,
    decode_s,
    gains,
    matched,
)
from sim.hardware import load_hardware
from sim.layout import Split
from sim.models import load_model

MACHINE = Machine(load_model("llama-3.1-8b"), load_hardware("h100-sxm"), "bf16", "bf16")
LOAD = Load(2048, 128)


def test_the_formula_is_the_blogs() -> None:
    # output tokens/s / (context GPUs x generation rate / context rate + generation GPUs)
    context, generation = Split(1), Split(2)
    supply = context_rate(MACHINE, context, LOAD, 8192)
    for point in matched(MACHINE, context, generation, LOAD, 8192):
        rate = point.batch / (128 * decode_s(MACHINE.params(generation), LOAD, point.batch))
        assert point.tokens_per_s_per_gpu == pytest.approx(rate * 128 / (rate / supply + 2))
        assert point.context_per_generation_gpu == pytest.approx(rate / supply / 2)


def test_an_aggregated_engine_fits_its_prompts_between_its_tokens() -> None:
    [first, *_] = aggregated(MACHINE, Split(1), LOAD, 2048)
    step, prompt = decode_s(MACHINE.params(Split(1)), LOAD, 1), 1 / context_rate(MACHINE, Split(1), LOAD, 2048)
    assert first.tokens_per_s_per_user == pytest.approx(128 / (128 * step + prompt))


def test_of_the_points_fast_enough_the_one_with_most_tokens_counts() -> None:
    points = [Point(1, 100.0, 10.0), Point(2, 80.0, 18.0), Point(4, 50.0, 30.0)]
    assert best_at(points, 60) == points[1]
    assert best_at(points, 120) is None
    assert gains(points, [Point(1, 90.0, 9.0)], [60, 95, 120]) == [(60, 2.0)]
    assert batches(12) == [1, 2, 4, 8, 12]
    assert batches(0) == []
    assert batches(6, 2) == [1, 2, 3, 4, 6]  # 1, 1.41, 2, 2.83, 4, 5.66


def test_drafts_cost_their_verification_and_give_what_is_accepted() -> None:
    # One sequence, three drafts, all of them right: four tokens for one step that computes four and reads the cache once.
    params = MACHINE.params(Split(1))
    drafted = Load(2048, 128, drafts=3, accepted=3.0)
    plain_s, drafted_s = decode_s(params, LOAD, 1), decode_s(params, drafted, 1)
    assert plain_s <= drafted_s < 1.1 * plain_s  # a step of few tokens waits for the weights
    [slow, *_], [fast, *_] = (matched(MACHINE, Split(1), Split(1), load, 2048) for load in (LOAD, drafted))
    assert fast.tokens_per_s_per_user == pytest.approx(4 * slow.tokens_per_s_per_user * plain_s / drafted_s)
    wrong = Load(2048, 128, drafts=3, accepted=0.0)
    [lost, *_] = aggregated(MACHINE, Split(1), wrong, 2048)
    [kept, *_] = aggregated(MACHINE, Split(1), LOAD, 2048)
    assert lost.tokens_per_s_per_user <= kept.tokens_per_s_per_user


@pytest.mark.parametrize(("isl", "osl", "published"), [(4400, 1200, (1.4, 1.8)), (8192, 256, (1.73, 2.0))])
def test_disaggregation_gains_on_gb200_what_was_published_less_at_most_a_quarter(
    isl: int, osl: int, published: tuple[float, float]
) -> None:
    # C4; end to end they measured 0 to 25 % under such curves, and ours lies as far under theirs
    found = [gain for _, gain in deepseek_gains(Load(isl, osl))]
    assert published[0] * 0.75 < min(found)
    assert published[1] * 0.75 < max(found) <= published[1]
