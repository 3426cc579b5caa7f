"""What each figure of a run is called, what it is measured in, and which end of it is better.

A run's row comes nested (`ttft_s: {p50: ...}`); here it is one flat line whose names carry the units (`ttft_p50_s`).
It does not run anything and knows no configuration but the names of its columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Column:
    """How to show one figure: its name in words, unit, divisor from the stored unit to the shown one, better end."""

    label: str
    unit: str = ""
    divisor: float = 1
    better: str = "lower"
    short: str = ""

    @property
    def title(self) -> str:
        """Words and unit, as an axis says them."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


GIB = float(2**30)
COLUMNS = {
    "requests": Column("requests", better="higher"),
    "prompt_tokens": Column("prompt tokens", "tokens"),
    "output_tokens": Column("generated tokens", "tokens", better="higher"),
    "lookup_blocks": Column("blocks looked up", "blocks"),
    "reused_blocks": Column("blocks reused", "blocks", better="higher"),
    "hit_rate_blocks": Column("block hit rate", "% of blocks", 0.01, "higher"),
    "hit_tokens": Column("prompt tokens found", "tokens", better="higher"),
    "hit_rate_tokens": Column("token hit rate", "% of prompt tokens", 0.01, "higher"),
    "hit_tokens_gpu": Column("found in GPU memory", "tokens", better="higher"),
    "hit_tokens_host": Column("found in host memory", "tokens", better="higher"),
    "hit_tokens_disk": Column("found on disk", "tokens", better="higher"),
    "offload_blocks": Column("offloaded to host", "blocks"),
    "offload_bytes": Column("offloaded to host", "GiB", GIB),
    "onboard_blocks": Column("brought back to GPU", "blocks"),
    "onboard_bytes": Column("brought back to GPU", "GiB", GIB),
    "moved_bytes": Column("moved between GPU and host", "GiB", GIB),
    "dropped_blocks": Column("dropped", "blocks"),
    "output_tokens_per_s": Column("output rate", "tokens/s", better="higher"),
    "makespan_s": Column("whole run", "s"),
    "events_per_s": Column("simulator speed", "events/s", better="higher"),
    "wall_s": Column("simulation took", "s"),
    "tokens_per_block": Column("block size", "tokens", short="block"),
    "secondary_offload_min_priority": Column("offload threshold", "priority, 0 to 100", short="threshold"),
    "gpu_tokens": Column("GPU pool", "tokens", short="GPU"),
    "gpu_blocks": Column("GPU pool", "blocks", short="GPU"),
    "host_tokens": Column("host pool", "tokens", short="host"),
    "host_blocks": Column("host pool", "blocks", short="host"),
    "host_cache_size": Column("host pool", "GiB a rank", GIB, short="host"),
    "disk_tokens": Column("disk tier", "tokens", short="disk"),
    "rate_scale": Column("arrival rate", "times the trace's", better="higher", short="rate"),
    "workers": Column("workers", short="workers"),
}
TIMES = {"ttft": "time to first token", "tpot": "time per output token", "e2e": "request time"}


def column(name: str) -> Column:
    """What is known about a column; one nobody described is shown under its own name, lower being better."""
    last = name.rsplit(".", maxsplit=1)[-1]
    if last in COLUMNS:
        return COLUMNS[last]
    if name.startswith("misses_"):
        return Column(f"misses, {name.removeprefix('misses_').removesuffix('_blocks').replace('_', ' ')}", "blocks")
    kind, _, rest = name.partition("_")
    if kind in TIMES and rest.endswith("_s"):
        return Column(f"{TIMES[kind]}, {rest.removesuffix('_s')}", "s" if kind != "tpot" else "ms", _time_divisor(kind))
    return Column(last.replace("_", " "))


def _time_divisor(kind: str) -> float:
    return 0.001 if kind == "tpot" else 1


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """One run's row as one line: nested figures get names of their own; the spec stays out (it has its own file)."""
    line: dict[str, Any] = {}
    for name, value in row.items():
        if name == "spec":
            continue
        if name == "notes":
            line[name] = "; ".join(value)
        elif isinstance(value, Mapping):
            line |= {_inner(name, str(inner)): figure for inner, figure in value.items()}
        else:
            line[name] = value
    if line.get("offload_bytes") is not None and line.get("onboard_bytes") is not None:
        line["moved_bytes"] = line["offload_bytes"] + line["onboard_bytes"]
    return line


def _inner(name: str, inner: str) -> str:
    """ttft_s, p50 → ttft_p50_s; hit_tokens_by_tier, gpu → hit_tokens_gpu; misses_by_cause, new → misses_new_blocks."""
    stem, by, _ = name.partition("_by_")
    if by:
        return f"{stem}_{inner}_blocks" if stem == "misses" else f"{stem}_{inner}"
    return f"{name.removesuffix('_s')}_{inner}_s" if name.endswith("_s") else f"{name}_{inner}"
