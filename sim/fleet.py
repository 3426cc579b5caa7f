"""The tables of many engines, stacked: one row a worker, so that a visit to a worker costs a few views and no call from Python.

Here requests come into a worker's line and leave it out of turn. It spends no step (`sim.fleet_steps`), routes nothing
(`sim.routing`), sends nothing (`sim.disagg`) and knows no SimPy.

    IDLE --request--> READY --begin_step--> BUSY --its end--> READY        READY: between two steps, at its clock
                        '--nothing can be computed--> PARKED or IDLE       PARKED: somebody waits for content or room

What others must react to (a prompt is done, somebody took blocks and waits for content) is a signal.
"""

from typing import NamedTuple

from kvcache.compiled import loop
from kvcache.event_rows import Outbox
from kvcache.keys import Rows, intern_request, reserve_private
from kvcache.line import N_ACTIVE, WAIT_HEAD, WAIT_TAIL, Engine, Line, Outcome
from kvcache.load import Load
from kvcache.remote import give_up, go_on, pin_prompt, unpin_prompt
from kvcache.sequences import Matches, Sequences
from kvcache.tables import C_TOKENS_PER_BLOCK, N_NODES, N_RUNS, T_FREE, T_SIZE, Array, State
from sim.lanes import Lanes
from sim.worker import NOW_S

IDLE, PARKED, READY, BUSY = range(4)  # from READY on there is something to do
# Columns of `status`. SERIAL: requests forgotten so far, so that request n of the tables has the serial number SERIAL + n.
S_STATE, S_REQUESTS, S_SERIAL, S_PINS, S_QUEUED, S_FULL = range(6)
# Kinds and columns of `signals`.
STARTED, ENDED = range(2)
G_WORKER, G_KIND, G_SERIAL = range(3)
# Columns of what `loads` writes.
L_WAITING, L_ACTIVE, L_BLOCKS, L_QUEUED_TOKENS = range(4)
LOADS = 4
# What `deliver` answers.
DELIVERED, NO_ROWS, NO_NODES = range(3)


class Fleet(NamedTuple):
    """Engines, lanes and clocks of all workers: every array as there, with one more axis in front, the worker."""

    state: State
    sequences: Sequences
    matches: Matches
    load: Load
    line: Line
    outcome: Outcome
    lanes: Lanes
    outbox: Outbox
    cost: Array  # float64[worker, ...]
    clock: Array  # float64[worker, 6], as `sim.worker` keeps it
    status: Array  # int64[worker, 6]
    number: Array  # int64[worker, request]: its number in the whole workload
    known: Array  # int64[worker, request]: prompt tokens that the router thought to be there
    signals: Array  # int64[entries, 3]
    tally: Array  # int64[1]: signals given


@loop
def engine_at(f: Fleet, w: int) -> Engine:
    """Worker w's engine: views of its rows."""
    s, q, m, d, n, o = f.state, f.sequences, f.matches, f.load, f.line, f.outcome
    return Engine(
        State(
            s.conf[w], s.tally[w], s.nodes[w], s.value[w], s.kids[w], s.twin[w], s.runs[w], s.tables[w], s.blocks[w],
            s.window[w], s.tier[w], s.expiry_us[w], s.heap[w], s.stats[w], s.by_priority[w], s.copies[w], s.events[w], None, None,
        ),
        Sequences(q.blocks[w], q.length[w], q.slots[w], q.dropped[w]),
        Matches(m.entry[w], m.blocks[w], m.priority[w], m.duration_ms[w]),
        Load(
            d.prompt[w], d.output[w], d.key_offset[w], d.keys[w], d.private[w], d.range_offset[w], d.ranges[w],
            d.decode_priority[w], d.decode_duration_ms[w], d.space[w], d.resumed[w], d.remote[w],
        ),
        Line(
            n.waiting[w], n.active[w], n.rows[w], n.free_rows[w], n.batch[w], n.chunk[w], n.flight[w], n.keys[w],
            n.available[w], n.done[w], n.meter[w], n.plan[w], n.limits[w],
        ),
        Outcome(o.reused[w], o.sent_s[w], o.start_s[w], o.first_token_s[w], o.finish_s[w]),
    )  # fmt: skip


@loop
def lanes_at(f: Fleet, w: int) -> Lanes:
    """Worker w's copy lanes."""
    n = f.lanes
    return Lanes(
        n.cost[w], n.down[w], n.up[w], n.block_bytes[w], n.duplex[w], n.disk_share[w], n.base[w], n.read_s[w],
        n.write_s[w], n.end_s[w], n.work_s[w],
    )  # fmt: skip


@loop
def outbox_at(f: Fleet, w: int) -> Outbox:
    """Worker w's events that the router has not seen."""
    b = f.outbox
    return Outbox(b.rows[w], b.time_s[w], b.removed[w], b.waits[w], b.meter[w], b.names[w])


@loop
def deliver(
    f: Fleet, w: int, rows: Rows, r: int, number: int, ranges: Array, decode_priority: int, decode_ms: int,
    remote: int, now_s: float, spare_nodes: int, spare_runs: int,
) -> int:  # fmt: skip
    """Request r of `rows` joins worker w's line at `now_s`; `remote`: prompt tokens that come from elsewhere.

    NO_ROWS or NO_NODES: nothing happened, the tables have no room for it; `spare_*` is what must stay free in any case.
    """
    e = engine_at(f, w)
    d, n = e.load, int(f.status[w, S_REQUESTS])
    tpb = int(e.state.conf[C_TOKENS_PER_BLOCK])
    prompt, output = int(rows.prompt[r]), int(rows.output[r])
    first, first_range = int(d.key_offset[n]), int(d.range_offset[n])
    end = first + (prompt + output) // tpb + 2
    last_range = first_range + len(ranges)
    waits = int(e.line.meter[WAIT_TAIL])
    if n + 1 >= len(d.prompt) or end > len(d.keys) or last_range > len(d.ranges) or waits + 1 >= len(e.line.waiting):
        return NO_ROWS
    pieces = (
        prompt // rows.unit_tokens + output // rows.unit_tokens + 2 * (end - first) + 2 * tpb // rows.unit_tokens + 8
    )
    nodes = int(e.state.tally[N_NODES])
    if nodes + end - first + spare_nodes > len(e.state.nodes):
        return NO_NODES
    if int(e.state.tally[N_RUNS]) + pieces + spare_runs > len(e.state.runs):
        return NO_NODES
    d.key_offset[n + 1] = end
    d.prompt[n] = prompt
    d.output[n] = output
    d.space[n] = rows.space[r]
    d.resumed[n] = 0
    d.remote[n] = remote
    d.private[n] = reserve_private(e.state, prompt + output)
    intern_request(e.state, rows, r, int(d.private[n]), d.keys[first:end])
    d.range_offset[n + 1] = last_range
    for i in range(len(ranges)):
        for column in range(4):
            d.ranges[first_range + i, column] = ranges[i, column]
    d.decode_priority[n] = decode_priority
    d.decode_duration_ms[n] = decode_ms
    e.outcome.reused[n] = 0
    e.outcome.sent_s[n] = now_s
    e.outcome.start_s[n] = -1.0
    e.outcome.first_token_s[n] = -1.0
    e.outcome.finish_s[n] = -1.0
    f.number[w, n] = number
    f.known[w, n] = 0
    f.status[w, S_REQUESTS] = n + 1
    f.status[w, S_QUEUED] += prompt
    e.line.waiting[waits] = n
    e.line.meter[WAIT_TAIL] = waits + 1
    wake(f, w, now_s)
    return DELIVERED


@loop
def expect_found(f: Fleet, w: int, number: int, tokens: int) -> None:
    """Of the prompt that joined worker w's line last, `tokens` need not be computed, as far as the router knows."""
    n = int(f.status[w, S_REQUESTS]) - 1
    if f.number[w, n] == number:
        f.known[w, n] = tokens
        f.status[w, S_QUEUED] -= tokens


@loop
def wake(f: Fleet, w: int, now_s: float) -> None:
    """Worker w looks again for something to compute, from `now_s` on."""
    if f.status[w, S_STATE] < READY:
        f.status[w, S_STATE] = READY
        f.clock[w, NOW_S] = max(f.clock[w, NOW_S], now_s)


@loop
def loads(f: Fleet, out: Array) -> None:
    """What each worker would report of itself now: waiting and active requests, GPU blocks in use, tokens of waiting
    prompts that nobody expects to be found."""
    for w in range(len(f.status)):
        meter = f.line.meter[w]
        out[w, L_WAITING] = meter[WAIT_TAIL] - meter[WAIT_HEAD]
        out[w, L_ACTIVE] = meter[N_ACTIVE]
        out[w, L_BLOCKS] = f.state.tier[w, 0, 0, T_SIZE] - f.state.tier[w, 0, 0, T_FREE]
        out[w, L_QUEUED_TOKENS] = f.status[w, S_QUEUED]


@loop
def request_at(f: Fleet, w: int, serial: int) -> int:
    """Where a request of that serial number is in worker w's tables."""
    return int(serial - f.status[w, S_SERIAL])


@loop
def received(f: Fleet, w: int, serial: int, tokens: int, now_s: float) -> bool:
    """Content of a held request has come, see `kvcache.remote.go_on`."""
    if not go_on(engine_at(f, w), request_at(f, w, serial), tokens, now_s):
        return False
    wake(f, w, now_s)
    return True


@loop
def pinned_again(f: Fleet, w: int, serial: int) -> None:
    """One more needs the prompt of a request that has just ended on worker w."""
    pin_prompt(engine_at(f, w), request_at(f, w, serial))


@loop
def unpinned(f: Fleet, w: int, serial: int, now_s: float) -> None:
    """The prompt of a request that ended on worker w need not be kept any longer."""
    unpin_prompt(engine_at(f, w), request_at(f, w, serial))
    wake(f, w, now_s)


@loop
def given_up(f: Fleet, w: int, serial: int, now_s: float) -> bool:
    """A request leaves worker w, wherever it is there."""
    e, r = engine_at(f, w), request_at(f, w, serial)
    if e.outcome.start_s[r] < 0.0:
        f.status[w, S_QUEUED] -= e.load.prompt[r] - f.known[w, r]
    if not give_up(e, r):
        return False
    wake(f, w, now_s)
    return True
