"""Events: what a subscriber is told, in which order, and what a full buffer loses."""

from typing import Any

import pytest

from kvcache.blockhash import block_hash
from kvcache.blocks import note_event
from kvcache.cache_request import CacheRequest
from kvcache.content import MultimodalItem
from kvcache.events import EventManager, iterate
from kvcache.manager import KVCacheManager
from kvcache.retention import KvCacheRetentionConfig, TokenRangeRetentionConfig
from kvcache.tables import (
    EV_LEVEL,
    EV_PRIORITY,
    EV_REMOVED,
    EV_STORED_BLOCK,
    EV_STORED_OPEN,
    Pool,
    Settings,
    State,
    make_state,
)


class Names:
    """Node n is called 100 + n."""

    def node_hash(self, node: int) -> int:
        return 100 + node

    def stored_block(self, node: int, level: int, priority: int) -> dict[str, Any]:
        return {"block_hash": 100 + node, "cache_level": level, "priority": priority}


def new(capacity: int = 100, rank: int | None = None) -> tuple[EventManager, State]:
    state = make_state((Pool(64, (4, 2)), Pool(8, (4, 2))), Settings(record_events=True))
    return EventManager(capacity, [64, 8], Names(), rank), state


def told(events: EventManager) -> list[tuple[int, str, Any]]:
    """(window, type, hashes) of each event."""
    events.flush()
    out = []
    for event in events.latest():
        data = event["data"]
        what = data.get("block_hashes", data.get("block_hash"))
        if data["type"] == "stored":
            what = (data["parent_hash"], [b["block_hash"] for b in data["blocks"]])
        out.append((event["window_size"], data["type"], what))
    return out


class TestOrder:
    def test_removed_hashes_wait_for_the_next_stored_of_their_window(self) -> None:
        events, state = new()
        note_event(state, EV_REMOVED, 0, 1, 0, 0)
        note_event(state, EV_REMOVED, 1, 2, 0, 0)
        note_event(state, EV_LEVEL, 0, 3, 0, 1)
        note_event(state, EV_REMOVED, 0, 4, 0, 0)
        note_event(state, EV_STORED_OPEN, 0, 0, 0, 0)
        note_event(state, EV_STORED_BLOCK, 0, 5, 0, 35)
        note_event(state, EV_STORED_BLOCK, 0, 6, 1, 90)
        events.collect(state)
        assert told(events) == [
            (64, "updated", 103),
            (64, "removed", [101, 104]),
            (64, "stored", (None, [105, 106])),
            (8, "removed", [102]),
        ]

    def test_two_stores_in_a_row_stay_two_events_each_with_its_parent(self) -> None:
        events, state = new()
        for parent, block in ((0, 5), (7, 6)):
            note_event(state, EV_STORED_OPEN, 0, parent, 0, 0)
            note_event(state, EV_STORED_BLOCK, 0, block, 0, 35)
        events.collect(state)
        assert told(events) == [(64, "stored", (None, [105])), (64, "stored", (107, [106]))]

    def test_ids_rise_by_one_over_all_windows_and_flushes(self) -> None:
        events, state = new()
        ids = []
        for window in (0, 1, 0):
            note_event(state, EV_LEVEL, window, 3, 0, 1)
            events.collect(state)
            events.flush()
            ids += [event["event_id"] for event in events.latest()]
        assert ids == [0, 1, 2]

    def test_nothing_is_told_before_the_flush(self) -> None:
        events, state = new()
        note_event(state, EV_LEVEL, 0, 3, 0, 1)
        events.collect(state)
        assert events.latest() == []


class TestPayload:
    def test_a_change_of_level_and_one_of_priority_name_old_and_new(self) -> None:
        events, state = new()
        note_event(state, EV_LEVEL, 0, 3, 1, 0)
        note_event(state, EV_PRIORITY, 0, 3, 35, 90)
        events.collect(state)
        events.flush()
        level, priority = (data for kind, data in iterate(events.latest()) if kind == "updated")
        assert level["cache_level"] == {"type": "event_diff", "old_value": 1, "new_value": 0}
        assert level["priority"] is None
        assert priority["priority"] == {"type": "event_diff", "old_value": 35, "new_value": 90}
        assert priority["cache_level"] is None

    def test_only_attention_data_parallelism_adds_a_rank(self) -> None:
        for rank, extra in ((None, {}), (3, {"attention_dp_rank": 3})):
            events, _ = new(rank=rank)
            events.created(0, [4, 2])
            events.flush()
            (event,) = events.latest()
            assert {k: v for k, v in event.items() if k == "attention_dp_rank"} == extra
            assert event["data"] == {"type": "created", "num_blocks_per_cache_level": [4, 2]}

    def test_a_stored_block_carries_tokens_namespace_items_level_and_priority(self) -> None:
        manager = KVCacheManager([Pool(64, (4, 0))], Settings(tokens_per_block=4), event_buffer_max_size=10)
        item = MultimodalItem((1, 2, 3, 4, 5, 6, 7, 8), 2, 20)
        manager.add_sequence_batch([
            CacheRequest(
                0, [1, 2, 3, 4, 5, 6, 7, 8, 9], extra_ids=[0] * 8 + [1], lora_id=7, cache_salt=42, items=(item,)
            )
        ])
        manager.store_context_blocks(0)
        created, stored = manager.flush_events()
        assert created["data"]["num_blocks_per_cache_level"] == [4, 0]
        first, second = stored["data"]["blocks"]
        assert first["tokens"] == [{"type": "unique_token", "token_id": t, "token_extra_id": 0} for t in (1, 2, 3, 4)]
        assert (first["lora_id"], first["cache_salt"], first["cache_level"], first["priority"]) == (7, 42, 0, 35)
        # the item starts inside block 0; block 1 starts 2 tokens into it
        assert [block["mm_keys"][0]["start_offset"] for block in (first, second)] == [0, 2]
        assert first["mm_keys"][0]["hash"] == [1, 2, 3, 4, 5, 6, 7, 8]

    def test_windows_are_announced_from_small_to_large(self) -> None:
        manager = KVCacheManager(
            [Pool(64, (4, 1)), Pool(8, (2, 0), sliding=True)], Settings(), event_buffer_max_size=10
        )
        assert [(e["window_size"], e["data"]["num_blocks_per_cache_level"]) for e in manager.flush_events()] == [
            (8, [2, 0]),
            (64, [4, 1]),
        ]


class TestBuffer:
    def test_a_full_buffer_loses_its_oldest_events_and_counts_them(self) -> None:
        events, state = new(capacity=2)
        for node in (1, 2, 3):
            note_event(state, EV_LEVEL, 0, node, 0, 1)
        events.collect(state)
        assert told(events) == [(64, "updated", 102), (64, "updated", 103)]
        assert events.dropped == 1

    def test_a_queue_without_room_is_refused(self) -> None:
        with pytest.raises(ValueError, match="event_buffer_max_size is 0"):
            new(capacity=0)

    def test_without_a_buffer_there_are_no_events(self) -> None:
        manager = KVCacheManager([Pool(64, (4, 0))], Settings(tokens_per_block=4))
        manager.add_sequence_batch([CacheRequest(0, [1, 2, 3, 4, 5])])
        manager.release(0)
        assert manager.flush_events() == []

    def test_a_batch_may_change_more_priorities_than_the_pool_has_blocks(self) -> None:
        # 100 requests match the same 99 blocks with priorities 40 and 41 in turn: 9,900 events
        manager = KVCacheManager([Pool(4096, (200, 0))], Settings(tokens_per_block=1), event_buffer_max_size=100_000)
        manager.add_sequence_batch([CacheRequest(0, [*range(100)])])
        manager.store_context_blocks(0)
        manager.flush_events()
        ranges = [KvCacheRetentionConfig([TokenRangeRetentionConfig(0, None, priority)]) for priority in (40, 41)]
        manager.add_sequence_batch([CacheRequest(1 + i, [*range(100)], retention=ranges[i % 2]) for i in range(100)])
        assert len(manager.flush_events()) == 9_900


class TestMirror:
    def test_a_subscriber_that_applies_every_event_never_holds_less_than_the_tree(self) -> None:
        # in-place reuse and orphaned children leave without an event, so it may hold more
        manager = KVCacheManager([Pool(64, (6, 3))], Settings(tokens_per_block=2), event_buffer_max_size=1000)
        held: set[int] = set()
        stories = [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 9, 9], [4, 4, 4, 4, 4, 4, 4, 4], [1, 2, 3, 4, 5, 5]]
        for name in range(24):
            manager.add_sequence_batch([CacheRequest(name, stories[name % 4])])
            manager.store_context_blocks(name)
            manager.release(name)
            for kind, data in iterate(manager.flush_events()):
                if kind == "stored":
                    held |= {b["block_hash"] for b in data["blocks"]}
                if kind == "removed":
                    held -= set(data["block_hashes"])
            tree = {manager.node_hash(int(n)) for n in manager.state.blocks[:9, 2] if n != -1}
            assert tree <= held
        assert block_hash([1, 2]) in held
