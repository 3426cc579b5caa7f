"""Content that another worker or a store sends: who waits for it, who keeps it from being evicted until it is sent.

It moves nothing and chooses no sender (`sim.disagg` does). Models the life of a request in disaggregated serving: the
context server pins what it has stored (`storeBlocksForReuse(pin)`) until the sender is done; the generation server takes all
blocks first (`DISAGG_GENERATION_INIT`), asks for those it lacks, and goes on when they are there. Asynchronous loads of a
connector wait in the same way.

    sender:    prompt done --pin_prompt--> blocks referenced ... sent, failed or cancelled --unpin_prompt--> free, cached
    receiver:  waiting --admitted--> HELD: has its blocks --go_on--> generating, or computing the rest
                                     HELD, active or waiting --give_up--> blocks free, nothing stored
"""

from kvcache.compiled import loop
from kvcache.line import (
    GENERATED,
    GENERATING,
    HELD,
    N_ACTIVE,
    N_FREE_ROWS,
    POSITION,
    REQUEST,
    TARGET,
    WAIT_HEAD,
    WAIT_TAIL,
    Engine,
)
from kvcache.sequences import pin, release_sequence, unpin
from kvcache.serve import prompt_of
from kvcache.tables import C_TOKENS_PER_BLOCK, C_WINDOWS


@loop
def prompt_blocks(e: Engine, r: int) -> int:
    """Blocks that hold request r's prompt, the short last one too."""
    tpb = int(e.state.conf[C_TOKENS_PER_BLOCK])
    return (int(e.load.prompt[r]) + tpb - 1) // tpb


@loop
def blocks_to_send(e: Engine, r: int, tokens_there: int) -> int:
    """What a receiver that found `tokens_there` tokens of the prompt asks for: at least the last block."""
    blocks = prompt_blocks(e, r)
    return blocks - min(tokens_there // int(e.state.conf[C_TOKENS_PER_BLOCK]), blocks - 1)


@loop
def _prompt_node(e: Engine, r: int, i: int) -> int:
    """Node of the i-th prompt block; of a short last block the one it was stored under when the request ended."""
    first, end = int(e.load.key_offset[r]), int(e.load.key_offset[r + 1])
    return int(e.load.keys[first + i]) if first + i < end - 2 else int(e.load.keys[end - 1])


@loop
def pin_prompt(e: Engine, r: int) -> int:
    """Keep every cached prompt block of a request that has just ended; returns how many references were taken."""
    pinned = 0
    for w in range(e.state.conf[C_WINDOWS]):
        for i in range(prompt_blocks(e, r)):
            node = _prompt_node(e, r, i)
            if node >= 0 and e.state.value[w, node] != -1:
                pin(e.state, int(e.state.value[w, node]))
                pinned += 1
    return pinned


@loop
def unpin_prompt(e: Engine, r: int) -> int:
    """Give back what `pin_prompt` took: a pinned block stays where it is, so the same ones are found again."""
    unpinned = 0
    for w in range(e.state.conf[C_WINDOWS]):
        for i in range(prompt_blocks(e, r) - 1, -1, -1):
            node = _prompt_node(e, r, i)
            if node >= 0 and e.state.value[w, node] != -1:
                unpin(e.state, int(e.state.value[w, node]))
                unpinned += 1
    return unpinned


@loop
def _active_at(e: Engine, r: int) -> int:
    """Place of request r among the active; -1 if it is not."""
    for i in range(e.line.meter[N_ACTIVE]):
        if e.line.rows[e.line.active[i], REQUEST] == r:
            return i
    return -1


@loop
def go_on(e: Engine, r: int, tokens: int, now_s: float) -> bool:
    """The first `tokens` prompt tokens of a held request are there; with all of them its first token is too.

    False: the request is not held (any more).
    """
    at = _active_at(e, r)
    if at < 0 or e.line.rows[e.line.active[at], GENERATING] != HELD:
        return False
    row = e.line.rows[e.line.active[at]]
    row[POSITION] = max(int(row[POSITION]), tokens)
    row[TARGET] = row[POSITION]
    row[GENERATING] = 0
    e.load.remote[r] = 0
    if row[POSITION] >= prompt_of(e.load, r):
        row[GENERATING] = 1
        row[GENERATED] += 1
        row[TARGET] = 0  # a step that runs now knows nothing of it
        e.outcome.first_token_s[r] = now_s
    return True


@loop
def give_up(e: Engine, r: int) -> bool:
    """Request r leaves, wherever it is; what it held is free and nothing of it is stored. False: it had left already."""
    line, meter = e.line, e.line.meter
    at = _active_at(e, r)
    if at < 0:
        return _leave_line(e, r)
    seq = int(line.active[at])
    for w in range(e.state.conf[C_WINDOWS]):
        release_sequence(e.state, e.sequences, w, seq)
    e.sequences.length[seq] = 0
    line.free_rows[meter[N_FREE_ROWS]] = seq
    meter[N_FREE_ROWS] += 1
    for i in range(at, meter[N_ACTIVE] - 1):
        line.active[i] = line.active[i + 1]
    meter[N_ACTIVE] -= 1
    return True


@loop
def _leave_line(e: Engine, r: int) -> bool:
    line, meter = e.line, e.line.meter
    for at in range(meter[WAIT_HEAD], meter[WAIT_TAIL]):
        if line.waiting[at] == r:
            for i in range(at, meter[WAIT_HEAD], -1):
                line.waiting[i] = line.waiting[i - 1]
            meter[WAIT_HEAD] += 1
            return True
    return False
