"""Who may run in the next step: TensorRT-LLM's capacity scheduler and micro-batch scheduler.

It allocates nothing. GUARANTEED_NO_EVICT promises every request its last block before it starts; MAX_UTILIZATION asks only
whether the next step fits and pauses the latest starters when it does not (`kvcache.engine.pause`); STATIC_BATCH starts
nobody while anybody is active. Both dynamic policies pass over a request whose first new block somebody else computes in
this step. How much of a prompt a step computes: `kvcache.chunks`.
"""

from kvcache import schedule
from kvcache.chunks import chunk_of, share_equally
from kvcache.compiled import loop
from kvcache.line import (
    EQUAL_PROGRESS,
    FIRST_COME,
    GENERATED,
    GENERATING,
    L_BATCH,
    L_CHUNKED,
    L_CHUNKING,
    L_DRAFTS,
    L_OVERLAP,
    L_POLICY,
    L_TOKENS,
    MAX_UTILIZATION,
    N_ACTIVE,
    N_KEYS,
    POSITION,
    REQUEST,
    STATIC_BATCH,
    TARGET,
    WAIT_HEAD,
    WAIT_TAIL,
    Engine,
)
from kvcache.serve import prompt_of
from kvcache.tables import C_REUSE, C_TOKENS_PER_BLOCK, C_WINDOWS, T_FREE


@loop
def _first_new(e: Engine, r: int) -> int:
    first = int(e.load.key_offset[r])
    keys = e.load.keys[first : e.load.key_offset[r + 1]]
    full = prompt_of(e.load, r) // e.state.conf[C_TOKENS_PER_BLOCK]
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
def continue_contexts(e: Engine) -> int:
    """Chunks of the prompts in progress, in order; returns the tokens left for others. Generating sequences come first."""
    line, meter, limits = e.line, e.line.meter, e.line.limits
    budget = int(limits[L_TOKENS])
    skip_rule = e.state.conf[C_REUSE] == 1 and e.state.conf[C_WINDOWS] == 1
    for i in range(meter[N_ACTIVE]):
        if line.rows[line.active[i], GENERATING] == 1:
            budget -= 1 + limits[L_DRAFTS]
    for i in range(meter[N_ACTIVE]):
        row = line.rows[line.active[i]]
        if row[GENERATING] != 0:
            continue
        tokens = 0
        if limits[L_CHUNKING] == FIRST_COME:
            tokens = chunk_of(e, prompt_of(e.load, int(row[REQUEST])) - int(row[POSITION]), budget)
        row[TARGET] = row[POSITION] + tokens
        budget -= tokens
        if skip_rule:
            _contribute(e, _first_new(e, int(row[REQUEST])))
    return budget


@loop
def promised_output(e: Engine, r: int) -> int:
    """Slots of request r after its prompt, at most: its output, and drafts that are not known to be wrong yet."""
    limits = e.line.limits
    return int(e.load.output[r] + (2 * limits[L_DRAFTS] if limits[L_OVERLAP] else 0))


@loop
def new_slots(e: Engine, r: int, slots: int) -> int:
    """Slots that a generating sequence takes in its next step: one, and one for each draft as far as promised."""
    return int(min(1 + e.line.limits[L_DRAFTS], e.load.prompt[r] + promised_output(e, r) - slots))


@loop
def reserve_active(e: Engine) -> None:
    """GUARANTEED_NO_EVICT: what is left once every active request is promised its last block."""
    s, line = e.state, e.line
    for w in range(s.conf[C_WINDOWS]):
        left = int(s.tier[w, 0, T_FREE])
        for i in range(line.meter[N_ACTIVE]):
            seq = int(line.active[i])
            r = int(line.rows[seq, REQUEST])
            held = int(e.sequences.length[seq] - e.sequences.dropped[w, seq])
            prompt, output = int(e.load.prompt[r]), promised_output(e, r)
            tokens = prompt + int(line.rows[seq, GENERATED])
            left -= schedule.remaining_at(s, w, prompt, output, tokens, held, 0)
        line.available[w] = left


@loop
def _fits(e: Engine, r: int, take: bool) -> bool:
    """The blocks that request r needs, to completion or for its first step, are available in every window.

    `take` reserves them.
    """
    s, line = e.state, e.line
    keys = e.load.keys[e.load.key_offset[r] : e.load.key_offset[r + 1]]
    full = prompt_of(e.load, r) // s.conf[C_TOKENS_PER_BLOCK]
    for w in range(s.conf[C_WINDOWS]):
        used = schedule.analyze(s, w, keys, full).reusable_allocated
        prompt = prompt_of(e.load, r)
        if line.limits[L_POLICY] == MAX_UTILIZATION:
            need = schedule.needed_context(s, w, prompt, 0, used)
        else:
            left = promised_output(e, r) - (prompt - int(e.load.prompt[r]))
            need = schedule.remaining_blocks(s, w, prompt, left, 0, used)
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
    prompt = prompt_of(e.load, r)
    return min(int(schedule.analyze(s, 0, keys, prompt // tpb).reusable_all) * tpb, prompt - 1)


@loop
def _candidates(e: Engine, budget: int) -> tuple[int, int]:
    """The waiting requests whose blocks are available, in order, and their first chunks; how many, and where it stopped.

    A request that gets no token of this step may let later ones pass which need fewer than one unit.
    """
    line, meter, limits = e.line, e.line.meter, e.line.limits
    n, at = 0, int(meter[WAIT_HEAD])
    skip_rule = e.state.conf[C_REUSE] == 1 and e.state.conf[C_WINDOWS] == 1 and limits[L_POLICY] != STATIC_BATCH
    in_turn = limits[L_CHUNKING] == FIRST_COME
    while at < meter[WAIT_TAIL] and meter[N_ACTIVE] + n < limits[L_BATCH] and (budget > 0 or not in_turn):
        r = int(line.waiting[at])
        first_new = _first_new(e, r) if skip_rule and e.load.remote[r] == 0 else -1
        if _better_wait(e, first_new):
            at += 1
            continue
        if not _fits(e, r, False):
            break
        prompt = prompt_of(e.load, r)
        left = prompt - _reused_estimate(e, r)
        tokens = chunk_of(e, left, budget)
        if e.load.remote[r] > prompt - left:
            left = tokens = 0  # it only takes its blocks in this step
        elif tokens < left and not limits[L_CHUNKED]:
            break
        _fits(e, r, True)
        _contribute(e, first_new)
        if in_turn:
            budget -= tokens
        line.batch[0, n] = r
        line.batch[3, n] = left
        line.chunk[n] = prompt if tokens == left else tokens
        n += 1
        at += 1
    return n, at


@loop
def _leave_waiting(e: Engine, n: int, end: int) -> int:
    """Those of the n candidates who compute something leave the line; how many. All others before `end` stay in it."""
    line = e.line
    j, head = n - 1, end
    for i in range(end - 1, line.meter[WAIT_HEAD] - 1, -1):
        r = line.waiting[i]
        if j >= 0 and line.batch[0, j] == r:
            j -= 1
            if line.chunk[j + 1] > 0:
                continue
        head -= 1
        line.waiting[head] = r
    line.meter[WAIT_HEAD] = head
    kept = 0
    for j in range(n):
        if line.chunk[j] > 0:
            line.batch[0, kept] = line.batch[0, j]
            line.chunk[kept] = line.chunk[j]
            kept += 1
    return kept


@loop
def admit(e: Engine, budget: int, may_start: bool) -> int:
    """Choose the waiting requests that start now, in order; returns how many. Sets the chunks of EQUAL_PROGRESS."""
    meter, limits = e.line.meter, e.line.limits
    n, end = 0, int(meter[WAIT_HEAD])
    if may_start and (limits[L_POLICY] != STATIC_BATCH or meter[N_ACTIVE] == 0):
        n, end = _candidates(e, budget)
    if limits[L_CHUNKING] == EQUAL_PROGRESS:
        share_equally(e, n, budget)
    return _leave_waiting(e, n, end)


@loop
def next_step_fits(e: Engine, i: int) -> bool:
    """MAX_UTILIZATION: the blocks that the i-th active request takes in its next step are available; they are reserved."""
    s, line = e.state, e.line
    seq = int(line.active[i])
    row = line.rows[seq]
    if row[GENERATING] != 1:
        return True  # its context blocks are its own already
    r, slots = int(row[REQUEST]), int(e.sequences.slots[seq])
    need = schedule.needed_generation(s, slots, new_slots(e, r, slots), 1 << 40, 0)
    for w in range(s.conf[C_WINDOWS]):
        if need > line.available[w]:
            return False
    for w in range(s.conf[C_WINDOWS]):
        line.available[w] -= need
    return True


@loop
def free_blocks(e: Engine) -> None:
    """MAX_UTILIZATION starts from what is free now."""
    for w in range(e.state.conf[C_WINDOWS]):
        e.line.available[w] = e.state.tier[w, 0, T_FREE]


@loop
def leave_line(e: Engine, r: int) -> None:
    """Request r, paused while its last token was made, waits no longer."""
    line, meter = e.line, e.line.meter
    at = int(meter[WAIT_HEAD])
    while line.waiting[at] != r:
        at += 1
    for i in range(at, meter[WAIT_HEAD], -1):
        line.waiting[i] = line.waiting[i - 1]
    meter[WAIT_HEAD] += 1
