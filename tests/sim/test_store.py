"""A store shared by all workers: what it holds is loaded, waited for, saved and let go."""

import numpy as np
import pytest

from kvcache.tables import REFS, T_FREE, T_SIZE
from sim.fleet_room import engine_of
from sim.routing import Cluster
from sim.store import Blocks, SharedStore, StoreLink
from tests.sim.systems import requests_of
from tests.sim.test_routing import Told, cluster_of

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def stored(
    prompts: list[list[int]], arrivals: list[float], where: list[int], capacity: int = 50
) -> tuple[SharedStore, Cluster]:
    """Two workers; a step takes 1 s and 0.1 s a token, a load or save 0.5 s and 0.25 s a block."""
    requests = requests_of(arrivals, prompts, [2] * len(prompts))
    cluster = cluster_of(requests, [Told(where)], 2, cost=(1.0, 0.1), blocks=(20, 0), room=(8, 64))
    store = SharedStore(cluster, capacity, StoreLink(0.5, 0.25), tokens_per_block=4)
    cluster.run()
    return store, cluster


def test_what_one_worker_computed_another_loads_instead_of_computing_it() -> None:
    # worker 0: 1 + 1 s for 10 tokens, a step of 1.1 s: ends at 3.1. Worker 1 at 10: two blocks loaded in 0.5 + 0.5 s,
    # then 2 tokens: 1.2 s
    store, cluster = stored([PROMPT, PROMPT], [0.0, 10.0], [0, 1])
    assert cluster.records.column("first_token_s").tolist() == pytest.approx([2.0, 12.2])
    assert (store.loaded_blocks, store.saved_blocks) == (2, 2)


def test_what_the_worker_holds_itself_is_not_loaded_again() -> None:
    store, cluster = stored([PROMPT, PROMPT], [0.0, 10.0], [0, 0])
    assert store.loaded_blocks == 0
    assert cluster.records.column("first_token_s")[1] == pytest.approx(11.1)


def test_before_it_is_saved_nobody_can_load_it() -> None:
    # the save ends at 3.1 + 0.5 + 0.5 = 4.1
    early, _ = stored([PROMPT, PROMPT], [0.0, 4.0], [0, 1])
    late, _ = stored([PROMPT, PROMPT], [0.0, 4.2], [0, 1])
    assert (early.loaded_blocks, late.loaded_blocks) == (0, 2)


def test_blocks_are_free_again_once_they_are_saved() -> None:
    _, cluster = stored([PROMPT, PROMPT], [0.0, 0.0], [0, 1])
    tier = cluster.fleet.state.tier[:, 0, 0]
    assert tier[:, T_FREE].tolist() == tier[:, T_SIZE].tolist()
    assert int(engine_of(cluster.fleet, 0).state.blocks[:20, REFS].sum()) == 0


def test_the_last_token_is_computed_even_if_the_whole_prompt_is_there() -> None:
    store, cluster = stored([PROMPT[:8], PROMPT[:8]], [0.0, 10.0], [0, 1])
    assert store.loaded_blocks == 1
    assert cluster.records.column("first_token_s")[1] == pytest.approx(10 + 0.75 + 1.4)


def test_a_full_store_lets_go_what_was_used_longest_ago_from_the_end_of_a_prompt_on() -> None:
    blocks = Blocks(3)
    assert blocks.add(np.array([1, 2])) == 2
    assert blocks.add(np.array([7, 8])) == 2  # block 2, the end of the older prompt, goes
    assert blocks.match(np.array([1, 2])) == 1
    assert blocks.match(np.array([7, 8])) == 2
    assert len(blocks) == 3
    with pytest.raises(ValueError, match="room for at least 1"):
        Blocks(0)
