"""Live: the device's clock drives the engine, so decisions may differ from the simulator's; by how much is reported.

Copies take the time they take. Kernels are waits (on a GPU, kernels) of the cost model's length, `speed` times faster
than real; idle time is skipped. The engine's clock counts copies as measured, and kernels as measured if `speed` is
1, else as the model has them: a wait made shorter would make its inaccuracy longer.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.engines import cost_of, engine_of
from experiments.lockstep import Recording
from experiments.ready import Ready, whole
from hw.device import Device
from hw.worker import Check, Worker
from kvcache.commands import SansIOEngine
from kvcache.engine import Engine
from kvcache.tables import DISK_WRITES, MISSED, OFFLOADED, ONBOARDED, ONBOARDED_FROM_DISK, PARTIAL_FROM_HOST, REUSED
from sim.worker import plan_seconds


def live(
    work: Ready, recording: Recording, device: Device, speed: float, check: Check, progress: Callable[[int, int], None]
) -> tuple[dict[str, Any], list[str]]:
    """Run the workload on the device's clock; figures of both, and lines to show."""
    part = whole(work)
    e = engine_of(work, part)
    engine, cost = SansIOEngine(e), cost_of(work)
    worker, arrival_s, now_s, arrived = Worker(engine, device, check=check), part.requests.arrival_s, 0.0, 0
    while True:
        while arrived < len(arrival_s) and arrival_s[arrived] <= now_s:
            engine.arrive(arrived)
            arrived += 1
        commands = engine.next_commands(now_s)
        now_s += worker.copies(commands).span_s
        if commands.step is not None:
            seconds = plan_seconds(e, cost)
            worker.kernels(seconds / speed)
            now_s += worker.last_kernels_s if speed == 1 else seconds
            engine.finish(commands.step, now_s)
        elif arrived < len(arrival_s):
            now_s = max(now_s, float(arrival_s[arrived]))
        else:
            break
        progress(arrived, len(arrival_s))
    device.verify()
    mine, theirs = _figures(e, work), _figures(recording.engine, work)
    lines = [f"live, kernels {speed:g} times faster than real: {'':24}{'predicted':>14}{'measured':>14}{'error %':>9}"]
    for name, value in mine.items():
        off = f"{100 * (theirs[name] / value - 1):+9.1f}" if value else ""
        lines.append(f"  {name:64}{theirs[name]:14,.4g}{value:14,.4g}{off}")
    lines.append(
        f"  {worker.moves:,} moves, {worker.checks:,} places and {worker.hits_checked:,} reused blocks compared,"
        " 0 corrupt"
    )
    return {"speed": speed, "predicted": theirs, "measured": mine}, lines


def _figures(e: Engine, work: Ready) -> dict[str, float]:
    stats, first = e.state.stats, e.state.stats[0]
    looked = int(first[REUSED] + first[MISSED])
    ttft = e.outcome.first_token_s - work.requests.arrival_s
    size = np.array(work.plan.block_bytes)
    moved = stats[:, [OFFLOADED, ONBOARDED, ONBOARDED_FROM_DISK, PARTIAL_FROM_HOST, DISK_WRITES]].sum(axis=1)
    return {
        "hit rate of blocks": int(first[REUSED]) / looked if looked else 0.0,
        "hit tokens": float(e.outcome.reused.sum()),
        "offloaded blocks": float(stats[:, OFFLOADED].sum()),
        "onboarded blocks": float(stats[:, [ONBOARDED, ONBOARDED_FROM_DISK]].sum()),
        "moved bytes": float((moved * size).sum()),
        "time to first token, mean (s)": float(ttft.mean()),
        "time to first token, p50 (s)": float(np.median(ttft)),
        "time to first token, p99 (s)": float(np.quantile(ttft, 0.99)),
        "last request finished (s)": float(e.outcome.finish_s.max()),
    }
