"""E1: which router wins, by how much, and why random routing collapses."""

import pytest

from experiments.published.routing import POOL_TOKENS, ROUTERS, Stage, needed_tokens, stage


@pytest.fixture(scope="module")
def stages() -> dict[tuple[str, int], Stage]:
    return {(router, rate): stage(router, rate) for router in ROUTERS for rate in (3, 10)}


@pytest.mark.parametrize("rate", [3, 10])
def test_precise_beats_approximate_beats_load_only_which_is_no_worse_than_random(
    stages: dict[tuple[str, int], Stage], rate: int
) -> None:
    ttft = {router: stages[router, rate].ttft_s for router in ROUTERS}
    assert ttft["kv"] < ttft["approximate"] < ttft["least_loaded"]
    assert ttft["least_loaded"] < 1.1 * ttft["random"]


def test_the_precise_router_is_as_fast_as_published(stages: dict[tuple[str, int], Stage]) -> None:
    assert stages["kv", 10].ttft_s == pytest.approx(0.193, rel=0.2)


def test_random_routing_collapses_because_every_worker_needs_more_than_its_pool(
    stages: dict[tuple[str, int], Stage],
) -> None:
    # 83 groups x 8,000 shared tokens = 664,000 against 461,376
    assert needed_tokens() / POOL_TOKENS == pytest.approx(1.44, abs=0.005)
    assert stages["random", 10].ttft_s > 20 * stages["kv", 10].ttft_s
    assert stages["random", 10].hit_rate < stages["kv", 10].hit_rate - 0.2
