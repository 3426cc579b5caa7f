"""Validation: the run that the simulator predicts, made on real memory; how far off the prediction was, as numbers.

Lockstep makes the simulator's calls to fresh policy objects: decisions must be the same, times are compared. Live
lets the device's clock decide what comes next: hit rates, first-token times and traffic are compared. Exit code 1
where decisions or bytes differ; times outside the bounds are a verdict, not a failure.
"""

import json
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from experiments.calibration_fit import QUARTILE
from experiments.live import live
from experiments.load import load
from experiments.lockstep import Recording, Replayed, record, replay, transfers
from experiments.progress import progress
from experiments.ready import Ready, ready
from experiments.trace import Trace
from experiments.verdict import Bounds, compare, second_over_first
from experiments.version import kvtier_version
from hw.device import Report, open_device
from hw.load import Load
from hw.memory import Layout
from hw.mover import KINDS
from hw.stamps import WrongBytesError
from hw.worker import Check
from reports.files import written


@dataclass(frozen=True)
class Options:
    """How to validate."""

    device: str
    profile: str | None = None
    storage: Path | None = None
    mode: Literal["lockstep", "live", "both"] = "lockstep"
    repeats: int = 3
    check: Check = "end"
    speed: float = 1000.0
    bounds: Bounds = field(default_factory=Bounds)


@dataclass
class Result:
    """All figures, plain; `failed`: decisions or bytes differed."""

    figures: dict[str, Any]
    lines: list[str]
    failed: bool
    transfers: pd.DataFrame


def validate(trace: Trace, spec: str | None, settings: list[str], options: Options) -> Result:
    """Predict, run, compare."""
    given = [*settings, *([f"hardware={options.profile}"] if options.profile else [])]
    checked, notes = load(spec, given)
    if checked.workload.workers != 1:
        raise ValueError(f"workload.workers is {checked.workload.workers}; validation drives one worker")
    if checked.workload.takes_turns:
        raise ValueError("validation replays arrival times: leave out workload.concurrency and wait_for_turns")
    if not checked.scheduler.disable_overlap_scheduler:
        raise ValueError("validation drives one step after the other: set scheduler.disable_overlap_scheduler=true")
    work = ready(checked, trace.requests(), timing=True)
    layout = Layout(work.plan.pools, work.plan.copy_bytes, work.plan.settings.tokens_per_block)
    recording = record(work)
    if checked.scheduler.capacity_scheduler_policy.startswith("VLLM"):
        raise ValueError(
            "validation drives TensorRT-LLM's iteration; set scheduler.capacity_scheduler_policy to one of its"
        )
    if recording.copies == 0 and options.mode != "live":
        raise ValueError("this run copies nothing: there is nothing to compare; lower capacity.gpu_tokens")
    result = Result(_head(trace, work, recording, options, layout), [], False, pd.DataFrame())
    if options.mode in {"lockstep", "both"}:
        _lockstep(work, recording, layout, options, result)
    if options.mode in {"live", "both"} and not result.failed:
        with closing(open_device(options.device, layout, options.storage)) as device, progress("requests") as report:
            result.figures["live"], more = live(work, recording, device, options.speed, options.check, report)
        result.lines += more
    result.lines += [f"note: {text}" for text in dict.fromkeys([*notes, *work.notes, *result.figures.get("notes", [])])]
    return result


def _head(trace: Trace, work: Ready, recording: Recording, options: Options, layout: Layout) -> dict[str, Any]:
    return {
        **trace.about(),
        "version": kvtier_version(),
        "device": options.device,
        "hardware": work.plan.hardware.name,
        "steps": len(recording.calls),
        "copies": recording.copies,
        "block_bytes": [layout.block_bytes(w) for w in range(layout.windows)],
        "pool_bytes": {name: layout.bytes_of(tier) for tier, name in enumerate(("gpu", "host", "disk"))},
        "bounds": asdict(options.bounds),
        "repeats": options.repeats,
        "spec": work.spec.shown(),
    }


def _lockstep(work: Ready, recording: Recording, layout: Layout, options: Options, result: Result) -> None:
    passes: list[Replayed] = []
    load = Load()
    reports: list[Report] = []
    for _ in range(options.repeats):
        with closing(open_device(options.device, layout, options.storage)) as device, progress("steps") as report:
            try:
                passes.append(replay(work, recording, device, check=options.check, progress=report))
            except WrongBytesError as error:
                result.failed = True
                result.figures["corrupt"] = str(error)
                result.lines.append(f"wrong bytes {error}")
                return
            reports.append(device.report)
        if passes[-1].difference is not None:
            result.failed = True
            result.figures["decisions_identical"] = False
            result.lines += ["decisions DIFFER", *passes[-1].difference.lines()]
            return
    frame = pd.DataFrame(transfers(recording, layout))
    measured = np.array([one.steady_s for one in passes])
    frame["direction"] = [KINDS[kind] for kind in frame.kind]
    frame["measured_s"] = np.quantile(measured, QUARTILE, axis=0)
    frame["repeat_spread"] = second_over_first(measured)
    for number, one in enumerate(measured):
        frame[f"measured_{number}_s"] = one
    result.transfers = frame
    figures = compare(frame, measured, options.bounds, load.taken())
    clock = sum(one.clock_s for one in passes)
    as_run = [sum(one.seconds) for one in passes]
    figures |= {
        "decisions_identical": True,
        "decisions": recording.calls[-1].decisions,
        "moves": sum(one.moves for one in passes),
        "comparisons": sum(one.checks for one in passes),
        "hit_blocks_compared": sum(one.hits_checked for one in passes),
        "corrupt": 0,
        "as_run_s": float(np.median(as_run)),
        "as_run_error": figures["all"]["predicted_s"] / float(np.median(as_run)) - 1,
        "not_running_share": 1 - sum(as_run) / clock if clock > 0 else 0.0,
        "steps_span_predicted_s": sum(call.copies_s for call in recording.calls),
        "steps_span_measured_s": float(np.median([one.span_s for one in passes])),
        "bytes_by_path": reports[-1].bytes_by_path,
        "notes": [*reports[-1].notes, *_other_way(work, reports[-1])],
        "device_facts": reports[-1].facts,
    }
    result.figures |= figures
    result.lines += _lines(figures, options)


def _other_way(work: Ready, report: Report) -> list[str]:
    """Where the device copies in another way than the one the hardware file was measured with."""
    mine, theirs = report.facts.get("copies"), work.plan.hardware.sources.get("links.host.h2d", "")
    if mine is None or mine in theirs:
        return []
    return [f"the device copies by {mine}; the hardware file's host link is from: {theirs or 'no source given'}"]


def _lines(figures: dict[str, Any], options: Options) -> list[str]:
    titles = ("transfers", 10), ("blocks", 9), ("predicted", 11), ("measured", 11), ("total %", 9), ("MAPE %", 8)
    last = ("P50", 6), ("P95", 6), ("bias", 7)
    head = " " * 34 + "".join(f"{title:>{width}}" for title, width in (*titles, *last))
    rows = {**figures["by_direction"], "all": figures["all"], **figures["by_bytes"]}
    lines = [
        f"decisions identical in every call; {figures['moves']:,} moves, {figures['comparisons']:,} places and"
        f" {figures['hit_blocks_compared']:,} reused blocks compared, 0 corrupt",
        head,
    ]
    for name, row in rows.items():
        errors = "".join(f"{100 * row[key]:{width}.0f}" for key, width in (("error_p50", 6), ("error_p95", 6)))
        lines.append(
            f"{name:34}{row['transfers']:10,}{row['blocks']:9,}{row['predicted_s']:9.3f} s{row['measured_s']:9.3f} s"
            f"{100 * row['total_error']:+9.1f}{100 * row['mape']:8.1f}{errors}{100 * row['bias']:+7.0f}"
        )
    b, mapes = options.bounds, ", ".join(f"{100 * x:.0f}" for x in figures["mape_by_repeat"])
    lines += [
        f"steps' copies, first to last: predicted {figures['steps_span_predicted_s']:.3f} s,"
        f" on the clock {figures['steps_span_measured_s']:.3f} s",
        _repeats(figures, mapes),
        f"others took {100 * figures['others_share']:.0f} % of the processors; in {100 * figures['not_running_share']:.0f} %"
        " of the copies' time on the clock their thread did not run",
        f"verdict: {figures['verdict']} (bounds: total {100 * b.total:.0f} %, MAPE {100 * b.transfer:.0f} %; noisy from"
        f" {100 * b.repeat_total:.0f} % in total, {100 * b.repeat_transfer:.0f} % a transfer, {100 * b.load:.0f} % others on)",
    ]
    return lines


def _repeats(figures: dict[str, Any], mapes: str) -> str:
    if figures["repeat_spread_total"] is None:
        return f"one repeat (MAPE {mapes} %): nothing tells how steady the machine was"
    return (
        f"{len(figures['total_by_repeat_s'])} repeats: the two fastest lie {100 * figures['repeat_spread_total']:.0f} %"
        f" apart in total, a transfer's {100 * figures['repeat_spread_transfer']:.0f} % (median); MAPE of each alone {mapes} %\n"
        f"measured is what copies take when nothing holds them up; with what did, {figures['as_run_s']:.3f} s (median of"
        f" repeats; the prediction is {100 * figures['as_run_error']:+.1f} % off that)"
    )


def write(result: Result, out: Path) -> list[Path]:
    """Figures as JSON, transfers as Parquet, the picture."""
    paths = [out / "validation.json"]
    with written(paths[0]) as path:
        path.write_text(json.dumps(result.figures, indent=2, default=float) + "\n", encoding="utf-8")
    if len(result.transfers):
        from reports.validation import picture

        paths += [out / "transfers.parquet"]
        with written(paths[1]) as path:
            result.transfers.to_parquet(path, index=False)
        title = f"{result.figures['trace']} on {result.figures['device']}: {result.figures['verdict']}"
        paths.append(picture(result.transfers, result.figures["bounds"]["transfer"], title, out / "validation.png"))
    return paths


def validated(
    trace: Trace,
    spec: str | None,
    settings: list[str],
    device: str,
    profile: str | None,
    storage: Path | None,
    mode: str,
    repeats: int,
    check: str,
    speed: float,
    out: Path | None,
) -> tuple[Result, list[str]]:
    """What `kvtier validate` does once its options are read: the result, and lines to show."""
    for name, value, known in (("mode", mode, ("lockstep", "live", "both")), ("check", check, ("each", "end", "none"))):
        if value not in known:
            raise ValueError(f"--{name} {value}: write {', '.join(known)}")
    options = Options(device, profile, storage, mode, repeats, check, speed)  # type: ignore[arg-type]
    result = validate(trace, spec, settings, options)
    paths = write(result, out) if out is not None else []
    return result, [*result.lines, *map(str, paths)]
