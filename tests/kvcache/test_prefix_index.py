"""The index over all workers: matches, levels, polls, losses, bounds."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.event_rows import FLUSHED, HEAD, LOST, OVERFLOWN, SENT, TAIL, Outbox, make_outbox
from kvcache.prefix_index import (
    PrefixIndex,
    drain,
    forget_oldest,
    holds,
    make_index,
    note_gone,
    note_held,
    note_level,
    overlaps,
    with_room,
)
from kvcache.tables import EV_LEVEL, EV_REMOVED, EV_STORED_BLOCK

WORKERS = 65  # two words of bits


def seen(x: PrefixIndex, names: list[int]) -> tuple[dict[int, int], dict[int, int]]:
    """Workers that hold a start of `names`, and how much; likewise in GPU memory."""
    held, on_gpu = np.ones(len(x.blocks), np.int64), np.ones(len(x.blocks), np.int64)
    overlaps(x, np.array(names, np.int64), len(names), held, on_gpu)
    return ({w: int(n) for w, n in enumerate(held) if n}, {w: int(n) for w, n in enumerate(on_gpu) if n})


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_the_index_agrees_with_one_dictionary_a_worker(data: st.DataObject) -> None:
    x = make_index(WORKERS, rows=2)
    plain: list[dict[int, int]] = [{} for _ in range(WORKERS)]
    steps = data.draw(
        st.lists(
            st.tuples(st.sampled_from("slg"), st.sampled_from([0, 1, 64]), st.integers(1, 12), st.integers(0, 1)),
            max_size=60,
        )
    )
    for what, worker, name, level in steps:
        x = with_room(x, 1)
        if what == "s":
            note_held(x, worker, name, level)
            plain[worker][name] = level
        elif what == "l":
            note_level(x, worker, name, level)
            plain[worker] = {k: level if k == name else v for k, v in plain[worker].items()}
        else:
            note_gone(x, worker, name)
            plain[worker].pop(name, None)
    assert x.blocks.tolist() == [len(blocks) for blocks in plain]
    prompt = data.draw(st.lists(st.integers(1, 12), unique=True, max_size=8))
    held: dict[int, int] = {}
    fast: dict[int, int] = {}
    for worker, blocks in enumerate(plain):
        n = next((i for i, name in enumerate(prompt) if name not in blocks), len(prompt))
        held |= {worker: n} if n else {}
        on_gpu = sum(blocks[name] == 0 for name in prompt[:n])
        fast |= {worker: on_gpu} if on_gpu else {}
    assert seen(x, prompt) == (held, fast)
    assert holds(x, 0, 5) == (5 in plain[0])


def filled(rows: list[tuple[int, int, int, int, float]]) -> Outbox:
    """An outbox whose rows (kind, name, number, level, time) have all been flushed."""
    box = make_outbox(64, 1, 1)
    for i, (*row, time_s) in enumerate(rows):
        box.rows[i], box.time_s[i] = row, time_s
    box.meter[[TAIL, FLUSHED]] = len(rows)
    return box


def drained(box: Outbox, until_s: float, **more: Any) -> PrefixIndex:
    x = make_index(2)
    how = {"period_s": 0.0, "capacity": 100, "lost_share": 0.0} | more
    drain(x, box, 1, until_s, how["period_s"], how["capacity"], how["lost_share"], 0)
    return x


STORED_THREE = [(EV_STORED_BLOCK, 10 + i, i, 0, float(i)) for i in range(3)]


def test_events_are_known_from_their_flush_on() -> None:
    box = filled(STORED_THREE)
    assert seen(drained(box, 0.5), [10, 11, 12])[0] == {1: 1}
    assert box.meter[HEAD] == 1
    assert seen(drained(filled(STORED_THREE), 2.0), [10, 11, 12])[0] == {1: 3}


def test_a_poll_every_two_seconds_brings_what_was_flushed_before_it() -> None:
    # flushed at 0, 1, 2; polls at 0, 2, 4: at 1.9 only the first is known, at 2 all three
    assert seen(drained(filled(STORED_THREE), 1.9, period_s=2.0), [10, 11, 12])[0] == {1: 1}
    assert seen(drained(filled(STORED_THREE), 2.0, period_s=2.0), [10, 11, 12])[0] == {1: 3}


def test_a_full_buffer_drops_its_oldest_events_between_two_polls() -> None:
    # polls at 0 and 2: the second finds events 1 and 2 and has kept the last one
    box = filled(STORED_THREE)
    assert seen(drained(box, 2.0, period_s=2.0, capacity=1), [12])[0] == {1: 1}
    assert seen(drained(filled(STORED_THREE), 2.0, period_s=2.0, capacity=1), [11])[0] == {}
    assert box.meter[[OVERFLOWN, SENT]].tolist() == [1, 2]


def test_all_blocks_of_one_event_share_its_fate() -> None:
    rows = [(EV_STORED_BLOCK, 10 + i, i // 2, 0, 0.0) for i in range(200)][:60]
    box = filled(rows)
    x = drained(box, 1.0, lost_share=0.5)
    there = [bool(holds(x, 1, 10 + i)) for i in range(60)]
    assert there[::2] == there[1::2]
    assert 0 < box.meter[LOST] < 30
    assert box.meter[LOST] + box.meter[SENT] == 30


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_none_is_lost_at_0_and_every_one_at_1(share: float) -> None:
    box = filled(STORED_THREE)
    drained(box, 9.0, lost_share=share)
    assert box.meter[[LOST, SENT]].tolist() == [3 * share, 3 - 3 * share]


def test_removals_and_levels_arrive_too() -> None:
    rows = [*STORED_THREE, (EV_REMOVED, 11, 3, 0, 3.0), (EV_LEVEL, 12, 4, 1, 4.0), (EV_LEVEL, 99, 5, 1, 5.0)]
    x = drained(filled(rows), 9.0)
    assert [holds(x, 1, name) for name in (10, 11, 12, 99)] == [True, False, True, False]
    assert seen(x, [12]) == ({1: 1}, {})


def test_a_level_or_removal_of_a_block_never_heard_of_says_nothing() -> None:
    x = make_index(2)
    note_gone(x, 0, 5)
    note_level(x, 0, 5, 0)
    note_held(x, 1, 5, 0)
    note_level(x, 0, 5, 0)
    note_gone(x, 0, 5)
    assert x.blocks.tolist() == [0, 1]
    assert seen(x, [5]) == ({1: 1}, {1: 1})


def test_what_is_still_matched_is_forgotten_last() -> None:
    x = make_index(1)
    for name in range(1, 7):
        note_held(x, 0, name, 0)
    seen(x, [1, 2])  # the oldest two are asked for
    assert forget_oldest(x, 0, 3) == 3
    assert [holds(x, 0, name) for name in range(1, 7)] == [True, True, False, False, False, True]
    assert x.blocks.tolist() == [3]
    assert forget_oldest(x, 0, 3) == 0


def test_rows_without_a_worker_are_left_behind_when_the_table_is_made_anew() -> None:
    x = make_index(1, rows=250)
    for name in range(1, 200):
        note_held(x, 0, name, 0)
        note_gone(x, 0, name)
    note_held(x, 0, 500, 1)
    new = with_room(x, 200)
    assert new is not x
    assert int(new.tally[0]) == 1
    assert holds(new, 0, 500)
    assert seen(new, [500]) == ({0: 1}, {})
