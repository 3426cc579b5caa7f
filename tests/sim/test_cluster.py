"""Several workers behind a static router."""

import numpy as np
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.tables import Pool
from sim.cluster import assign, numbered, simulate
from tests.sim.systems import WIDE, requests_of, simulated, step_cost, worker_of

NO_SESSION = np.full(6, -1, np.int32)


def test_round_robin_goes_in_turn() -> None:
    assert assign("round_robin", 6, 4, NO_SESSION, np.random.default_rng(0)).tolist() == [0, 1, 2, 3, 0, 1]


def test_a_session_stays_with_its_worker_and_requests_without_one_go_in_turn() -> None:
    session = np.array([5, 2, -1, 5, 2, -1], np.int32)
    assert assign("session", 6, 3, session, np.random.default_rng(0)).tolist() == [2, 2, 2, 2, 2, 2]
    assert assign("session", 6, 4, session, np.random.default_rng(0)).tolist() == [1, 2, 2, 1, 2, 1]


def test_the_random_router_repeats_itself_with_its_seed_and_uses_every_worker() -> None:
    none = np.full(400, -1, np.int32)
    first = assign("random", 400, 4, none, np.random.default_rng(1))
    assert first.tolist() == assign("random", 400, 4, none, np.random.default_rng(1)).tolist()
    assert first.tolist() != assign("random", 400, 4, none, np.random.default_rng(2)).tolist()
    assert np.bincount(first).min() > 60


def test_each_worker_counts_its_own_requests_from_0() -> None:
    assert numbered(np.array([1, 0, 1, 1, 0], np.int32)).tolist() == [0, 0, 1, 2, 1]


def test_two_workers_serve_two_requests_of_one_instant_at_once_and_one_worker_too() -> None:
    # batch: both in one step. With a worker each: a step each, at the same time.
    requests = requests_of([3, 3], [[1, 2, 3], [4, 5, 6]], [2, 2])
    made = simulate(
        lambda env: [worker_of(env, requests.head(1), Pool(WIDE, (8, 0)), step_cost(1, 0.5)) for _ in range(2)],
        requests.arrival_s,
        np.array([0, 1], np.int32),
    )
    assert [w.engine.outcome.finish_s.tolist() for w in made] == [[3 + 2.5 + 1.5]] * 2
    assert simulated(requests, Pool(WIDE, (8, 0)), step_cost(1, 0.5)).engine.outcome.finish_s.tolist() == [9, 9]


def test_progress_is_told_every_256_requests() -> None:
    n = 600
    told: list[tuple[int, int]] = []
    requests = requests_of(np.arange(n) * 10.0, [[i] for i in range(n)], [1] * n)
    simulate(
        lambda env: [worker_of(env, requests, Pool(WIDE, (8, 0)), step_cost(1))],
        requests.arrival_s,
        np.zeros(n, np.int32),
        lambda done, of: told.append((done, of)),
    )
    assert told == [(256, 600), (512, 600)]


def test_a_worker_without_requests_ends_at_once() -> None:
    requests = requests_of([0], [[1]], [1])
    made = simulate(
        lambda env: [worker_of(env, requests, Pool(WIDE, (8, 0)), step_cost(1)) for _ in range(2)],
        requests.arrival_s,
        np.zeros(1, np.int32),
    )
    assert [w.steps for w in made] == [1, 0]


def test_no_request_at_all_is_a_run_of_no_steps() -> None:
    nobody = requests_of([], [], [])
    [worker] = simulate(
        lambda env: [worker_of(env, nobody, Pool(WIDE, (8, 0)), step_cost(1))], nobody.arrival_s, np.empty(0, np.int32)
    )
    assert worker.steps == 0


@given(
    gaps=st.lists(st.sampled_from([0.0, 0.05, 0.3, 1.0, 7.0]), min_size=1, max_size=30),
    seed=st.integers(0, 1000),
    skip=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_a_worker_lives_as_if_the_others_were_not_there(gaps: list[float], seed: int, skip: bool) -> None:
    rng = np.random.default_rng(seed)
    n = len(gaps)
    prompts = [rng.integers(0, 2, rng.integers(1, 20)).tolist() for _ in range(n)]
    requests = requests_of(np.cumsum(gaps), prompts, rng.integers(0, 9, n).astype(np.int32))
    worker = rng.integers(0, 3, n).astype(np.int32)
    parts = [requests.take(np.flatnonzero(worker == w)) for w in range(3)]
    pool, cost = Pool(WIDE, (9, 4)), step_cost(0.4, 0.03)

    def three(env: simpy.Environment) -> list:  # type: ignore[type-arg]
        return [worker_of(env, part, pool, cost, offload_s=0.2, onboard_s=0.1, skip=skip) for part in parts]

    for part, together in zip(parts, simulate(three, requests.arrival_s, worker), strict=True):
        alone = simulated(part, pool, cost, offload_s=0.2, onboard_s=0.1)
        assert together.engine.outcome.finish_s.tolist() == alone.engine.outcome.finish_s.tolist()
        assert together.engine.outcome.reused.tolist() == alone.engine.outcome.reused.tolist()
