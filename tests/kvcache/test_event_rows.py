"""Events as rows say what the event manager says, in its order, under its numbers."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.event_rows import FLUSHED, HEAD, NUMBER, TAIL, collect, flush, has_room, make_outbox, name_of, prompt_names
from kvcache.events import Event, EventManager
from kvcache.load import rows_of
from kvcache.retention import KvCacheRetentionConfig, RetentionColumns, TokenRangeRetentionConfig
from kvcache.tables import EV_LEVEL, EV_REMOVED, EV_STORED_BLOCK, N_EVENTS, TOKENS, Settings, State
from tests.kvcache.engines import engine_of, moments, requests_of


class Names:
    """Names of nodes as the rows give them, the number of tokens beside it."""

    def __init__(self, state: State, names: Any) -> None:
        self.state, self.names = state, names

    def node_hash(self, node: int) -> int:
        return int(name_of(self.state, self.names, node, 0))

    def stored_block(self, node: int, level: int, priority: int) -> Event:
        tokens = int(self.state.nodes[node, TOKENS])
        return {"block_hash": self.node_hash(node), "tokens": [0] * tokens, "cache_level": level, "priority": priority}


def told(events: list[Event], full: set[int]) -> list[tuple[int, int, int, int]]:
    """The manager's events as rows; only blocks in `full`."""
    rows = []
    for event in events:
        data, number = event["data"], event["event_id"]
        if data["type"] == "stored":
            rows += [(EV_STORED_BLOCK, b["block_hash"], number, b["cache_level"]) for b in data["blocks"]]
        elif data["type"] == "removed":
            rows += [(EV_REMOVED, h, number, 0) for h in data["block_hashes"]]
        elif data["type"] == "updated" and data["cache_level"] is not None:
            rows.append((EV_LEVEL, data["block_hash"], number, data["cache_level"]["new_value"]))
    return [row for row in rows if row[1] in full]


@given(
    seed=st.integers(0, 10_000),
    host=st.sampled_from([0, 3]),
    partial=st.booleans(),
    tell_all=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_rows_tell_what_the_event_manager_tells(seed: int, host: int, partial: bool, tell_all: bool) -> None:
    rng = np.random.default_rng(seed)
    n = 14
    prompts = [rng.integers(0, 2, rng.integers(1, 20)).tolist() for _ in range(n)]
    requests = requests_of(prompts, rng.integers(1, 9, n).tolist())
    some = KvCacheRetentionConfig([TokenRangeRetentionConfig(0, 8, 80)], 10)
    keep = RetentionColumns.of([some if rng.random() < 0.4 else None for _ in range(n)])
    rules = Settings(tokens_per_block=4, enable_partial_reuse=partial, record_events=True, tell_all=tell_all)
    e = engine_of(requests, (9, host), settings=rules, keep=keep)
    box = make_outbox(4096, 1, len(e.state.nodes))
    manager = EventManager(1 << 20, [1], Names(e.state, box.names.copy()))
    events: list[Event] = []
    for now, ended in moments(e, n, rng.integers(0, 4, n).tolist()):
        waiting = int(e.state.tally[N_EVENTS])
        manager.collect(e.state)
        e.state.tally[N_EVENTS] = waiting
        assert has_room(e.state, box)
        collect(e.state, box, 0)
        if ended:
            manager.flush()
            events += manager.latest()
            flush(box, now)
    manager.flush()
    events += manager.latest()
    flush(box, 1e9)
    named = np.flatnonzero(box.names)
    full = {int(box.names[node]) for node in named if e.state.nodes[node, TOKENS] == 4}
    assert box.rows[: box.meter[TAIL]].tolist() == [list(row) for row in told(events, full)]
    assert len(events) > n // 2
    times = box.time_s[: box.meter[TAIL]]
    assert (np.diff(times) >= 0).all()
    assert (np.diff(box.rows[: box.meter[TAIL], NUMBER]) >= 0).all()


def test_a_prompt_is_called_alike_by_its_router_and_by_every_worker() -> None:
    requests = requests_of([[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4]], [1, 1, 1])
    e = engine_of(requests, (20, 0))
    rows, names = rows_of(requests, {}), np.zeros(8, np.int64)
    assert prompt_names(rows, 4, 0, names) == 2
    nodes = e.load.keys[:2]
    for worker in (0, 5):
        known = np.zeros(len(e.state.nodes), np.int64)
        # asked for the second block first: the first gets its name on the way
        assert name_of(e.state, known, int(nodes[1]), worker) == names[1]
        assert known[nodes[0]] == names[0]
    other = np.zeros(8, np.int64)
    assert prompt_names(rows, 4, 1, other) == 2
    assert other[:2].tolist() == names[:2].tolist()
    assert prompt_names(rows, 4, 2, other) == 1


def test_content_under_another_salt_has_another_name() -> None:
    requests = requests_of([[1, 2, 3, 4]] * 3, [1] * 3, salt=[1, 2, 1])
    rows, names = rows_of(requests, {}), np.zeros((3, 2), np.int64)
    assert [prompt_names(rows, 4, r, names[r]) for r in range(3)] == [1, 1, 1]
    assert names[0, 0] == names[2, 0] != names[1, 0]


def test_generated_content_that_nobody_else_can_name_differs_from_worker_to_worker() -> None:
    e = engine_of(requests_of([[1, 2, 3]], [6]), (20, 0))
    node = int(e.load.keys[1])  # tokens 4..7, all generated
    names = [np.zeros(len(e.state.nodes), np.int64) for _ in range(2)]
    assert name_of(e.state, names[0], node, 0) != name_of(e.state, names[1], node, 1)


def test_a_prompt_whose_tail_has_no_name_ends_before_it() -> None:
    # two units of 4 tokens are known of a prompt of 14: the third block's content nobody can name
    requests = requests_of([list(range(14))], [1])
    rows = rows_of(requests, {})._replace(unit_tokens=4, unit_offset=np.array([0, 2]), units=np.array([7, 8], np.int32))
    assert prompt_names(rows, 4, 0, np.zeros(8, np.int64)) == 2


def test_rows_that_the_router_has_read_make_room_for_new_ones() -> None:
    rules = Settings(tokens_per_block=4, record_events=True)
    e = engine_of(requests_of([list(range(16))], [1]), (20, 0), settings=rules)
    box = make_outbox(5, 1, len(e.state.nodes))
    for _ in moments(e, 1, [0]):
        pass
    assert e.state.tally[N_EVENTS] == 5  # one opens, four blocks: three when the prompt is done, one when it ends
    assert has_room(e.state, box)
    collect(e.state, box, 0)
    flush(box, 1.0)
    assert box.meter[TAIL] == 4
    e.state.tally[N_EVENTS] = 3
    assert not has_room(e.state, box)
    box.meter[HEAD] = 2
    rest = box.rows[2:4].tolist()
    assert has_room(e.state, box)
    assert box.rows[:2].tolist() == rest
    assert box.meter[[HEAD, FLUSHED, TAIL]].tolist() == [0, 2, 2]
    assert box.time_s[:2].tolist() == [1.0, 1.0]


def test_events_of_other_windows_only_count() -> None:
    rules = Settings(tokens_per_block=4, record_events=True)
    e = engine_of(requests_of([[1, 2, 3, 4]], [1]), (20, 0), settings=rules)
    box = make_outbox(16, 2, len(e.state.nodes))
    node = int(e.load.keys[0])
    e.state.events[:3] = [[EV_REMOVED, 1, node, 0, 0, 0], [EV_REMOVED, 1, node, 0, 0, 0], [EV_LEVEL, 1, node, 0, 1, 0]]
    e.state.tally[N_EVENTS] = 3
    collect(e.state, box, 0)
    flush(box, 1.0)
    assert box.meter[TAIL] == 0
    assert box.meter[3] == 2  # the level's event, then both removals as one
