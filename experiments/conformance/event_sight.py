"""What the format lets a case expect of events. Shared by the manager levels and the event queue's own level."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from experiments.conformance.adapter import Adapter, Step
from experiments.conformance.event_fields import Fields, check_event, fits, flat
from experiments.conformance.values import MismatchError, UnsupportedError, is_by_window


class EventSight:
    """The expectations about the events that the last flush returned."""

    def __init__(self, adapter: Adapter, latest: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        self._a = adapter
        self._latest = latest

    def _events(self) -> list[Fields]:
        return [flat(event) for event in self._latest()]

    def _of_type(self, kind: str) -> list[Fields]:
        return [event for event in self._events() if event["type"] == kind]

    def see_events(self, expected: Sequence[Fields], step: Step) -> None:
        events = self._events()
        if len(events) != len(expected):
            raise MismatchError("events", f"{len(expected)} events", [event["type"] for event in events])
        for i, (pattern, event) in enumerate(zip(expected, events, strict=True)):
            check_event(f"events[{i}]", pattern, event, self._a.saved)

    def see_first_event(self, expected: Fields, step: Step) -> None:
        events = self._events()
        if not events:
            raise MismatchError("first_event", expected, None)
        check_event("first_event", expected, events[0], self._a.saved)

    def see_types_after_first(self, expected: Sequence[str], step: Step) -> None:
        others = sorted({event["type"] for event in self._events()[1:]} - set(expected))
        if others:
            raise MismatchError("types_after_first", expected, others)

    def see_event_counts(self, expected: Mapping[str, Any], step: Step) -> None:
        moves = [event["cache_level"] for event in self._of_type("updated") if "cache_level" in event]
        got = {
            "total": len(self._events()),
            "offloaded": sum(move["old"] == 0 for move in moves),
            "onboarded": sum(move["new"] == 0 for move in moves),
            "removed": len(self._of_type("removed")),
        }
        for name, value in expected.items():
            if name not in got:
                raise UnsupportedError(f"expectation event_counts.{name}")
            self._a.same(f"event_counts.{name}", value, got[name])

    def see_removed_events(self, expected: Any, step: Step) -> None:
        self._a.same("removed_events", expected, len(self._of_type("removed")))

    def see_removed_hashes(self, expected: Any, step: Step) -> None:
        hashes = [name for event in self._of_type("removed") for name in event["hashes"]]
        self._a.same("removed_hashes", expected, hashes if isinstance(expected, list) else len(hashes))

    def see_stored_blocks(self, expected: Any, step: Step) -> None:
        def count(events: Sequence[Fields]) -> int:
            return sum(event["num_blocks"] for event in events)

        if is_by_window(expected):
            for size, value in expected.items():
                of_window = [event for event in self._of_type("stored") if str(event["window_size"]) == size]
                self._a.same(f"stored_blocks[{size}]", value, count(of_window))
        else:
            self._a.same("stored_blocks", expected, count(self._of_type("stored")))

    def see_stored_hashes_include(self, expected: str | Sequence[str], step: Step) -> None:
        stored = [block["hash"] for event in self._of_type("stored") for block in event["blocks"]]
        for name in [expected] if isinstance(expected, str) else expected:
            missing = [value for value in _listed(self._a.saved[name]) if value not in stored]
            if missing:
                raise MismatchError(f"stored_hashes_include {name}", missing, stored)

    def see_order(self, expected: Sequence[Fields], step: Step) -> None:
        events, last = self._events(), -1
        for pattern in expected:
            at = next((i for i, event in enumerate(events) if fits(pattern, event, self._a.saved)), -1)
            if at <= last:
                seen = [{"type": event["type"], "window_size": event["window_size"]} for event in events]
                raise MismatchError("order", list(expected), seen)
            last = at

    def see_event_ids_strictly_increasing(self, expected: bool, step: Step) -> None:
        ids = [event["event_id"] for event in self._events()]
        rising = all(a < b for a, b in pairwise(ids))
        if rising is not expected:
            raise MismatchError("event_ids_strictly_increasing", expected, ids)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]
