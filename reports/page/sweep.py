"""The page of a sweep: its runs against each other, over two settings, pinned side by side, as a table."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from reports.page.sections import Section, bars, described, dotted, facts, listing, plain
from reports.plots import words
from reports.rows import PLAN, plan_of
from reports.table import SEED, read_sweep, varied

TIPS = (
    *("hit_rate_tokens", "hit_rate_blocks", "moved_bytes", "offload_bytes", "onboard_bytes"),
    *("ttft_p50_s", "ttft_p99_s", "tpot_p99_s", "output_tokens_per_s", "goodput_requests_per_s"),
)
START_X = ("moved_bytes", "onboard_bytes", "ttft_p50_s")
START_Y = ("hit_rate_tokens", "hit_rate_blocks", "output_tokens_per_s")
START_OF_A_CLUSTER = ("tokens_per_s_per_user", "output_tokens_per_s_per_gpu")
MOST_BARS = 24


def sections(directory: Path) -> tuple[str, str, list[Section]]:
    """Title, lead and sections of the sweep kept in `directory`."""
    frame, about = read_sweep(directory)
    keys = varied(frame, about)
    failed = frame[frame["error"].notna()]
    good = frame[frame["error"].isna()].reset_index(drop=True)
    if good.empty:
        raise ValueError(f"{directory}: all {len(frame)} runs failed; the first: {failed['error'].iloc[0]}")
    axes = ", ".join(f"{described(key)['label']} in {good[key].nunique(dropna=False)} values" for key in keys)
    timed = "with times" if about.get("timing") else "decisions only, no clock"
    lead = f"{len(frame)} runs, {timed}: {axes or 'one configuration'}."
    own = specs(directory, [int(run) for run in good["run"]])
    parts: list[Section] = [explored(good, keys, own, edge(good, about.get("unlimited") or {}))]
    causes = [str(name) for name in good.columns if str(name).startswith("misses_")]
    if causes:
        parts.append(missed(good, keys, causes))
    if len(failed):
        columns = [plain("run"), plain("error", number=False)]
        rows = [[int(row["run"]), row["error"]] for _, row in failed.iterrows()]
        parts.append(listing("Runs that failed", columns, rows))
    parts.append(facts("What produced it", provenance(about)))
    return str(about.get("trace", directory.name)), lead, parts


def edge(frame: pd.DataFrame, unlimited: Mapping[str, Any]) -> float | None:
    """What a cache without limit could find, where every run served the whole trace."""
    served = frame["prompt_tokens"] if "prompt_tokens" in frame.columns else pd.Series(dtype=float)
    whole = len(served) and served.isin(unlimited.get("prompt_tokens", ())).all()
    return unlimited["hit_rate_tokens"] if whole else None


def explored(
    frame: pd.DataFrame,
    keys: Sequence[str],
    own_specs: tuple[dict[str, Any], list[dict[str, Any]]],
    bound: float | None = None,
) -> Section:
    """All runs as the linked pictures need them: only columns that hold something, each described.

    `bound` is a token hit rate that none of them exceeds. Repeats are runs that differ in the key `seed` alone.
    """
    settings = [key for key in keys if not _numbers(frame[key])]
    figures = [
        str(name) for name in frame.columns if _numbers(frame[name]) and name != "run" and frame[name].notna().any()
    ]
    names = [*dict.fromkeys([*keys, *figures])]
    columns = [described(name, number=name not in settings) for name in names]
    cells = frame[names].astype(object).where(frame[names].notna(), None)
    base, own = own_specs
    free = [key for key in keys if key != SEED]
    down = next((key for key in free if not key.endswith("tokens_per_block")), free[0] if free else "")
    across = next((key for key in free if key != down and key.endswith("tokens_per_block")), "")
    across = across or next((key for key in free if key != down), down)
    x, y = START_OF_A_CLUSTER if any(key.endswith("workers") for key in keys) else ("", "")
    return {
        "kind": "explore",
        "columns": columns,
        "rows": cells.to_numpy().tolist(),
        "keys": list(keys),
        "seed": SEED if SEED in keys else "",
        "bound": bound and {"of": "hit_rate_tokens", "value": bound},
        "tips": [name for name in TIPS if name in figures],
        "start": {
            "x": next((name for name in (x, *START_X) if name in figures), figures[0]),
            "y": next((name for name in (y, *START_Y) if name in figures), figures[-1]),
            "colour": across,
            "shape": down if down != across and frame[down].nunique() <= 8 else "",
            "heatDown": down,
            "heatAcross": across,
        },
        "spec": base,
        "specs": own,
    }


def specs(directory: Path, runs: Sequence[int]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What all runs have in common, and what each has of its own, in the order of `runs`."""
    if not (directory / PLAN).exists():
        return {}, [{} for _ in runs]
    by_run = {int(entry["run"]): dotted(entry["spec"]) for entry in plan_of(directory)}
    base = by_run[runs[0]]
    return base, [
        {name: value for name, value in by_run[run].items() if name not in base or value != base[name]} for run in runs
    ]


def missed(frame: pd.DataFrame, keys: Sequence[str], causes: Sequence[str]) -> Section:
    """Blocks not found, by cause; of many runs some are shown, evenly apart."""
    counts = frame[list(causes)].astype(float).fillna(0.0)
    rows = [
        (words(frame.iloc[[i]], keys) if keys else "all requests", counts.iloc[i].tolist()) for i in range(len(frame))
    ]
    chosen = sorted({round(i) for i in np.linspace(0, len(rows) - 1, MOST_BARS)})
    note = f"{len(chosen)} of {len(rows)} runs." if len(chosen) < len(rows) else ""
    labels = [described(cause)["label"].removeprefix("misses, ") for cause in causes]
    return bars(
        "Why blocks were not found", plain("blocks not found", "blocks"), labels, [rows[i] for i in chosen], note=note
    )


def provenance(about: dict[str, Any]) -> list[tuple[str, Any]]:
    """What is known about the making, in the order it was noted."""
    shown = {name: value for name, value in about.items() if value not in ({}, None, [])}
    if "command" in shown:
        shown["command"] = " ".join(shown["command"])
    return [
        (name.replace("_", " "), value if isinstance(value, str | int | float) else json.dumps(value))
        for name, value in shown.items()
    ]


def _numbers(values: "pd.Series[Any]") -> bool:
    return bool(pd.api.types.is_numeric_dtype(values)) and not pd.api.types.is_bool_dtype(values)
