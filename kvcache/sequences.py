"""Sequences: match a prompt, claim what is cached, allocate the rest, grow, store, release.

It does not decide who is admitted (`kvcache.schedule`) nor when (`kvcache.engine`). Models `addSequenceBatch`, `addToken`,
`storeBlocks`, `releaseBlocks`, `releaseLastBlock` and `detachFrontBlock` of one `WindowBlockManager`.

A batch goes through two phases. Phase 1 (`claim_matches`) takes everything matched by anyone out of the free queues, so
that phase 2 (`allocate`) of an early request cannot evict what a later one will reuse. Reference counts rise in phase 2.
Who gets a partly matched block that nobody uses: the LAST claimant takes it in place, everybody else copies; phase 2 runs
in batch order, so every copy is taken before the block is handed over.
"""

from typing import NamedTuple

import numpy as np

from kvcache.blocks import get_free, note_copy, note_event, note_use, onboard, out_of_time, overwrite
from kvcache.compiled import inlined, loop
from kvcache.queues import claim, release, unlink
from kvcache.tables import (
    BATCH,
    BEHIND_GAP,
    C_DETACHED_FIRST,
    C_PARTIAL,
    C_TELL_ALL,
    C_TOKENS_PER_BLOCK,
    CAUSE_0,
    CLAIM_BATCH,
    CLAIM_FULL,
    CLAIMANT,
    DEFAULT_PRIORITY,
    DISK_READ,
    DURATION_MS,
    EV_PRIORITY,
    EV_STORED_BLOCK,
    EV_STORED_OPEN,
    FATE,
    FULL_REUSED,
    GEN_ALLOC,
    HIT_TOKENS_GPU,
    IN_FLIGHT,
    INTRA_COPIES,
    INTRA_COPY,
    INTRA_TOKENS,
    KEY,
    LAST_TOKEN,
    LEVEL,
    LIVE,
    MISSED,
    NEVER_SEEN,
    NODE,
    ONBOARD,
    OTHER_NAMESPACE,
    PARENT,
    PARTIAL_FROM_HOST,
    PARTIAL_REUSED,
    PRIORITY,
    REFS,
    REUSED,
    SHORT_BLOCK,
    STORED,
    TOKENS,
    W_SLIDING,
    W_TEMPORARY,
    W_TOKENS,
    WINDOW,
    Array,
    State,
)
from kvcache.tree import attach, best_partial, in_tree, is_leaf

PLACEHOLDER = -1  # a position that holds no block; -2 - b: a position whose block b the sliding window dropped
NO_CAP = 1 << 40

# How a match is used (columns of `Matches.entry`).
M_COUNT, M_TOKENS, M_PARTIAL, M_MODE, M_RELEASE, M_BLOCKS = range(6)
NO_PARTIAL, IN_PLACE, COPY = range(3)


class Sequences(NamedTuple):
    """Block lists of the live sequences, one row a sequence slot."""

    blocks: Array  # int32[window, sequence, position]
    length: Array  # int64[sequence]: positions filled (the same in every window)
    slots: Array  # int64[sequence]: token slots
    dropped: Array  # int64[window, sequence]: front positions the sliding window has left behind


class Matches(NamedTuple):
    """Scratch of one batch: what phase 1 found, for phase 2."""

    entry: Array  # int64[request in batch, 6]
    blocks: Array  # int32[request in batch, position]: block or PLACEHOLDER
    priority: Array  # int32[request in batch, position]: what the request's retention gives, -1 = nothing
    duration_ms: Array  # int32[request in batch, position]: likewise


def make_sequences(windows: int, sequences: int, positions: int) -> Sequences:
    """Room for `sequences` live sequences of up to `positions` blocks."""
    return Sequences(
        np.full((windows, sequences, positions), PLACEHOLDER, np.int32),
        np.zeros(sequences, np.int64),
        np.zeros(sequences, np.int64),
        np.zeros((windows, sequences), np.int64),
    )


def make_matches(requests: int, positions: int) -> Matches:
    """Scratch for batches of up to `requests` requests of up to `positions` blocks."""
    return Matches(
        np.zeros((requests, 6), np.int64),
        np.full((requests, positions), PLACEHOLDER, np.int32),
        np.full((requests, positions), -1, np.int32),
        np.full((requests, positions), -1, np.int32),
    )


@loop
def find_matches(s: State, m: Matches, j: int, w: int, keys: Array, full: int, short: int, cap: int) -> int:
    """Walk the tree along the keys of request j and note the reusable prefix; returns its tokens.

    keys[0..full) are full-block keys, `short` (or -1) the last, shorter one. A sliding window may pass positions without
    a block; a prefix then counts only when a whole window follows the last gap.
    """
    tpb = int(s.conf[C_TOKENS_PER_BLOCK])
    sliding = s.window[w, W_SLIDING] == 1
    matched, gap_end, entry = 0, -1, m.entry[j]
    entry[M_COUNT] = 0
    entry[M_TOKENS] = 0
    entry[M_PARTIAL] = 0
    for i in range(full + (1 if short >= 0 else 0)):
        node = int(keys[i]) if i < full else short
        tokens, partial = int(s.nodes[node, TOKENS]), 0
        block = int(s.value[w, node])
        last = False
        if block != -1 and out_of_time(s, s.gate, block):
            break
        if block != -1:
            partial = tokens if tokens < tpb else 0
        elif s.nodes[node, LIVE] == 0:
            if not s.conf[C_PARTIAL]:
                break
            block, tokens = best_partial(s, w, node)
            partial, last = tokens, True
            if block == -1:
                break
        elif not sliding:
            break
        if matched + tokens > cap:
            break
        matched += tokens
        m.blocks[j, i] = block
        if block == -1:
            gap_end = matched
            continue
        if gap_end < 0 or matched >= gap_end + s.window[w, W_TOKENS]:
            entry[M_COUNT] = i + 1
            entry[M_TOKENS] = matched
            entry[M_PARTIAL] = partial
        if last:
            break
    return int(entry[M_TOKENS])


@loop
def _first_claim(s: State, block: int) -> bool:
    """Nobody in this batch has claimed `block` before (its claim columns are stale)."""
    return bool(s.blocks[block, CLAIM_BATCH] != s.tally[BATCH])


@loop
def _set_claim(s: State, block: int, claimant: int, full: int) -> None:
    s.blocks[block, CLAIM_BATCH] = s.tally[BATCH]
    s.blocks[block, CLAIMANT] = claimant
    s.blocks[block, CLAIM_FULL] = full


@loop
def _claim_partial(s: State, m: Matches, j: int, block: int, priority: int, duration_ms: int) -> None:
    """Request j wants a part of `block`: it copies if the block is in use, else see the module's text."""
    if s.blocks[block, REFS] > 0:
        m.entry[j, M_MODE] = COPY
        return
    first = _first_claim(s, block)
    taken = not first and s.blocks[block, CLAIM_FULL] == 1
    if not first and not taken:  # the former claimant becomes a plain copier
        m.entry[s.blocks[block, CLAIMANT], M_MODE] = COPY
        m.entry[s.blocks[block, CLAIMANT], M_RELEASE] = 0
    if taken:
        m.entry[j, M_MODE] = COPY
    else:
        leaf = is_leaf(s, block)
        m.entry[j, M_MODE] = IN_PLACE if leaf else COPY
        m.entry[j, M_RELEASE] = 0 if leaf else 1
        _set_claim(s, block, j, 0)
    claim(s, block, priority, duration_ms)


@loop
def _claim_full(s: State, m: Matches, block: int, priority: int, duration_ms: int) -> None:
    if not _first_claim(s, block) and s.blocks[block, CLAIM_FULL] == 0:
        m.entry[s.blocks[block, CLAIMANT], M_MODE] = COPY
        m.entry[s.blocks[block, CLAIMANT], M_RELEASE] = 0
    _set_claim(s, block, -1, 1)
    note_use(s, s.gate, int(s.blocks[block, NODE]))
    claim(s, block, priority, duration_ms)


@loop
def claim_matches(s: State, m: Matches, j: int, w: int) -> None:
    """Phase 1 for request j: take its matches out of the free queues."""
    count = int(m.entry[j, M_COUNT])
    m.entry[j, M_MODE] = NO_PARTIAL
    m.entry[j, M_RELEASE] = 0
    for i in range(count):
        block = int(m.blocks[j, i])
        if block == PLACEHOLDER:
            continue
        p, d = int(m.priority[j, i]), int(m.duration_ms[j, i])
        if p >= 0 and p != s.blocks[block, PRIORITY] and s.blocks[block, NODE] != -1:
            note_event(s, EV_PRIORITY, w, int(s.blocks[block, NODE]), int(s.blocks[block, PRIORITY]), p)
        s.stats[w, HIT_TOKENS_GPU + s.blocks[block, LEVEL]] += (
            m.entry[j, M_PARTIAL]
            if i == count - 1 and m.entry[j, M_PARTIAL] > 0
            else s.nodes[s.blocks[block, NODE], TOKENS]
        )
        if i == count - 1 and m.entry[j, M_PARTIAL] > 0:
            _claim_partial(s, m, j, block, p, d)
        else:
            _claim_full(s, m, block, p, d)


@inlined
def _take_match(s: State, m: Matches, j: int, w: int, i: int, node: int) -> int:
    """Phase 2 for one matched position: the block the sequence will use there, on the GPU; -1 if the pool is exhausted."""
    block = int(m.blocks[j, i])
    tokens = int(m.entry[j, M_PARTIAL]) if i == m.entry[j, M_COUNT] - 1 else 0
    mode = int(m.entry[j, M_MODE]) if tokens > 0 else NO_PARTIAL
    if mode == COPY:
        target = get_free(s, w, int(s.blocks[block, PRIORITY]), int(s.blocks[block, DURATION_MS]))
        if target == -1:
            return -1
        level = int(s.blocks[block, LEVEL])
        kind = INTRA_COPY if level == 0 else ONBOARD if level == 1 else DISK_READ
        note_copy(s, kind, block, target, tokens)
        s.stats[w, INTRA_COPIES if level == 0 else PARTIAL_FROM_HOST] += 1
        s.stats[w, INTRA_TOKENS] += tokens
        if m.entry[j, M_RELEASE] == 1 and s.blocks[block, REFS] == 0:
            release(s, block, False)
        s.blocks[target, KEY] = node
        block = target
    elif mode == IN_PLACE:
        overwrite(s, block)
    if s.blocks[block, LEVEL] > 0 and not onboard(s, block):
        return -1
    s.stats[w, REUSED] += 1
    s.stats[w, PARTIAL_REUSED if tokens > 0 else FULL_REUSED] += 1
    return block


@loop
def first_real_block(s: State, w: int, prompt: int) -> int:
    """First position that a sliding window still needs while a prompt of that length is computed."""
    if s.window[w, W_SLIDING] == 0:
        return 0
    reach = s.window[w, W_TOKENS] + s.window[w, W_TEMPORARY]
    return int(max(0, (prompt - reach) // s.conf[C_TOKENS_PER_BLOCK]))


@loop
def miss_cause(s: State, w: int, node: int, first_missing: bool) -> int:
    """Why a full prompt block has to be computed (an entry of `CAUSES`); `first_missing`: all before it were matched."""
    cause = int(s.nodes[node, FATE])
    if s.value[w, node] != -1:
        return LAST_TOKEN if first_missing else BEHIND_GAP
    if cause == NEVER_SEEN and len(s.twin) > 1 and s.nodes[s.twin[node], FATE] != NEVER_SEEN:
        return OTHER_NAMESPACE
    return cause


@loop
def allocate(
    s: State,
    q: Sequences,
    m: Matches,
    j: int,
    w: int,
    seq: int,
    prompt: int,
    keys: Array,
    full: int,
    short: int,
    whole: int,
) -> bool:
    """Phase 2 for request j: fill sequence row `seq` with its matches and new blocks. False: exhausted, undone.

    `whole` is the node of the last prompt block when the prompt fills it exactly (its short key hides it), else -1.
    """
    tpb = int(s.conf[C_TOKENS_PER_BLOCK])
    count, n = int(m.entry[j, M_COUNT]), (prompt + tpb - 1) // tpb
    q.length[seq] = n
    q.slots[seq] = prompt
    q.dropped[w, seq] = 0
    first = first_real_block(s, w, prompt)
    for i in range(n):
        node = int(keys[i]) if i < full else short
        block = PLACEHOLDER
        if i < count:
            if m.blocks[j, i] != PLACEHOLDER:
                block = _take_match(s, m, j, w, i, node)
                if block == -1:
                    _undo(s, q, m, j, w, seq, i)
                    return False
        elif i >= first:
            p = int(m.priority[j, i])
            block = get_free(s, w, DEFAULT_PRIORITY if p < 0 else p, int(m.duration_ms[j, i]))
            if block == -1:
                _undo(s, q, m, j, w, seq, i)
                return False
            s.blocks[block, KEY] = node
            s.stats[w, MISSED] += 1
            if i < full:
                s.stats[w, CAUSE_0 + miss_cause(s, w, node, False)] += 1
                if s.nodes[node, FATE] == NEVER_SEEN:
                    s.nodes[node, FATE] = IN_FLIGHT
                    if len(s.twin) > 1:
                        s.nodes[s.twin[node], FATE] = IN_FLIGHT
            elif whole >= 0:
                s.stats[w, CAUSE_0 + miss_cause(s, w, whole, i == count)] += 1
            else:
                s.stats[w, CAUSE_0 + SHORT_BLOCK] += 1
        if block >= 0:
            s.blocks[block, REFS] += 1
        q.blocks[w, seq, i] = block
    return True


@loop
def _undo(s: State, q: Sequences, m: Matches, j: int, w: int, seq: int, done: int) -> None:
    """Give back what the first `done` positions took and what later positions had claimed."""
    unclaim(s, m, j, done)
    q.length[seq] = done
    release_sequence(s, q, w, seq)


@loop
def unclaim(s: State, m: Matches, j: int, first: int) -> None:
    """Give back the claims of request j from position `first` on, for which phase 2 will not run."""
    for i in range(int(m.entry[j, M_COUNT]) - 1, first - 1, -1):
        block = int(m.blocks[j, i])
        if block != PLACEHOLDER and s.blocks[block, REFS] == 0:
            release(s, block, False)


@inlined
def add_slot(s: State, q: Sequences, w: int, seq: int, priority: int, duration_ms: int) -> bool:
    """Window w's part of `addToken` for a sequence whose slot count was already raised: slide, then take a block at a boundary.

    False if no block is free.
    """
    tpb = s.conf[C_TOKENS_PER_BLOCK]
    slots = q.slots[seq]
    if s.window[w, W_SLIDING] == 1:
        while slots - q.dropped[w, seq] * tpb >= s.window[w, W_TOKENS] + tpb:
            drop_front(s, q, w, seq)
    if (slots - 1) % tpb != 0:
        return True
    block = get_free(s, w, priority, duration_ms)
    if block == -1:
        return False
    s.blocks[block, REFS] += 1
    s.stats[w, GEN_ALLOC] += 1
    q.blocks[w, seq, (slots - 1) // tpb] = block
    return True


@loop
def take_back(s: State, q: Sequences, w: int, seq: int, position: int) -> None:
    """Undo what `add_slot` took for window w, where another window had no block: it is next to be taken again."""
    block = int(q.blocks[w, seq, position])
    q.blocks[w, seq, position] = PLACEHOLDER
    _unref(s, block, True)


@loop
def drop_front(s: State, q: Sequences, w: int, seq: int) -> None:
    """The sliding window leaves its first block: it keeps its priority, loses its duration, and is freed if nobody uses it."""
    i = q.dropped[w, seq]
    block = int(q.blocks[w, seq, i])
    q.dropped[w, seq] = i + 1
    if block < 0:
        return
    s.blocks[block, DURATION_MS] = -1
    s.expiry_us[block] = -1
    q.blocks[w, seq, i] = -2 - block
    _unref(s, block, False)


@loop
def _unref(s: State, block: int, to_front: bool) -> None:
    s.blocks[block, REFS] -= 1
    if s.blocks[block, REFS] == 0:
        release(s, block, to_front)


@loop
def store(s: State, q: Sequences, w: int, seq: int, keys: Array, full: int, short: int) -> int:
    """Put the sequence's blocks into the tree under `keys`; occupied positions stay as they are. Returns how many were new."""
    stored, opening = 0, True
    n = min(full + (1 if short >= 0 else 0), int(q.length[seq]))
    for i in range(n):
        block = int(q.blocks[w, seq, i])
        if block < 0:
            continue
        node = int(keys[i]) if i < full else short
        if s.value[w, node] != -1:
            continue
        if s.blocks[block, NODE] != -1:
            overwrite(s, block)
            opening = opening or s.conf[C_TELL_ALL] == 1  # what was just told ends the event before it
        s.blocks[block, KEY] = node
        attach(s, block, node)
        note_use(s, s.gate, node)
        if opening:
            note_event(s, EV_STORED_OPEN, w, int(s.nodes[node, PARENT]), 0, 0)
        opening = False
        note_event(s, EV_STORED_BLOCK, w, node, int(s.blocks[block, LEVEL]), int(s.blocks[block, PRIORITY]))
        stored += 1
    s.stats[w, STORED] += stored
    return stored


@loop
def release_sequence(s: State, q: Sequences, w: int, seq: int) -> None:
    """Hand the blocks back, last first, each to the back of its priority's queue once nobody refers to it.

    With detached_first (July 2026) a block that is not in the tree goes to the front instead.
    """
    for i in range(int(q.length[seq]) - 1, -1, -1):
        block = int(q.blocks[w, seq, i])
        q.blocks[w, seq, i] = PLACEHOLDER
        if block >= 0:
            _unref(s, block, s.conf[C_DETACHED_FIRST] == 1 and s.blocks[block, NODE] == -1)


@loop
def remove_slot(s: State, q: Sequences, windows: int, seq: int) -> None:
    """Rewind one token slot; a block that becomes empty goes to the FRONT of its queue (`releaseLastBlock`)."""
    tpb = s.conf[C_TOKENS_PER_BLOCK]
    q.slots[seq] -= 1
    if q.slots[seq] % tpb != 0:
        return
    i = q.slots[seq] // tpb
    q.length[seq] = i
    for w in range(windows):
        block = int(q.blocks[w, seq, i])
        q.blocks[w, seq, i] = PLACEHOLDER
        if block >= 0:
            _unref(s, block, True)


@loop
def pin(s: State, block: int) -> None:
    """One more reference to a block that may be free."""
    if s.blocks[block, REFS] == 0:
        unlink(s, block)
        s.expiry_us[block] = -1
    s.blocks[block, REFS] += 1


@loop
def unpin(s: State, block: int) -> None:
    """One reference less; without references the block becomes free (back of its queue)."""
    _unref(s, block, False)


@loop
def parent_block(s: State, block: int) -> int:
    """The block at the parent position in the same window; -1 if there is none or the block is not in the tree."""
    if not in_tree(s, block):
        return -1
    return int(s.value[s.blocks[block, WINDOW], s.nodes[s.blocks[block, NODE], PARENT]])
