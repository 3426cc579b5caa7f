"""The pages of policies side by side: of one cache (`kvtier compare`) and over cache sizes (`kvtier curve`)."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from reports.columns import flat
from reports.page.sections import Section, bars, described, facts, lines, plain, source
from reports.page.sweep import explored

TIERS = {"gpu": "found in GPU memory", "host": "found in host memory", "disk": "found on disk"}
MIN = "min"


def comparison(path: Path) -> tuple[str, str, list[Section]]:
    """Title, lead and sections of the file of `kvtier compare --json`."""
    found = json.loads(path.read_text(encoding="utf-8"))
    rows, bound = found["policies"], found["bound"]
    frame = pd.DataFrame([flat(row) for row in rows]).drop(columns=["notes"], errors="ignore")
    lead = f"{len(rows)} eviction policies on one trace and one cache; best: {rows[0]['policy']}."
    edge = found.get("unlimited_hit_rate_tokens")
    parts = [
        explored(frame.assign(run=range(len(frame))), ["policy"], ({}, [{} for _ in rows]), edge),
        tiers(rows, bound),
        moved(rows),
        missed(rows),
    ]
    made = {name: found.get(name) for name in ("version", "trace", "sha256", "limit", "timing")}
    made = {name: value for name, value in made.items() if value is not None}
    made["notes"] = "; ".join(found.get("notes", ())) or "none"
    spec = json.dumps(found.get("spec"), indent=2)
    whole = source("The whole specification", "unfold (the policy apart)", spec)
    return str(found.get("trace") or path.stem), lead, [*parts, whole, facts("What produced it", made)]


def tiers(rows: Sequence[Mapping[str, Any]], bound: Mapping[str, int] | None) -> Section:
    """Tokens found by tier, and the most that any policy finds in full blocks."""
    there = [tier for tier in TIERS if any(row["hit_tokens_by_tier"].get(tier) for row in rows)]
    parts = [(str(row["policy"]), [row["hit_tokens_by_tier"][tier] for tier in there]) for row in rows]
    edge = bound and ("best possible (MIN, full blocks)", bound["all_blocks"] * bound["tokens_per_block"])
    return bars(
        "Where prompt tokens were found",
        plain("tokens", "tokens"),
        [TIERS[tier] for tier in there],
        parts,
        edge or None,
    )


def moved(rows: Sequence[Mapping[str, Any]]) -> Section:
    """Bytes out to the host and back."""
    names = ("offload_bytes", "onboard_bytes")
    parts = [(str(row["policy"]), [row[name] for name in names]) for row in rows]
    return bars("Traffic", plain("moved", "GiB", 2.0**30), [described(name)["label"] for name in names], parts)


def missed(rows: Sequence[Mapping[str, Any]]) -> Section:
    """Blocks not found, by cause."""
    causes = list(dict.fromkeys(cause for row in rows for cause in row["misses_by_cause"]))
    labels = [str(described(f"misses_{cause}_blocks")["label"]).removeprefix("misses, ") for cause in causes]
    parts = [(str(row["policy"]), [row["misses_by_cause"].get(cause, 0) for cause in causes]) for row in rows]
    return bars("Why blocks were not found", plain("blocks not found", "blocks"), labels, parts)


def curve(path: Path) -> tuple[str, str, list[Section]]:
    """Title, lead and sections of the file of `kvtier curve --json`: a line a policy, the best possible one dashed."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    series = []
    for policy in dict.fromkeys(row["policy"] for row in rows):
        mine = [row for row in rows if row["policy"] == policy and row["capacity_blocks"] is not None]
        points = [(row["capacity_blocks"], row["hit_rate_blocks"]) for row in mine]
        name = "best possible (MIN)" if policy == MIN else policy
        series.append({"name": name, "points": points, "dashed": policy == MIN})
    x, y = plain("cache size", "blocks of the trace", log=True), plain("block hit rate", "% of blocks", 0.01)
    without = [row for row in rows if row["capacity_blocks"] is None]
    lead = f"{len(series)} {'policy' if len(series) == 1 else 'policies'} over cache sizes."
    if without:
        lead += f" Without limit {100 * without[0]['hit_rate_blocks']:.2f} % of blocks are found."
    return path.stem, lead, [lines("Hit rate over cache size", x, y, [one for one in series if one["points"]])]
