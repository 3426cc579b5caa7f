"""Which workers are thought to hold which block, built from KV events alone; the longest prefix each of them holds.

It asks no worker and chooses none (`kvcache.routers`). One row a block name, with one bit a worker, so that a prompt is looked
up for all workers in one walk. What a worker does not tell stays here (see `kvcache.router_index`, which keeps one
worker's blocks with all their fields); `forget_oldest` keeps that within bounds.
"""

import math
from typing import NamedTuple

import numpy as np

from kvcache.compiled import loop
from kvcache.event_rows import FLUSHED, HEAD, KIND, LOST, NAME, NEW_LEVEL, NUMBER, OVERFLOWN, SENT, Outbox
from kvcache.keys import mix
from kvcache.tables import EV_LEVEL, EV_REMOVED, Array

WORD = 62  # workers a word of bits; an int64 keeps its sign to itself
X_ROWS, X_CLOCK = range(2)


class PrefixIndex(NamedTuple):
    """Open addressing by name. Rows without any bit are empty shells until the table is made anew."""

    name: Array  # int64[2^k]: 0 = never used
    held: Array  # int64[2^k, words]: bit w % WORD of word w // WORD: worker w holds it on some tier
    on_gpu: Array  # int64[2^k, words]: likewise, in GPU memory
    used: Array  # int64[2^k]: clock of the last store or match
    blocks: Array  # int64[worker]: blocks it is thought to hold
    tally: Array  # int64[2]: rows in use, the clock


def make_index(workers: int, rows: int = 1024) -> PrefixIndex:
    """An empty index for `workers` workers."""
    size, words = 1 << max(8, int(2 * rows).bit_length()), -(-workers // WORD)
    return PrefixIndex(
        np.zeros(size, np.int64),
        np.zeros((size, words), np.int64),
        np.zeros((size, words), np.int64),
        np.zeros(size, np.int64),
        np.zeros(workers, np.int64),
        np.zeros(2, np.int64),
    )


@loop
def find(x: PrefixIndex, name: int) -> int:
    """Row of a name; below 0: -1 - the row where it would go."""
    mask = len(x.name) - 1
    at = mix(3, name) & mask
    while x.name[at] != 0:
        if x.name[at] == name:
            return int(at)
        at = (at + 1) & mask
    return int(-1 - at)


@loop
def note_held(x: PrefixIndex, worker: int, name: int, level: int) -> None:
    """Worker `worker` holds the block, in GPU memory if `level` is 0."""
    at = find(x, name)
    if at < 0:
        at = -1 - at
        x.name[at] = name
        x.tally[X_ROWS] += 1
    word, bit = worker // WORD, 1 << (worker % WORD)
    x.blocks[worker] += (x.held[at, word] & bit) == 0
    x.held[at, word] |= bit
    x.on_gpu[at, word] |= bit
    if level > 0:
        x.on_gpu[at, word] ^= bit
    x.tally[X_CLOCK] += 1
    x.used[at] = x.tally[X_CLOCK]


@loop
def note_gone(x: PrefixIndex, worker: int, name: int) -> None:
    """Worker `worker` holds the block no longer."""
    at = find(x, name)
    if at < 0:
        return
    word, bit = worker // WORD, 1 << (worker % WORD)
    if x.held[at, word] & bit:
        x.held[at, word] ^= bit
        x.blocks[worker] -= 1
    if x.on_gpu[at, word] & bit:
        x.on_gpu[at, word] ^= bit


@loop
def note_level(x: PrefixIndex, worker: int, name: int, level: int) -> None:
    """The block went to another tier; of one never heard of this says nothing."""
    at = find(x, name)
    word, bit = worker // WORD, 1 << (worker % WORD)
    if at >= 0 and x.held[at, word] & bit:
        x.on_gpu[at, word] |= bit
        if level > 0:
            x.on_gpu[at, word] ^= bit


@loop
def holds(x: PrefixIndex, worker: int, name: int) -> bool:
    """What the index thinks."""
    at = find(x, name)
    return bool(at >= 0 and (x.held[at, worker // WORD] >> (worker % WORD)) & 1)


@loop
def overlaps(x: PrefixIndex, names: Array, n: int, held: Array, on_gpu: Array) -> None:
    """held[w]: leading blocks of `names[:n]` that worker w holds; on_gpu[w]: how many of these in GPU memory."""
    workers = len(x.blocks)
    for w in range(workers):
        held[w] = 0
        on_gpu[w] = 0
    for word in range(x.held.shape[1]):
        alive = (1 << min(WORD, workers - word * WORD)) - 1
        for i in range(n):
            at = find(x, int(names[i]))
            mine = int(x.held[at, word]) & alive if at >= 0 else 0
            _drop_out(alive & ~mine, word, i, held)
            alive = mine
            if alive == 0:
                break
            x.used[at] = x.tally[X_CLOCK]
            fast = int(x.on_gpu[at, word]) & alive
            while fast:
                low = fast & -fast
                on_gpu[word * WORD + _place(low)] += 1
                fast ^= low
        _drop_out(alive, word, n, held)
    x.tally[X_CLOCK] += 1


@loop
def _place(bit: int) -> int:
    """Number of a bit that stands alone."""
    place = 0
    while bit > 255:
        bit >>= 8
        place += 8
    while bit > 1:
        bit >>= 1
        place += 1
    return place


@loop
def _drop_out(out: int, word: int, blocks: int, held: Array) -> None:
    """The workers whose bits are in `out` hold `blocks` blocks of the prompt."""
    while out:
        low = out & -out
        held[word * WORD + _place(low)] = blocks
        out ^= low


@loop
def _poll_of(time_s: float, period_s: float) -> float:
    """When what was flushed at `time_s` is taken out of the buffer: at the next poll, or at once."""
    return math.ceil(time_s / period_s) * period_s if period_s > 0.0 else time_s


@loop
def _poll(x: PrefixIndex, box: Outbox, worker: int, end: int, capacity: int, lost_share: float, seed: int) -> None:
    """Rows up to `end` leave the buffer together: of their events the last `capacity` are still there."""
    kept = int(box.rows[end - 1, NUMBER]) - capacity
    number, told = -1, False
    for i in range(box.meter[HEAD], end):
        if box.rows[i, NUMBER] != number:
            number = int(box.rows[i, NUMBER])
            chance = (mix(mix(mix(seed, worker), number), 7) & 0xFFFFFFFF) / 4294967296.0
            told = number > kept and chance >= lost_share
            box.meter[OVERFLOWN] += number <= kept
            box.meter[LOST] += number > kept and not told
            box.meter[SENT] += told
        if not told:
            continue
        kind, name, level = int(box.rows[i, KIND]), int(box.rows[i, NAME]), int(box.rows[i, NEW_LEVEL])
        if kind == EV_REMOVED:
            note_gone(x, worker, name)
        elif kind == EV_LEVEL:
            note_level(x, worker, name, level)
        else:
            note_held(x, worker, name, level)
    box.meter[HEAD] = end


@loop
def drain(
    x: PrefixIndex,
    box: Outbox,
    worker: int,
    until_s: float,
    period_s: float,
    capacity: int,
    lost_share: float,
    seed: int,
) -> None:
    """Events that polls every `period_s` (0: without pause) have taken out by `until_s` reach the index.

    The buffer holds `capacity` events between two polls and drops older ones. Each event is lost on its way by the chance
    `lost_share`, which follows from seed, worker and event number alone.
    """
    while box.meter[HEAD] < box.meter[FLUSHED]:
        end = int(box.meter[HEAD])
        poll_s = _poll_of(box.time_s[end], period_s)
        if poll_s > until_s:
            return
        while end < box.meter[FLUSHED] and _poll_of(box.time_s[end], period_s) == poll_s:
            end += 1
        _poll(x, box, worker, end, capacity, lost_share, seed)


@loop
def refill(old: PrefixIndex, new: PrefixIndex) -> None:
    """Enter into the empty index `new` every row of `old` that has a bit."""
    for i in range(len(old.name)):
        some = 0
        for word in range(old.held.shape[1]):
            some |= old.held[i, word]
        if some:
            at = -1 - find(new, int(old.name[i]))
            new.name[at] = old.name[i]
            new.used[at] = old.used[i]
            for word in range(old.held.shape[1]):
                new.held[at, word] = old.held[i, word]
                new.on_gpu[at, word] = old.on_gpu[i, word]
            new.tally[X_ROWS] += 1


def with_room(x: PrefixIndex, rows: int) -> PrefixIndex:
    """The index with room for `rows` more names: itself, or a new one without the empty shells."""
    if int(x.tally[X_ROWS]) + rows <= len(x.name) // 2:
        return x
    filled = int((x.held != 0).any(axis=1).sum())
    new = make_index(len(x.blocks), 2 * (filled + rows))._replace(blocks=x.blocks)
    new.tally[X_CLOCK] = x.tally[X_CLOCK]
    refill(x, new)
    return new


def forget_oldest(x: PrefixIndex, worker: int, keep: int) -> int:
    """Of a worker thought to hold more than `keep` blocks, forget those not stored or matched for longest; how many."""
    word, bit = worker // WORD, np.int64(1) << np.int64(worker % WORD)
    rows = np.flatnonzero(x.held[:, word] & bit)
    gone = rows[np.argsort(x.used[rows], kind="stable")[: max(0, len(rows) - keep)]]
    x.held[gone, word] &= ~bit
    x.on_gpu[gone, word] &= ~bit
    x.blocks[worker] -= len(gone)
    return len(gone)
