"""Prompts on one worker, answers from another: the flow on paper, and that both sides' blocks come back whatever happens."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.request import Requests
from kvcache.tables import REFS, T_FREE, T_SIZE
from sim.disagg import Disaggregated, Rules
from sim.feed import Records
from sim.fleet_room import engine_of
from sim.handover import Handover
from sim.routing import Cluster
from tests.sim.systems import requests_of
from tests.sim.test_routing import Told, cluster_of


def transfer(blocks: int, _prompt: int) -> Handover:
    """A second a block."""
    return Handover(0.0, 0.0, float(blocks), 0.0, 0.0, 100.0 * blocks, 1)


def run(
    requests: Requests, context: list[int], generation: int = 1, rules: Rules = Rules(), **more: Any
) -> tuple[Disaggregated, Cluster, Records]:
    """Two context workers and `generation` others; a step takes 1 s and 0.1 s a token."""
    cluster = cluster_of(
        requests, [Told(context)], 2 + generation, cost=(1.0, 0.1), **{"blocks": (20, 0), "room": (64, 512)} | more
    )
    both = Disaggregated(cluster, 2, transfer, send_buffers=1, receive_buffers=1, rules=rules)
    records = cluster.run()
    both.settle()
    return both, cluster, records


def all_free(cluster: Cluster) -> bool:
    tier = cluster.fleet.state.tier[:, 0, 0]
    refs = [int(engine_of(cluster.fleet, w).state.blocks[:20, REFS].sum()) for w in range(len(tier))]
    return tier[:, T_FREE].tolist() == tier[:, T_SIZE].tolist() and not any(refs)


def test_the_first_token_comes_once_the_receiver_has_the_blocks() -> None:
    # prompt 10: 1 + 1 s; three blocks: 3 s; then two steps of 1.1 s each for tokens 2 and 3
    both, cluster, records = run(requests_of([0.0], [[1] * 10], [3]), [0])
    assert both.prefill.column("first_token_s").tolist() == [2.0]
    assert records.column("first_token_s").tolist() == [5.0]
    assert records.column("finish_s")[0] == pytest.approx(7.2)
    assert records.column("sent_s").tolist() == [0.0]
    columns = both.log.columns()
    assert [columns[name].tolist() for name in ("memory_s", "buffer_s", "wire_s")] == [[0.0], [0.0], [3.0]]
    assert all_free(cluster)


def test_only_the_blocks_that_the_receiver_lacks_are_sent() -> None:
    # the second prompt shares two full blocks with the first, which the receiver keeps: one block is sent instead of three
    requests = requests_of([0.0, 20.0], [[1, 2, 3, 4, 5, 6, 7, 8, 9, 9], [1, 2, 3, 4, 5, 6, 7, 8, 7, 7]], [2, 2])
    both, _, _ = run(requests, [0, 1])
    assert both.log.columns()["wire_s"].tolist() == [3.0, 1.0]


def test_a_prompt_that_comes_while_a_step_runs_keeps_its_blocks_and_gets_no_token_from_that_step() -> None:
    # Two senders. The first prompt is there at 1.4 + 1 s and decodes in steps of 1.1 s from 2.4 on. The second is computed at
    # 2.2, sent from 2.4 (one receive buffer) and there at 4.4, in the middle of a step that ends at 4.6; its second token takes
    # the next one, of 1.2 s. All of it is stored: a third prompt that begins with it is sent one block of three.
    first, second = [1, 2, 3, 4], [5, 6, 7, 8, 10, 11, 12, 13]
    requests = requests_of([0.0, 0.4, 20.0], [first, second, [*second, 9, 9]], [6, 2, 2])
    both, cluster, records = run(requests, [0, 1, 0])
    # the first one's tokens: 2.4, 3.5, 4.6, 5.8, 6.9, 8.0
    assert records.column("finish_s")[:2].tolist() == pytest.approx([8.0, 5.8])
    assert both.log.columns()["wire_s"].tolist() == [1.0, 2.0, 1.0]
    assert all_free(cluster)


def test_the_second_transfer_waits_for_the_receive_buffer() -> None:
    # two prompts end at 2; the transfers take 3 s each, one after the other
    both, _, records = run(requests_of([0.0, 0.0], [[1] * 10, [2] * 10], [2, 2]), [0, 1])
    assert sorted(both.log.columns()["buffer_s"].tolist()) == [0.0, 3.0]
    assert sorted(records.column("first_token_s").tolist()) == [5.0, 8.0]


def test_decode_memory_is_taken_before_the_transfer_is_asked_for() -> None:
    # 5 blocks: a request of 10 + 6 tokens takes four, so the second one waits until the first has ended
    requests = requests_of([0.0, 0.0], [[1] * 10, [2] * 10], [6, 6])
    both, _, records = run(requests, [0, 1], blocks=(5, 0))
    first, second = sorted(records.column("finish_s").tolist())
    waits = dict(zip(both.log.columns()["number"], both.log.columns()["memory_s"], strict=True))
    # up to the end of the step in which the first one ends
    assert max(waits.values()) == pytest.approx(first - 2.0)
    assert second > first + 3


def test_a_request_of_one_token_needs_no_second_worker() -> None:
    both, cluster, records = run(requests_of([0.0], [[1] * 10], [1]), [1])
    assert records.column("finish_s").tolist() == [2.0]
    assert len(both.log.rows) == 0
    assert all_free(cluster)


def test_pinned_blocks_on_the_sender_keep_the_next_prompt_waiting() -> None:
    # the sender's pool holds 4 blocks, 3 of them pinned until 5: the second prompt (3 blocks) starts at 5, not at 2
    requests = requests_of([0.0, 0.5], [[1] * 10, [2] * 10], [2, 2])
    both, _, _ = run(requests, [0, 0], blocks=(4, 0))
    assert both.prefill.column("start_s").tolist() == [0.0, 5.0]


def test_a_failed_transfer_frees_both_sides_once_and_says_so() -> None:
    # R6, second run
    both, cluster, _ = run(requests_of([0.0], [[1] * 12], [3]), [0], rules=Rules(failure_share=1.0))
    assert both.log.failed == [0]
    assert all_free(cluster)


def test_a_transfer_that_takes_too_long_is_given_up() -> None:
    requests = requests_of([0.0, 0.0], [[1] * 10, [2] * 10], [2, 2])
    both, cluster, records = run(requests, [0, 1], rules=Rules(timeout_s=4.0))
    assert both.log.timed_out == 1  # the one that waited 3 s for the buffer
    assert len(both.log.failed) == 1
    answered = [i for i in range(2) if i not in both.log.failed]
    assert records.column("first_token_s")[answered].tolist() == [5.0]
    assert all_free(cluster)


def test_a_cancelled_request_leaves_both_workers() -> None:
    requests = requests_of([0.0], [[1] * 10], [3])
    cluster = cluster_of(requests, [Told([0])], 2, cost=(1.0, 0.1), blocks=(20, 0), room=(64, 512))
    both = Disaggregated(cluster, 1, transfer, send_buffers=1, receive_buffers=1)

    def user() -> Any:
        yield cluster.env.timeout(3.0)  # in the middle of the transfer
        assert both.cancel(0)
        assert not both.cancel(0)

    cluster.env.process(user())
    cluster.run()
    assert both.log.failed == [0]
    assert all_free(cluster)


@given(
    seed=st.integers(0, 10_000),
    blocks=st.sampled_from([(8, 0), (9, 4), (30, 0)]),
    failures=st.sampled_from([0.0, 0.4]),
    timeout=st.sampled_from([3.0, float("inf")]),
    skip=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_whatever_happens_every_block_comes_back_and_the_rest_is_answered(
    seed: int, blocks: tuple[int, int], failures: float, timeout: float, skip: bool
) -> None:
    rng = np.random.default_rng(seed)
    n = 14
    prompts = [rng.integers(0, 2, rng.integers(1, 20)).tolist() for _ in range(n)]
    requests = requests_of(np.cumsum(rng.exponential(2.0, n)), prompts, rng.integers(1, 7, n).astype(np.int32))
    where, rules = rng.integers(0, 2, n).tolist(), Rules(timeout, failures, seed)
    both, cluster, records = run(requests, where, 2, rules, blocks=blocks, room=(2, 16), skip=skip)
    tier = cluster.fleet.state.tier[:, 0, 0]
    assert tier[:, T_FREE].tolist() == tier[:, T_SIZE].tolist()
    answered = np.ones(n, bool)
    answered[both.log.failed] = False
    assert len(both.log.failed) == len(set(both.log.failed))
    assert (records.column("finish_s")[answered] >= records.column("first_token_s")[answered]).all()
    assert (records.column("first_token_s")[answered] > requests.arrival_s[answered]).all()
    again, _, same = run(requests, where, 2, rules, blocks=blocks, room=(64, 512), skip=not skip)
    assert again.log.failed == both.log.failed
    assert same.column("finish_s")[answered].tolist() == records.column("finish_s")[answered].tolist()
