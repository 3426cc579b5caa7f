"""vLLM's engine, v1: its scheduler and its cache, over the tables of the other engine and behind the same two calls.

`kvcache.rules` chooses it where the policy is VLLM or VLLM_ASYNC. Models `v1/core/sched/scheduler.py` (fcfs),
`kv_cache_manager.py` and `block_pool.py`: running requests first, each its next tokens; where a block is missing, the
LAST running request loses all of its own and waits at the line's head, to be computed again; then, if nobody was hit,
waiting requests in order, until one does not fit with all its tokens. A full block can be found once it is allocated.

With VLLM_ASYNC a step is scheduled while the one before it runs: what ends or arrives meanwhile counts one step later.

    schedule 1, 2 | step 1 | ends: schedule 3 | step 2 | ends: schedule 4 | step 3 ...     (VLLM: each one at its start)

Differences: a content that two requests compute at once keeps the first one's block only (vLLM: both). Not modelled:
several windows or tiers, priorities, speculative tokens. `vllm_begin` and `vllm_end` are the iteration.
"""

from kvcache.admission import leave_line
from kvcache.blocks import get_free
from kvcache.compiled import loop
from kvcache.line import (
    DECODE_CONTEXT,
    DECODE_SEQS,
    DECODE_WINDOW,
    F_REQUEST,
    F_ROW,
    GENERATED,
    L_BATCH,
    L_CHUNKED,
    L_POLICY,
    L_TOKENS,
    N_ACTIVE,
    N_DONE,
    N_FLIGHT,
    N_FREE_ROWS,
    N_STARTED,
    PAUSES,
    PLAN,
    POSITION,
    PREFILL_CONTEXT,
    PREFILL_PAIRS,
    PREFILL_TOKENS,
    PREFILL_WINDOW_PAIRS,
    REQUEST,
    STEPS,
    VLLM_ASYNC,
    WAIT_HEAD,
    WAIT_TAIL,
    Engine,
)
from kvcache.queues import claim
from kvcache.sequences import miss_cause, release_sequence, store
from kvcache.serve import prompt_of
from kvcache.tables import (
    C_REUSE,
    C_TOKENS_PER_BLOCK,
    CAUSE_0,
    CLOCK_US,
    DEFAULT_PRIORITY,
    FATE,
    FULL_REUSED,
    GEN_ALLOC,
    HIT_TOKENS_GPU,
    IN_FLIGHT,
    KEY,
    MISSED,
    NEVER_SEEN,
    REFS,
    REUSED,
    SHORT_BLOCK,
    T_FREE,
)

# Columns of `rows` as they are used here. POSITION: tokens computed once every scheduled step has ended. GENERATED:
# tokens that have come out, those before a pre-emption too.
STORED_BLOCKS = 2  # blocks whose content others can find
COMING = 4  # tokens that scheduled steps will make


@loop
def _wanted(e: Engine, r: int) -> int:
    """Tokens request r will make; the engine makes one even where none is asked for."""
    return max(1, int(e.load.output[r]))


@loop
def _store(e: Engine, seq: int, tokens: int) -> None:
    """The blocks that the first `tokens` tokens fill can be found from now on."""
    row = e.line.rows[seq]
    full = tokens // int(e.state.conf[C_TOKENS_PER_BLOCK])
    if full > row[STORED_BLOCKS] and e.state.conf[C_REUSE]:
        r = int(row[REQUEST])
        keys = e.load.keys[e.load.key_offset[r] : e.load.key_offset[r + 1] - 2]
        full = min(full, len(keys))
        store(e.state, e.sequences, 0, seq, keys, full, -1)
        row[STORED_BLOCKS] = full


@loop
def _extend(e: Engine, seq: int, tokens: int) -> bool:
    """Blocks for the first `tokens` tokens of a sequence; False, and nothing taken, if they are not free."""
    s, q = e.state, e.sequences
    tpb = int(s.conf[C_TOKENS_PER_BLOCK])
    r = int(e.line.rows[seq, REQUEST])
    have, need = int(q.length[seq]), (tokens + tpb - 1) // tpb
    if need - have > s.tier[0, 0, T_FREE]:
        return False
    for i in range(have, need):
        block = get_free(s, 0, DEFAULT_PRIORITY, -1)
        s.blocks[block, REFS] = 1
        s.blocks[block, KEY] = e.load.keys[e.load.key_offset[r] + i]
        q.blocks[0, seq, i] = block
        if i * tpb >= prompt_of(e.load, r):
            s.stats[0, GEN_ALLOC] += 1
    q.length[seq] = max(have, need)
    q.slots[seq] = tokens
    return True


@loop
def _give_up_row(e: Engine, seq: int) -> None:
    line, meter = e.line, e.line.meter
    release_sequence(e.state, e.sequences, 0, seq)
    e.sequences.length[seq] = 0
    line.rows[seq, REQUEST] = -1
    line.free_rows[meter[N_FREE_ROWS]] = seq
    meter[N_FREE_ROWS] += 1


@loop
def _preempt_last(e: Engine) -> int:
    """The last running request hands everything back and waits at the line's head; returns its row."""
    line, meter = e.line, e.line.meter
    meter[N_ACTIVE] -= 1
    seq = int(line.active[meter[N_ACTIVE]])
    r = int(line.rows[seq, REQUEST])
    e.load.resumed[r] = line.rows[seq, GENERATED]
    _give_up_row(e, seq)
    meter[WAIT_HEAD] -= 1
    line.waiting[meter[WAIT_HEAD]] = r
    meter[PAUSES] += 1
    return seq


@loop
def _schedule_tokens(e: Engine, seq: int, tokens: int, known: int) -> None:
    """Enter `tokens` tokens of a sequence, whose blocks it has, into the step being scheduled."""
    line = e.line
    row, plan = line.rows[seq], line.plan[PLAN:]
    before = float(row[POSITION])
    row[POSITION] += tokens
    _store(e, seq, min(int(row[POSITION]), int(e.load.prompt[row[REQUEST]]) + int(row[GENERATED])))
    if row[POSITION] == known:  # the last token's output is the next token
        at = int(line.meter[N_FLIGHT + 1])
        line.flight[1, F_ROW, at] = seq
        line.flight[1, F_REQUEST, at] = row[REQUEST]
        line.meter[N_FLIGHT + 1] += 1
        row[COMING] += 1
    if tokens == 1 and before > 0.0:
        plan[DECODE_SEQS] += 1
        plan[DECODE_CONTEXT] += before + 1
        plan[DECODE_WINDOW] += before + 1
    else:
        plan[PREFILL_TOKENS] += tokens
        plan[PREFILL_PAIRS] += tokens * (before + tokens / 2)
        plan[PREFILL_WINDOW_PAIRS] += tokens * (before + tokens / 2)
        plan[PREFILL_CONTEXT] += before + tokens


@loop
def _schedule_running(e: Engine, budget: int) -> tuple[int, bool]:
    """The running in order; returns the tokens left, and whether anybody was pre-empted."""
    line, meter = e.line, e.line.meter
    i, preempted = 0, False
    while i < meter[N_ACTIVE] and budget > 0:
        seq = int(line.active[i])
        row = line.rows[seq]
        r = int(row[REQUEST])
        known = int(e.load.prompt[r]) + int(row[GENERATED]) + int(row[COMING])
        tokens = min(known - int(row[POSITION]), budget)
        if row[GENERATED] + row[COMING] >= _wanted(e, r):
            tokens = 0  # its last token is on its way
        if tokens > 0:
            fits = _extend(e, seq, int(row[POSITION]) + tokens)
            while not fits:
                preempted = True
                if _preempt_last(e) == seq:
                    return budget, preempted
                fits = _extend(e, seq, int(row[POSITION]) + tokens)
            _schedule_tokens(e, seq, tokens, known)
            budget -= tokens
        i += 1
    return budget, preempted


@loop
def _cached_blocks(e: Engine, r: int, known: int) -> tuple[int, int]:
    """Leading full blocks, short of the last token, that hold request r's content; how many of them nobody uses."""
    s, cached, unused = e.state, 0, 0
    first = int(e.load.key_offset[r])
    if not s.conf[C_REUSE]:
        return 0, 0
    for i in range((known - 1) // int(s.conf[C_TOKENS_PER_BLOCK])):
        block = int(s.value[0, e.load.keys[first + i]])
        if block == -1:
            break
        cached += 1
        unused += s.blocks[block, REFS] == 0
    return cached, unused


@loop
def _count_lookup(e: Engine, r: int, known: int, cached: int) -> None:
    """What the lookup found, and why it did not find the rest."""
    s = e.state
    tpb = int(s.conf[C_TOKENS_PER_BLOCK])
    first = int(e.load.key_offset[r])
    s.stats[0, REUSED] += cached
    s.stats[0, FULL_REUSED] += cached
    s.stats[0, HIT_TOKENS_GPU] += cached * tpb
    for i in range(cached, (known + tpb - 1) // tpb):
        s.stats[0, MISSED] += 1
        if (i + 1) * tpb > known:
            s.stats[0, CAUSE_0 + SHORT_BLOCK] += 1
            continue
        node = int(e.load.keys[first + i])
        s.stats[0, CAUSE_0 + miss_cause(s, 0, node, i == cached)] += 1
        if s.nodes[node, FATE] == NEVER_SEEN:
            s.nodes[node, FATE] = IN_FLIGHT
            if len(s.twin) > 1:
                s.nodes[s.twin[node], FATE] = IN_FLIGHT


@loop
def _take_cached(e: Engine, r: int, seq: int, cached: int) -> None:
    s, q = e.state, e.sequences
    first = int(e.load.key_offset[r])
    for i in range(cached):
        block = int(s.value[0, e.load.keys[first + i]])
        if s.blocks[block, REFS] == 0:
            claim(s, block, -1, -1)
        s.blocks[block, REFS] += 1
        q.blocks[0, seq, i] = block
    q.length[seq] = cached


@loop
def _schedule_waiting(e: Engine, budget: int, now_s: float) -> None:
    """The waiting in order, until one does not fit with all the tokens it has, or the step is full."""
    s, line, meter = e.state, e.line, e.line.meter
    tpb = int(s.conf[C_TOKENS_PER_BLOCK])
    while meter[WAIT_HEAD] < meter[WAIT_TAIL] and budget > 0 and meter[N_ACTIVE] < line.limits[L_BATCH]:
        r = int(line.waiting[meter[WAIT_HEAD]])
        known = prompt_of(e.load, r)
        cached, unused = _cached_blocks(e, r, known)
        left = known - cached * tpb
        if (known + tpb - 1) // tpb - cached + unused > s.tier[0, 0, T_FREE]:
            return
        if left > budget and not line.limits[L_CHUNKED]:
            return
        meter[WAIT_HEAD] += 1
        meter[N_FREE_ROWS] -= 1
        seq = int(line.free_rows[meter[N_FREE_ROWS]])
        row = line.rows[seq]
        row[REQUEST] = r
        row[POSITION] = cached * tpb
        row[GENERATED] = e.load.resumed[r]
        row[STORED_BLOCKS] = cached
        row[COMING] = 0
        _count_lookup(e, r, known, cached)
        _take_cached(e, r, seq, cached)
        tokens = min(left, budget)
        _extend(e, seq, cached * tpb + tokens)
        line.active[meter[N_ACTIVE]] = seq
        meter[N_ACTIVE] += 1
        meter[N_STARTED] += 1
        if e.outcome.start_s[r] < 0:
            e.outcome.reused[r] = cached * tpb
            e.outcome.start_s[r] = now_s
        _schedule_tokens(e, seq, tokens, known)
        budget -= tokens


@loop
def _schedule(e: Engine, now_s: float) -> None:
    """Decide and allocate one step; its work is in the second half of `plan`."""
    line, meter = e.line, e.line.meter
    for i in range(PLAN, 2 * PLAN):
        line.plan[i] = 0.0
    meter[N_FLIGHT + 1] = 0
    meter[N_STARTED] = 0
    budget, preempted = _schedule_running(e, int(line.limits[L_TOKENS]))
    if not preempted:
        _schedule_waiting(e, budget, now_s)


@loop
def _advance(e: Engine) -> None:
    """What was scheduled for the next step is now the step that runs."""
    line, meter = e.line, e.line.meter
    for i in range(PLAN):
        line.plan[i] = line.plan[PLAN + i]
        line.plan[PLAN + i] = 0.0
    meter[N_FLIGHT] = meter[N_FLIGHT + 1]
    for j in range(meter[N_FLIGHT]):
        line.flight[0, F_ROW, j] = line.flight[1, F_ROW, j]
        line.flight[0, F_REQUEST, j] = line.flight[1, F_REQUEST, j]
    meter[N_FLIGHT + 1] = 0


@loop
def vllm_begin(e: Engine, now_s: float) -> bool:
    """A step begins at `now_s`; its work is in `plan`. False: nothing to do."""
    line, meter = e.line, e.line.meter
    e.state.tally[CLOCK_US] = int(now_s * 1e6)
    _advance(e)
    if line.plan[PREFILL_TOKENS] + line.plan[DECODE_SEQS] == 0:
        _schedule(e, now_s)
        _advance(e)
    if line.plan[PREFILL_TOKENS] + line.plan[DECODE_SEQS] == 0:
        return False
    if line.limits[L_POLICY] == VLLM_ASYNC:
        _schedule(e, now_s)
    meter[STEPS] += 1
    return True


@loop
def _drop_done(e: Engine) -> None:
    line, meter, kept = e.line, e.line.meter, 0
    for i in range(meter[N_ACTIVE]):
        seq = int(line.active[i])
        row = line.rows[seq]
        if row[GENERATED] >= _wanted(e, int(row[REQUEST])):
            _store(e, seq, int(row[POSITION]))
            _give_up_row(e, seq)
        else:
            line.active[kept] = seq
            kept += 1
    meter[N_ACTIVE] = kept


@loop
def vllm_may_finish(e: Engine) -> bool:
    """The step that runs may be some request's last one; False is certain."""
    line = e.line
    for j in range(line.meter[N_FLIGHT]):
        seq, r = int(line.flight[0, F_ROW, j]), int(line.flight[0, F_REQUEST, j])
        row = line.rows[seq]
        generated = row[GENERATED] if row[REQUEST] == r else e.load.resumed[r]
        if generated + 1 >= _wanted(e, r):
            return True
    return False


@loop
def vllm_end(e: Engine, now_s: float) -> int:
    """The step ended at `now_s`: tokens come out, finished requests hand their blocks back. Returns the tokens made."""
    line, made = e.line, 0
    e.state.tally[CLOCK_US] = int(now_s * 1e6)
    done = False
    for j in range(line.meter[N_FLIGHT]):
        seq, r = int(line.flight[0, F_ROW, j]), int(line.flight[0, F_REQUEST, j])
        row = line.rows[seq]
        here = row[REQUEST] == r
        if here:
            row[GENERATED] += 1
            row[COMING] -= 1
            generated = int(row[GENERATED])
        else:  # pre-empted by the schedule of the next step: the token counts all the same
            e.load.resumed[r] += 1
            generated = int(e.load.resumed[r])
        made += min(1, int(e.load.output[r]))
        if e.outcome.first_token_s[r] < 0:
            e.outcome.first_token_s[r] = now_s
        if generated >= _wanted(e, r):
            e.outcome.finish_s[r] = now_s
            line.done[line.meter[N_DONE]] = r
            line.meter[N_DONE] += 1
            done = True
            if not here:
                leave_line(e, r)
    if done:
        _drop_done(e)
    return made
