"""What `kvtier trace check` does: reads a trace to its end and lists everything doubtful, with the lines it stands in."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from experiments.trace import Trace


@dataclass(frozen=True)
class Report:
    """What a trace is, and what is doubtful about it, one line each."""

    about: str
    trace: str
    format: str | None
    requests: int
    unit_tokens: int
    doubts: tuple[str, ...]
    inferred: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """For the terminal."""
        yield self.about
        yield from self.inferred
        yield from self.doubts
        if not self.doubts and not self.inferred:
            yield "nothing doubtful"


def check(trace: Trace) -> Report:
    """The doubts about a trace. Bad lines are listed; only a file that is no trace at all is an error."""
    lenient = replace(trace, options=replace(trace.options, strict=False, skip_bad_lines=True))
    stream = lenient.stream()
    n = sum(len(piece) for piece in stream.pieces)
    of = f" ({stream.format})" if stream.format else ""
    about = f"{trace.name}{of}: {n:,} requests, content known in blocks of {stream.unit_tokens} tokens"
    return Report(
        about,
        trace.name,
        stream.format or None,
        n,
        stream.unit_tokens,
        tuple(stream.doubts.lines(trace.name)),
        tuple(dict.fromkeys(stream.notes)),
    )
