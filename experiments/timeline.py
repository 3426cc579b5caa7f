"""A recorded run as a timeline that Perfetto (ui.perfetto.dev) and chrome://tracing open: the Trace Event format.

A process a worker. Its tracks: the engine's steps, one a copy lane, and requests as nested spans (waiting, prefill, decode);
counters show what the tiers hold. Times are microseconds of the run's clock. Format: "Trace Event Format", Google.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.record import LANES, Record
from reports.files import written

STEPS = 1
"""Track number of the steps; the lanes follow."""
Event = dict[str, Any]


def write_timeline(made: Record, path: Path) -> Path:
    """Write the timeline, one event a line."""
    with written(path) as temporary, temporary.open("w", encoding="utf-8") as out:
        out.write('{"displayTimeUnit":"ms","traceEvents":[')
        for i, event in enumerate(events(made)):
            out.write((",\n" if i else "\n") + json.dumps(event, separators=(",", ":")))
        out.write("\n]}\n")
    return path


def events(made: Record) -> Iterator[Event]:
    """All events, tracks named first."""
    for worker in sorted(made.steps["worker"].unique()):
        yield from _names(int(worker))
    for step in made.steps.to_dict("records"):
        yield from _step(step)
    for request in made.requests.to_dict("records"):
        yield from _request(request)
    yield from _counters(made.steps)


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 3)


def _names(worker: int) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": worker, "args": {"name": f"worker {worker}"}}
    tracks = {STEPS: "engine steps"} | {STEPS + 1 + lane: f"copies: {name}" for name, lane in LANES.items()}
    for track, name in tracks.items():
        yield {"ph": "M", "name": "thread_name", "pid": worker, "tid": track, "args": {"name": name}}


def _step(step: Mapping[Any, Any]) -> Iterator[Event]:
    start_s, pid = step["start_s"], int(step["worker"])
    kinds = [("prefill", step["prefill_tokens"]), ("decode", step["decode_sequences"])]
    name = " + ".join(kind for kind, count in kinds if count) or "empty"
    shown = ("prefill_tokens", "decode_sequences", "active", "waiting", "copy_wait_s", "compute_s")
    arguments = {key: step[key] for key in shown}
    length = _us(step["end_s"] - start_s)
    yield {"ph": "X", "name": name, "pid": pid, "tid": STEPS, "ts": _us(start_s), "dur": length, "args": arguments}
    for lane, number in LANES.items():
        if step[f"{lane}_lane_s"] > 0:
            told = {"bytes": int(step[f"{lane}_bytes"])}
            at = {"pid": pid, "tid": STEPS + 1 + number, "ts": _us(start_s), "dur": _us(step[f"{lane}_lane_s"])}
            yield {"ph": "X", "name": lane, **at, "args": told}


def _request(request: Mapping[Any, Any]) -> Iterator[Event]:
    number, pid = int(request["request"]), int(request["worker"])
    same = {"cat": "request", "id": number, "pid": pid, "tid": 0}
    told = {key: int(request[key]) for key in ("prompt_tokens", "output_tokens", "reused_tokens")}
    spans = [
        (f"request {number}", "arrival_s", "finish_s", told),
        ("waiting", "arrival_s", "start_s", {}),
        ("prefill", "start_s", "first_token_s", {}),
        ("decode", "first_token_s", "finish_s", {}),
    ]
    for name, begin, end, arguments in spans:
        if request[end] > request[begin] >= 0 or name.startswith("request"):
            yield {"ph": "b", "name": name, **same, "ts": _us(request[begin]), "args": arguments}
            yield {"ph": "e", "name": name, **same, "ts": _us(request[end])}


def _counters(steps: pd.DataFrame) -> Iterator[Event]:
    held = ["gpu_in_use_blocks", "gpu_cached_blocks", "host_blocks", "disk_blocks"]
    for _, rows in steps.groupby("worker"):
        changed = rows[(rows[held].diff() != 0).any(axis=1)]
        for step in changed.to_dict("records"):
            counts = {name.removesuffix("_blocks"): int(step[name]) for name in held}
            yield {"ph": "C", "name": "blocks", "pid": int(step["worker"]), "ts": _us(step["start_s"]), "args": counts}
