"""TensorRT-LLM's overlap scheduler: the next step is scheduled while a step runs, before its tokens are known.

It schedules by the rules of `kvcache.engine`, one step ahead. Models `PyExecutor._executor_loop_overlap`: once a step is
launched, its prompts count as computed and who finished its prompt as generating; so the next step is scheduled and
allocated at once. Only then are the tokens of the step before looked at: stores and frees are seen by the admission of
the step after the next.

    begin 1, schedule 2 | step 1 | end 1, begin 2, schedule 3 | step 2 | end 2, begin 3, schedule 4 | step 3 ...

Whoever makes his last token in step 2 is in step 3 too, takes a slot in it and costs as much as anybody: ends are taken to
be stop tokens, which nobody knows in advance. (Since PR 8587 TensorRT-LLM spares the extra step to requests that end by
their limit.) A request that is paused while it makes a token keeps the token.
"""

from kvcache.admission import leave_line
from kvcache.compiled import loop
from kvcache.engine import accepted, begin_step, reject
from kvcache.line import (
    F_GREW,
    F_REQUEST,
    F_ROW,
    F_STORED,
    GENERATED,
    GENERATING,
    L_DRAFTS,
    N_ACTIVE,
    N_DONE,
    N_FLIGHT,
    N_FREE_ROWS,
    PLAN,
    POSITION,
    REQUEST,
    TARGET,
    Engine,
)
from kvcache.serve import finish, prompt_of, store_usable
from kvcache.tables import CLOCK_US


@loop
def overlap_ahead(e: Engine, now_s: float) -> None:
    """Schedule and allocate the step after the one that runs; its work is in the second half of `plan`."""
    line, meter = e.line, e.line.meter
    if not begin_step(e, now_s):
        return
    for i in range(meter[N_ACTIVE]):
        seq = int(line.active[i])
        row = line.rows[seq]
        if row[GENERATING] != 1 and row[TARGET] == row[POSITION]:
            continue
        at = int(meter[N_FLIGHT + 1])
        line.flight[1, F_ROW, at] = seq
        line.flight[1, F_REQUEST, at] = row[REQUEST]
        line.flight[1, F_STORED, at] = -1 if row[GENERATING] == 1 else row[TARGET]
        line.flight[1, F_GREW, at] = row[TARGET]
        meter[N_FLIGHT + 1] += 1


@loop
def overlap_begin(e: Engine, now_s: float) -> bool:
    """A step begins at `now_s`: the one scheduled ahead or, if there is none, one scheduled now. False: nothing to do."""
    line, meter = e.line, e.line.meter
    e.state.tally[CLOCK_US] = int(now_s * 1e6)
    if meter[N_FLIGHT + 1] == 0:
        overlap_ahead(e, now_s)
    if meter[N_FLIGHT + 1] == 0:
        return False
    for i in range(PLAN):
        line.plan[i] = line.plan[PLAN + i]
    meter[N_FLIGHT] = meter[N_FLIGHT + 1]
    meter[N_FLIGHT + 1] = 0
    for j in range(meter[N_FLIGHT]):
        for k in range(4):
            line.flight[0, k, j] = line.flight[1, k, j]
        row = line.rows[line.flight[0, F_ROW, j]]
        if row[REQUEST] == line.flight[0, F_REQUEST, j] and line.flight[0, F_STORED, j] >= 0:
            row[POSITION] = row[TARGET]
            row[GENERATING] = row[POSITION] == prompt_of(e.load, int(row[REQUEST]))
    return True


@loop
def overlap_may_finish(e: Engine) -> bool:
    """The step that runs may be some request's last one; False is certain."""
    line = e.line
    for j in range(line.meter[N_FLIGHT]):
        r = int(line.flight[0, F_REQUEST, j])
        row = line.rows[line.flight[0, F_ROW, j]]
        known = row[GENERATED] if row[REQUEST] == r else e.load.resumed[r]
        if known + 1 + line.limits[L_DRAFTS] >= e.load.output[r]:
            return True
    return False


@loop
def _new_tokens(e: Engine, j: int, here: bool) -> int:
    """Tokens that entry j of the step that ended has made."""
    line = e.line
    seq, r = int(line.flight[0, F_ROW, j]), int(line.flight[0, F_REQUEST, j])
    stored = line.flight[0, F_STORED, j]
    if stored >= 0:
        return int(stored == prompt_of(e.load, r))
    return accepted(e, r, seq, int(line.flight[0, F_GREW, j])) if here else 1


@loop
def _leave(e: Engine, seq: int, r: int) -> None:
    """A finished request hands its blocks back."""
    line, meter = e.line, e.line.meter
    finish(e.state, e.sequences, e.load, r, seq)
    line.rows[seq, REQUEST] = -1
    line.free_rows[meter[N_FREE_ROWS]] = seq
    meter[N_FREE_ROWS] += 1


@loop
def _end_of(e: Engine, j: int, now_s: float) -> int:
    """What the step that ended has done for its entry j; returns the tokens made."""
    line, meter = e.line, e.line.meter
    seq, r = int(line.flight[0, F_ROW, j]), int(line.flight[0, F_REQUEST, j])
    if e.outcome.finish_s[r] >= 0:
        return 0  # the step after its last one
    row = line.rows[seq]
    here = bool(row[REQUEST] == r)
    stored, output = int(line.flight[0, F_STORED, j]), int(e.load.output[r])
    new = _new_tokens(e, j, here)
    if stored >= 0 and here:
        usable = stored - 1 + min(output, 1) if new > 0 else stored - 1
        store_usable(e.state, e.sequences, e.load, r, seq, usable, -1)
    if new == 0:
        return 0
    if e.outcome.first_token_s[r] < 0:
        e.outcome.first_token_s[r] = now_s
    if here:
        row[GENERATED] += new
    else:
        e.load.resumed[r] += new
    if (row[GENERATED] if here else e.load.resumed[r]) < output:
        if here and stored < 0:
            reject(e, seq, int(line.flight[0, F_GREW, j]) - new)
        return new
    e.outcome.finish_s[r] = now_s
    line.done[meter[N_DONE]] = r
    meter[N_DONE] += 1
    if here:
        _leave(e, seq, r)
    else:
        leave_line(e, r)
    return min(new, output)


@loop
def overlap_end(e: Engine, now_s: float) -> int:
    """The step ended at `now_s`: tokens are known, context blocks are stored, finished requests leave. Returns the tokens."""
    line, meter, made = e.line, e.line.meter, 0
    e.state.tally[CLOCK_US] = int(now_s * 1e6)
    for j in range(meter[N_FLIGHT]):
        made += _end_of(e, j, now_s)
    kept = 0
    for i in range(meter[N_ACTIVE]):
        seq = int(line.active[i])
        if line.rows[seq, REQUEST] >= 0:
            line.active[kept] = seq
            kept += 1
    meter[N_ACTIVE] = kept
    return made
