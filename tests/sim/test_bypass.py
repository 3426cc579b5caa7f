"""A store in a disaggregated cluster: prompts it nearly holds pass the context workers by, the others load from it there."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.request import Requests
from sim.bypass import Bypass
from sim.disagg import Disaggregated, Rules
from sim.feed import Records
from sim.routing import Cluster
from sim.store import SharedStore, StoreLink
from tests.sim.systems import requests_of
from tests.sim.test_disagg import all_free, transfer
from tests.sim.test_routing import Told, cluster_of

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def run(
    requests: Requests, context: list[int], most_tokens: int, rules: Rules = Rules()
) -> tuple[Bypass, SharedStore, Cluster, Records]:
    """Workers 0 and 1 compute prompts, worker 2 decodes. A step takes 1 s and 0.1 s a token, a transfer 1 s a block, a load
    or save 0.5 s and 0.25 s a block."""
    cluster = cluster_of(requests, [Told(context)], 3, cost=(1.0, 0.1), blocks=(20, 0), room=(64, 512))
    both = Disaggregated(cluster, 2, transfer, send_buffers=1, receive_buffers=1, rules=rules)
    store = SharedStore(cluster, 100, StoreLink(0.5, 0.25), tokens_per_block=4)
    bypass = Bypass(cluster, both, store, most_tokens)
    records = cluster.run()
    both.settle()
    return bypass, store, cluster, records


def test_a_prompt_that_the_store_nearly_holds_needs_no_context_worker() -> None:
    # the first prompt is saved when it ends, at 2 + 1. The second one lacks 2 tokens: on worker 2, two blocks are loaded
    # from 20 to 21, 2 tokens take 1.2 s, the second token 1.1 s
    bypass, store, cluster, records = run(requests_of([0.0, 20.0], [PROMPT, PROMPT], [1, 2]), [0, 1], most_tokens=2)
    assert bypass.bypassed == 1
    assert records.column("worker").tolist() == [0, 2]
    assert records.column("first_token_s").tolist() == pytest.approx([2.0, 22.2])
    assert records.column("finish_s").tolist() == pytest.approx([2.0, 23.3])
    assert (store.loaded_blocks, store.saved_blocks) == (2, 2)
    assert all_free(cluster)


def test_a_prompt_that_lacks_more_loads_on_its_context_worker_and_is_transferred() -> None:
    # loaded by 21, 2 tokens by 22.2, three blocks transferred by 25.2
    bypass, store, cluster, records = run(requests_of([0.0, 20.0], [PROMPT, PROMPT], [1, 2]), [0, 1], most_tokens=1)
    assert bypass.bypassed == 0
    assert records.column("worker").tolist() == [0, 1]
    assert records.column("first_token_s").tolist() == pytest.approx([2.0, 25.2])
    assert (store.loaded_blocks, store.saved_blocks) == (2, 2)
    assert all_free(cluster)


def test_a_prompt_is_saved_and_transferred_at_once_and_stays_until_both_are_done() -> None:
    # computed by 2, saved by 3, transferred by 5; nothing that another prompt could push out in between
    _, store, cluster, records = run(requests_of([0.0], [PROMPT], [2]), [0], most_tokens=0)
    assert records.column("first_token_s").tolist() == [5.0]
    assert store.saved_blocks == 2
    assert all_free(cluster)


@given(seed=st.integers(0, 10_000), most=st.sampled_from([0, 3, 30]), failing=st.sampled_from([0.0, 0.5]))
@settings(max_examples=20, deadline=None)
def test_whatever_way_requests_take_all_blocks_come_back(seed: int, most: int, failing: float) -> None:
    rng, n = np.random.default_rng(seed), 14
    prompts = [rng.integers(0, 2, rng.integers(1, 20)).tolist() for _ in range(n)]
    requests = requests_of(np.cumsum(rng.exponential(1.5, n)), prompts, rng.integers(1, 6, n).astype(np.int32))
    _, _, cluster, records = run(requests, rng.integers(0, 2, n).tolist(), most, Rules(failure_share=failing))
    assert all_free(cluster)
    finish = records.column("finish_s")
    answered = ~np.isnan(finish)
    assert (finish[answered] > 0).all()
    assert answered.all() or failing > 0
