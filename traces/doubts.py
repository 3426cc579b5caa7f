"""Remembers what is doubtful about a trace, kind by kind: how often, and where the first few stand.

It does not decide what is doubtful; the readers and `traces.collect` do.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from traces.errors import Place

SHOWN = 5


@dataclass
class Doubt:
    """One kind of doubt."""

    count: int = 0
    places: list[Place] = field(default_factory=list)


class Doubts(dict[str, Doubt]):
    """what -> where. What is said once and holds for a whole trace has no place."""

    def see(self, what: str, place: Place | None = None, count: int = 1) -> None:
        """One more of this kind."""
        doubt = self.setdefault(what, Doubt())
        doubt.count += count
        if place is not None and len(doubt.places) < SHOWN:
            doubt.places.append(place)

    def lines(self, name: str) -> Iterator[str]:
        """One line a place, and how many more there are."""
        for what, doubt in self.items():
            for place in doubt.places:
                yield f"{place}: {what}"
            if not doubt.places:
                yield f"{name}: {what}"
            elif doubt.count > len(doubt.places):
                yield f"{name}: {doubt.count - len(doubt.places):,} more: {what}"
