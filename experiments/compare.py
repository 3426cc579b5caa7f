"""What `kvtier compare` does: the same run once a policy, ranked, beside the best that any policy could have found.

The bound is `kvcache.bound`'s, for full blocks in the order of the requests: what a cache of the GPU's blocks, and one of all
tiers' blocks, finds at most. It knows no partly matched blocks, so it is compared with full ones only. It holds for one
worker with one attention window; otherwise there is none, and a note says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments import console
from experiments.complaints import SpecError
from experiments.eviction import eviction_of
from experiments.load import load
from experiments.progress import progress
from experiments.ready import ready, whole
from experiments.run import run
from experiments.spec import Spec
from experiments.trace import Trace
from experiments.unlimited import unlimited_hit_rate
from experiments.version import kvtier_version
from kvcache.bound import min_hits
from kvcache.load import prepare
from kvcache.policies import POLICIES, PRIORITY
from kvcache.request import Requests

CAUSES = {
    "evicted_from_gpu": "pushed out of the GPU",
    "evicted_from_host": "pushed out of the host",
    "evicted_from_disk": "pushed out of the disk",
    "dropped_below_threshold": "below the threshold",
    "expired": "expired",
    "behind_a_gap": "behind a gap",
}


@dataclass(frozen=True)
class Bound:
    """Full blocks that no policy exceeds: found in the GPU's blocks, found in all tiers, of so many lookups."""

    gpu_blocks: int
    all_blocks: int
    lookup_blocks: int
    tokens_per_block: int


@dataclass(frozen=True)
class Comparison:
    """One row a policy, best first; `bound` is None where none is known."""

    rows: list[dict[str, Any]]
    bound: Bound | None
    notes: list[str]
    about: dict[str, Any]
    """Trace, its SHA-256, version, unlimited cache, whole spec but for the policy."""


def compare(trace: Trace, spec: str | None, settings: Sequence[str], policies: str, *, timing: bool) -> Comparison:
    """Run every policy of a comma list (`all`: every one there is) and rank them by token hit rate."""
    base, notes = load(spec, settings)
    names = _names(policies)
    for name in names:
        eviction_of(name)
    requests = trace.requests()
    rows = []
    with progress("policies") as report:
        for at, name in enumerate(names):
            chosen = base.model_copy(update={"policy": name})
            rows.append({"policy": name, **_figures(run(chosen, requests, timing=timing))})
            report(at + 1, len(names))
    bound, why = _bound(base, requests, timing=timing)
    rows.sort(key=lambda row: -row["hit_rate_tokens"])
    _add_headroom(rows, bound)
    every = [*notes, *requests.notes, *(note for row in rows for note in row.pop("notes")), *why]
    about = {
        "version": kvtier_version(),
        **trace.about(),
        "timing": timing,
        "unlimited_hit_rate_tokens": unlimited_hit_rate(requests),
        "spec": base.shown(),
    }
    return Comparison(rows, bound, list(dict.fromkeys(every)), about)


def _names(policies: str) -> list[str]:
    if policies == "all":
        return [PRIORITY, *(name for name in POLICIES if POLICIES[name].rule.leaves_only)]
    names = [word.strip() for word in policies.split(",") if word.strip()]
    if not names:
        raise SpecError("--policies needs at least one name")
    return list(dict.fromkeys(names))


def _figures(row: dict[str, Any]) -> dict[str, Any]:
    """What a comparison shows of a run's row."""
    full = row["reused_blocks"] - row["partial_reused_blocks"]
    kept = ("hit_rate_tokens", "hit_rate_blocks", "hit_tokens_by_tier", "prompt_tokens", "lookup_blocks", "offload_bytes",
            "onboard_bytes", "disk_write_bytes", "disk_read_bytes", "dropped_blocks", "misses_by_cause", "ttft_s",
            "gpu_blocks", "host_blocks", "disk_blocks", "wall_s", "notes")  # fmt: skip
    return {"full_blocks": full, **{name: row[name] for name in kept}}


def _bound(spec: Spec, requests: Requests, *, timing: bool) -> tuple[Bound | None, list[str]]:
    """MIN over the run's own blocks, and why there is none."""
    if spec.workload.workers > 1:
        return None, ["no bound: several workers have a cache each"]
    work = ready(spec, requests, timing=timing)
    if len(work.plan.pools) > 1:
        return None, ["no bound: the model has several attention windows"]
    part = whole(work)
    _, made = prepare(part.requests, part.retention, work.plan.pools, work.plan.settings)
    tpb = work.plan.settings.tokens_per_block
    length = np.diff(made.key_offset) - 2  # full blocks, generated ones included
    at = np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
    contents = made.keys[np.repeat(made.key_offset[:-1], length) + at]
    looked_up = at < np.repeat((made.prompt.astype(np.int64) - 1) // tpb, length)
    gpu, every = work.plan.pools[0].blocks[0], sum(work.plan.pools[0].blocks)
    found = [int(min_hits(contents, looked_up, room).sum()) for room in (gpu, every)]
    return Bound(found[0], found[1], int(looked_up.sum()), tpb), []


def _add_headroom(rows: list[dict[str, Any]], bound: Bound | None) -> None:
    """(policy - LRU) / (bound - LRU) in full blocks; LRU is `priority` where plain LRU was not asked for."""
    found = {row["policy"]: row["full_blocks"] for row in rows}
    lru = found.get("lru", found.get(PRIORITY))
    if bound is None or lru is None or bound.all_blocks <= lru:
        return
    for row in rows:
        row["headroom"] = (row["full_blocks"] - lru) / (bound.all_blocks - lru)


def show(found: Comparison, json: str | None, plot: Path | None) -> None:
    """Notes, the table, the picture; `--json -` takes the table's place."""
    console.note(found.notes)
    bound = None if found.bound is None else vars(found.bound)
    if json is not None:
        console.write_json({"policies": found.rows, "bound": bound, **found.about, "notes": found.notes}, json)
    if json != "-":
        console.say(f"{found.rows[0]['gpu_blocks']:,} GPU blocks, {found.rows[0]['host_blocks']:,} host blocks")
        _table(found)
    if json not in {None, "-"}:
        console.say(str(json))
    if plot is not None:
        from reports.compare import plot_comparison

        console.say(str(plot_comparison(found.rows, bound, plot)))


def _table(found: Comparison) -> None:
    timed = found.rows[0]["ttft_s"] is not None and found.rows[0]["ttft_s"].get("mean") is not None
    titles = ["policy", "found (% of tokens)", "in GPU", "in host", "full blocks", "of head-room (%)"]
    titles += ["out (GiB)", "back (GiB)", "lost (blocks)"]
    lines = []
    for row in found.rows:
        tiers, causes = row["hit_tokens_by_tier"], row["misses_by_cause"]
        share = 100 / max(1, row["prompt_tokens"])
        lines.append([
            row["policy"],
            f"{100 * row['hit_rate_tokens']:.2f}",
            f"{tiers['gpu'] * share:.2f}",
            f"{tiers['host'] * share:.2f}",
            f"{row['full_blocks']:,}",
            f"{100 * row['headroom']:.1f}" if "headroom" in row else "",
            f"{row['offload_bytes'] / 2**30:,.1f}",
            f"{row['onboard_bytes'] / 2**30:,.1f}",
            f"{sum(causes.get(name, 0) for name in CAUSES):,}",
            *([f"{row['ttft_s']['mean']:.3g}"] if timed else []),
        ])
    if found.bound is not None:
        blank = [""] * (4 + timed)
        lines.append(["best possible", "", "", "", f"{found.bound.all_blocks:,}", *blank])
    console.plain_table([*titles, *(["mean TTFT (s)"] if timed else [])], lines)
