"""What `kvtier replay` and `kvtier explain` do once their options are read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments import console
from experiments.load import load
from experiments.progress import Report, progress
from experiments.spec import Spec
from experiments.trace import Trace

POOL_CHANGES = 12


def replayed(trace: Trace, spec: str | None, settings: Sequence[str], *, timing: bool) -> dict[str, Any]:
    """The row of one run; its notes begin with those about the spec and the trace.

    Decisions alone need no whole trace, nor does a cluster that is routed as requests come.
    """
    checked, notes = load(spec, settings)
    with progress("requests") as report:
        row, read_notes = _replayed(trace, checked, report, timing=timing)
    return {**row, "notes": list(dict.fromkeys([*notes, *read_notes, *row["notes"]]))}


def _replayed(trace: Trace, spec: Spec, report: Report, *, timing: bool) -> tuple[dict[str, Any], Sequence[str]]:
    """The row, and the notes of reading."""
    from experiments.ready import needs_whole_trace, on_a_fleet

    if needs_whole_trace(spec) or (timing and not on_a_fleet(spec)):
        from experiments.run import run

        requests = trace.requests()
        return run(spec, requests, timing=timing, progress=report), requests.notes
    stream = trace.stream()
    if timing:
        from experiments.run import run_pieces

        return run_pieces(spec, stream.pieces, progress=report), stream.notes
    from experiments.untimed import run_pieces as decide

    return decide(spec, stream.pieces, progress=report), stream.notes


def show(row: dict[str, Any], json: str | None) -> None:
    """Notes, then the table; with `--json FILE` the row goes there, and with `-` it takes the table's place."""
    console.note(row["notes"])
    if json is not None:
        console.write_json(row, json)
    if json != "-":
        console.summary(row)
        for line in pool_lines(row):
            console.say(line)
    if json not in {None, "-"}:
        console.say(str(json))


def pool_lines(row: Mapping[str, Any]) -> Iterator[str]:
    """How many workers of each pool were open from when on; the first changes of many (`--json` has all)."""
    for pool, sizes in row.get("pool_sizes", {}).items():
        told = [f"{n} from {time_s:g} s" for time_s, n in sizes[:POOL_CHANGES]]
        more = f", ... ({len(sizes) - 1} changes in all)" if len(sizes) > POOL_CHANGES else ""
        yield f"{pool} workers open: {', '.join(told)}{more}"


@dataclass(frozen=True)
class Extras:
    """What to write beside the row of a run: KV events, the record of every request and step, the timeline of both."""

    events: Path | None
    record: Path | None
    timeline: Path | None
    timing: bool

    def __post_init__(self) -> None:
        if not self.timing and (self.record or self.timeline):
            raise ValueError("--record and --timeline show times, which a run with --no-timing does not have")

    def check(self, spec: str | None, settings: Sequence[str]) -> None:
        """Refuse before a long run what could not be written after it."""
        from experiments.ready import check_by_turn

        asked = {"--record": self.record, "--timeline": self.timeline, "--events": self.events if self.timing else None}
        named = next((name for name, path in asked.items() if path is not None), None)
        if named is not None:
            check_by_turn(load(spec, settings)[0], named)

    def write(self, trace: Trace, spec: str | None, settings: Sequence[str], row: dict[str, Any]) -> Iterator[Path]:
        """Write what is wanted; yields each path."""
        checked = load(spec, settings)[0]
        if self.events is not None:
            from experiments.event_log import write_events

            write_events(checked, trace.requests(), self.events, timing=self.timing)
            yield self.events
        if self.record is None and self.timeline is None:
            return
        from experiments.ready import ready
        from experiments.record import record, write_record
        from experiments.timeline import write_timeline

        made = record(ready(checked, trace.requests(), timing=True))
        if self.record is not None:
            yield write_record({"trace": trace.name, **row}, made, self.record)
        if self.timeline is not None:
            yield write_timeline(made, self.timeline)


def explained(
    trace: Trace, spec: str | None, settings: Sequence[str], request: int, json: str | None, *, timing: bool
) -> list[str]:
    """The story of one request's lookup, as lines; with `--json` it goes to that file, or to stdout in their place."""
    from experiments.explain import explain
    from experiments.explain_view import lines
    from experiments.ready import check_by_turn

    checked, notes = load(spec, settings)
    if timing:
        check_by_turn(checked, "explain")
    requests = trace.requests()
    story = explain(checked, requests, request, timing=timing)
    console.note([*notes, *requests.notes])
    if json is not None:
        console.write_json(asdict(story), json)
    return [] if json == "-" else list(lines(story))
