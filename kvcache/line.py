"""The requests of one worker, as rows: who waits, who is active and how far, and what has become of each.

It decides nothing (`kvcache.admission` and `kvcache.engine` do).
"""

from typing import NamedTuple

import numpy as np

from kvcache.load import Load
from kvcache.sequences import Matches, Sequences, make_matches, make_sequences
from kvcache.tables import C_TOKENS_PER_BLOCK, Array, State

# Entries of `limits`.
L_BATCH, L_TOKENS, L_CHUNKED, L_UNIT, L_POLICY, L_CHUNKING, L_OVERLAP, L_DRAFTS, L_ACCEPTED = range(9)
CHUNKING = ("FIRST_COME_FIRST_SERVED", "EQUAL_PROGRESS")
FIRST_COME, EQUAL_PROGRESS = range(2)
MILLION = 1_000_000  # L_ACCEPTED is in millionths of a token
POLICIES = ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH", "VLLM", "VLLM_ASYNC")
NO_EVICT, MAX_UTILIZATION, STATIC_BATCH, VLLM, VLLM_ASYNC = range(5)
# Entries of `meter`. N_FLIGHT and the one after it (`kvcache.vllm_engine`): who makes a token in this step, in the next.
WAIT_HEAD, WAIT_TAIL, N_ACTIVE, N_FREE_ROWS, N_STARTED, N_KEYS, STARVED, STEPS, PAUSES, N_FLIGHT = range(10)
N_DONE = 11
METERS = 12
# Columns of `rows`.
REQUEST, POSITION, TARGET, GENERATED, GENERATING, CARRY = range(6)
HELD = 2  # of GENERATING: the sequence has its blocks and waits for content from elsewhere
# Entries of `flight`, by step: who is in it.
F_ROW, F_REQUEST, F_STORED, F_GREW = range(4)
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
    rows: Array  # int64[sequence row, 6]: request; prompt tokens computed; end of this step's chunk, or slots taken in
    # this step while generating; tokens generated (those before a pause too); 1 once the prompt is done, or
    # HELD; what
    # accepted drafts have left over, in millionths of a token
    free_rows: Array  # int32[max_batch_size]: a stack
    batch: Array  # int64[4, max_batch_size]: requests to start, their rows, their reused tokens, tokens to compute
    chunk: Array  # int64[max_batch_size]: tokens of the first chunk of each request to start; its prompt: all of them
    flight: Array  # int64[2, 4, max_batch_size]: the step that runs and the one after it: rows, requests, prompt tokens
    # that can be stored when it ends (-1: generating), slots taken
    keys: Array  # int32[2 * max_batch_size]: first new blocks that somebody computes in this step
    available: Array  # int64[window]
    done: Array  # int32: the first N_DONE are the requests that have ended, in the order in which they did
    meter: Array  # int64[METERS]
    plan: Array  # float64[2 * PLAN]: the step that runs; the one after it, where that is scheduled already
    limits: Array  # int64[9]


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
    """Scheduler settings in TensorRT-LLM's names. Chunks that are not a prompt's last are multiples of `chunk_unit` (0:
    tokens_per_block). `max_draft_len` tokens are drafted for each generating request in each step, of which
    `accepted_per_step` are right on average.
    """

    max_batch_size: int = 256
    max_num_tokens: int = 8192
    enable_chunked_prefill: bool = True
    chunk_unit: int = 0
    capacity_scheduler_policy: str = "GUARANTEED_NO_EVICT"
    context_chunking_policy: str = "FIRST_COME_FIRST_SERVED"
    disable_overlap_scheduler: bool = True
    max_draft_len: int = 0
    accepted_per_step: float = 0.0


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
    policy = _known("capacity_scheduler_policy", limits.capacity_scheduler_policy, POLICIES)
    chunking = _known("context_chunking_policy", limits.context_chunking_policy, CHUNKING)
    drafts = limits.max_draft_len
    if not 0 <= limits.accepted_per_step <= drafts:
        raise ValueError(
            f"accepted_per_step is {limits.accepted_per_step}; it must be from 0 to max_draft_len ({drafts})"
        )
    overlap = not limits.disable_overlap_scheduler
    accepted = round(limits.accepted_per_step * MILLION)
    positions += -(-slack(overlap, drafts) // tpb)
    line = Line(
        waiting=np.zeros(len(load.prompt) + 1, np.int32),
        active=np.zeros(rows, np.int32),
        rows=np.zeros((rows, 6), np.int64),
        free_rows=np.arange(rows - 1, -1, -1, dtype=np.int32),
        batch=np.zeros((4, rows), np.int64),
        chunk=np.zeros(rows, np.int64),
        flight=np.zeros((2, 4, rows), np.int64),
        keys=np.zeros(2 * rows, np.int32),
        available=np.zeros(windows, np.int64),
        done=np.zeros(len(load.prompt), np.int32),
        meter=np.zeros(METERS, np.int64),
        plan=np.zeros(2 * PLAN),
        limits=np.array(
            [
                rows,
                limits.max_num_tokens,
                limits.enable_chunked_prefill,
                unit,
                policy,
                chunking,
                overlap,
                drafts,
                accepted,
            ],
            np.int64,
        ),
    )
    line.meter[N_FREE_ROWS] = rows
    q, m = make_sequences(windows, rows, positions), make_matches(rows, positions)
    return Engine(state, q, m, load, line, outcome)


def slack(overlap: bool, drafts: int) -> int:
    """Slots that a sequence may take beyond prompt and output: drafts of two steps, where the second one is scheduled
    before the first one's rejected drafts are known."""
    return 2 * drafts if overlap else 0


def _known(name: str, value: str, known: tuple[str, ...]) -> int:
    if value not in known:
        raise ValueError(f"{name} is {value}; known policies: {', '.join(known)}")
    return known.index(value)


def arrive(e: Engine, r: int) -> None:
    """Request r joins the end of the line."""
    tail = int(e.line.meter[WAIT_TAIL])
    e.line.waiting[tail] = r
    e.line.meter[WAIT_TAIL] = tail + 1


def is_idle(e: Engine) -> bool:
    """Nobody waits and nobody is active."""
    meter = e.line.meter
    return bool(meter[N_ACTIVE] == 0 and meter[WAIT_HEAD] == meter[WAIT_TAIL])
