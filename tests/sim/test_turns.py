"""Requests that wait for others: by hand, against what must hold at every moment, and with every step spent singly."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvcache.engine import Limits
from kvcache.tables import Pool
from sim.turns import Turns, turns_before
from sim.worker import Worker
from tests.sim.systems import WIDE, requests_of, served_by, simulated, step_cost, times

POOL = Pool(WIDE, (400, 0))


def firsts(n: int, concurrency: int | None) -> Turns:
    return Turns(np.full(n, -1, np.int64), np.zeros(n), concurrency)


class TestByHand:
    """A step takes 1 s, whatever is in it: a request of k outputs takes k steps."""

    def test_a_turn_waits_for_the_one_before_in_the_order_of_the_trace(self) -> None:
        session = np.array([3, -1, 3, 1, 3, 1], np.int32)
        assert turns_before(session).tolist() == [-1, -1, 0, -1, 2, 3]

    def test_a_closed_loop_sends_the_next_one_when_one_ends(self) -> None:
        # Two in flight. 0: 0 to 3; 1: 0 to 1; then 2: 1 to 3; at 3 both slots are free: 3 and 4.
        requests = requests_of([0, 50, 60, 70, 80], [[i] for i in range(5)], [3, 1, 2, 1, 2])
        out = simulated(requests, POOL, step_cost(1), firsts(5, 2)).engine.outcome
        assert out.sent_s.tolist() == [0, 0, 1, 3, 3]
        assert out.finish_s.tolist() == [3, 1, 3, 4, 5]

    def test_a_slot_passes_over_a_turn_that_waits_and_the_turn_comes_when_it_has_thought(self) -> None:
        # One session: 0, 1 (thinks 2 s), 3 (thinks 0 s). One in flight. 0: 0 to 2. The slot goes to 2: 2 to 5. 1 was due
        # at 4 and is sent at 5: until 6; then 3, due at 6, before 4, due since the start: 6 to 7. 4: 7 to 8.
        requests = requests_of([0] * 5, [[i] for i in range(5)], [2, 1, 3, 1, 1])
        turns = Turns(np.array([-1, 0, -1, 1, -1]), np.array([0, 2.0, 0, 0, 0]), 1)
        out = simulated(requests, POOL, step_cost(1), turns).engine.outcome
        assert out.sent_s.tolist() == [0, 5, 2, 6, 7]

    def test_a_loop_with_nobody_due_stands_still_until_somebody_has_thought(self) -> None:
        requests = requests_of([0, 0], [[1], [2]], [1, 1])
        out = simulated(requests, POOL, step_cost(1), Turns(np.array([-1, 0]), np.array([0, 7.5]), 4)).engine.outcome
        assert out.sent_s.tolist() == [0, 8.5]

    def test_in_an_open_loop_a_turn_comes_at_its_time_or_when_the_one_before_has_ended(self) -> None:
        # 0: 0 to 4. 1 would come at 1, and waits until 4 and thinks 0.5 s. 2 comes at 9, when 1 is long done.
        requests = requests_of([0, 1, 9], [[1], [2], [3]], [4, 1, 1])
        turns = Turns(np.array([-1, 0, 1]), np.array([0, 0.5, 0.5]))
        out = simulated(requests, POOL, step_cost(1), turns).engine.outcome
        assert out.sent_s.tolist() == [0, 4.5, 9]
        assert out.finish_s.tolist() == [4, 5.5, 10]

    def test_who_comes_when_a_step_of_another_worker_ends_joins_the_step_that_begins_then(self) -> None:
        # Worker 0: request 0, 0 to 2. Worker 1: request 1, 0 to 4, in steps of 1 s. Two in flight; request 2 goes to
        # worker 1 at 2, just when its third step begins: it ends at 3, not 4.
        requests = requests_of([0, 0, 0], [[1], [2], [3]], [2, 4, 1])
        where = np.array([0, 1, 1], np.int32)
        made = served_by(where, requests, POOL, step_cost(1), firsts(3, 2))
        assert times(where, made, "sent_s").tolist() == [0, 0, 2]
        assert times(where, made, "finish_s").tolist() == [2, 4, 3]

    def test_a_closed_loop_without_requests_is_a_run_of_no_steps(self) -> None:
        assert simulated(requests_of([], [], []), POOL, step_cost(1), firsts(0, 3)).steps == 0

    def test_progress_counts_the_requests_sent(self) -> None:
        from sim.cluster import simulate
        from tests.sim.systems import worker_of

        told: list[tuple[int, int]] = []
        requests = requests_of([0.0] * 300, [[i] for i in range(300)], [1] * 300)
        simulate(
            lambda env: [worker_of(env, requests, POOL, step_cost(1))],
            requests.arrival_s,
            np.zeros(300, np.int32),
            lambda done, of: told.append((done, of)),
            firsts(300, 10),
        )
        assert told == [(256, 300)]


def systems(
    policies: tuple[str, ...] = ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "VLLM", "VLLM_ASYNC"),
) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({
        "seed": st.integers(0, 1 << 20),
        "n": st.integers(1, 30),
        "workers": st.sampled_from([1, 1, 2, 3]),
        "concurrency": st.sampled_from([None, 1, 2, 5]),
        "step_s": st.sampled_from([(1.0, 0.0), (0.3, 0.07)]),
        "batch": st.sampled_from([1, 3, 8]),
        "policy": st.sampled_from(policies),
        "ahead": st.booleans(),
        "drafts": st.sampled_from([0, 2]),
    })


def serve(
    system: dict[str, Any], *, skip: bool = True
) -> tuple[NDArray[np.int32], list[Worker], Turns, NDArray[np.float64]]:
    """Sessions on workers, by the seed alone."""
    rng, n = np.random.default_rng(system["seed"]), system["n"]
    prompts = [rng.integers(0, 2, rng.integers(1, 20)).tolist() for _ in range(n)]
    arrival = np.cumsum(rng.choice([0.0, 0.1, 1.0, 2.5, 40.0], n))
    requests = requests_of(arrival, prompts, rng.integers(0, 9, n).astype(np.int32))
    before = turns_before(rng.integers(-1, 4, n).astype(np.int32))
    turns = Turns(before, rng.choice([0.0, 0.0, 0.5, 3.0], n), system["concurrency"])
    where = rng.integers(0, system["workers"], n).astype(np.int32)
    where[0] = system["workers"] - 1
    limits = Limits(system["batch"], 50, capacity_scheduler_policy=system["policy"])
    if not system["policy"].startswith("VLLM"):
        drafts = system["drafts"]
        limits = limits._replace(
            disable_overlap_scheduler=not system["ahead"], max_draft_len=drafts, accepted_per_step=0.6 * drafts
        )
    step_s, pool = step_cost(*system["step_s"]), Pool(WIDE, (14, 0))
    made = served_by(where, requests, pool, step_s, turns, limits=limits, skip=skip, host_s=0.2)
    return where, made, turns, arrival


class TestAlways:
    @given(system=systems())
    @settings(max_examples=80, deadline=None)
    def test_steps_spent_at_once_are_the_steps_spent_singly(self, system: dict[str, Any]) -> None:
        quick, single = serve(system)[1], serve(system, skip=False)[1]
        for mine, theirs in zip(quick, single, strict=True):
            for ours, other in zip(mine.engine.outcome, theirs.engine.outcome, strict=True):
                assert ours.tolist() == other.tolist()
            assert mine.clock.tolist() == theirs.clock.tolist()
            assert (mine.steps, mine.pauses) == (theirs.steps, theirs.pauses)
            assert mine.engine.state.stats.tolist() == theirs.engine.state.stats.tolist()

    @given(system=systems())
    @settings(max_examples=60, deadline=None)
    def test_a_request_is_sent_as_soon_as_it_is_due_and_a_slot_is_free(self, system: dict[str, Any]) -> None:
        where, made, turns, arrival = serve(system)
        sent, finish = times(where, made, "sent_s"), times(where, made, "finish_s")
        followers = turns.before >= 0
        due = np.where(followers, finish[turns.before] + turns.think_s, 0.0)
        if turns.concurrency is None:
            assert sent.tolist() == np.maximum(due, arrival).tolist()
            return
        assert (sent >= due).all()
        for r in range(len(sent)):
            # just before it was sent, every slot was taken; and nobody due stood before it
            if sent[r] > due[r]:
                assert ((sent < sent[r]) & (finish >= sent[r])).sum() == turns.concurrency
                assert not ((np.arange(len(sent)) < r) & (sent > sent[r]) & (due <= sent[r])).any()
            assert ((sent <= sent[r]) & (finish > sent[r])).sum() <= turns.concurrency

    @given(system=systems())
    @settings(max_examples=60, deadline=None)
    def test_the_mean_number_in_the_system_is_rate_times_mean_latency(self, system: dict[str, Any]) -> None:
        where, made, _, _ = serve(system)
        sent, finish = times(where, made, "sent_s"), times(where, made, "finish_s")
        span = float(finish.max() - sent.min())
        changes = sorted([(t, 1) for t in sent] + [(t, -1) for t in finish])
        area, inside, last = 0.0, 0, float(sent.min())
        for t, change in changes:
            area += inside * (t - last)
            inside, last = inside + change, t
        assert area / span == pytest.approx(len(sent) / span * float((finish - sent).mean()))
