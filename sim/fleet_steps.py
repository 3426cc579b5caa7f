"""Many engines whose steps are spent in one compiled loop, in the order of simulated time.

It is told how far it may go; requests and content come to the workers between two calls (`sim.fleet`). With `strict` the loop
takes the workers' steps in order of their ends and stops at the first signal; without, each worker runs ahead by itself.
"""

from kvcache.compiled import loop
from kvcache.engine import begin_step, end_step
from kvcache.event_rows import collect, flush, has_room
from kvcache.line import GENERATING, HELD, N_ACTIVE, N_DONE, N_STARTED, REQUEST, WAIT_HEAD, WAIT_TAIL
from kvcache.remote import pin_prompt
from kvcache.tables import C_RECORD_EVENTS
from sim.fleet import (
    BUSY,
    ENDED,
    G_KIND,
    G_SERIAL,
    G_WORKER,
    IDLE,
    PARKED,
    READY,
    S_FULL,
    S_PINS,
    S_QUEUED,
    S_SERIAL,
    S_STATE,
    STARTED,
    Fleet,
    engine_at,
    lanes_at,
    outbox_at,
)
from sim.worker import NOW_S, TOKENS_MADE, spend


@loop
def _signal(f: Fleet, w: int, kind: int, r: int) -> None:
    at = int(f.tally[0])
    f.signals[at, G_WORKER] = w
    f.signals[at, G_KIND] = kind
    f.signals[at, G_SERIAL] = f.status[w, S_SERIAL] + r
    f.tally[0] = at + 1


@loop
def _begin(f: Fleet, w: int, overlap: float) -> None:
    """The next step of a worker that is between two."""
    e = engine_at(f, w)
    meter = e.line.meter
    busy = begin_step(e, f.clock[w, NOW_S])
    for i in range(meter[N_ACTIVE] - meter[N_STARTED], meter[N_ACTIVE]):
        row = e.line.rows[e.line.active[i]]
        r = int(row[REQUEST])
        if e.load.resumed[r] == 0:
            f.status[w, S_QUEUED] -= e.load.prompt[r] - f.known[w, r]
        if row[GENERATING] == HELD:
            _signal(f, w, STARTED, r)
    if busy:
        spend(e, lanes_at(f, w), f.cost[w], f.clock[w], overlap)
        f.status[w, S_STATE] = BUSY
    elif meter[N_ACTIVE] > 0 or meter[WAIT_HEAD] < meter[WAIT_TAIL]:
        f.status[w, S_STATE] = PARKED
    else:
        f.status[w, S_STATE] = IDLE


@loop
def _end(f: Fleet, w: int) -> None:
    """The step of a worker ends at its clock."""
    e, now_s = engine_at(f, w), f.clock[w, NOW_S]
    e.line.meter[N_DONE] = 0
    f.clock[w, TOKENS_MADE] += end_step(e, now_s)
    f.status[w, S_STATE] = READY
    if f.status[w, S_PINS]:
        for i in range(e.line.meter[N_DONE]):
            pin_prompt(e, int(e.line.done[i]))
            _signal(f, w, ENDED, int(e.line.done[i]))
    publish(f, w)


@loop
def publish(f: Fleet, w: int) -> None:
    """The iteration's events wait for the router; S_FULL where they find no room."""
    if f.state.conf[w, C_RECORD_EVENTS] == 0:
        return
    e, box = engine_at(f, w), outbox_at(f, w)
    if has_room(e.state, box):
        collect(e.state, box, w)
        flush(box, f.clock[w, NOW_S])
    else:
        f.status[w, S_FULL] = 1


@loop
def _may_move(f: Fleet, w: int, until_s: float) -> bool:
    """Worker w has a step to begin before `until_s`, or one that ends by then."""
    state, at_s = int(f.status[w, S_STATE]), f.clock[w, NOW_S]
    return bool((state == READY and at_s < until_s) or (state == BUSY and at_s <= until_s))


@loop
def _move(f: Fleet, w: int, overlap: float) -> None:
    """Begin or end one step of worker w."""
    if f.status[w, S_STATE] == READY:
        _begin(f, w, overlap)
    else:
        _end(f, w)


@loop
def _next_worker(f: Fleet, until_s: float) -> int:
    """The worker whose step begins or ends next; -1: nobody's by `until_s`."""
    best = -1
    for w in range(len(f.status)):
        if _may_move(f, w, until_s) and (best < 0 or f.clock[w, NOW_S] < f.clock[best, NOW_S]):
            best = w
    return best


@loop
def advance(f: Fleet, until_s: float, overlap: float, strict: bool) -> float:
    """Spend steps up to `until_s`; returns the time reached: earlier where a signal was given or an outbox is full.

    A step that ends at `until_s` has ended; one that could begin then has not.
    """
    while strict:
        w = _next_worker(f, until_s)
        if w < 0:
            return until_s
        at_s = f.clock[w, NOW_S]
        _move(f, w, overlap)
        if f.tally[0] > 0 or f.status[w, S_FULL]:
            return float(at_s)
    for w in range(len(f.status)):
        while f.status[w, S_FULL] == 0 and _may_move(f, w, until_s):
            _move(f, w, overlap)
    return until_s


@loop
def next_end_s(f: Fleet) -> float:
    """When the next step that has begun ends; infinite if none has."""
    first = float("inf")
    for w in range(len(f.status)):
        if f.status[w, S_STATE] == BUSY:
            first = min(first, f.clock[w, NOW_S])
    return float(first)
