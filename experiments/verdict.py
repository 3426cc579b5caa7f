"""How far predicted and measured seconds of transfers lie apart, and whether that can be told on this machine.

It measures nothing and reads no clock.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

TOO_NOISY = "too noisy to judge"


@dataclass(frozen=True)
class Bounds:
    """What counts as agreement, and when the machine was too busy with other things to tell.

    Measured is the lower quartile of a transfer's repeats: what disturbs a copy only ever adds to its time. It can be trusted
    where the two fastest repeats agree and others left the processors alone.
    """

    total: float = 0.15  # |predicted / measured - 1| of all transfers' seconds
    transfer: float = 0.25  # mean of the same over transfers
    repeat_total: float = 0.10  # second smallest of the repeats' totals over the smallest, - 1
    repeat_transfer: float = 0.25  # the same by transfer, median
    load: float = 0.10  # share of all processors' time that went to others


def second_over_first(measured: Any) -> Any:
    """How far the two fastest repeats [repeat, ...] lie apart, as a share; NaN where there is only one."""
    if len(measured) < 2:
        return np.full(measured.shape[1:], np.nan)
    first, second = np.sort(measured, axis=0)[:2]
    return second / first - 1


def compare(frame: pd.DataFrame, measured: Any, bounds: Bounds, load: float) -> dict[str, Any]:
    """Errors in all, by direction and by size; the verdict. `load`: what others took of the processors meanwhile."""
    totals = measured.sum(axis=1)
    frame["error"] = frame.predicted_s / frame.measured_s - 1
    figures: dict[str, Any] = {
        "all": _errors(frame),
        "by_direction": {str(name): _errors(mine) for name, mine in frame.groupby("direction")},
        "by_bytes": {
            f"{direction} up to {1 << exponent} KiB": _errors(mine[size == exponent])
            for direction, mine in frame.groupby("direction")
            for size in [np.ceil(np.log2(mine["bytes"] / 1024) / 2).astype(int) * 2]
            for exponent in sorted({int(x) for x in size})
        },
        "total_by_repeat_s": [float(x) for x in totals],
        "mape_by_repeat": [float(np.abs(frame.predicted_s / one - 1).mean()) for one in measured],
        "repeat_spread_total": float(second_over_first(totals)) if len(measured) > 1 else None,
        "repeat_spread_transfer": float(frame.repeat_spread.median()) if len(measured) > 1 else None,
        "others_share": load,
    }
    noisy = (
        len(measured) < 2
        or figures["repeat_spread_total"] > bounds.repeat_total
        or figures["repeat_spread_transfer"] > bounds.repeat_transfer
        or load > bounds.load
    )
    good = abs(figures["all"]["total_error"]) <= bounds.total and figures["all"]["mape"] <= bounds.transfer
    figures["verdict"] = "within bounds" if good else TOO_NOISY if noisy else "outside bounds"
    figures["noisy"] = bool(noisy)
    return figures


def _errors(frame: pd.DataFrame) -> dict[str, float]:
    predicted, measured = float(frame.predicted_s.sum()), float(frame.measured_s.sum())
    size = frame.error.abs()
    return {
        "transfers": len(frame),
        "blocks": int(frame.blocks.sum()),
        "bytes": int(frame["bytes"].sum()),
        "predicted_s": predicted,
        "measured_s": measured,
        "total_error": predicted / measured - 1,
        "mape": float(size.mean()),
        "error_p50": float(size.median()),
        "error_p95": float(size.quantile(0.95)),
        "bias": float(frame.error.median()),
    }
