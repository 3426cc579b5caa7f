"""Pools of workers grow under a backlog, shrink when it is gone, and start cold."""

from typing import Any

import numpy as np
import pytest

from kvcache.request import Int64
from kvcache.routers import Weights, make_router
from kvcache.tables import KEY
from sim.feed import Records
from sim.fleet_room import chill, engine_of
from sim.scaling import Backlog, Bounds, Occupancy, Pool
from tests.sim.systems import requests_of
from tests.sim.test_routing import Told, cluster_of, start_of


def burst(bounds: Bounds, workers: int = 3) -> tuple[Pool, Records, Any]:
    """Sixteen requests at once, one more every 10 s after that; a step takes 1 s and 0.1 s a token."""
    arrivals = [0.0] * 16 + [60.0 + 10 * i for i in range(6)]
    prompts = [[10 * i + j for j in range(8)] for i in range(len(arrivals))]
    requests = requests_of(arrivals, prompts, [6] * len(arrivals))
    router = make_router("least_loaded", Weights(), np.random.default_rng(0))
    cluster = cluster_of(requests, [router], workers, cost=(1.0, 0.1), blocks=(8, 0), room=(64, 512))

    def tell(workers_open: Int64) -> None:
        cluster.open = workers_open

    pool = Pool(cluster, list(range(workers)), Backlog(4, 1), bounds, lambda: start_of(requests, (8, 0)), tell)
    return pool, cluster.run(), cluster


def test_the_pool_grows_under_a_backlog_and_shrinks_after_it() -> None:
    pool, records, _ = burst(Bounds(1, 3, period_s=2.0, start_s=1.0))
    sizes = [n for _, n in pool.sizes]
    assert sizes[0] == 1
    assert max(sizes) == 3
    assert sizes[-1] == 1
    # decided at 2, open at 3
    assert pool.sizes[1] == (3.0, 2)
    assert (records.column("finish_s") > 0).all()


def test_a_pool_that_may_not_grow_stays_as_it_is() -> None:
    pool, records, _ = burst(Bounds(1, 1, period_s=2.0, start_s=1.0), workers=1)
    assert pool.sizes == [(0.0, 1)]
    assert set(records.column("worker").tolist()) == {0}


def test_the_mean_weighs_each_size_by_how_long_it_lasted() -> None:
    pool, _, _ = burst(Bounds(1, 1, period_s=2.0, start_s=1.0), workers=1)
    pool.sizes = [(0.0, 1), (2.0, 3), (6.0, 2), (20.0, 9)]
    # 2 x 1 + 4 x 3 + 4 x 2 over 10 s
    assert pool.mean_workers(10.0) == pytest.approx(2.2)
    assert pool.mean_workers(0.0) == 1


def test_blocks_in_use_open_and_close_workers_too() -> None:
    # two workers of 100 blocks with 90 and 80 in use: 85 %
    rule = Occupancy(high=0.8, low=0.3, blocks=100)
    assert rule.wanted(2, np.array([[0, 1, 90, 0], [0, 1, 80, 0]], np.float64)) == 3
    assert rule.wanted(2, np.array([[0, 1, 60, 0], [0, 1, 20, 0]], np.float64)) == 2
    assert rule.wanted(2, np.array([[9, 9, 30, 0], [9, 9, 20, 0]], np.float64)) == 1


def test_a_worker_whose_blocks_are_still_being_sent_is_not_opened_cold() -> None:
    # worker 1 is closed and idle, but its ended request's blocks are pinned: nothing is opened until they are not
    requests = requests_of([0.0] * 12, [[i, i, i] for i in range(12)], [4] * 12)
    router = make_router("least_loaded", Weights(), np.random.default_rng(0))
    cluster = cluster_of(requests, [router], 2, cost=(1.0, 0.1), blocks=(8, 0), room=(64, 512))
    kept = cluster.reactions.pinned
    cluster.reactions.pinned = lambda worker: [0] if worker == 1 else kept(worker)  # type: ignore[method-assign]

    def tell(workers_open: Int64) -> None:
        cluster.open = workers_open

    pool = Pool(cluster, [0, 1], Backlog(2, 1), Bounds(1, 2, 1.0, 0.0), lambda: start_of(requests, (8, 0)), tell)
    cluster.run()
    assert pool.sizes == [(0.0, 1)]


def test_a_worker_that_is_opened_again_has_an_empty_cache() -> None:
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    requests = requests_of([0.0], [prompt], [1])
    cluster = cluster_of(requests, [Told([0])], 1, cost=(1.0, 0.1), blocks=(8, 2), room=(8, 64))
    cluster.run()
    assert (engine_of(cluster.fleet, 0).state.blocks[:10, KEY] >= 0).any()
    chill(cluster.fleet, 0, start_of(requests, (8, 2)), cluster.records.ended)
    state, fresh = engine_of(cluster.fleet, 0).state, start_of(requests, (8, 2)).engine.state
    assert state.blocks.tolist() == fresh.blocks.tolist()
    assert state.tier.tolist() == fresh.tier.tolist()
    assert (state.value == -1).all()


def test_impossible_pools_are_refused() -> None:
    with pytest.raises(ValueError, match="low is 4 and high 4"):
        Backlog(4, 4)
    with pytest.raises(ValueError, match="low < high < 1"):
        Occupancy(1.0, 0.5, 10)
    with pytest.raises(ValueError, match="1 <= least <= most"):
        Bounds(0, 3, 1, 0)
    with pytest.raises(ValueError, match="period_s is 0"):
        Bounds(1, 3, 0, 0)
    with pytest.raises(ValueError, match="the pool has 3 workers and may grow to 2"):
        burst(Bounds(1, 2, 1, 0))
