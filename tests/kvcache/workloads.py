"""Small workloads of tokens, and an engine that can be watched step by step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvcache.engine import (
    GENERATED,
    N_ACTIVE,
    POSITION,
    REQUEST,
    TARGET,
    WAIT_HEAD,
    WAIT_TAIL,
    Engine,
    Limits,
    arrive,
    begin_step,
    end_step,
    is_idle,
    make_engine,
    make_outcome,
    may_finish,
)
from kvcache.line import N_DONE
from kvcache.load import longest_blocks, prepare
from kvcache.request import Requests
from kvcache.retention import KvCacheRetentionConfig, RetentionColumns
from kvcache.sequences import make_matches, make_sequences
from kvcache.serve import replay_serial
from kvcache.tables import LEVEL, N_COPIES, REFS, SLOT, T_FREE, T_SIZE, W_FIRST, Pool, Settings, State

WIDE = 1 << 20  # a full-attention window


def workload(
    prompts: Sequence[Sequence[int]],
    outputs: Sequence[int | Sequence[int]],
    arrival_s: Sequence[float] = (),
    *,
    salt: Sequence[int] = (),
) -> Requests:
    """Requests of tokens. An output is its tokens, or their number when nobody else can know them."""
    n = len(prompts)
    known = all(not isinstance(output, int) for output in outputs) and n > 0
    flat = [token for output in outputs if not isinstance(output, int) for token in output]
    lengths = [output if isinstance(output, int) else len(output) for output in outputs]
    return Requests(
        "test",
        1,
        np.array(arrival_s or np.arange(n), np.float64),
        np.array([len(p) for p in prompts], np.int32),
        np.array(lengths, np.int32),
        np.cumsum([0, *(len(p) for p in prompts)]).astype(np.int64),
        np.array([token for p in prompts for token in p], np.int32),
        output_offset=np.cumsum([0, *lengths]).astype(np.int64) if known else None,
        output_units=np.array(flat, np.int32) if known else None,
        salt=np.array(salt, np.int32),
    )


def serial(
    requests: Requests,
    pools: Sequence[Pool],
    settings: Settings,
    retention: Sequence[KvCacheRetentionConfig | None] = (),
) -> tuple[State, list[int]]:
    """Tables after serving one request after the other, and each one's reused tokens."""
    n = len(requests)
    columns = RetentionColumns.of(retention) if retention else RetentionColumns.none(n)
    state, load = prepare(requests, columns, tuple(pools), settings)
    positions = longest_blocks(requests, settings.tokens_per_block)
    reused = np.zeros(n, np.int64)
    done = replay_serial(
        state,
        make_sequences(len(pools), 1, positions),
        make_matches(1, positions),
        load,
        np.zeros((3, 1), np.int64),
        np.asarray(requests.arrival_s * 1e6).astype(np.int64),
        0,
        n,
        reused,
    )
    assert done == n
    return state, reused.tolist()


class Bench:
    """An engine whose requests have not arrived yet."""

    def __init__(
        self,
        requests: Requests,
        pools: Sequence[Pool],
        settings: Settings,
        limits: Limits = Limits(),
        retention: Sequence[KvCacheRetentionConfig | None] = (),
    ) -> None:
        n = len(requests)
        columns = RetentionColumns.of(retention) if retention else RetentionColumns.none(n)
        settings = settings._replace(record_copies=True)
        state, load = prepare(requests, columns, tuple(pools), settings)
        positions = longest_blocks(requests, settings.tokens_per_block)
        self.engine: Engine = make_engine(state, load, make_outcome(n), limits, positions)

    def arrive(self, *requests: int) -> None:
        for r in requests:
            arrive(self.engine, r)

    def begin(self, now_s: float) -> dict[int, tuple[int, int]]:
        """Start a step. What each active request does in it: (prompt tokens from, to), or (-1, tokens before it)."""
        begin_step(self.engine, now_s)
        self.engine.state.tally[N_COPIES] = 0
        line = self.engine.line
        out = {}
        for seq in line.active[: line.meter[N_ACTIVE]]:
            row = line.rows[seq]
            work = (-1, int(row[GENERATED])) if row[GENERATED] > 0 else (int(row[POSITION]), int(row[TARGET]))
            out[int(row[REQUEST])] = work
        return out

    def end(self, now_s: float) -> None:
        end_step(self.engine, now_s)

    def step(self, now_s: float) -> dict[int, tuple[int, int]]:
        """One step that takes half a second."""
        out = self.begin(now_s)
        may, done = may_finish(self.engine), int(self.engine.line.meter[N_DONE])
        self.end(now_s + 0.5)
        assert may or done == self.engine.line.meter[N_DONE]
        return out

    @property
    def waiting(self) -> list[int]:
        meter = self.engine.line.meter
        return self.engine.line.waiting[meter[WAIT_HEAD] : meter[WAIT_TAIL]].tolist()

    def run(self, now_s: float = 0.0) -> int:
        """Step until idle; returns how many steps that took."""
        steps = 0
        while not is_idle(self.engine):
            self.step(now_s + steps)
            steps += 1
            assert steps < 10_000
        return steps

    def check(self) -> None:
        """Free and referenced blocks make up each pool."""
        assert_conserved(self.engine.state)


def assert_conserved(state: State, *, all_free: bool = False) -> None:
    """Free and referenced blocks make up each tier; places are a permutation."""
    for w in range(state.tier.shape[0]):
        for level in range(state.tier.shape[1]):
            first, size = int(state.window[w, W_FIRST]), int(state.tier[w, level, T_SIZE])
            rows = state.blocks[first : first + int(state.tier[w, :, T_SIZE].sum())]
            here = rows[rows[:, LEVEL] == level]
            assert sorted(here[:, SLOT].tolist()) == list(range(size))
            used = int((here[:, REFS] > 0).sum())
            assert int(state.tier[w, level, T_FREE]) + used == size
            assert not all_free or used == 0


@st.composite
def workloads(draw: st.DrawFn, *, most: int = 14, longest: int = 20) -> Requests:
    """Random requests of few different tokens: shared beginnings, repeats of whole prompts, conversations."""
    n = draw(st.integers(1, most))
    prompts: list[list[int]] = []
    outputs: list[list[int]] = []
    for _ in range(n):
        start: list[int] = []
        if prompts and draw(st.booleans()):
            other = draw(st.integers(0, len(prompts) - 1))
            whole = prompts[other] + outputs[other]
            start = whole[: draw(st.integers(0, len(whole)))]
        more = draw(st.lists(st.integers(0, 2), min_size=0 if start else 1, max_size=9))
        prompts.append((start + more)[:longest])
        outputs.append(draw(st.lists(st.integers(0, 2), min_size=0, max_size=7)))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.001, 0.02, 3.0]), min_size=n, max_size=n))
    return workload(prompts, outputs, np.cumsum(gaps).tolist())


def some_settings(**fixed: Any) -> st.SearchStrategy[Settings]:
    """Rules of small blocks."""
    choices: dict[str, st.SearchStrategy[Any]] = {
        "tokens_per_block": st.sampled_from([1, 2, 4, 8]),
        "secondary_offload_min_priority": st.sampled_from([0, 30, 50]),
        "enable_partial_reuse": st.booleans(),
        "copy_on_partial_reuse": st.booleans(),
        "evict_descendants": st.booleans(),
        "detached_first": st.booleans(),
        "emptied_host_slot_front": st.booleans(),
    }
    choices |= {name: st.just(value) for name, value in fixed.items()}
    return st.fixed_dictionaries(choices).map(lambda chosen: Settings(**chosen))
