"""The engine: what a step allocates before it runs and what a finished step changes. It never waits and moves nothing.

`begin_step` is one iteration up to the forward pass, in TensorRT-LLM's order (capacity scheduler with pauses, micro-batch
scheduler, `addSequenceBatch` for new requests, `addToken` for generating ones, expiry); `end_step` is what follows it
(store context blocks, then store and release finished requests). Not modelled: beams. With the overlap scheduler the two
are one step apart: `kvcache.overlap`. vLLM's iteration is another one, over the same tables: `kvcache.vllm_engine`.

With drafts a generating sequence takes 1 + max_draft_len slots a step, all of them computed; of the drafts as many are
right as keep the mean, and the slots of the others are given back (`releaseLastBlock`). Near the end of a request
no more is drafted than its promised blocks hold. What drafting itself costs is not modelled.

    waiting --admitted, first chunk fits--> active: context --last chunk--> active: generating --last token--> done
       ^------------------------ paused (MAX_UTILIZATION): stored, released, resumed as a longer prompt

A request whose prompt comes from elsewhere (`Load.remote`) takes its blocks and is held until `kvcache.remote` lets it go on.
"""

from kvcache.admission import admit, continue_contexts, free_blocks, new_slots, next_step_fits, reserve_active
from kvcache.compiled import loop
from kvcache.line import (
    CARRY,
    DECODE_CONTEXT,
    DECODE_SEQS,
    DECODE_WINDOW,
    GENERATED,
    GENERATING,
    HELD,
    L_ACCEPTED,
    L_DRAFTS,
    L_OVERLAP,
    L_POLICY,
    MAX_UTILIZATION,
    MILLION,
    N_ACTIVE,
    N_DONE,
    N_FREE_ROWS,
    N_KEYS,
    N_STARTED,
    PAUSES,
    PLAN,
    POSITION,
    PREFILL_CONTEXT,
    PREFILL_PAIRS,
    PREFILL_TOKENS,
    PREFILL_WINDOW_PAIRS,
    REQUEST,
    STARVED,
    STEPS,
    TARGET,
    WAIT_HEAD,
    WAIT_TAIL,
    Engine,
    Limits,
    Line,
    Outcome,
    arrive,
    is_idle,
    make_engine,
    make_outcome,
)
from kvcache.queues import refresh
from kvcache.sequences import release_sequence, remove_slot
from kvcache.serve import finish, grow_one, prompt_of, short_key, start_batch, store_usable
from kvcache.tables import (
    C_SEQUENTIAL,
    C_TOKENS_PER_BLOCK,
    C_WINDOWS,
    CLOCK_US,
    T_FREE,
    W_SLIDING,
    W_TOKENS,
)

__all__ = [
    "Engine",
    "Limits",
    "Line",
    "Outcome",
    "arrive",
    "begin_step",
    "end_step",
    "is_idle",
    "make_engine",
    "make_outcome",
    "may_finish",
]


@loop
def _pause(e: Engine) -> None:
    """The latest starter stops: what it computed is stored, its blocks are handed back, it waits at the line's head.

    When it comes back its prompt is all its tokens so far, most of which it may then find in the cache.
    """
    line, meter = e.line, e.line.meter
    meter[N_ACTIVE] -= 1
    seq = int(line.active[meter[N_ACTIVE]])
    row = line.rows[seq]
    r = int(row[REQUEST])
    usable = int(row[POSITION]) - 1
    if row[GENERATING] == 1:
        e.load.resumed[r] = row[GENERATED]
        usable = prompt_of(e.load, r) - 1
    if usable > 0:
        store_usable(e.state, e.sequences, e.load, r, seq, usable, short_key(e.state, e.load, r, usable))
    for w in range(e.state.conf[C_WINDOWS]):
        release_sequence(e.state, e.sequences, w, seq)
    e.sequences.length[seq] = 0
    row[REQUEST] = -1
    line.free_rows[meter[N_FREE_ROWS]] = seq
    meter[N_FREE_ROWS] += 1
    meter[WAIT_HEAD] -= 1
    line.waiting[meter[WAIT_HEAD]] = r
    meter[PAUSES] += 1


@loop
def _make_room(e: Engine) -> bool:
    """MAX_UTILIZATION: walk the active in order; where the next step does not fit, pause the latest starters until it does.

    False if anybody was paused: then nobody new starts in this step.
    """
    meter = e.line.meter
    free_blocks(e)
    paused = False
    i = 0
    while i < meter[N_ACTIVE]:
        if next_step_fits(e, i):
            i += 1
            continue
        for w in range(e.state.conf[C_WINDOWS]):
            e.line.available[w] -= e.state.tier[w, 0, T_FREE]
        _pause(e)
        for w in range(e.state.conf[C_WINDOWS]):
            e.line.available[w] += e.state.tier[w, 0, T_FREE]
        paused = True
    return not paused


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
def _first_chunk_end(e: Engine, r: int, position: int, chunk: int) -> int:
    """Where a first chunk ends once `position` tokens are reused: with the prompt or, from there, on a block boundary.

    Where the estimate was too high and the whole prompt was to run, the step is larger than its budget.
    """
    prompt, end = prompt_of(e.load, r), position + chunk
    if end >= prompt:
        return prompt
    return end if position == 0 else end - end % int(e.state.conf[C_TOKENS_PER_BLOCK])


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
        row[TARGET] = _first_chunk_end(e, r, position, int(line.chunk[j]))
        row[CARRY] = 0
        row[GENERATED] = e.load.resumed[r]
        row[GENERATING] = HELD if e.load.remote[r] > position else 0
        if row[GENERATING] == HELD:
            row[TARGET] = position
        if e.outcome.start_s[r] < 0:
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
        if row[GENERATING] == 1:
            r = int(row[REQUEST])
            row[TARGET] = new_slots(e, r, int(e.sequences.slots[seq]))
            for _ in range(row[TARGET]):
                if not grow_one(e.state, e.sequences, e.load, r, seq):
                    line.meter[STARVED] += 1


@loop
def _plan(e: Engine) -> bool:
    """Sum up the work of the step, under the overlap scheduler that of the one after the one that runs; False: none."""
    line, s = e.line, e.state
    plan = line.plan[PLAN:] if line.limits[L_OVERLAP] else line.plan
    for i in range(PLAN):
        plan[i] = 0.0
    window = 1 << 40
    for w in range(s.conf[C_WINDOWS]):
        if s.window[w, W_SLIDING] == 1:
            window = int(s.window[w, W_TOKENS])
    for i in range(line.meter[N_ACTIVE]):
        seq = int(line.active[i])
        row = line.rows[seq]
        if row[GENERATING] == 1:
            context = int(e.sequences.slots[seq])
            plan[DECODE_SEQS] += row[TARGET]
            plan[DECODE_CONTEXT] += context
            plan[DECODE_WINDOW] += min(context, window)
        elif row[TARGET] > row[POSITION]:
            before, tokens = float(row[POSITION]), float(row[TARGET] - row[POSITION])
            plan[PREFILL_TOKENS] += tokens
            plan[PREFILL_PAIRS] += tokens * (before + tokens / 2)
            inside = min(tokens, max(0.0, window - before))
            plan[PREFILL_WINDOW_PAIRS] += inside * (before + inside / 2) + (tokens - inside) * window
            plan[PREFILL_CONTEXT] += before + tokens
    return bool(plan[PREFILL_TOKENS] + plan[DECODE_SEQS] > 0)


@loop
def begin_step(e: Engine, now_s: float) -> bool:
    """Schedule and allocate one step at `now_s`; its work is in `plan`, its copies in the state. False: nothing to do."""
    line, meter = e.line, e.line.meter
    e.state.tally[CLOCK_US] = int(now_s * 1e6)
    meter[N_KEYS] = 0
    meter[N_STARTED] = 0
    may_start = meter[WAIT_HEAD] < meter[WAIT_TAIL]
    if line.limits[L_POLICY] == MAX_UTILIZATION:
        may_start = _make_room(e) and may_start
    budget = continue_contexts(e)
    if may_start and line.limits[L_POLICY] != MAX_UTILIZATION:
        reserve_active(e)
    n = admit(e, budget, may_start)
    if n > 0:
        _start(e, n, now_s)
    if meter[N_ACTIVE] == 0:
        return False
    _grow_generating(e)
    refresh(e.state, int(now_s * 1e6))
    busy = _plan(e)
    meter[STEPS] += busy
    return busy


@loop
def may_finish(e: Engine) -> bool:
    """The step that runs may be some request's last one; False is certain."""
    line = e.line
    for i in range(line.meter[N_ACTIVE]):
        row = line.rows[line.active[i]]
        r = int(row[REQUEST])
        most = int(row[GENERATED] + 1 + line.limits[L_DRAFTS])
        if most >= e.load.output[r] and (row[GENERATING] == 1 or row[TARGET] == prompt_of(e.load, r)):
            return True
    return False


@loop
def accepted(e: Engine, r: int, seq: int, slots: int) -> int:
    """Tokens that a generating sequence makes in a step for which it took `slots` slots: one, and the drafts that are
    right. What the mean has left over counts in later steps."""
    row = e.line.rows[seq]
    row[CARRY] += e.line.limits[L_ACCEPTED]
    right = row[CARRY] // MILLION
    row[CARRY] -= right * MILLION
    return int(max(1, min(1 + right, slots, e.load.output[r] - row[GENERATED])))


@loop
def reject(e: Engine, seq: int, drafts: int) -> None:
    """The slots of drafts that were wrong are given back."""
    for _ in range(drafts):
        remove_slot(e.state, e.sequences, int(e.state.conf[C_WINDOWS]), seq)


@loop
def end_step(e: Engine, now_s: float) -> int:
    """The step ended at `now_s`: tokens appear, context blocks are stored, finished requests leave. Returns the tokens made."""
    line, meter, made = e.line, e.line.meter, 0
    e.state.tally[CLOCK_US] = int(now_s * 1e6)
    for i in range(meter[N_ACTIVE]):
        seq = int(line.active[i])
        row = line.rows[seq]
        r = int(row[REQUEST])
        prompt, output = prompt_of(e.load, r), int(e.load.output[r])
        if row[GENERATING] == 1:
            if row[TARGET] == 0:  # its prompt came while the step ran, which was begun without it
                continue
            new = accepted(e, r, seq, int(row[TARGET]))
            row[GENERATED] += new
            made += new
            if row[GENERATED] < output:
                reject(e, seq, int(row[TARGET]) - new)
        elif row[TARGET] > row[POSITION]:
            row[POSITION] = row[TARGET]
            usable = int(row[POSITION]) - 1
            if row[POSITION] == prompt:
                row[GENERATING] = 1
                row[GENERATED] += 1
                usable = prompt - 1 + min(output, 1)
                made += min(output, 1)
                if e.outcome.first_token_s[r] < 0:
                    e.outcome.first_token_s[r] = now_s
            store_usable(e.state, e.sequences, e.load, r, seq, usable, -1)
    kept = 0
    for i in range(meter[N_ACTIVE]):
        seq = int(line.active[i])
        row = line.rows[seq]
        r = int(row[REQUEST])
        if row[GENERATING] == 1 and row[GENERATED] >= e.load.output[r]:
            e.outcome.finish_s[r] = now_s
            line.done[meter[N_DONE]] = r
            meter[N_DONE] += 1
            finish(e.state, e.sequences, e.load, r, seq)
            line.free_rows[meter[N_FREE_ROWS]] = seq
            meter[N_FREE_ROWS] += 1
        else:
            line.active[kept] = seq
            kept += 1
    meter[N_ACTIVE] = kept
    return made
