"""Who may run in the next step: TensorRT-LLM's capacity scheduler and micro-batch scheduler.

It allocates nothing. GUARANTEED_NO_EVICT promises every request its last block before it starts; MAX_UTILIZATION asks only
whether the next step fits and pauses the latest starters when it does not (`kvcache.engine.pause`); STATIC_BATCH starts
nobody while anybody is active. Both dynamic policies pass over a request whose first new block somebody else computes in
this step. Chunked context is first come, first served.
"""

from kvcache import schedule
from kvcache.compiled import loop
from kvcache.line import (
    GENERATED,
    GENERATING,
    L_BATCH,
    L_CHUNKED,
    L_POLICY,
    L_TOKENS,
    L_UNIT,
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
            budget -= 1
    for i in range(meter[N_ACTIVE]):
        row = line.rows[line.active[i]]
        if row[GENERATING] != 0:
            continue
        prompt = prompt_of(e.load, int(row[REQUEST]))
        end = min(prompt, int(row[POSITION]) + max(0, budget))
        if end < prompt:
            end -= end % limits[L_UNIT]
        row[TARGET] = max(end, row[POSITION])
        budget -= row[TARGET] - row[POSITION]
        if skip_rule:
            _contribute(e, _first_new(e, int(row[REQUEST])))
    return budget


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
            prompt, output = int(e.load.prompt[r]), int(e.load.output[r])
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
            left = int(e.load.output[r]) - (prompt - int(e.load.prompt[r]))
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
def _first_chunk_end(e: Engine, r: int, computed: int, budget: int) -> int:
    """Where the first chunk of request r ends if it finds `computed` tokens; no further than that: it does not fit.

    Where the estimate was too high, the step is larger than its budget; a prompt that fits as a whole stays whole.
    """
    prompt, limits = prompt_of(e.load, r), e.line.limits
    end = computed + max(0, budget)
    if end >= prompt:
        return prompt
    return end - end % int(limits[L_UNIT]) if limits[L_CHUNKED] else computed


@loop
def admit(e: Engine, budget: int) -> int:
    """Choose the waiting requests that start now, in order; returns how many."""
    line, meter = e.line, e.line.meter
    n, skipped, at = 0, 0, int(meter[WAIT_HEAD])
    if line.limits[L_POLICY] == STATIC_BATCH and meter[N_ACTIVE] > 0:
        return 0
    skip_rule = e.state.conf[C_REUSE] == 1 and e.state.conf[C_WINDOWS] == 1
    skip_rule = skip_rule and line.limits[L_POLICY] != STATIC_BATCH
    while at < meter[WAIT_TAIL] and meter[N_ACTIVE] + n < line.limits[L_BATCH]:
        r = int(line.waiting[at])
        first_new = _first_new(e, r) if skip_rule and e.load.remote[r] == 0 else -1
        if _better_wait(e, first_new):
            line.skipped[skipped] = r
            skipped += 1
            at += 1
            continue
        if not _fits(e, r, False):
            break
        computed = _reused_estimate(e, r)
        end = _first_chunk_end(e, r, computed, budget)
        if e.load.remote[r] > computed:
            end = computed  # it only takes its blocks in this step
        elif end <= computed:
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
def next_step_fits(e: Engine, i: int) -> bool:
    """MAX_UTILIZATION: the blocks that the i-th active request takes in its next step are available; they are reserved."""
    s, line = e.state, e.line
    seq = int(line.active[i])
    row = line.rows[seq]
    if row[GENERATING] != 1:
        return True  # its context blocks are its own already
    r, slots = int(row[REQUEST]), int(e.sequences.slots[seq])
    left = int(e.load.prompt[r]) + int(e.load.output[r]) - slots
    need = schedule.needed_generation(s, slots, 1, left, 0)
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
