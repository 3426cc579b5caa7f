"""The requests of one worker, as rows: who waits, who is active and how far, and what has become of each.

It decides nothing (`kvcache.admission` and `kvcache.engine` do).
"""

from typing import NamedTuple

import numpy as np

from kvcache.load import Load
from kvcache.sequences import Matches, Sequences, make_matches, make_sequences
from kvcache.tables import C_TOKENS_PER_BLOCK, Array, State

# Entries of `limits`.
L_BATCH, L_TOKENS, L_CHUNKED, L_UNIT, L_POLICY = range(5)
POLICIES = ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH", "VLLM", "VLLM_ASYNC")
NO_EVICT, MAX_UTILIZATION, STATIC_BATCH, VLLM, VLLM_ASYNC = range(5)
# Entries of `meter`. N_FLIGHT and the one after it (`kvcache.vllm_engine`): who makes a token in this step, in the next.
WAIT_HEAD, WAIT_TAIL, N_ACTIVE, N_FREE_ROWS, N_STARTED, N_KEYS, STARVED, STEPS, PAUSES, N_FLIGHT = range(10)
N_DONE = 11
METERS = 12
# Columns of `rows`.
REQUEST, POSITION, TARGET, GENERATED, GENERATING = range(5)
HELD = 2  # of GENERATING: the sequence has its blocks and waits for content from elsewhere
# Entries of `plan`: the step's work, in the units of `sim.cost.step_seconds_windowed`.
(
    PREFILL_TOKENS,
    PREFILL_PAIRS,
    PREFILL_WINDOW_PAIRS,
    PREFILL_CONTEXT,
    DECODE_SEQS,
    DECODE_CONTEXT,
    DECODE_WINDOW,
) = range(7)
PLAN = 7


class Line(NamedTuple):
    """The requests of one worker: a FIFO of the waiting, the active in arrival order, scratch of a step."""

    waiting: Array  # int32: request numbers between WAIT_HEAD and WAIT_TAIL
    active: Array  # int32[max_batch_size]: sequence rows
    rows: Array  # int64[sequence row, 5]: request, prompt tokens computed, end of this step's chunk, tokens
    # generated (those before a pause too), 1 once the prompt is done or HELD
    free_rows: Array  # int32[max_batch_size]: a stack
    batch: Array  # int64[4, max_batch_size]: requests to start, their rows, their reused tokens
    chunk: Array  # int64[max_batch_size]: where the first chunk of each request to start ends, in prompt tokens
    keys: Array  # int32[2 * max_batch_size]: first new blocks that somebody computes in this step
    available: Array  # int64[window]
    skipped: Array  # int32: requests passed over in this step
    done: Array  # int32: the first N_DONE are the requests that have ended, in the order in which they did
    meter: Array  # int64[METERS]
    plan: Array  # float64[2 * PLAN]: the step that runs; the one after it, where that is scheduled already
    limits: Array  # int64[5]


class Outcome(NamedTuple):
    """What became of each request (length n); times are seconds, -1 where it has not happened."""

    reused: Array  # int64 tokens
    sent_s: Array  # when it came to the engine; written by whoever brings it
    start_s: Array
    first_token_s: Array
    finish_s: Array


class Engine(NamedTuple):
    """One worker's tables: hand it to the functions below."""

    state: State
    sequences: Sequences
    matches: Matches
    load: Load
    line: Line
    outcome: Outcome


class Limits(NamedTuple):
    """Scheduler settings in TensorRT-LLM's names. Non-final chunks end on multiples of `chunk_unit` (0: tokens_per_block)."""

    max_batch_size: int = 256
    max_num_tokens: int = 8192
    enable_chunked_prefill: bool = True
    chunk_unit: int = 0
    capacity_scheduler_policy: str = "GUARANTEED_NO_EVICT"


def make_outcome(n: int) -> Outcome:
    """Columns for n requests, shared by all workers of a run."""
    return Outcome(np.zeros(n, np.int64), np.full(n, -1.0), np.full(n, -1.0), np.full(n, -1.0), np.full(n, -1.0))


def make_engine(state: State, load: Load, outcome: Outcome, limits: Limits, positions: int) -> Engine:
    """An idle engine. `positions` is the most blocks a sequence may need."""
    rows, windows = limits.max_batch_size, len(state.window)
    tpb = int(state.conf[C_TOKENS_PER_BLOCK])
    unit = limits.chunk_unit or tpb
    if unit % tpb:
        raise ValueError(f"chunk_unit is {unit}; it must be a multiple of tokens_per_block ({tpb})")
    if limits.capacity_scheduler_policy not in POLICIES:
        known = ", ".join(POLICIES)
        raise ValueError(f"capacity_scheduler_policy is {limits.capacity_scheduler_policy}; known policies: {known}")
    policy = POLICIES.index(limits.capacity_scheduler_policy)
    line = Line(
        waiting=np.zeros(len(load.prompt) + 1, np.int32),
        active=np.zeros(rows, np.int32),
        rows=np.zeros((rows, 5), np.int64),
        free_rows=np.arange(rows - 1, -1, -1, dtype=np.int32),
        batch=np.zeros((4, rows), np.int64),
        chunk=np.zeros(rows, np.int64),
        keys=np.zeros(2 * rows, np.int32),
        available=np.zeros(windows, np.int64),
        skipped=np.zeros(len(load.prompt) + 1, np.int32),
        done=np.zeros(len(load.prompt), np.int32),
        meter=np.zeros(METERS, np.int64),
        plan=np.zeros(2 * PLAN),
        limits=np.array([rows, limits.max_num_tokens, limits.enable_chunked_prefill, unit, policy], np.int64),
    )
    line.meter[N_FREE_ROWS] = rows
    q, m = make_sequences(windows, rows, positions), make_matches(rows, positions)
    return Engine(state, q, m, load, line, outcome)


def arrive(e: Engine, r: int) -> None:
    """Request r joins the end of the line."""
    tail = int(e.line.meter[WAIT_TAIL])
    e.line.waiting[tail] = r
    e.line.meter[WAIT_TAIL] = tail + 1


def is_idle(e: Engine) -> bool:
    """Nobody waits and nobody is active."""
    meter = e.line.meter
    return bool(meter[N_ACTIVE] == 0 and meter[WAIT_HEAD] == meter[WAIT_TAIL])
