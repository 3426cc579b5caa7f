"""What a reader says: each request as it understood it, and what holds for every file of its format.

It does not read or gather anything.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Row:
    """One request as a reader understood it. Times are in the trace's own unit."""

    prompt_tokens: int
    output_tokens: int
    time: int | float | None = None
    """When it arrives, or None: `delay` after the request before it in its session."""
    delay: int | float | None = None
    """From the request before it in its session to this one: without a time, where it is; in any case, a think time."""
    ended: int | float | None = None
    """When it had been answered: whoever thinks, thinks from then on."""
    after: Sequence[Hashable] = ()
    """Names of requests after whose arrival `delay` counts, in the place of the one before in its session."""
    name: Hashable = None
    """What others call it in their `after`."""
    ids: Sequence[int] = ()
    """Content of the prompt; empty where it is unknown, which makes the prompt private."""
    all_ids: Sequence[int] = ()
    """Content of the prompt and the output together; empty where it is unknown."""
    session: Hashable = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Convention:
    """What a format says for every file of its kind."""

    time_unit: str
    block_tokens: int
    ids_are_blocks: bool = True
    """False where an id is a token, or where there are no ids: no chain to check, no private prompt to report."""
    rows_are_in_time_order: bool = True
    """False where the format cannot keep them so: sessions with own clocks, rows written when a request ended."""
    time_note: str = ""
    times_are_optional: bool = False
    """True where files without times are common; then every request arrives at 0 s, and that is noted."""
    block_tokens_is_guess: bool = False
    """True where the format leaves the block size to the reader of the file; then it is noted."""
