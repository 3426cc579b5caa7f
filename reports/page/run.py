"""The page of one run: its figures, why blocks were missed, latencies, and, where it was recorded, what happened when.

A recorded run is a directory with `run.json`, `requests.parquet` (one row a request) and `steps.parquet` (one row an engine
step); without times there is only `run.json`, which is also what `kvtier replay --json` writes.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from reports.columns import GROUPS, TIMES, column, flat
from reports.page.sections import Section, bars, described, facts, heading, lines, listing, plain, source

Numbers = NDArray[np.float64]
QUANTILES = ("mean", "p50", "p90", "p99")
SLICES = 240
"""Points of a curve over time, at most."""
CDF_POINTS = 120
HELD = {
    "gpu_in_use_blocks": "GPU, in use",
    "gpu_cached_blocks": "GPU, cached",
    "host_blocks": "host, cached",
    "disk_blocks": "disk, cached",
}
MOVED = {
    "offload_bytes": "offloaded",
    "onboard_bytes": "brought back",
    "disk_write_bytes": "written to disk",
    "disk_read_bytes": "read from disk",
}
WORKED = {
    "offload_work_s": "GPU to host",
    "onboard_work_s": "host to GPU",
    "disk_write_work_s": "host to disk",
    "disk_read_work_s": "disk to host",
}
SPENT = {"compute_s": "kernels", "copy_wait_s": "waiting for copies"}
QUEUED = {"waiting": "waiting", "active": "active"}


def sections(path: Path) -> tuple[str, str, list[Section]]:
    """Title, lead and sections of the run in `path`: a file of `replay --json`, or a directory of `replay --record`."""
    row = json.loads((path / "run.json" if path.is_dir() else path).read_text(encoding="utf-8"))
    line = flat(row)
    title = str(row.get("trace") or path.stem)
    lead = f"{row['requests']:,} requests, {row['prompt_tokens']:,} prompt tokens; {_hit(row)}"
    parts = [*figures(line), tiers(row), missed(row)]
    if row.get("ttft_s"):
        parts.append(latencies(line))
    if path.is_dir() and (path / "requests.parquet").exists():
        parts += distributions(pd.read_parquet(path / "requests.parquet"))
    if path.is_dir() and (path / "steps.parquet").exists():
        parts += over_time(pd.read_parquet(path / "steps.parquet"))
    made = {"version": row.get("version"), "notes": "; ".join(row.get("notes", ())) or "none"}
    spec = json.dumps(row["spec"], indent=2)
    return title, lead, [*parts, source("The whole specification", "unfold", spec), facts("What produced it", made)]


def _hit(row: Mapping[str, Any]) -> str:
    return f"{100 * row['hit_rate_tokens']:.2f} % of prompt tokens were found in the cache."


def figures(line: Mapping[str, Any]) -> list[Section]:
    """The run's figures as one table, under the headings of the console."""
    rows = [
        [heading(name), column(name).label, value / column(name).divisor, column(name).unit]
        for group in GROUPS
        for name, value in line.items()
        if heading(name) == group
        and isinstance(value, int | float)
        and value
        and group not in {"misses", "by priority"}
        and not name.startswith(tuple(TIMES))
    ]
    columns = [plain("", number=False), plain("figure", number=False), plain("value"), plain("unit", number=False)]
    return [listing("Figures", columns, rows)]


def tiers(row: Mapping[str, Any]) -> Section:
    """Prompt tokens by where they were found."""
    found = row["hit_tokens_by_tier"]
    rest = row["prompt_tokens"] - sum(found.values())
    names = [*(f"found, {name}" for name in found), "computed"]
    parts = [*found.values(), rest]
    return bars("Where prompt tokens came from", plain("prompt tokens", "tokens"), names, [("all requests", parts)])


def missed(row: Mapping[str, Any]) -> Section:
    """Blocks looked up and not found, by cause."""
    causes = row["misses_by_cause"]
    words = [str(described(f"misses_{name}_blocks")["label"]).removeprefix("misses, ") for name in causes]
    counts = [(name, [count]) for name, count in zip(words, causes.values(), strict=True)]
    return bars("Why blocks were not found", plain("blocks not found", "blocks"), ["blocks"], counts)


def latencies(line: Mapping[str, Any]) -> Section:
    """Mean and quantiles of the three times."""
    columns = [plain("", number=False), *(plain(name, "s") for name in QUANTILES)]
    rows = [[words, *(line.get(f"{kind}_{name}_s") for name in QUANTILES)] for kind, words in TIMES.items()]
    return listing("Latency", columns, rows)


def distributions(requests: pd.DataFrame) -> list[Section]:
    """Share of requests that were at least so fast."""
    several = requests[requests["output_tokens"] > 1]
    tpot = (several["finish_s"] - several["first_token_s"]) / (several["output_tokens"] - 1)
    share = plain("share of requests", "%", 0.01)
    pairs = [
        ("Time to first token", plain("time to first token", "s"), requests["first_token_s"] - requests["arrival_s"]),
        ("Time per output token", plain("time per output token", "ms", 1e-3), tpot),
    ]
    return [
        lines(title, axis, share, [{"name": "share that took no longer", "points": _cdf(values)}])
        for title, axis, values in pairs
        if len(values)
    ]


def _cdf(values: "pd.Series[float]") -> list[tuple[float, float]]:
    shares = np.linspace(0, 1, CDF_POINTS)
    return list(zip(np.quantile(values, shares).tolist(), shares.tolist(), strict=True))


def over_time(steps: pd.DataFrame) -> list[Section]:
    """Occupancy of the tiers, traffic and how busy kernels and copies were, over the run's clock."""
    sliced = Sliced(steps)
    return [
        sliced.drawn("What the tiers hold", plain("blocks", "blocks"), HELD, sliced.level),
        sliced.drawn("Traffic", plain("moved", "GiB/s", 2.0**30), MOVED, sliced.rate),
        sliced.drawn("Use of the links", plain("share of time a link copies", "%", 0.01), WORKED, sliced.share),
        sliced.drawn("What the time went into", plain("share of time", "%", 0.01), SPENT, sliced.share),
        sliced.drawn("Requests in the engine", plain("requests"), QUEUED, sliced.level),
    ]


class Sliced:
    """The steps of all workers, cut into slices of the run's time."""

    def __init__(self, steps: pd.DataFrame) -> None:
        slices = min(SLICES, max(2, len(steps)))
        ends = steps["end_s"].to_numpy(dtype=np.float64)
        edges = np.linspace(0.0, float(ends.max()), slices + 1)
        self._steps = steps
        self._width_s = float(edges[1])
        self._edges_s: Numbers = edges
        self._middle_s: Numbers = (edges[1:] + edges[:-1]) / 2
        self._slice = np.clip(np.searchsorted(edges, ends, side="left") - 1, 0, slices - 1)

    def rate(self, name: str) -> Numbers:
        """How much of a column fell into each slice, over the slice's seconds; a step's share is even over its time."""
        total = np.zeros(len(self._middle_s))
        for _, rows in self._steps.groupby("worker"):
            ends = rows[["start_s", "end_s"]].to_numpy(dtype=np.float64).reshape(-1)
            so_far = np.cumsum(rows[name].to_numpy(dtype=np.float64))
            before_and_after = np.stack([np.concatenate([[0.0], so_far[:-1]]), so_far], axis=1).reshape(-1)
            total += np.diff(np.interp(self._edges_s, ends, before_and_after, left=0.0))
        return total / self._width_s

    def share(self, name: str) -> Numbers:
        """Such a rate of one worker."""
        return self.rate(name) / int(self._steps["worker"].nunique())

    def level(self, name: str) -> Numbers:
        """A column's last value in each slice, over all workers; the one before where a worker had no step."""
        last = self._steps.assign(slice=self._slice).groupby(["worker", "slice"])[name].last().unstack("worker")
        filled = last.reindex(range(len(self._middle_s))).ffill().fillna(0).to_numpy(dtype=np.float64)
        return np.asarray(filled.sum(axis=1), np.float64)

    def drawn(self, title: str, axis: Section, names: Mapping[str, str], read: Callable[[str], Numbers]) -> Section:
        """Curves of the columns there are that are not zero all the time."""
        values = {words: read(name) for name, words in names.items() if name in self._steps.columns}
        series = [
            {"name": words, "points": list(zip(self._middle_s.tolist(), curve.tolist(), strict=True))}
            for words, curve in values.items()
            if curve.any()
        ]
        return lines(title, plain("time", "s"), axis, series)
