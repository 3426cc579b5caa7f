"""The engine: who runs in the next step, and what a finished step changes. It never waits and moves nothing.

`begin_step` is one iteration up to the forward pass, in TensorRT-LLM's order (capacity scheduler, micro-batch scheduler,
`addSequenceBatch` for new requests, `addToken` for generating ones, expiry); `end_step` is what follows it (store context
blocks, then store and release finished requests). Models GUARANTEED_NO_EVICT admission with reuse-aware estimates and the
skip rule, and chunked context first come first served. Not modelled: beams, the overlap scheduler's extra delay.

    waiting --admitted, first chunk fits--> active: context --last chunk--> active: generating --last token--> done
"""

from typing import NamedTuple

import numpy as np

from kvcache import schedule
from kvcache.compiled import loop
from kvcache.load import Load
from kvcache.queues import refresh
from kvcache.sequences import Matches, Sequences, make_matches, make_sequences
from kvcache.serve import finish, grow_one, start_batch, store_usable
from kvcache.tables import C_REUSE, C_SEQUENTIAL, C_TOKENS_PER_BLOCK, C_WINDOWS, CLOCK_US, T_FREE, W_SLIDING, W_TOKENS, Array, State

# Entries of `limits`.
L_BATCH, L_TOKENS, L_CHUNKED, L_UNIT = range(4)
# Entries of `meter`.
WAIT_HEAD, WAIT_TAIL, N_ACTIVE, N_FREE_ROWS, N_STARTED, N_KEYS, STARVED, STEPS = range(8)
METERS = 8
# Columns of `rows`.
REQUEST, POSITION, TARGET, GENERATED = range(4)
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
    rows: Array  # int64[sequence row, 4]: request, prompt tokens computed, end of this step's chunk, tokens generated
    free_rows: Array  # int32[max_batch_size]: a stack
    batch: Array  # int64[3, max_batch_size]: requests to start, their rows, their reused tokens
    chunk: Array  # int64[max_batch_size]: where the first chunk of each request to start ends, in prompt tokens
    keys: Array  # int32[2 * max_batch_size]: first new blocks that somebody computes in this step
    available: Array  # int64[window]
    skipped: Array  # int32: requests passed over in this step
    meter: Array  # int64[METERS]
    plan: Array  # float64[PLAN]
    limits: Array  # int64[4]


class Outcome(NamedTuple):
    """What became of each request (length n); times are seconds, -1 where it has not happened."""

    reused: Array  # int64 tokens
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


def make_outcome(n: int) -> Outcome:
    """Columns for n requests, shared by all workers of a run."""
    return Outcome(np.zeros(n, np.int64), np.full(n, -1.0), np.full(n, -1.0), np.full(n, -1.0))


def make_engine(state: State, load: Load, outcome: Outcome, limits: Limits, positions: int) -> Engine:
    """An idle engine. `positions` is the most blocks a sequence may need."""
    rows, windows = limits.max_batch_size, len(state.window)
    tpb = int(state.conf[C_TOKENS_PER_BLOCK])
    unit = limits.chunk_unit or tpb
    if unit % tpb:
        raise ValueError(f"chunk_unit is {unit}; it must be a multiple of tokens_per_block ({tpb})")
    line = Line(
        waiting=np.zeros(len(load.prompt) + 1, np.int32),
        active=np.zeros(rows, np.int32),
        rows=np.zeros((rows, 4), np.int64),
        free_rows=np.arange(rows - 1, -1, -1, dtype=np.int32),
        batch=np.zeros((3, rows), np.int64),
        chunk=np.zeros(rows, np.int64),
        keys=np.zeros(2 * rows, np.int32),
        available=np.zeros(windows, np.int64),
        skipped=np.zeros(len(load.prompt) + 1, np.int32),
        meter=np.zeros(METERS, np.int64),
        plan=np.zeros(PLAN),
        limits=np.array([rows, limits.max_num_tokens, limits.enable_chunked_prefill, unit], np.int64),
    )
    line.meter[N_FREE_ROWS] = rows
    q, m = make_sequences(windows, rows, positions), make_matches(rows, positions)
    return Engine(state, q, m, load, line, outcome)


@loop
def arrive(e: Engine, r: int) -> None:
    """Request r joins the end of the line."""
    line = e.line
    line.waiting[line.meter[WAIT_TAIL]] = r
    line.meter[WAIT_TAIL] += 1


@loop
def is_idle(e: Engine) -> bool:
    """Nobody waits and nobody is active."""
    meter = e.line.meter
    return bool(meter[N_ACTIVE] == 0 and meter[WAIT_HEAD] == meter[WAIT_TAIL])


@loop
def _first_new(e: Engine, r: int) -> int:
    first = int(e.load.key_offset[r])
    keys = e.load.keys[first : e.load.key_offset[r + 1]]
    full = int(e.load.prompt[r]) // e.state.conf[C_TOKENS_PER_BLOCK]
    return int(schedule.analyze(e.state, 0, keys, full).first_new)


@loop
def _contribute(e: Engine, node: int) -> None:
    """Somebody computes this block in this step: others who need it next had better wait."""
    meter = e.line.meter
    if node >= 0 and meter[N_KEYS] < len(e.line.keys):
        e.line.keys[meter[N_KEYS]] = node
        meter[N_KEYS] += 1


@loop
def _better_wait(e: Engine, node: int) -> bool:
    if node < 0:
        return False
    for i in range(e.line.meter[N_KEYS]):
        if schedule.same_key(e.state, int(e.line.keys[i]), node):
            return True
    return False


@loop
def _continue_contexts(e: Engine) -> int:
    """Chunks of the prompts in progress, in order; returns the tokens left for others. Generating sequences come first."""
    line, meter, limits = e.line, e.line.meter, e.line.limits
    budget = int(limits[L_TOKENS])
    skip_rule = e.state.conf[C_REUSE] == 1 and e.state.conf[C_WINDOWS] == 1
    for i in range(meter[N_ACTIVE]):
        if line.rows[line.active[i], GENERATED] > 0:
            budget -= 1
    for i in range(meter[N_ACTIVE]):
        row = line.rows[line.active[i]]
        if row[GENERATED] > 0:
            continue
        prompt = int(e.load.prompt[row[REQUEST]])
        end = min(prompt, int(row[POSITION]) + max(0, budget))
        if end < prompt:
            end -= end % limits[L_UNIT]
        row[TARGET] = max(end, row[POSITION])
        budget -= row[TARGET] - row[POSITION]
        if skip_rule:
            _contribute(e, _first_new(e, int(row[REQUEST])))
    return budget


@loop
def _reserve_active(e: Engine) -> None:
    """GUARANTEED_NO_EVICT: what is left once every active request is promised its last block."""
    s, line = e.state, e.line
    for w in range(s.conf[C_WINDOWS]):
        left = int(s.tier[w, 0, T_FREE])
        for i in range(line.meter[N_ACTIVE]):
            seq = int(line.active[i])
            r = int(line.rows[seq, REQUEST])
            held = int(e.sequences.length[seq] - e.sequences.dropped[w, seq])
            prompt, output = int(e.load.prompt[r]), int(e.load.output[r])
            tokens = prompt + int(line.rows[seq, GENERATED])
            left -= schedule.remaining_at(s, w, prompt, output, tokens, held, 0)
        line.available[w] = left


@loop
def _fits(e: Engine, r: int, take: bool) -> bool:
    """Request r's blocks to completion are available in every window; `take` reserves them."""
    s, line = e.state, e.line
    keys = e.load.keys[e.load.key_offset[r] : e.load.key_offset[r + 1]]
    full = int(e.load.prompt[r]) // s.conf[C_TOKENS_PER_BLOCK]
    for w in range(s.conf[C_WINDOWS]):
        used = schedule.analyze(s, w, keys, full).reusable_allocated
        need = schedule.remaining_blocks(s, w, int(e.load.prompt[r]), int(e.load.output[r]), 0, used)
        if take:
            line.available[w] -= need
        elif need > line.available[w]:
            return False
    return True


@loop
def _reused_estimate(e: Engine, r: int) -> int:
    """Prompt tokens that request r will find computed, as far as admission can tell: whole blocks of the first window."""
    s = e.state
    tpb = int(s.conf[C_TOKENS_PER_BLOCK])
    keys = e.load.keys[e.load.key_offset[r] : e.load.key_offset[r + 1]]
    prompt = int(e.load.prompt[r])
    return min(int(schedule.analyze(s, 0, keys, prompt // tpb).reusable_all) * tpb, prompt - 1)


@loop
def _first_chunk_end(e: Engine, r: int, computed: int, budget: int) -> int:
    """Where the first chunk of request r ends if it finds `computed` tokens; no further than that: it does not fit.

    Where the estimate was too high, the step is larger than its budget; a prompt that fits as a whole stays whole.
    """
    prompt, limits = int(e.load.prompt[r]), e.line.limits
    end = computed + max(0, budget)
    if end >= prompt:
        return prompt
    return end - end % int(limits[L_UNIT]) if limits[L_CHUNKED] else computed


@loop
def _admit(e: Engine, budget: int) -> int:
    """Choose the waiting requests that start now, in order; returns how many."""
    line, meter = e.line, e.line.meter
    n, skipped, at = 0, 0, int(meter[WAIT_HEAD])
    skip_rule = e.state.conf[C_REUSE] == 1 and e.state.conf[C_WINDOWS] == 1
    while at < meter[WAIT_TAIL] and meter[N_ACTIVE] + n < line.limits[L_BATCH]:
        r = int(line.waiting[at])
        first_new = _first_new(e, r) if skip_rule else -1
        if _better_wait(e, first_new):
            line.skipped[skipped] = r
            skipped += 1
            at += 1
            continue
        if not _fits(e, r, False):
            break
        computed = _reused_estimate(e, r)
        end = _first_chunk_end(e, r, computed, budget)
        if end <= computed:
            break
        _fits(e, r, True)
        _contribute(e, first_new)
        budget -= end - computed
        line.batch[0, n] = r
        line.chunk[n] = end
        n += 1
        at += 1
    for i in range(skipped - 1, -1, -1):
        at -= 1
        line.waiting[at] = line.skipped[i]
    meter[WAIT_HEAD] = at
    return n


@loop
def _start_batches(e: Engine, n: int) -> int:
    """All n at once, or one by one under the rule of 2025; returns how many were started."""
    batch = e.line.batch
    if not e.state.conf[C_SEQUENTIAL]:
        return start_batch(e.state, e.sequences, e.matches, e.load, batch[0], batch[1], n, batch[2])
    for j in range(n):
        if start_batch(e.state, e.sequences, e.matches, e.load, batch[0, j:], batch[1, j:], 1, batch[2, j:]) == 0:
            return j
    return n


@loop
def _start(e: Engine, n: int, now_s: float) -> None:
    """Give the n chosen requests sequence rows and blocks; those for which blocks run out go back to the line's head."""
    line, meter = e.line, e.line.meter
    for j in range(n):
        line.batch[1, j] = line.free_rows[meter[N_FREE_ROWS] - 1 - j]
    started = _start_batches(e, n)
    for j in range(started):
        r, seq = int(line.batch[0, j]), int(line.batch[1, j])
        position = int(line.batch[2, j])
        row = line.rows[seq]
        row[REQUEST] = r
        row[POSITION] = position
        row[TARGET] = max(position, int(line.chunk[j]))
        row[GENERATED] = 0
        e.outcome.reused[r] = position
        e.outcome.start_s[r] = now_s
        line.active[meter[N_ACTIVE]] = seq
        meter[N_ACTIVE] += 1
    meter[N_FREE_ROWS] -= started
    meter[STARVED] += n - started
    for j in range(n - 1, started - 1, -1):
        meter[WAIT_HEAD] -= 1
        line.waiting[meter[WAIT_HEAD]] = line.batch[0, j]
    meter[N_STARTED] = started


@loop
def _grow_generating(e: Engine) -> None:
    line = e.line
    for i in range(line.meter[N_ACTIVE] - line.meter[N_STARTED]):
        seq = int(line.active[i])
        row = line.rows[seq]
        if row[GENERATED] > 0 and not grow_one(e.state, e.sequences, e.load, int(row[REQUEST]), seq):
            line.meter[STARVED] += 1


@loop
def _plan(e: Engine) -> None:
    """Sum up the work of the step."""
    line, plan, s = e.line, e.line.plan, e.state
    for i in range(PLAN):
        plan[i] = 0.0
    window = 1 << 40
    for w in range(s.conf[C_WINDOWS]):
        if s.window[w, W_SLIDING] == 1:
            window = int(s.window[w, W_TOKENS])
    for i in range(line.meter[N_ACTIVE]):
        seq = int(line.active[i])
        row = line.rows[seq]
        if row[GENERATED] > 0:
            context = int(e.sequences.slots[seq])
            plan[DECODE_SEQS] += 1
            plan[DECODE_CONTEXT] += context
            plan[DECODE_WINDOW] += min(context, window)
        elif row[TARGET] > row[POSITION]:
            before, tokens = float(row[POSITION]), float(row[TARGET] - row[POSITION])
            plan[PREFILL_TOKENS] += tokens
            plan[PREFILL_PAIRS] += tokens * (before + tokens / 2)
            inside = min(tokens, max(0.0, window - before))
            plan[PREFILL_WINDOW_PAIRS] += inside * (before + inside / 2) + (tokens - inside) * window
            plan[PREFILL_CONTEXT] += before + tokens


@loop
def begin_step(e: Engine, now_s: float) -> bool:
    """Schedule and allocate one step at `now_s`; its work is in `plan`, its copies in the state. False: nothing to do."""
    line, meter = e.line, e.line.meter
    e.state.tally[CLOCK_US] = int(now_s * 1e6)
    meter[N_KEYS] = 0
    meter[N_STARTED] = 0
    budget = _continue_contexts(e)
    if meter[WAIT_HEAD] < meter[WAIT_TAIL]:
        _reserve_active(e)
        n = _admit(e, budget)
        if n > 0:
            _start(e, n, now_s)
    if meter[N_ACTIVE] == 0:
        return False
    _grow_generating(e)
    refresh(e.state, int(now_s * 1e6))
    _plan(e)
    meter[STEPS] += 1
    return bool(line.plan[PREFILL_TOKENS] + line.plan[DECODE_SEQS] > 0)


@loop
def end_step(e: Engine, now_s: float) -> int:
    """The step ended at `now_s`: tokens appear, context blocks are stored, finished requests leave. Returns the tokens made."""
    line, meter, made = e.line, e.line.meter, 0
    e.state.tally[CLOCK_US] = int(now_s * 1e6)
    for i in range(meter[N_ACTIVE]):
        seq = int(line.active[i])
        row = line.rows[seq]
        r = int(row[REQUEST])
        prompt, output = int(e.load.prompt[r]), int(e.load.output[r])
        if row[GENERATED] > 0:
            row[GENERATED] += 1
            made += 1
        elif row[TARGET] > row[POSITION]:
            row[POSITION] = row[TARGET]
            usable = int(row[POSITION]) - 1
            if row[POSITION] == prompt:
                row[GENERATED] = 1
                usable = prompt - 1 + min(output, 1)
                made += min(output, 1)
                e.outcome.first_token_s[r] = now_s
            store_usable(e.state, e.sequences, e.load, r, seq, usable, -1)
    kept = 0
    for i in range(meter[N_ACTIVE]):
        seq = int(line.active[i])
        row = line.rows[seq]
        r = int(row[REQUEST])
        if row[GENERATED] > 0 and row[GENERATED] >= e.load.output[r]:
            e.outcome.finish_s[r] = now_s
            finish(e.state, e.sequences, e.load, r, seq)
            line.free_rows[meter[N_FREE_ROWS]] = seq
            meter[N_FREE_ROWS] += 1
        else:
            line.active[kept] = seq
            kept += 1
    meter[N_ACTIVE] = kept
    return made
