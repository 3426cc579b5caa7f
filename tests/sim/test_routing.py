"""A cluster behind a router: as its workers would run alone, with an index that is what they hold, seen late or not at all."""

from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvcache.engine import Limits, make_engine, make_outcome
from kvcache.event_rows import name_of
from kvcache.load import longest_blocks, prepare, rows_of
from kvcache.prefix_index import holds
from kvcache.request import Requests
from kvcache.retention import KvCacheRetentionConfig, RetentionColumns, TokenRangeRetentionConfig
from kvcache.routers import QUEUED_TOKENS, ROUTERS, Asked, View, Weights, make_router
from kvcache.tables import NODE, TOKENS, Pool, Settings
from sim.cluster import simulate
from sim.dispatch import EventPath
from sim.feed import Batch, Feed
from sim.fleet import loads as fleet_loads
from sim.fleet_room import Start, engine_of, make_fleet
from sim.lanes import make_lanes
from sim.routing import Cluster
from sim.transfer import LinkDirection, link_params
from tests.sim.systems import WIDE, requests_of, step_cost, worker_of

FOUR = Settings(tokens_per_block=4)


READ_EVENTS = [name for name in ROUTERS if make_router(name, Weights(), np.random.default_rng(0)).reads_events]


class Told:
    """Sends each request where the test says."""

    reads_events = reads_prompt = False

    def __init__(self, workers: list[int]) -> None:
        self._workers = iter(workers)

    def choose(self, _asked: Asked, _view: View) -> int:
        return next(self._workers)


def start_of(
    requests: Requests, blocks: tuple[int, int], rules: Settings = FOUR, cost: tuple[float, float] = (1.0, 0.1)
) -> Start:
    """A cold worker; copies out take 0.2 s a block, back 0.1 s."""
    nobody = requests.take(np.empty(0, np.int64))
    state, load = prepare(nobody, RetentionColumns.none(0), (Pool(WIDE, blocks),), rules._replace(record_copies=True))
    e = make_engine(state, load, make_outcome(0), Limits(), longest_blocks(requests, 4))
    copies = np.zeros((5, 1, 3))
    copies[0, 0, 0], copies[1, 0, 0] = 0.2, 0.1
    link = link_params(LinkDirection(0.0, 1e9))
    return Start(e, make_lanes(state, copies, link, link, [1.0]), step_cost(*cost))


def cluster_of(
    requests: Requests,
    routers: list[Any],
    workers: int,
    *,
    blocks: tuple[int, int] = (9, 4),
    rules: Settings = FOUR,
    keep: RetentionColumns | None = None,
    cost: tuple[float, float] = (0.4, 0.03),
    room: tuple[int, int] = (2, 16),
    pieces: int = 1,
    **more: Any,
) -> Cluster:
    keep = RetentionColumns.none(len(requests)) if keep is None else keep
    starts = [start_of(requests, blocks, rules, cost) for _ in range(workers)]
    cuts = np.array_split(np.arange(len(requests), dtype=np.int64), pieces)
    batches = (
        Batch(part.arrival_s, rows_of(part, {}), part.session, keep.take(rows))
        for rows in cuts
        for part in [requests.take(rows)]
    )
    return Cluster(simpy.Environment(), make_fleet(starts, *room), Feed(batches), routers, **more)


def workload(seed: int, n: int, instants: bool = True) -> Requests:
    rng = np.random.default_rng(seed)
    gaps = rng.choice([0.0, 0.05, 0.3, 1.0, 7.0], n) if instants else rng.exponential(1.0, n)
    prompts = [rng.integers(0, 2, rng.integers(1, 20)).tolist() for _ in range(n)]
    return requests_of(np.cumsum(gaps), prompts, rng.integers(1, 9, n).astype(np.int32))


@given(seed=st.integers(0, 10_000), skip=st.booleans(), strict=st.booleans(), pieces=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_the_cluster_does_what_its_workers_do_alone(seed: int, skip: bool, strict: bool, pieces: int) -> None:
    n = 24
    requests = workload(seed, n)
    where = np.random.default_rng(seed).integers(0, 3, n).astype(np.int32)
    cluster = cluster_of(requests, [Told(where.tolist())], 3, skip=skip, pieces=pieces)
    cluster.strict = strict
    records = cluster.run()
    parts = [requests.take(np.flatnonzero(where == w)) for w in range(3)]
    alone = simulate(
        lambda env: [
            worker_of(env, part, Pool(WIDE, (9, 4)), step_cost(0.4, 0.03), offload_s=0.2, onboard_s=0.1)
            for part in parts
        ],
        requests.arrival_s,
        where,
    )
    for w, worker in enumerate(alone):
        rows = np.flatnonzero(where == w)
        for name in ("reused", "start_s", "first_token_s", "finish_s"):
            assert records.column(name)[rows].tolist() == getattr(worker.engine.outcome, name).tolist(), name


def held_by(cluster: Cluster, w: int) -> set[int]:
    """Names of the full blocks in worker w's own tree."""
    state = engine_of(cluster.fleet, w).state
    names = cluster.fleet.outbox.names[w]
    nodes = [int(node) for node in state.blocks[: int(state.conf[13]), NODE] if node >= 0]
    return {int(name_of(state, names, node, w)) for node in nodes if state.nodes[node, TOKENS] == 4}


def indexed(cluster: Cluster, w: int) -> set[int]:
    """What the router thinks that worker w holds."""
    return {int(name) for name in cluster.dispatch.index.name if name and holds(cluster.dispatch.index, w, int(name))}


PATHS = [
    EventPath(),
    EventPath(delay_s=0.7),
    EventPath(poll_s=2.5),
    EventPath(delay_s=30.0, gather_s=0.4, ranks=3),
]


@given(
    seed=st.integers(0, 10_000),
    host=st.sampled_from([0, 4]),
    priorities=st.booleans(),
    router=st.sampled_from(READ_EVENTS),
    replicas=st.integers(1, 3),
    path=st.sampled_from(PATHS),
    period_s=st.sampled_from([0.0, 1.5]),
)
@example(  # private content number 3 of worker 2 is not content number 0
    seed=146, host=0, priorities=False, router="kv", replicas=1, path=PATHS[0], period_s=0.0
)
@settings(max_examples=40, deadline=None)
def test_at_rest_the_index_is_what_the_workers_hold_if_they_tell_everything(
    seed: int, host: int, priorities: bool, router: str, replicas: int, path: EventPath, period_s: float
) -> None:
    n = 20
    requests, rng = workload(seed, n, instants=False), np.random.default_rng(seed)
    some = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, 8, 80)], 10)
    keep = RetentionColumns.of([some if priorities and rng.random() < 0.5 else None for _ in range(n)])
    rules = FOUR._replace(record_events=True, tell_all=True)
    cluster = cluster_of(
        requests,
        [make_router(router, Weights(), np.random.default_rng(seed + i)) for i in range(replicas)],
        3,
        blocks=(9, host),
        rules=rules,
        keep=keep,
        path=path,
        report_period_s=period_s,
    )
    cluster.run()
    cluster.dispatch.poll(cluster.fleet, 1e9)
    for w in range(3):
        assert indexed(cluster, w) == held_by(cluster, w)
    assert cluster.dispatch.index.blocks.tolist() == [len(held_by(cluster, w)) for w in range(3)]
    assert cluster.dispatch.events(cluster.fleet)["forgotten_blocks"] == 0


@given(
    seed=st.integers(0, 10_000),
    router=st.sampled_from(READ_EVENTS),
    lost=st.sampled_from([0.1, 0.5]),
    tell_all=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_whatever_is_lost_on_the_way_the_index_stays_within_its_bound(
    seed: int, router: str, lost: float, tell_all: bool
) -> None:
    n = 60
    path = EventPath(lost_share=lost, poll_s=4.0, buffer_events=3)
    rules = FOUR._replace(record_events=True, tell_all=tell_all)
    routers: list[Any] = [make_router(router, Weights(), np.random.default_rng(seed))]
    cluster = cluster_of(workload(seed, n), routers, 3, blocks=(8, 4), rules=rules, path=path)
    cluster.run()
    cluster.dispatch.poll(cluster.fleet, 1e9)
    events = cluster.dispatch.events(cluster.fleet)
    assert events["lost"] + events["overflown"] > 0
    assert (cluster.dispatch.index.blocks <= 15).all()  # 12 blocks and a quarter more
    for w in range(3):
        assert cluster.dispatch.index.blocks[w] == len(indexed(cluster, w))


def test_with_untold_losses_the_index_stays_within_its_bound_and_still_holds_what_is_there() -> None:
    # high priorities keep children while their parents go: TensorRT-LLM says nothing of such a child when it goes
    n = 300
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, 3, 17).tolist() for _ in range(n)]
    requests = requests_of(np.arange(n) * 3.0, prompts, [1] * n)
    late = KvCacheRetentionConfig([TokenRangeRetentionConfig(4, None, 80)], 80)
    keep = RetentionColumns.of([late] * n)
    cluster = cluster_of(
        requests, [make_router("kv", Weights(), rng)], 2, blocks=(8, 0), rules=FOUR._replace(record_events=True), keep=keep
    )  # fmt: skip
    cluster.run()
    cluster.dispatch.poll(cluster.fleet, 1e9)
    assert cluster.dispatch.events(cluster.fleet)["forgotten_blocks"] > 0
    assert (cluster.dispatch.index.blocks <= 10).all()


def affinity(path: EventPath, cost: tuple[float, float] = (0.5, 0.0), **more: Any) -> Cluster:
    """The same prompt every 10 s; the router knows that a worker holds it once events have told."""
    requests = requests_of(np.arange(12) * 10.0, [[1, 2, 3, 4, 5, 6, 7, 8, 9]] * 12, [1] * 12)
    router = make_router("kv", Weights(), np.random.default_rng(1))
    rules = FOUR._replace(record_events=True)
    return cluster_of(requests, [router], 4, rules=rules, path=path, cost=cost, **more)


def test_the_router_follows_the_events_from_the_second_request_on() -> None:
    cluster = affinity(EventPath())
    assert len(set(cluster.run().column("worker").tolist())) == 1
    assert cluster.dispatch.events(cluster.fleet)["blind_decisions"] == 1
    assert cluster.dispatch.events(cluster.fleet)["received"] > 0


@pytest.mark.parametrize(("delay_s", "poll_s", "blind"), [(9.4, 0, 1), (9.6, 0, 2), (0, 10, 1), (0, 25, 3), (5, 7, 2)])
def test_events_that_are_under_way_are_not_known(delay_s: float, poll_s: float, blind: int) -> None:
    # the first request's step ends at 0.5; requests come at 0, 10, 20, ...; with polls every 7 s the one at 7 brings it,
    # 5 s later, at 12
    cluster = affinity(EventPath(delay_s=delay_s, poll_s=poll_s))
    cluster.run()
    assert cluster.dispatch.events(cluster.fleet)["blind_decisions"] == blind


def test_ranks_of_an_attention_dp_group_hand_their_events_over_later() -> None:
    # the prompt goes to worker 1, rank 1 of 2: gathered every 15 s, so known at 15 and not yet at 10
    requests = requests_of([0.0, 10.0, 20.0], [[1, 2, 3, 4, 5]] * 3, [1] * 3)

    class First:
        reads_events = reads_prompt = True

        def choose(self, _asked: Asked, view: View) -> int:
            known.append(view.held.tolist())
            return 1

    known: list[list[int]] = []
    rules = FOUR._replace(record_events=True)
    cluster_of(requests, [First()], 2, rules=rules, path=EventPath(gather_s=15, ranks=2)).run()
    assert known == [[0, 0], [0, 0], [0, 1]]
    known.clear()
    cluster_of(requests, [First()], 2, rules=rules, path=EventPath(gather_s=15)).run()
    assert known == [[0, 0], [0, 1], [0, 1]]


def test_without_any_event_every_decision_is_blind_and_counted() -> None:
    cluster = affinity(EventPath(lost_share=1.0))
    workers = cluster.run().column("worker").tolist()
    events = cluster.dispatch.events(cluster.fleet)
    assert events["blind_decisions"] == 12
    assert events["received"] == 0
    assert events["lost"] > 0
    assert len(set(workers)) > 1  # it is a least-loaded router now


def test_replicas_that_do_not_know_of_each_other_pick_the_same_worker_within_one_report() -> None:
    # user question 40
    # 8 requests at once, 8 replicas; worker 0 and 1 are busy with a block each when loads are reported, worker 2 is idle
    n = 8
    first = requests_of(
        np.array([0.0, 0.0, *([1.0] * n)]), [[9] * 5, [8] * 5, *([[7, i] * 3 for i in range(n)])], [1] * 10
    )

    def spread(replicas: int, period_s: float) -> list[int]:
        routers: list[Any] = [make_router("least_loaded", Weights(), np.random.default_rng(i)) for i in range(replicas)]
        cluster = cluster_of(first, routers, 3, cost=(5.0, 0.0), report_period_s=period_s, blocks=(40, 0))
        cluster.dispatch.replicas[0].router = Told([0]) if replicas > 1 else cluster.dispatch.replicas[0].router
        records = cluster.run()
        return np.bincount(records.column("worker")[2:], minlength=3).tolist()

    assert max(spread(1, 0.0)) <= 4
    assert max(spread(10, 1.5)) >= 4
    alone = spread(1, 1.5)
    assert max(alone) <= 4  # one router knows its own choices


def test_what_a_waiting_prompt_will_find_is_no_work_to_come() -> None:
    # a prompt of 9 tokens, three times to worker 0, whose steps take 2 s: the first ends at 2 and leaves two whole blocks. The
    # second starts at once at 10; the third comes at 11 and waits until 12: 1 token of it is to be computed, not 9
    requests = requests_of([0.0, 10.0, 11.0, 11.5], [[1, 2, 3, 4, 5, 6, 7, 8, 9]] * 3 + [[7] * 6], [1, 1, 1, 1])
    queued: list[float] = []

    class Watching:
        reads_events = reads_prompt = True

        def choose(self, _asked: Asked, view: View) -> int:
            queued.append(float(view.loads[0, QUEUED_TOKENS]))
            return 0

    cluster = cluster_of(requests, [Watching()], 1, rules=FOUR._replace(record_events=True), cost=(2.0, 0.0))
    cluster.run()
    assert queued == [0.0, 0.0, 0.0, 1.0]
    loads = np.zeros((1, 4))
    fleet_loads(cluster.fleet, loads)
    assert loads[0, QUEUED_TOKENS] == 0


def test_a_request_that_can_never_go_on_is_a_fault_and_no_endless_run() -> None:
    requests = requests_of([0.0], [[1] * 60], [1])
    cluster = cluster_of(requests, [Told([0])], 1, blocks=(4, 0))
    with pytest.raises(AssertionError, match="no step is possible any more although worker 0 has requests"):
        cluster.run()
