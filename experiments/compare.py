"""What `kvtier compare` does: the same run once a policy, ranked, beside the best that any policy could have done.

The bounds are `experiments.headroom`'s.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import console
from experiments.complaints import SpecError
from experiments.eviction import eviction_of
from experiments.headroom import Bound, add_headroom, bound_of
from experiments.load import load
from experiments.progress import progress
from experiments.run import run
from experiments.trace import Trace
from experiments.unlimited import unlimited_hit_rate
from experiments.version import kvtier_version
from kvcache.policies import POLICIES, PRIORITY

CAUSES = {
    "evicted_from_gpu": "pushed out of the GPU",
    "evicted_from_host": "pushed out of the host",
    "evicted_from_disk": "pushed out of the disk",
    "dropped_below_threshold": "below the threshold",
    "expired": "expired",
    "behind_a_gap": "behind a gap",
}


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
    bound, why = bound_of(base, requests, timing=timing)
    rows.sort(key=lambda row: -row["hit_rate_tokens"])
    add_headroom(rows, bound)
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


def show(found: Comparison, json: str | None, plot: Path | None) -> None:
    """Notes, the table, the picture; `--json -` takes the table's place."""
    console.note(found.notes)
    bound = None if found.bound is None else found.bound.plain()
    if json is not None:
        console.write_json({"policies": found.rows, "bound": bound, **found.about, "notes": found.notes}, json)
    if json != "-":
        console.say(f"{found.rows[0]['gpu_blocks']:,} GPU blocks, {found.rows[0]['host_blocks']:,} host blocks")
        _table(found)
        _causes(found.rows)
        _say_bound(found.bound)
    if json not in {None, "-"}:
        console.say(str(json))
    if plot is not None:
        from reports.compare import plot_comparison

        console.say(str(plot_comparison(found.rows, bound, plot)))


def _table(found: Comparison) -> None:
    timed = found.rows[0]["ttft_s"] is not None and found.rows[0]["ttft_s"].get("mean") is not None
    titles = ["policy", "found (% of tokens)", "in GPU", "in host", "full blocks", "head room (%)", "cost (s)"]
    titles += ["head room (%)", "out (GiB)", "back (GiB)"]
    lines = []
    for row in found.rows:
        tiers, share = row["hit_tokens_by_tier"], 100 / max(1, row["prompt_tokens"])
        lines.append([
            _short(row),
            f"{100 * row['hit_rate_tokens']:.2f}",
            f"{tiers['gpu'] * share:.2f}",
            f"{tiers['host'] * share:.2f}",
            f"{row['full_blocks']:,}",
            _percent(row, "headroom"),
            f"{row['lookup_cost_s']:,.1f}" if "lookup_cost_s" in row else "",
            _percent(row, "cost_headroom"),
            f"{row['offload_bytes'] / 2**30:,.1f}",
            f"{row['onboard_bytes'] / 2**30:,.1f}",
            *([f"{row['ttft_s']['mean']:.3g}"] if timed else []),
        ])
    if found.bound is not None:
        best = ["", "", "", f"{found.bound.all_blocks:,}", "100.0", f"{found.bound.least_cost_s:,.1f}", "100.0"]
        lines.append(["best possible", *best, *[""] * (2 + timed)])
    console.plain_table([*titles, *(["mean TTFT (s)"] if timed else [])], lines)


def _short(row: dict[str, Any]) -> str:
    """A policy's name; of one of the user's own the file's last part."""
    return str(row["policy"]).rpartition("/")[2]


def _percent(row: dict[str, Any], name: str) -> str:
    return f"{100 * row[name]:.1f}" if name in row else ""


def _causes(rows: Sequence[dict[str, Any]]) -> None:
    """Why blocks that had been there were computed again."""
    there = [cause for cause in CAUSES if any(row["misses_by_cause"].get(cause) for row in rows)]
    if not there:
        return
    console.say("")
    lines = [[_short(row), *(f"{row['misses_by_cause'].get(cause, 0):,}" for cause in there)] for row in rows]
    console.plain_table(["blocks computed again", *(CAUSES[cause] for cause in there)], lines)


def _say_bound(bound: Bound | None) -> None:
    if bound is None:
        return
    console.say("")
    console.say(
        f"cost: {1000 * bound.compute_s:.3g} ms to compute a block, {1000 * bound.load_s:.3g} ms to load one from the host;"
        f" the best possible is a bound for each figure by itself"
    )
    console.say(
        f"deeper blocks cost more: hits save at most {bound.most_saved_s:,.1f} of {bound.all_prefill_s:,.1f} s of prefill"
    )
