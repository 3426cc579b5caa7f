"""Taking, moving and dropping one block: who is overwritten, what is saved to a colder tier first, what comes back.

It does not know sequences. Models `WindowBlockManager::getFreeBlock` and `onboardBlock`. Tiers exchange places: an
offload swaps the slots of two block objects, so a block keeps its id, key, tree place and priority wherever its data lie.

    get_free:   v = next GPU victim            h = next host victim (its content is dropped, or moves on to disk)
                v.data --copy--> h.slot        then v and h swap slots: v is a host block, h is the GPU block handed out
    onboard:    m = matched host block         g = get_free()
                m.data --copy--> g.slot        then m and g swap slots: m is on the GPU, g owns the emptied host slot
"""

from kvcache.compiled import inlined, loop
from kvcache.gate import Gate, too_old
from kvcache.queues import claim, front, release
from kvcache.shelved import Shelved
from kvcache.tables import (
    ALLOC_NEW,
    ALLOC_TOTAL,
    BELOW_THRESHOLD,
    C_COLD_MIN_PRIORITY,
    C_EMPTIED_FRONT,
    C_EVICT_DESCENDANTS,
    C_LEVELS,
    C_OFFLOAD_MIN_PRIORITY,
    C_ONBOARD,
    C_RECORD_COPIES,
    C_RECORD_EVENTS,
    C_TELL_ALL,
    CLOCK_US,
    DEFAULT_PRIORITY,
    DISK_READ,
    DISK_WRITE,
    DISK_WRITES,
    DROPPED,
    DROPPED_BELOW_THRESHOLD,
    EV_LEVEL,
    EV_REMOVED,
    EVICTED_DISK,
    EVICTED_GPU,
    EVICTED_HOST,
    EXPIRED,
    EXPIRED_FATE,
    KEY,
    LEVEL,
    N_COPIES,
    N_EVENTS,
    NODE,
    OFFLOAD,
    OFFLOADED,
    ONBOARD,
    ONBOARDED,
    ONBOARDED_FROM_DISK,
    OVERWRITTEN,
    P_DROPPED,
    P_OFFLOADED,
    P_ONBOARDED,
    PARENT,
    PRIORITY,
    ROOT,
    SLOT,
    T_FREE,
    T_LOWEST,
    WINDOW,
    State,
)
from kvcache.tree import detach, detach_below, in_tree


@loop
def note_event(s: State, kind: int, w: int, node: int, old: int, new: int) -> None:
    """Append one event row; `kvcache.events` turns rows into TensorRT-LLM's events."""
    if s.conf[C_RECORD_EVENTS]:
        i = s.tally[N_EVENTS]
        s.events[i, 0] = kind
        s.events[i, 1] = w
        s.events[i, 2] = node
        s.events[i, 3] = old
        s.events[i, 4] = new
        s.tally[N_EVENTS] = i + 1


@loop
def note_copy(s: State, kind: int, source: int, target: int, tokens: int) -> None:
    """Append one copy between the places of two blocks; `tokens` 0 means the whole block."""
    if s.conf[C_RECORD_COPIES]:
        i = s.tally[N_COPIES]
        s.copies[i, 0] = kind
        s.copies[i, 1] = s.blocks[source, WINDOW]
        s.copies[i, 2] = s.blocks[source, SLOT]
        s.copies[i, 3] = s.blocks[target, SLOT]
        s.copies[i, 4] = tokens
        s.copies[i, 5] = s.blocks[source, KEY]
        s.tally[N_COPIES] = i + 1


@loop
def swap_places(s: State, a: int, b: int) -> None:
    """Two blocks change places in memory; nothing else changes."""
    s.blocks[a, SLOT], s.blocks[b, SLOT] = s.blocks[b, SLOT], s.blocks[a, SLOT]
    s.blocks[a, LEVEL], s.blocks[b, LEVEL] = s.blocks[b, LEVEL], s.blocks[a, LEVEL]


@inlined
def drop(s: State, block: int, fate: int) -> None:
    """The content of `block` is given up."""
    w = int(s.blocks[block, WINDOW])
    node = int(s.blocks[block, NODE])
    if node == -1:
        return
    if s.conf[C_RECORD_EVENTS] and (s.conf[C_TELL_ALL] or in_tree(s, block)):
        note_event(s, EV_REMOVED, w, node, 0, 0)
    s.stats[w, DROPPED] += 1
    if fate == BELOW_THRESHOLD:
        s.stats[w, DROPPED_BELOW_THRESHOLD] += 1
        s.by_priority[P_DROPPED, s.blocks[block, PRIORITY]] += 1
    if s.blocks[block, EXPIRED]:
        fate = EXPIRED_FATE
    if s.conf[C_EVICT_DESCENDANTS]:
        detach_below(s, w, node)
    detach(s, block, fate)


@inlined
def _move_down(s: State, block: int, target: int) -> None:
    """`block` takes `target`'s colder place, free in the queue there; `target` gets the warmer one, still queued."""
    level = int(s.blocks[target, LEVEL])
    note_copy(s, OFFLOAD if level == 1 else DISK_WRITE, block, target, 0)
    swap_places(s, block, target)
    if s.conf[C_RECORD_EVENTS] and in_tree(s, block):
        note_event(s, EV_LEVEL, int(s.blocks[block, WINDOW]), int(s.blocks[block, NODE]), level - 1, level)
    claim(s, block, -1, -1)
    release(s, block, False)
    _note_move(s, s.gate, block)


@inlined
def _host_place(s: State, w: int) -> int:
    """The host block to be overwritten next; in a cascade its content first moves on to disk if it may."""
    h = front(s, w, 1)
    if s.conf[C_LEVELS] > 2 and s.blocks[h, NODE] != -1:
        if s.blocks[h, PRIORITY] >= s.conf[C_COLD_MIN_PRIORITY] and s.tier[w, 2, T_FREE] > 0:
            d = front(s, w, 2)
            drop(s, d, EVICTED_DISK)
            _move_down(s, h, d)
            s.stats[w, DISK_WRITES] += 1
            return d
    return h


@loop
def overwrite(s: State, block: int) -> None:
    """`block` leaves the tree because its memory gets other content: TensorRT-LLM tells nobody."""
    node = int(s.blocks[block, NODE])
    if s.conf[C_TELL_ALL] and node != -1:
        note_event(s, EV_REMOVED, int(s.blocks[block, WINDOW]), node, 0, 0)
    detach(s, block, OVERWRITTEN)


@loop
def may_offload(s: State, w: int, victim: int) -> bool:
    """The victim that `front` has just found may move to the host: its queue's priority reaches the threshold."""
    return _may_offload(s, s.shelf, w, victim) and _admitted(s, s.gate, w, victim)


@loop
def _admitted(s: State, gate: Gate | None, w: int, victim: int) -> bool:
    """No gate, or its rules hold: used often enough, and everything before it will stay where it can be found."""
    node = int(s.blocks[victim, NODE])
    if gate is not None:
        if node == -1 or gate.uses[node] < gate.rule.min_uses:
            return False
        node = int(s.nodes[node, PARENT])
        while gate.rule.contiguous and node != ROOT:
            block = int(s.value[w, node])
            if block == -1 or (
                s.blocks[block, LEVEL] == 0 and s.blocks[block, PRIORITY] < s.conf[C_OFFLOAD_MIN_PRIORITY]
            ):
                return False
            node = int(s.nodes[node, PARENT])
    return True


@loop
def note_use(s: State, gate: Gate | None, node: int) -> None:
    """Content was computed or found once more."""
    if gate is not None:
        gate.uses[node] += 1


@loop
def out_of_time(s: State, gate: Gate | None, block: int) -> bool:
    """The block lies on a colder level and is too old to count; its content is dropped then."""
    if gate is not None:
        if s.blocks[block, LEVEL] > 0 and too_old(gate, block, int(s.tally[CLOCK_US])):
            drop(s, block, EXPIRED_FATE)
            return True
    return False


@loop
def _note_move(s: State, gate: Gate | None, block: int) -> None:
    if gate is not None:
        gate.moved_us[block] = s.tally[CLOCK_US]


@inlined
def _may_offload(s: State, shelf: Shelved | None, w: int, victim: int) -> bool:
    priority = s.tier[w, 0, T_LOWEST] if shelf is None else s.blocks[victim, PRIORITY]
    return bool(priority >= s.conf[C_OFFLOAD_MIN_PRIORITY])


@inlined
def get_free(s: State, w: int, priority: int, duration_ms: int) -> int:
    """Take the next GPU block for a new owner; -1 if none is free. Its old content is offloaded or dropped first."""
    v = front(s, w, 0)
    if v == -1:
        return -1
    s.stats[w, ALLOC_TOTAL] += 1
    block, fate = v, EVICTED_GPU
    if s.blocks[v, KEY] == -1:
        s.stats[w, ALLOC_NEW] += 1
    elif not may_offload(s, w, v):
        fate = BELOW_THRESHOLD
    elif s.tier[w, 1, T_FREE] > 0 and s.conf[C_ONBOARD]:
        block, fate = _host_place(s, w), EVICTED_HOST
        _move_down(s, v, block)
        s.stats[w, OFFLOADED] += 1
        s.by_priority[P_OFFLOADED, s.blocks[v, PRIORITY]] += 1
    drop(s, block, fate)
    claim(s, block, priority, duration_ms)
    return block


@loop
def onboard(s: State, block: int) -> bool:
    """Bring a matched block to the GPU if it lies in a colder tier; False if no GPU block is free for it."""
    level = int(s.blocks[block, LEVEL])
    if level == 0 or not s.conf[C_ONBOARD]:
        return True
    w = int(s.blocks[block, WINDOW])
    g = get_free(s, w, DEFAULT_PRIORITY, -1)
    if g == -1:
        return False
    note_copy(s, ONBOARD if level == 1 else DISK_READ, block, g, 0)
    s.stats[w, ONBOARDED if level == 1 else ONBOARDED_FROM_DISK] += 1
    s.by_priority[P_ONBOARDED, s.blocks[block, PRIORITY]] += 1
    swap_places(s, block, g)
    note_event(s, EV_LEVEL, w, int(s.blocks[block, KEY]), level, 0)  # told even of a block just taken out of the tree
    if s.conf[C_EMPTIED_FRONT]:
        s.blocks[g, PRIORITY] = 0
    release(s, g, s.conf[C_EMPTIED_FRONT] == 1)
    return True
