"""Writes traces: converts, generates, slices, scales and mixes them, piece by piece, into one file or to standard output."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from experiments import console
from experiments.progress import Report, progress
from experiments.trace import Trace
from kvcache.request import Requests
from reports.files import written
from traces.errors import TraceError, shown
from traces.recut import recut
from traces.sink import PARQUET, STDOUT, opened_sink, stdout, write_lines
from traces.stream import Stream
from traces.write import TARGETS, Names, Target, fitting_block, lost

OWN = "parquet"


def format_of(out: str, to: str | None) -> str:
    """The format to write: the one said, else by the name of the file."""
    known = [OWN, *TARGETS]
    if to is not None and to not in known:
        raise TraceError(f"--to is {shown(to)}; it can be {', '.join(known)}")
    chosen = to or (OWN if out.endswith(PARQUET) else None)
    if chosen is None:
        raise TraceError(f"{out}: say the format with --to: {', '.join(known)}")
    if chosen == OWN and out.endswith((".gz", ".zst")):
        raise TraceError(f"{out}: Parquet packs its columns itself; leave the ending out")
    if chosen == OWN and out == STDOUT:
        raise TraceError("Parquet cannot go to standard output; name a file, or another format with --to")
    return chosen


def save(stream: Stream, out: str, to: str | None, tokens_per_block: int | None = None, *, strict: bool = False) -> str:
    """Write the stream; returns one line about it. What is lost is said as soon as a request has it; --strict then refuses."""
    name = format_of(out, to)
    if tokens_per_block is not None:
        stream = recut(stream, tokens_per_block)
    with progress("requests") as report:
        counted = _Counted(stream, report)
        if name == OWN:
            from traces.parquet import write_stream

            with written(Path(out)) as path:
                write_stream(counted.stream, path)
        else:
            _save_lines(counted.stream, out, name, TARGETS[name], strict=strict)
    console.note(stream.notes)
    where = "standard output" if out == STDOUT else out
    return f"{where}: {counted.n:,} requests, {name}, blocks of {stream.unit_tokens} tokens"


class _Counted:
    """A stream that says how far it is."""

    def __init__(self, stream: Stream, report: Report) -> None:
        self.n = 0
        self._report = report
        self.stream = replace(stream, pieces=self._pieces(stream))

    def _pieces(self, stream: Stream) -> Iterator[Requests]:
        for piece in stream.pieces:
            yield piece
            self.n += len(piece)
            self._report(self.n, None)
        if not self.n:
            raise TraceError(f"{stream.source}: no requests, so nothing is written")


def _save_lines(stream: Stream, out: str, name: str, target: Target, *, strict: bool) -> None:
    said: set[str] = set()
    lines = _lines(stream, name, target, said, strict=strict)
    if out == STDOUT:
        with suppress(BrokenPipeError):
            write_lines(lines, stdout())
            stdout().flush()
        return
    with written(Path(out)) as path, opened_sink(path, out) as file:
        write_lines(lines, file)


def _lines(stream: Stream, name: str, target: Target, said: set[str], *, strict: bool) -> Iterator[str]:
    names = Names()
    if target.header:
        yield target.header
    for piece in stream.pieces:
        fitting_block(piece, target, name)
        new = [what for what in lost(piece, target) if what not in said]
        if new and strict:
            raise TraceError(f"{name} cannot hold {', '.join(new)} (--strict refuses this)")
        if new:
            console.note([f"{name} cannot hold {', '.join(new)}: left out"])
            said.update(new)
        yield from target.lines(piece, names)


def generate(what: str, settings: list[str], out: str, to: str | None, *, strict: bool) -> str:
    """Write a generated workload; `what` is a generator's name or a YAML file, `settings` are its parameters."""
    from traces.workloads import PREFIX

    for setting in settings:
        if "=" not in setting:
            raise TraceError(f"{shown(setting)}: write a parameter as name=value")
    query = "&".join(setting.replace("%", "%25").replace("&", "%26").replace("+", "%2B") for setting in settings)
    return save(Trace(f"{PREFIX}{what}{'?' + query if query else ''}").stream(), out, to, strict=strict)


def mix(traces: list[str], rates: list[float], out: str, to: str | None, tokens_per_block: int | None) -> str:
    """Write several traces as one, by time."""
    from traces.change import Scale, scaled
    from traces.mixture import mixed

    if rates and len(rates) != len(traces):
        raise TraceError(f"--rate is given {len(rates)} times for {len(traces)} traces; give one for each, or none")
    streams = [Trace(name).stream() for name in traces]
    if tokens_per_block is not None:
        streams = [recut(stream, tokens_per_block) for stream in streams]
    streams = [scaled(stream, Scale(rate)) for stream, rate in zip(streams, rates or [1.0] * len(traces), strict=True)]
    names = [f"{k}-{Path(name).name}" for k, name in enumerate(traces)]
    return save(mixed("+".join(names), streams, names), out, to)
