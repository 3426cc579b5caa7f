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
    "partial_reused_blocks": Column("of these only in part", "blocks"),
    "hit_rate_blocks": Column("block hit rate", "% of blocks", 0.01, "higher"),
    "hit_tokens": Column("prompt tokens found", "tokens", better="higher"),
    "hit_rate_tokens": Column("token hit rate", "% of prompt tokens", 0.01, "higher"),
    "hit_tokens_gpu": Column("found in GPU memory", "tokens", better="higher"),
    "hit_tokens_host": Column("found in host memory", "tokens", better="higher"),
    "hit_tokens_disk": Column("found on disk", "tokens", better="higher"),
    "tail_tokens": Column("empty space in last blocks", "tokens"),
    "gen_alloc_blocks": Column("blocks of generated tokens", "blocks"),
    "offload_blocks": Column("offloaded to host", "blocks"),
    "offload_bytes": Column("offloaded to host", "GiB", GIB),
    "onboard_blocks": Column("brought back to GPU", "blocks"),
    "onboard_bytes": Column("brought back to GPU", "GiB", GIB),
    "moved_bytes": Column("moved between GPU and host", "GiB", GIB),
    "disk_write_blocks": Column("written to disk", "blocks"),
    "disk_write_bytes": Column("written to disk", "GiB", GIB),
    "disk_read_blocks": Column("read from disk", "blocks"),
    "disk_read_bytes": Column("read from disk", "GiB", GIB),
    "intra_device_copy_blocks": Column("copied inside the GPU", "blocks"),
    "dropped_blocks": Column("content lost from all tiers", "blocks"),
    "dropped_below_threshold_blocks": Column("below threshold, not offloaded", "blocks"),
    "output_tokens_per_s": Column("output rate", "tokens/s", better="higher"),
    "gpus": Column("GPUs"),
    "output_tokens_per_s_per_gpu": Column("output rate of a GPU", "tokens/s", better="higher"),
    "tokens_per_s_per_user": Column("pace for each user", "tokens/s", better="higher"),
    "goodput_requests_per_s": Column("goodput", "requests/s", better="higher"),
    "goodput_requests_per_s_per_gpu": Column("goodput of a GPU", "requests/s", better="higher"),
    "goodput_share": Column("requests within the limits", "% of requests", 0.01, "higher"),
    "imbalance": Column("busiest worker over the mean", "times its tokens"),
    "ttft_parts_queue_s": Column("of TTFT: wait for a context worker", "s"),
    "ttft_parts_prefill_s": Column("of TTFT: compute the prompt", "s"),
    "ttft_parts_memory_s": Column("of TTFT: wait for decode memory", "s"),
    "ttft_parts_buffer_s": Column("of TTFT: wait for a transfer buffer", "s"),
    "ttft_parts_prepare_s": Column("of TTFT: look up, shake hands", "s"),
    "ttft_parts_wire_s": Column("of TTFT: wire", "s"),
    "ttft_parts_convert_s": Column("of TTFT: gather and scatter", "s"),
    "ttft_parts_hidden_s": Column("of TTFT: hidden behind the prefill", "s"),
    "failed_transfers": Column("transfers that failed", "requests"),
    "timed_out_transfers": Column("of these timed out", "requests"),
    "store_hit_tokens": Column("found in the store", "tokens", better="higher"),
    "store_hit_rate": Column("found in the store", "% of prompt tokens", 0.01, "higher"),
    "store_loaded_bytes": Column("loaded from the store", "GiB", GIB),
    "store_saved_bytes": Column("saved to the store", "GiB", GIB),
    "store_held_bytes": Column("in the store at the end", "GiB", GIB),
    "store_loads": Column("loads from the store", "requests"),
    "store_load_mean_s": Column("one load, mean", "s"),
    "store_bypassed_requests": Column("passed the context workers by", "requests", better="higher"),
    "mean_workers_aggregated": Column("workers open, mean", "workers"),
    "mean_workers_context": Column("context workers open, mean", "workers"),
    "mean_workers_generation": Column("generation workers open, mean", "workers"),
    "transferred_bytes": Column("sent from prefill to decoding", "GiB", GIB),
    "index_blocks": Column("blocks the router knows of", "blocks"),
    "index_bytes": Column("memory of the router's index", "bytes"),
    "events_received": Column("KV events the router got", "events"),
    "events_lost": Column("KV events lost on their way", "events"),
    "events_overflown": Column("KV events dropped by full buffers", "events"),
    "events_blind_decisions": Column("routed without any event", "requests"),
    "event_delay_s": Column("KV events are late by", "s", short="late"),
    "makespan_s": Column("whole run", "s"),
    "compute_s": Column("computing, all workers", "s"),
    "copy_wait_s": Column("waiting for copies, all workers", "s"),
    "steps": Column("engine steps"),
    "events_per_s": Column("simulator speed", "events/s", better="higher"),
    "wall_s": Column("simulation took", "s"),
    "tokens_per_block": Column("block size", "tokens", short="block"),
    "block_bytes": Column("one block, on one GPU", "MiB", 2.0**20),
    "secondary_offload_min_priority": Column("offload threshold", "priority, 0 to 100", short="threshold"),
    "enable_partial_reuse": Column("partial reuse", short="partial reuse"),
    "gpu_tokens": Column("GPU pool", "tokens", short="GPU"),
    "gpu_blocks": Column("GPU pool", "blocks", short="GPU"),
    "host_tokens": Column("host pool", "tokens", short="host"),
    "host_blocks": Column("host pool", "blocks", short="host"),
    "host_cache_gib": Column("host pool, all windows", "GiB a GPU", short="host"),
    "host_cache_size": Column("host pool", "GiB a rank", GIB, short="host"),
    "host_bytes": Column("host pool", "GiB a rank", GIB, short="host"),
    "disk_tokens": Column("disk tier", "tokens", short="disk"),
    "disk_blocks": Column("disk tier", "blocks", short="disk"),
    "rate_scale": Column("arrival rate", "times the trace's", better="higher", short="rate"),
    "workers": Column("workers", short="workers"),
    "size": Column("store shared by workers", "GiB", GIB, short="store"),
    "cluster.context.workers": Column("context workers", short="context"),
    "cluster.generation.workers": Column("generation workers", short="generation"),
    "load": Column("prompt and generated tokens", short=""),
    "pace": Column("pace for each user", "tokens/s", better="higher", short="pace"),
    "way": Column("prefill and decoding", short="prefill and decoding"),
    "drafts": Column("drafted tokens a step", short="drafts"),
    "salt": Column("cache_salt of each", short="salt of each"),
    "turns_mean": Column("turns of a conversation, mean", short="turns"),
    "min_sessions": Column("prompts shared by at least", "sessions", short="shared by sessions from"),
    "event_loss": Column("KV events that never arrive", "share", short="events lost, share"),
    "duration_s": Column("priority lasts", "s", short="lasting (s)"),
    "link": Column("transport", short="transport"),
    "disk": Column("disk read by", short="disk by"),
    "host": Column("copied by", short="copied by"),
    "dtype": Column("element type of the cache", short="cache in"),
    "bypass_tokens": Column("prefill worker passed by where so much lacks", "tokens", short="passed by up to"),
    "gigabytes_per_s": Column("link to the store", "GB/s", short="store GB/s"),
}
GROUPS = {
    "workload": ("requests", "prompt_tokens", "output_tokens"),
    "pools": ("tokens_per_block", "block_bytes", "gpu_blocks", "host_blocks", "disk_blocks"),
    "cache": (
        "hit_rate_tokens", "hit_tokens_gpu", "hit_tokens_host", "hit_tokens_disk", "hit_rate_blocks", "lookup_blocks",
        "reused_blocks", "partial_reused_blocks", "tail_tokens",
    ),
    "traffic": (
        "secondary_offload_min_priority", "offload_bytes", "onboard_bytes", "disk_write_bytes", "disk_read_bytes",
        "offload_blocks", "onboard_blocks", "disk_write_blocks", "disk_read_blocks", "intra_device_copy_blocks",
        "dropped_below_threshold_blocks", "dropped_blocks", "gen_alloc_blocks",
    ),
    "by priority": ("offload_blocks_", "onboard_blocks_", "below_threshold_blocks_"),
    "misses": ("misses_",),
    "times": ("ttft_", "tpot_", "e2e_", "output_tokens_per_s", "goodput_", "makespan_s", "compute_s", "copy_wait_s"),
    "cluster": ("imbalance", "transferred_bytes", "failed_transfers", "timed_out_transfers", "store_", "mean_workers_"),
    "simulation": ("steps", "events_per_s", "wall_s"),
}  # fmt: skip
"""Where a figure stands in the table of one run; a name that ends in _ stands for all that begin so."""
BY_PRIORITY = {
    "offload_blocks_": "offloaded",
    "onboard_blocks_": "brought back",
    "below_threshold_blocks_": "not offloaded",
}
CAUSES = {
    "never_seen": "content nobody had yet",
    "shorter_than_a_block": "last block, no full match",
    "evicted_from_gpu": "evicted, no room in host memory",
    "evicted_from_host": "evicted from host memory",
    "evicted_from_disk": "evicted from disk",
    "dropped_below_threshold": "dropped, below the threshold",
    "behind_a_gap": "cached, behind a missing block",
    "overwritten_in_place": "taken over by another request",
}
TIMES = {"ttft": "time to first token", "tpot": "time per output token", "e2e": "request time"}


def column(name: str) -> Column:
    """What is known about a column; one nobody described is shown under its own name, lower being better."""
    last = name.rsplit(".", maxsplit=1)[-1]
    if name in COLUMNS or last in COLUMNS:
        return COLUMNS.get(name) or COLUMNS[last]
    if name.startswith("misses_"):
        cause = name.removeprefix("misses_").removesuffix("_blocks")
        return Column(f"misses, {CAUSES.get(cause, cause.replace('_', ' '))}", "blocks")
    stem = next((stem for stem in BY_PRIORITY if name.startswith(stem)), None)
    if stem is not None:
        return Column(f"priority {name.removeprefix(stem)} {BY_PRIORITY[stem]}", "blocks")
    if name.startswith("retention.") and last == "priority":
        return Column(f"priority of rule {name.split('.')[1]}", "0 to 100", short=f"rule {name.split('.')[1]} priority")
    kind, _, rest = name.partition("_")
    if kind in TIMES and rest.endswith("_s"):
        return Column(f"{TIMES[kind]}, {rest.removesuffix('_s')}", "s" if kind != "tpot" else "ms", _time_divisor(kind))
    return Column(last.replace("_", " "))


def place_name(key: str, value: str) -> str:
    """A trace, machine or model as a label has room for it: a generated trace without its parameters."""
    return value.removeprefix("synthetic:").partition("?")[0] if key == "trace" else value


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
