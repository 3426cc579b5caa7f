"""What `kvtier replay` and `kvtier explain` do once their options are read."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments import console
from experiments.load import load
from experiments.progress import progress
from experiments.trace import Trace


def replayed(trace: Trace, spec: str | None, settings: Sequence[str], *, timing: bool) -> dict[str, Any]:
    """The row of one run; its notes begin with those about the spec and the trace."""
    checked, notes = load(spec, settings)
    requests = trace.requests()
    from experiments.run import run

    with progress("requests") as report:
        row = run(checked, requests, timing=timing, progress=report)
    return {**row, "notes": list(dict.fromkeys([*notes, *requests.notes, *row.get("notes", [])]))}


def show(row: dict[str, Any], json: str | None) -> None:
    """Notes, then the table; with `--json FILE` the row goes there, and with `-` it takes the table's place."""
    console.note(row["notes"])
    if json is not None:
        console.write_json(row, json)
    if json != "-":
        console.summary(row)
    if json not in {None, "-"}:
        console.say(str(json))


def record(trace: Trace, spec: str | None, settings: Sequence[str], path: Path, *, timing: bool) -> Path:
    """Write the KV events of the run to `path`."""
    from experiments.event_log import write_events

    write_events(load(spec, settings)[0], trace.requests(), path, timing=timing)
    return path


def explained(
    trace: Trace, spec: str | None, settings: Sequence[str], request: int, json: str | None, *, timing: bool
) -> list[str]:
    """The story of one request's lookup, as lines; with `--json` it goes to that file, or to stdout in their place."""
    from experiments.explain import explain
    from experiments.explain_view import lines

    checked, notes = load(spec, settings)
    requests = trace.requests()
    story = explain(checked, requests, request, timing=timing)
    console.note([*notes, *requests.notes])
    if json is not None:
        console.write_json(asdict(story), json)
    return [] if json == "-" else list(lines(story))
