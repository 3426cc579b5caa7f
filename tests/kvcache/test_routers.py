"""Routers choose what their rule says; every one of them chooses a worker that is there."""

import numpy as np
import pytest

from kvcache.routers import ROUTERS, Approximate, Asked, KvAware, Router, View, Weights, make_router


def asked(prompt: int = 400, session: int = -1, names: tuple[int, ...] = (1, 2, 3)) -> Asked:
    return Asked(prompt, -(-prompt // 100), session, np.array(names, np.int64))


def view(
    loads: list[list[float]],
    held: tuple[int, ...] | None = None,
    on_gpu: tuple[int, ...] | None = None,
    now_s: float = 0.0,
) -> View:
    n = len(loads)
    held = held or (0,) * n
    return View(now_s, 100, np.arange(n), np.array(loads), np.array(held), np.array(on_gpu or held), np.full(n, 10))


IDLE = [[0.0] * 4] * 3


def chooses(router: Router, times: int, a: Asked | None = None, v: View | None = None) -> list[int]:
    return [router.choose(a or asked(), v or view(IDLE)) for _ in range(times)]


def router(name: str, seed: int = 0, **weights: float) -> Router:
    return make_router(name, Weights(**weights), np.random.default_rng(seed))


@pytest.mark.parametrize("name", ROUTERS)
def test_every_router_chooses_one_that_is_there_and_the_same_with_the_same_seed(name: str) -> None:
    loads = [[1.0, 2, 3, 400], [0, 0, 0, 0], [5, 5, 5, 5]]
    runs = [chooses(router(name, 7), 20, asked(session=4), view(loads, (2, 0, 1))) for _ in range(2)]
    assert runs[0] == runs[1]
    assert set(runs[0]) <= {0, 1, 2}


def test_an_unknown_router_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'best'; known routers: round_robin, random, .*kv"):
        router("best")


def test_round_robin_goes_in_turn_also_when_workers_are_added() -> None:
    turn = router("round_robin")
    assert chooses(turn, 4) == [0, 1, 2, 0]
    assert chooses(turn, 3, v=view([[0.0] * 4] * 5)) == [1, 2, 3]


def test_a_session_stays_with_its_worker_and_others_go_in_turn() -> None:
    sessions = router("session")
    assert chooses(sessions, 3, asked(session=5)) == [2, 2, 2]
    assert chooses(sessions, 2) == [0, 1]


def test_random_uses_every_worker() -> None:
    assert set(chooses(router("random"), 50)) == {0, 1, 2}


def test_least_loaded_counts_requests_before_blocks() -> None:
    loads = [[1.0, 1, 5, 0], [0, 2, 4, 0], [3, 0, 0, 0]]
    assert chooses(router("least_loaded"), 1, v=view(loads)) == [1]
    assert set(chooses(router("least_loaded"), 40)) == {0, 1, 2}


def test_kv_weighs_blocks_to_compute_against_blocks_in_use() -> None:
    # 4 prompt blocks; worker 0 holds 3 of them and has 2 blocks in use: 1 + 2; worker 1 is idle: 4 + 0
    v = view([[0.0, 1, 2, 0], [0, 0, 0, 0]], (3, 0))
    assert chooses(router("kv"), 1, v=v) == [0]
    # 4 blocks in use tip the scale: 1 + 4 against 4; with weight 2: 2 + 4 against 8
    v = view([[0.0, 1, 4, 0], [0, 0, 0, 0]], (3, 0))
    assert chooses(router("kv"), 1, v=v) == [1]
    assert chooses(router("kv", overlap_weight=2.0), 1, v=v) == [0]


def test_kv_counts_the_prompts_that_wait() -> None:
    v = view([[1.0, 0, 0, 500], [0, 0, 0, 0]], (3, 0))
    assert chooses(router("kv"), 1, v=v) == [1]


def test_a_block_in_host_memory_counts_for_its_credit() -> None:
    v = view(IDLE[:2], (3, 2), (0, 2))
    assert chooses(router("kv"), 1, v=v) == [0]
    assert chooses(router("kv", host_credit=0.5), 1, v=v) == [1]


def test_with_a_temperature_the_better_worker_is_chosen_more_often_but_not_always() -> None:
    v = view(IDLE[:2], (3, 0))
    picks = chooses(router("kv", temperature=1.0), 600, v=v)
    # softmax of 0 and -1: 0.731
    assert np.mean(np.array(picks) == 0) == pytest.approx(0.731, abs=0.06)
    assert set(chooses(router("kv", temperature=0.01), 100, v=v)) == {0}
    assert set(chooses(router("kv", temperature=1.0), 100)) == {0, 1, 2}


def test_approximate_comes_back_where_it_sent_a_prompt_until_that_is_too_old() -> None:
    router = Approximate(Weights(ttl_s=10), np.random.default_rng(3))
    first = router.choose(asked(), view(IDLE))
    busy = [[0.0, 0, 1, 0] if w == first else [0.0] * 4 for w in range(3)]
    assert router.choose(asked(), view(busy, now_s=9)) == first
    # half of the prompt in common: 3 + 1 - 2 against 4
    assert router.choose(asked(names=(1, 2, 9)), view(busy, now_s=9)) == first
    assert router.choose(asked(names=(7, 8, 9)), view(busy, now_s=9)) != first
    assert router.choose(asked(), view(busy, now_s=30)) != first
    assert len(router._sent) == 3  # what was too old went


def test_only_routers_that_ask_for_it_see_names_and_events() -> None:
    made = {name: router(name) for name in ROUTERS}
    assert [name for name, r in made.items() if r.reads_events] == ["kv", "scored"]
    assert [name for name, r in made.items() if r.reads_prompt] == ["approximate", "kv", "scored_approximate", "scored"]
    assert isinstance(made["kv"], KvAware)


class TestScored:
    """llm-d's sums: weight x prefix + idle share of the pool of 10 blocks + shortness of the queue."""

    def test_load_adds_the_idle_share_and_the_shortness_of_the_queue(self) -> None:
        # 0: queue 4 of 4 -> 0, pool idle 1.0; 1: queue 2 -> 0.5, 4 blocks used 0.6; 2: queue 0 -> 1, all used 0
        v = view([[4.0, 0, 0, 0], [2, 0, 4, 0], [0, 0, 10, 0]])
        assert chooses(router("scored_load"), 1, v=v) == [1]
        # nobody waits: the idle share alone decides
        assert chooses(router("scored_load"), 1, v=view([[0.0, 9, 3, 0], [0, 0, 4, 0], [0, 0, 10, 0]])) == [0]

    def test_a_prefix_of_weight_2_outweighs_a_full_pool_and_the_longest_queue(self) -> None:
        # 2 + 0.1 + 0 against 0 + 1 + 1; with weight 1 the load wins
        v = view([[0.0, 0, 0, 0], [9, 0, 9, 0]], (0, 3))
        assert chooses(router("scored", overlap_weight=2.0), 1, v=v) == [1]
        assert chooses(router("scored", overlap_weight=1.0), 1, v=v) == [0]

    def test_of_two_holders_the_one_with_less_counts_as_if_it_held_nothing(self) -> None:
        # prefix 1, 0, 0: the second holder has 2 of 3 blocks, yet the idle third one beats it
        v = view([[5.0, 0, 10, 0], [0, 0, 5, 0], [0, 0, 0, 0]], (3, 2, 0))
        assert chooses(router("scored", overlap_weight=1.0), 1, v=v) == [2]
        assert chooses(router("scored", overlap_weight=3.0), 1, v=v) == [0]

    def test_equal_holders_share_the_best_mark(self) -> None:
        v = view([[0.0, 0, 0, 0], [0, 0, 5, 0], [0, 0, 4, 0]], (0, 2, 2))
        assert chooses(router("scored"), 1, v=v) == [2]

    def test_the_estimate_follows_what_it_sent_as_far_as_it_looks(self) -> None:
        # blocks of 100 tokens: it looks at the first two names of a prompt
        estimate = router("scored_approximate", seen_tokens=200, remembered_tokens=400)
        idle_first = view([[0.0, 0, 0, 0], [0, 0, 1, 0]])
        idle_second = view([[0.0, 0, 1, 0], [0, 0, 0, 0]])
        assert chooses(estimate, 1, asked(names=(1, 2, 3)), idle_first) == [0]
        assert chooses(estimate, 1, asked(names=(1, 2, 9)), idle_second) == [0]  # another question, the same start
        assert chooses(estimate, 1, asked(names=(5, 2)), idle_second) == [1]  # only the start counts
        # four blocks are remembered: two more prompts push the first one out
        for names in ((11, 12), (13, 14)):
            assert chooses(estimate, 1, asked(names=names), idle_first) == [0]
        assert chooses(estimate, 1, asked(names=(1, 2, 3)), idle_second) == [1]

    def test_a_prompt_shorter_than_a_block_is_sent_by_load(self) -> None:
        assert chooses(router("scored_approximate"), 1, asked(names=()), view([[0.0, 0, 3, 0], [0, 0, 2, 0]])) == [1]
