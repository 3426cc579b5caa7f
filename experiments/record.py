"""Records a run as it goes: what became of each request, and each engine step with its copies and what the tiers hold.

It goes step by step (`experiments.watch`) instead of many at once, so it is slower than the run it records; the figures are
the same. Nothing is decided or timed here.

    DIR/run.json            the row of the run, as `kvtier replay --json`
    DIR/requests.parquet    one row a request: worker, arrival, start, first token, end (seconds), tokens, tokens reused
    DIR/steps.parquet       one row a step: start, end, kernels, wait for copies (seconds), bytes moved, lanes, tiers
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.engines import cost_of
from experiments.ready import Ready, part_of, worker_of
from experiments.watch import Moment, moments
from kvcache.engine import Engine
from kvcache.line import DECODE_SEQS, N_ACTIVE, PREFILL_TOKENS, WAIT_HEAD, WAIT_TAIL
from kvcache.tables import (
    DISK_WRITES,
    LEVEL,
    NODE,
    OFFLOADED,
    ONBOARDED,
    ONBOARDED_FROM_DISK,
    PARTIAL_FROM_HOST,
    REFS,
    T_FREE,
    T_SIZE,
    WINDOW,
    State,
)
from reports.files import written
from sim.lanes import LANE_DISK_READ, LANE_DISK_WRITE, LANE_OFFLOAD, LANE_ONBOARD, Lanes
from sim.worker import plan_seconds

LANES = {
    "offload": LANE_OFFLOAD,
    "onboard": LANE_ONBOARD,
    "disk_write": LANE_DISK_WRITE,
    "disk_read": LANE_DISK_READ,
}
MOVED = {
    "offload_bytes": (OFFLOADED,),
    "onboard_bytes": (ONBOARDED, ONBOARDED_FROM_DISK, PARTIAL_FROM_HOST),
    "disk_write_bytes": (DISK_WRITES,),
    "disk_read_bytes": (ONBOARDED_FROM_DISK,),
}


@dataclass(frozen=True)
class Record:
    """The two tables; times are seconds of the run's clock."""

    requests: pd.DataFrame
    steps: pd.DataFrame


@dataclass
class _Watched:
    """One worker as it goes: the step that runs, and those that have ended."""

    worker: int
    block_bytes: np.ndarray[Any, np.dtype[np.int64]]
    rows: list[dict[str, Any]] = field(default_factory=list)
    open: dict[str, Any] | None = None
    moved: dict[str, int] = field(default_factory=dict)
    engine: Engine | None = None

    def see(self, at: Moment, compute_s: float) -> None:
        """Close the step that ended; open the one that begins."""
        if not at.after:
            self._close(at)
            return
        engine, lanes = at.engine, at.lanes
        assert engine is not None
        assert lanes is not None
        self.engine = engine
        before, self.moved = self.moved, _moved(at.state, self.block_bytes)
        line = engine.line
        self.open = {
            "worker": self.worker,
            "start_s": at.now_s,
            "compute_s": compute_s,
            "prefill_tokens": int(line.plan[PREFILL_TOKENS]),
            "decode_sequences": int(line.plan[DECODE_SEQS]),
            "active": int(line.meter[N_ACTIVE]),
            "waiting": int(line.meter[WAIT_TAIL] - line.meter[WAIT_HEAD]),
            **{name: count - before.get(name, 0) for name, count in self.moved.items()},
            **_held(at.state),
            "_worked": lanes.work_s.copy(),
        }

    def _close(self, at: Moment) -> None:
        if self.open is None or at.lanes is None:
            return
        step, self.open = self.open, None
        total_s = at.now_s - step["start_s"]
        step |= {"end_s": at.now_s, "copy_wait_s": max(0.0, total_s - step["compute_s"])}
        worked = at.lanes.work_s - step.pop("_worked")
        step |= {f"{name}_lane_s": _lane_s(at.lanes, lane, worked) for name, lane in LANES.items()}
        step |= {f"{name}_work_s": float(worked[lane]) for name, lane in LANES.items()}
        self.rows.append(step)


def _lane_s(lanes: Lanes, lane: int, worked: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """How long after the step's start its lane was done; 0 where it had nothing to copy."""
    return float(lanes.end_s[lane]) if worked[lane] > 0 else 0.0


def _moved(state: State, block_bytes: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, int]:
    """Bytes moved so far, by kind."""
    return {
        name: int((state.stats[:, list(columns)].sum(axis=1) * block_bytes).sum()) for name, columns in MOVED.items()
    }


def _held(state: State) -> dict[str, int]:
    """What the tiers of the first window hold now, in blocks."""
    blocks = state.blocks[: int(state.tier[:, :, T_SIZE].sum())]
    mine = blocks[blocks[:, WINDOW] == 0]
    held = mine[mine[:, NODE] >= 0]
    levels = np.bincount(held[:, LEVEL], minlength=3)
    cached = int(((held[:, LEVEL] == 0) & (held[:, REFS] == 0)).sum())
    in_use = int(state.tier[0, 0, T_SIZE] - state.tier[0, 0, T_FREE])
    return {
        "gpu_in_use_blocks": in_use,
        "gpu_cached_blocks": cached,
        "host_blocks": int(levels[1]),
        "disk_blocks": int(levels[2]),
    }


def record(work: Ready) -> Record:
    """Run every worker step by step."""
    workers, cost = worker_of(work), cost_of(work)
    requests, steps = [], []
    for number in range(work.spec.workload.workers):
        part = part_of(work, workers, number)
        watched = _Watched(number, np.array(work.plan.block_bytes, np.int64))
        for at in moments(work, part, timing=True):
            watched.see(at, plan_seconds(at.engine, cost) if at.after and at.engine is not None else 0.0)
        steps.append(pd.DataFrame(watched.rows))
        if watched.engine is not None:
            requests.append(_requests(work, part.rows, number, watched.engine))
    together = pd.concat(requests, ignore_index=True).sort_values("request", ignore_index=True)
    return Record(together, pd.concat([table for table in steps if len(table)], ignore_index=True))


def _requests(work: Ready, rows: np.ndarray[Any, np.dtype[np.int64]], worker: int, engine: Engine) -> pd.DataFrame:
    outcome = engine.outcome
    return pd.DataFrame({
        "request": rows,
        "worker": worker,
        "arrival_s": outcome.sent_s,
        "start_s": outcome.start_s,
        "first_token_s": outcome.first_token_s,
        "finish_s": outcome.finish_s,
        "prompt_tokens": work.requests.prompt_tokens[rows],
        "output_tokens": work.requests.output_tokens[rows],
        "reused_tokens": outcome.reused,
    })


def write_record(row: Mapping[str, Any], made: Record, directory: Path) -> Path:
    """Write the three files; returns the directory."""
    import json

    directory.mkdir(parents=True, exist_ok=True)
    for name, table in (("requests", made.requests), ("steps", made.steps)):
        with written(directory / f"{name}.parquet") as path:
            table.to_parquet(path, index=False)
    with written(directory / "run.json") as path:
        path.write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")
    return directory
