"""How many tokens of each prompt a step computes: the chunks of TensorRT-LLM's micro-batch scheduler.

It chooses no requests (`kvcache.admission` does). A chunk is the whole rest of a prompt or a multiple of the unit.
FIRST_COME_FIRST_SERVED gives each prompt in order all it can use of what is left; EQUAL_PROGRESS one unit to each in
turn, prompts in progress before those that start. Models `MicroBatchScheduler::setCtxRequestsChunkSize`, with the
tokens a prompt finds in the cache taken off its rest.
"""

from kvcache.compiled import loop
from kvcache.line import (
    GENERATING,
    L_CHUNKED,
    L_UNIT,
    N_ACTIVE,
    POSITION,
    REQUEST,
    TARGET,
    Engine,
)
from kvcache.serve import prompt_of


@loop
def chunk_of(e: Engine, left: int, budget: int) -> int:
    """What a prompt with `left` tokens to compute takes of `budget`; nothing less than a unit but its rest."""
    tokens = min(left, max(0, budget))
    return int(left if tokens == left else tokens - tokens % e.line.limits[L_UNIT])


@loop
def _one_more(e: Engine, tokens: int, left: int, budget: int) -> int:
    """The next unit after `tokens`, or the rest where that is less; none if the budget has not that much."""
    unit = int(e.line.limits[L_UNIT]) if e.line.limits[L_CHUNKED] else left
    more = min(unit, left - tokens)
    return more if more <= budget else 0


@loop
def share_equally(e: Engine, n: int, budget: int) -> None:
    """EQUAL_PROGRESS: rounds of one unit to each prompt in progress and each of the n candidates, until nobody can take
    one. Sets TARGET and `chunk`."""
    line = e.line
    for j in range(n):
        line.chunk[j] = 0
    given = 1
    while given > 0:
        given = 0
        for i in range(line.meter[N_ACTIVE]):
            row = line.rows[line.active[i]]
            if row[GENERATING] == 0:
                left = prompt_of(e.load, int(row[REQUEST])) - int(row[POSITION])
                more = _one_more(e, int(row[TARGET] - row[POSITION]), left, budget)
                row[TARGET] += more
                budget -= more
                given += more
        for j in range(n):
            more = _one_more(e, int(line.chunk[j]), int(line.batch[3, j]), budget)
            line.chunk[j] += more
            budget -= more
            given += more
    for j in range(n):
        if line.chunk[j] == line.batch[3, j]:
            line.chunk[j] = prompt_of(e.load, int(line.batch[0, j]))
