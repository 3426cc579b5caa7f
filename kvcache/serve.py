"""One request's way through the cache, in the steps an engine takes it: start, grow, store, finish.

It does not choose requests (`kvcache.engine`). `replay_serial` serves a whole workload one request at a time, which is the
cache-only view: no two requests ever compete for blocks, and time stands still while one is served.
"""

from kvcache.compiled import loop
from kvcache.keys import intern_prefix
from kvcache.load import Load
from kvcache.queues import refresh
from kvcache.retention import fill_blocks
from kvcache.sequences import (
    M_COUNT,
    M_TOKENS,
    NO_CAP,
    Matches,
    Sequences,
    add_slot,
    allocate,
    claim_matches,
    find_matches,
    release_sequence,
    store,
    unclaim,
)
from kvcache.tables import BATCH, C_REUSE, C_TOKENS_PER_BLOCK, C_WINDOWS, W_SLIDING, Array, State


@loop
def prompt_of(load: Load, r: int) -> int:
    """Prompt tokens of request r; after a pause, with what it had generated before."""
    return int(load.prompt[r]) + int(load.resumed[r])


@loop
def short_key(s: State, load: Load, r: int, usable: int) -> int:
    """Node of what the first `usable` tokens leave after their full blocks, -1 if nothing: the start of the block there."""
    tpb = int(s.conf[C_TOKENS_PER_BLOCK])
    first, end = int(load.key_offset[r]), int(load.key_offset[r + 1])
    at = first + usable // tpb
    if usable % tpb == 0:
        return -1
    longer = int(load.keys[at]) if at < end - 2 else int(load.keys[end - 1])
    return -1 if longer < 0 else intern_prefix(s, longer, usable % tpb)


@loop
def _lookup(s: State, load: Load, r: int) -> tuple[int, int, int]:
    """Full keys of the prompt's first n - 1 tokens, the short key after them (-1: none), the node that hides behind it."""
    tpb = int(s.conf[C_TOKENS_PER_BLOCK])
    prompt = prompt_of(load, r)
    first, end = int(load.key_offset[r]), int(load.key_offset[r + 1])
    full = (prompt - 1) // tpb
    whole = int(load.keys[first + full]) if prompt % tpb == 0 and first + full < end - 2 else -1
    short = int(load.keys[end - 2]) if load.resumed[r] == 0 else short_key(s, load, r, prompt - 1)
    return full, short, whole


@loop
def start_batch(
    s: State, q: Sequences, m: Matches, load: Load, batch: Array, seqs: Array, n: int, reused: Array
) -> int:
    """`addSequenceBatch` for requests batch[0..n) into sequence rows seqs[0..n); their reused tokens go to `reused`.

    Returns how many were started: all, or those before the first for which the pool had no room.
    """
    tpb = int(s.conf[C_TOKENS_PER_BLOCK])
    windows = int(s.conf[C_WINDOWS])
    started = n
    for j in range(n):
        reused[j] = NO_CAP
        r = int(batch[j])
        blocks = (prompt_of(load, r) + tpb - 1) // tpb
        ranges = load.ranges[load.range_offset[r] : load.range_offset[r + 1]]
        fill_blocks(ranges, tpb, m.priority[j, :blocks], m.duration_ms[j, :blocks])
    for w in range(windows):
        s.tally[BATCH] += 1
        before = started
        for j in range(before):
            r = int(batch[j])
            full, short, whole = _lookup(s, load, r)
            m.entry[j, M_COUNT] = 0
            m.entry[j, M_TOKENS] = 0
            if s.conf[C_REUSE]:
                keys = load.keys[load.key_offset[r] : load.key_offset[r + 1]]
                find_matches(s, m, j, w, keys, full, short, int(reused[j]))
            claim_matches(s, m, j, w)
        for j in range(before):
            r = int(batch[j])
            if j > started:
                unclaim(s, m, j, 0)
                _give_back(s, q, w, int(seqs[j]), (prompt_of(load, r) + tpb - 1) // tpb)
                continue
            full, short, whole = _lookup(s, load, r)
            keys = load.keys[load.key_offset[r] : load.key_offset[r + 1]]
            done = allocate(s, q, m, j, w, int(seqs[j]), prompt_of(load, r), keys, full, short, whole)
            reused[j] = m.entry[j, M_TOKENS]
            if not done:
                started = j
                _give_back(s, q, w, int(seqs[j]), (prompt_of(load, r) + tpb - 1) // tpb)
    return started


@loop
def _give_back(s: State, q: Sequences, windows: int, seq: int, positions: int) -> None:
    """A sequence that cannot start after all releases what it took in the first `windows` windows."""
    for w in range(windows):
        q.length[seq] = positions
        release_sequence(s, q, w, seq)
    q.length[seq] = 0


@loop
def store_usable(s: State, q: Sequences, load: Load, r: int, seq: int, usable: int, short: int) -> None:
    """Store the first `usable` tokens' blocks of a request, windows from large to small; `short` is the node of the rest."""
    tpb = int(s.conf[C_TOKENS_PER_BLOCK])
    if not s.conf[C_REUSE]:
        return
    keys = load.keys[load.key_offset[r] : load.key_offset[r + 1]]
    windows = int(s.conf[C_WINDOWS])
    store(s, q, 0, seq, keys, usable // tpb, short)
    for w in range(windows - 1, 0, -1):
        store(s, q, w, seq, keys, usable // tpb, short)


@loop
def grow_one(s: State, q: Sequences, load: Load, r: int, seq: int) -> bool:
    """`addToken`: one more slot in every window. False if no block is free."""
    tpb = s.conf[C_TOKENS_PER_BLOCK]
    q.slots[seq] += 1
    for w in range(s.conf[C_WINDOWS]):
        if not add_slot(s, q, w, seq, int(load.decode_priority[r]), int(load.decode_duration_ms[r])):
            return False
    q.length[seq] = (q.slots[seq] + tpb - 1) // tpb
    return True


@loop
def grow_by(s: State, q: Sequences, load: Load, r: int, seq: int, count: int) -> bool:
    """`count` slots at once, where nothing else happens between them: only block boundaries cost anything."""
    tpb = int(s.conf[C_TOKENS_PER_BLOCK])
    for w in range(s.conf[C_WINDOWS]):
        if s.window[w, W_SLIDING] == 1:
            for _ in range(count):
                if not grow_one(s, q, load, r, seq):
                    return False
            return True
    end = int(q.slots[seq]) + count
    while q.slots[seq] < end:
        boundary = ((int(q.slots[seq]) + tpb - 1) // tpb) * tpb
        q.slots[seq] = min(boundary, end - 1)
        if not grow_one(s, q, load, r, seq):
            return False
    return True


@loop
def finish(s: State, q: Sequences, load: Load, r: int, seq: int) -> None:
    """`removeSequence`: store everything computed, the short last block too, then hand the blocks back."""
    output = int(load.output[r])
    usable = int(load.prompt[r]) - 1 + output
    store_usable(s, q, load, r, seq, max(usable, int(load.prompt[r]) - 1), int(load.keys[load.key_offset[r + 1] - 1]))
    for w in range(s.conf[C_WINDOWS]):
        release_sequence(s, q, w, seq)
    q.length[seq] = 0


@loop
def replay_serial(
    s: State,
    q: Sequences,
    m: Matches,
    load: Load,
    scratch: Array,
    arrival_us: Array,
    first: int,
    last: int,
    reused: Array,
) -> int:
    """Serve requests [first, last) one after the other; `reused[r]` gets each one's matched tokens.

    Returns `last`, or the request for which the pool was too small. `scratch` is int64[3, 1].
    """
    one, row, got = scratch[0], scratch[1], scratch[2]
    row[0] = 0
    for r in range(first, last):
        refresh(s, int(arrival_us[r]))
        one[0] = r
        if start_batch(s, q, m, load, one, row, 1, got) == 0:
            return r
        reused[r] = got[0]
        prompt, output = int(load.prompt[r]), int(load.output[r])
        store_usable(s, q, load, r, 0, prompt if output > 0 else prompt - 1, -1)
        if output > 1 and not grow_by(s, q, load, r, 0, output - 1):
            return r
        finish(s, q, load, r, 0)
    return last
