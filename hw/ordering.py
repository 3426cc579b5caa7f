"""Who must wait for whom: events per place in memory, and a checker that proves a log of rows was ordered.

Places, not blocks: two blocks change places when one is offloaded, so only the memory itself can say who is still
reading or writing it. Models the two maps of `KVCacheTransferManager`, with reads kept per stream. Before a copy from
s to d:

    its stream waits for the pending write of s        read after write
                     for the pending reads of d        write after read
                     for the pending write of d        write after write
    copies start after the kernels of the step before; kernels start after the step's copies (the two sync points)

The checker (`races`) reads what was issued, knows nothing of these rules, and keeps a vector clock for each stream.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

READ_AFTER_WRITE = "read after write"
WRITE_AFTER_READ = "write after read"
WRITE_AFTER_WRITE = "write after write"
COPIES_AFTER_KERNELS = "copies after kernels"
KERNELS_AFTER_COPIES = "kernels after copies"
RULES = frozenset({READ_AFTER_WRITE, WRITE_AFTER_READ, WRITE_AFTER_WRITE, COPIES_AFTER_KERNELS, KERNELS_AFTER_COPIES})


class Event(NamedTuple):
    """Recorded on a stream after its row number `ticket`."""

    stream: int
    ticket: int


class Hazards:
    """Pending reads and writes by place, between two sync points. Leaving out a rule is for tests of the checker."""

    def __init__(self, rules: frozenset[str] = RULES) -> None:
        self.rules = rules
        self._writes: dict[int, Event] = {}
        self._reads: dict[int, dict[int, int]] = {}

    def before(self, source: int, target: int) -> Iterable[Event]:
        """Events that a copy between these places has to wait for."""
        if READ_AFTER_WRITE in self.rules and source in self._writes:
            yield self._writes[source]
        if WRITE_AFTER_READ in self.rules:
            for stream, ticket in self._reads.get(target, {}).items():
                yield Event(stream, ticket)
        if WRITE_AFTER_WRITE in self.rules and target in self._writes:
            yield self._writes[target]

    def after(self, source: int, target: int, event: Event) -> None:
        """The copy was issued; `event` is recorded behind it."""
        self._reads.setdefault(source, {})[event.stream] = event.ticket
        self._reads.pop(target, None)
        self._writes[target] = event

    def clear(self) -> None:
        """A sync point: nothing is pending."""
        self._writes.clear()
        self._reads.clear()


class Entry(NamedTuple):
    """One row as the checker sees it: the places it touches, or the event it waits for."""

    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    waits: Event | None = None
    what: str = ""


class Race(NamedTuple):
    """Two rows that touch one place, one of them writing, with no event between them."""

    place: int
    kind: str
    first: Event
    second: Event
    what: tuple[str, str]

    def __str__(self) -> str:
        return f"{self.kind} of place {self.place} is not ordered: {self.what[0]} and {self.what[1]}"


def races(log: Sequence[Sequence[Entry]], limit: int = 10) -> list[Race]:
    """Unordered pairs in `log[stream][row]`; ValueError where streams wait for each other for ever."""
    streams = len(log)
    clocks: list[list[tuple[int, ...]]] = [[] for _ in range(streams)]  # after each row
    writes: dict[int, Event] = {}
    reads: dict[int, dict[int, int]] = {}
    found: list[Race] = []
    moved = True
    while moved and len(found) < limit:
        moved = False
        for stream in range(streams):
            while len(clocks[stream]) < len(log[stream]):
                at = len(clocks[stream])
                entry = log[stream][at]
                wait = entry.waits
                if wait is not None and len(clocks[wait.stream]) < wait.ticket:
                    break
                clock = list(clocks[stream][-1]) if at else [0] * streams
                clock[stream] = at + 1
                if wait is not None and wait.ticket > 0:
                    clock = [max(a, b) for a, b in zip(clock, clocks[wait.stream][wait.ticket - 1], strict=True)]
                clocks[stream].append(tuple(clock))
                _touch(entry, Event(stream, at + 1), clock, writes, reads, log, found)
                moved = True
    if len(found) < limit and any(len(c) < len(rows) for c, rows in zip(clocks, log, strict=True)):
        stuck = [f"stream {s} at row {len(c) + 1}" for s, c in enumerate(clocks) if len(c) < len(log[s])]
        raise ValueError(f"these wait for what never comes: {', '.join(stuck)}")
    return found


def _touch(
    entry: Entry,
    me: Event,
    clock: Sequence[int],
    writes: dict[int, Event],
    reads: dict[int, dict[int, int]],
    log: Sequence[Sequence[Entry]],
    found: list[Race],
) -> None:
    def unordered(kind: str, place: int, other: Event) -> None:
        if other.ticket > clock[other.stream]:
            what = (log[other.stream][other.ticket - 1].what, entry.what)
            found.append(Race(place, kind, other, me, what))

    for place in entry.reads:
        if place in writes:
            unordered(READ_AFTER_WRITE, place, writes[place])
        reads.setdefault(place, {})[me.stream] = me.ticket
    for place in entry.writes:
        if place in writes:
            unordered(WRITE_AFTER_WRITE, place, writes[place])
        for stream, ticket in reads.pop(place, {}).items():
            unordered(WRITE_AFTER_READ, place, Event(stream, ticket))
        writes[place] = me
