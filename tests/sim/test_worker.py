"""One worker in simulated time: against sums on paper, queueing theory, and itself with every step spent singly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvcache.engine import Limits
from kvcache.tables import MISSED, REUSED, T_FREE, T_SIZE, Pool, Settings
from sim.worker import COMPUTE_S, COPY_WAIT_S, NOW_S, TOKENS_MADE, Worker, waiting_s
from tests.sim.systems import WIDE, requests_of, simulated, step_cost


def prompt(name: int, tokens: int) -> list[int]:
    return [100 * name + i for i in range(tokens)]


def mean_in_system(arrival_s: NDArray[np.float64], finish_s: NDArray[np.float64]) -> float:
    """Requests in the system on average from the first arrival to the last finish, by walking through both."""
    moments = [(t, 1) for t in arrival_s] + [(t, -1) for t in finish_s]
    area, inside, last = 0.0, 0, float(arrival_s[0])
    for t, change in sorted(moments):
        area += inside * (t - last)
        inside, last = inside + change, t
    return area / (last - float(arrival_s[0]))


class TestOnPaper:
    def test_a_request_alone_takes_the_sum_of_its_steps(self) -> None:
        # A step takes 1 s and 0.01 s a token. Prompt 50, 3 outputs: 1.5 s to the first token, then two steps of 1.01 s.
        # The second request shares 48 of its 49 usable tokens and one more by a partial match: 1 token, 1.01 s.
        requests = requests_of([5, 100], [prompt(1, 50), prompt(1, 50)], [3, 1])
        worker = simulated(requests, Pool(WIDE, (40, 0)), step_cost(1, 0.01))
        out = worker.engine.outcome
        assert out.start_s.tolist() == [5, 100]
        assert out.first_token_s.tolist() == pytest.approx([6.5, 101.01])
        assert out.finish_s.tolist() == pytest.approx([8.52, 101.01])
        assert worker.clock[[NOW_S, COMPUTE_S, COPY_WAIT_S]].tolist() == pytest.approx([101.01, 4.53, 0])
        assert worker.clock[TOKENS_MADE] == 4
        assert worker.steps == 4

    def test_who_arrives_during_a_step_starts_with_the_next_one(self) -> None:
        requests = requests_of([0, 0.2, 1.0, 1.1], [prompt(i, 3) for i in range(1, 5)], [1, 1, 1, 1])
        out = simulated(requests, Pool(WIDE, (40, 0)), step_cost(1)).engine.outcome
        assert out.start_s.tolist() == [0, 1, 1, 2]
        assert out.finish_s.tolist() == [1, 2, 2, 3]

    def test_a_chunked_prompt_takes_as_many_steps_as_chunks(self) -> None:
        # 8 tokens a step: 20 tokens take 8, 8 and 4
        requests = requests_of([0], [prompt(1, 20)], [1])
        worker = simulated(requests, Pool(WIDE, (9, 0)), step_cost(1, 0.25), limits=Limits(max_num_tokens=8))
        assert worker.engine.outcome.finish_s.tolist() == [3 + 3 + 2]

    @pytest.mark.parametrize(("overlap", "finish_s", "wait_s"), [(0, 11, 9), (1, 10, 8), (0.75, 10.25, 8.25)])
    def test_copies_come_before_the_kernels_or_beside_them(
        self, overlap: float, finish_s: float, wait_s: float
    ) -> None:
        # B pushes A's three blocks to the host, 3 s each, then computes for 1 s (beside the copies: until the 9 s are
        # over; in a pipeline of 4 layers the last one's 0.25 s come after them).
        requests = requests_of([0, 1], [prompt(1, 9), prompt(2, 9)], [1, 1])
        worker = simulated(requests, Pool(WIDE, (3, 6)), step_cost(1), offload_s=3, overlap=overlap)
        assert worker.engine.outcome.finish_s.tolist() == [1, finish_s]
        assert worker.clock[COPY_WAIT_S] == wait_s

    def test_onboard_and_offload_share_a_step_but_not_a_place(self) -> None:
        # A, B, then A again with 3 GPU blocks, lookups of 8 tokens: two blocks come back. For the first, one of B's
        # goes to the host (3 s) and A's follows into its place (2 s, until 5). The second offload ends at 6, its
        # onboard at 8; the third offload at 9. Kernels 1 s: 10.
        requests = requests_of([0, 100, 200], [prompt(1, 9), prompt(2, 9), prompt(1, 9)], [1, 1, 1])
        worker = simulated(requests, Pool(WIDE, (3, 6)), step_cost(1), offload_s=3, onboard_s=2)
        assert worker.engine.outcome.finish_s.tolist() == [1, 110, 210]
        assert worker.engine.outcome.reused.tolist() == [0, 0, 8]

    @pytest.mark.parametrize(("ahead", "finish_s"), [(False, 4 * 1.0), (True, 1.0 + 3 * 0.75)])
    def test_the_overlap_scheduler_hides_the_hosts_part_of_every_step_but_the_first(
        self, ahead: bool, finish_s: float
    ) -> None:
        # a step takes 1 s, of which the host 0.25 s: the first one cannot hide it, the other three do
        worker = simulated(
            requests_of([0], [prompt(1, 5)], [4]),
            Pool(WIDE, (9, 0)),
            step_cost(1),
            limits=Limits(disable_overlap_scheduler=not ahead),
            host_s=0.25,
        )
        assert worker.engine.outcome.finish_s.tolist() == [finish_s]
        assert worker.steps == 4 + ahead

    def test_a_host_slower_than_the_kernels_sets_the_pace(self) -> None:
        # 0.75 s of 1 s are the host's: steps of 0.75 s
        limits = Limits(disable_overlap_scheduler=False)
        requests = requests_of([0], [prompt(1, 5)], [4])
        worker = simulated(requests, Pool(WIDE, (9, 0)), step_cost(1), limits=limits, host_s=0.75)
        assert worker.engine.outcome.finish_s.tolist() == [1 + 3 * 0.75]

    def test_copies_of_a_step_scheduled_ahead_wait_for_the_step_before(self) -> None:
        # B pushes A's three blocks to the host, 3 s each. A: 0 to 1, its extra step until 2. B is admitted at 1, its
        # copies run from 2 to 11, its step until 12.
        worker = simulated(
            requests_of([0, 0.5], [prompt(1, 9), prompt(2, 9)], [1, 1]),
            Pool(WIDE, (4, 6)),
            step_cost(1),
            offload_s=3,
            limits=Limits(disable_overlap_scheduler=False),
        )
        assert worker.engine.outcome.finish_s.tolist() == [1, 2 + 3 * 2 + 1]

    def test_a_request_that_no_step_can_serve_ends_the_run_with_the_reason(self) -> None:
        requests = requests_of([0], [prompt(1, 9)], [1])
        with pytest.raises(AssertionError, match=r"no step is possible at 0\.000000 s"):
            simulated(requests, Pool(WIDE, (2, 0)), step_cost(1))


class TestQueueingTheory:
    """Poisson arrivals, one request a step: a single server. Waiting times from Pollaczek and Khinchine."""

    def mean_wait_s(self, lengths: NDArray[np.int32], load: float, token_s: float) -> float:
        rng = np.random.default_rng(7)
        n = len(lengths)
        arrival = np.cumsum(rng.exponential(lengths.mean() * token_s / load, n))
        flat = np.arange(lengths.sum(), dtype=np.int32)
        ends = np.cumsum(lengths)
        prompts = [flat[end - length : end].tolist() for end, length in zip(ends, lengths, strict=True)]
        requests = requests_of(arrival, prompts, [1] * n)
        worker = simulated(
            requests,
            Pool(WIDE, (400, 0)),
            step_cost(0, token_s),
            limits=Limits(max_batch_size=1),
            settings=Settings(tokens_per_block=4, enable_block_reuse=False),
        )
        return float((worker.engine.outcome.start_s - arrival).mean())

    def test_equal_requests_wait_as_in_an_m_d_1_queue(self) -> None:
        # load 0.6, service 1 s: 0.6 / (2 x 0.4) = 0.75 s
        assert self.mean_wait_s(np.full(40_000, 4, np.int32), 0.6, 0.25) == pytest.approx(0.75, rel=0.04)

    def test_exponential_requests_wait_as_in_an_m_m_1_queue(self) -> None:
        # load 0.6, mean service 1 s: 0.6 / 0.4 = 1.5 s (lengths of 100 tokens on average, rounded up)
        lengths = np.ceil(np.random.default_rng(3).exponential(100, 30_000)).astype(np.int32)
        mean_s = lengths.mean() / 100
        assert self.mean_wait_s(lengths, 0.6, 0.01) == pytest.approx(1.5 * mean_s, rel=0.06)


@st.composite
def systems(draw: st.DrawFn) -> dict[str, object]:
    """Random requests on a random worker, busy enough for queues and evictions."""
    n = draw(st.integers(1, 25))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.1, 1.0, 2.5, 40.0]), min_size=n, max_size=n))
    prompts = [
        prompt(draw(st.integers(1, 3)), draw(st.integers(1, 20))) + draw(st.lists(st.integers(0, 2), max_size=5))
        for _ in range(n)
    ]
    outputs = draw(st.lists(st.integers(0, 12), min_size=n, max_size=n))
    return {
        "requests": requests_of(np.cumsum(gaps), prompts, outputs),
        "pool": Pool(WIDE, (draw(st.integers(12, 30)), draw(st.sampled_from([0, 6, 20])))),
        "cost": step_cost(draw(st.sampled_from([0.3, 1.0])), draw(st.sampled_from([0.0, 0.07]))),
        "limits": Limits(draw(st.sampled_from([1, 3, 8])), draw(st.sampled_from([12, 30, 500])), draw(st.booleans())),
        "offload_s": draw(st.sampled_from([0.0, 0.4])),
        "onboard_s": draw(st.sampled_from([0.0, 0.7])),
        "overlap": draw(st.sampled_from([0.0, 0.75, 1.0])),
    }


def serve(system: dict[str, object], *, skip: bool = True) -> Worker:
    limits = system["limits"]
    assert isinstance(limits, Limits)
    if not limits.enable_chunked_prefill:
        system = {**system, "limits": limits._replace(max_num_tokens=500)}
    return simulated(**system, skip=skip)  # type: ignore[arg-type]


class TestAlways:
    @given(system=systems())
    @settings(max_examples=60, deadline=None)
    def test_steps_spent_at_once_are_the_steps_spent_singly(self, system: dict[str, object]) -> None:
        quick, single = serve(system), serve(system, skip=False)
        for mine, theirs in zip(quick.engine.outcome, single.engine.outcome, strict=True):
            assert mine.tolist() == theirs.tolist()
        assert quick.clock.tolist() == single.clock.tolist()
        assert quick.steps == single.steps
        assert quick.engine.state.stats.tolist() == single.engine.state.stats.tolist()
        assert quick.lanes.work_s.tolist() == single.lanes.work_s.tolist()

    @given(system=systems())
    @settings(max_examples=60, deadline=None)
    def test_the_mean_number_in_the_system_is_rate_times_mean_latency(self, system: dict[str, object]) -> None:
        requests, out = system["requests"], serve(system).engine.outcome
        arrival = requests.arrival_s  # type: ignore[attr-defined]
        span = float(out.finish_s.max() - arrival[0])
        rate, latency = len(arrival) / span, float((out.finish_s - arrival).mean())
        assert mean_in_system(arrival, out.finish_s) == pytest.approx(rate * latency)

    @given(system=systems())
    @settings(max_examples=60, deadline=None)
    def test_blocks_tokens_and_time_are_conserved(self, system: dict[str, object]) -> None:
        worker = serve(system)
        requests, state, out = system["requests"], worker.engine.state, worker.engine.outcome
        prompts = requests.prompt_tokens  # type: ignore[attr-defined]
        assert state.tier[:, :, T_FREE].tolist() == state.tier[:, :, T_SIZE].tolist()
        assert (out.reused < prompts).all()
        assert state.stats[0, REUSED] + state.stats[0, MISSED] == (-(-prompts // 4)).sum()
        assert worker.clock[TOKENS_MADE] == requests.output_tokens.sum()  # type: ignore[attr-defined]
        assert (requests.arrival_s <= out.start_s).all()  # type: ignore[attr-defined]
        assert (out.start_s < out.first_token_s).all()
        assert (out.first_token_s <= out.finish_s).all()
        busy = worker.clock[COMPUTE_S] + worker.clock[COPY_WAIT_S]
        assert busy <= worker.clock[NOW_S] - requests.arrival_s[0] + 1e-9  # type: ignore[attr-defined]


class TestWaiting:
    """Four layers: the copy of each must end before its kernels begin."""

    def pipeline(self, copy_s: float, compute_s: float) -> float:
        copied = computed = 0.0
        for _ in range(4):
            copied += copy_s / 4
            computed = max(copied, computed) + compute_s / 4
        return computed

    @pytest.mark.parametrize(("copy_s", "compute_s"), [(0, 1), (1, 4), (2, 2), (8, 1), (3, 0)])
    def test_layer_by_layer_is_a_pipeline(self, copy_s: float, compute_s: float) -> None:
        assert waiting_s(copy_s, compute_s, 0.75) + compute_s == pytest.approx(self.pipeline(copy_s, compute_s))

    @given(copy_s=st.floats(0, 10), compute_s=st.floats(0, 10))
    def test_the_more_passes_side_by_side_the_less_is_waited(self, copy_s: float, compute_s: float) -> None:
        waits = [waiting_s(copy_s, compute_s, overlap) for overlap in (0.0, 0.5, 0.75, 0.9, 1.0)]
        assert waits == sorted(waits, reverse=True)
        assert waits[0] == copy_s
        assert waits[-1] == max(0.0, copy_s - compute_s)
