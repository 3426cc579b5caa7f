"""Exact counts of the cache-only replay of real traffic, kept in `counts.json` with the spec that made each of them.

They say nothing about being right (other tests do): they tell that a change changes decisions. If it should, run
`python -m tests.golden.record` and read the difference before committing it.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from experiments.run import run
from experiments.spec import Spec
from kvcache.request import Requests
from traces.read import read

FILE = Path(__file__).parent / "counts.json"
COUNTS = (
    "requests",
    "lookup_blocks",
    "reused_blocks",
    "partial_reused_blocks",
    "hit_tokens",
    "hit_tokens_by_tier",
    "offload_blocks",
    "onboard_blocks",
    "disk_write_blocks",
    "disk_read_blocks",
    "dropped_blocks",
    "dropped_below_threshold_blocks",
    "intra_device_copy_blocks",
    "gen_alloc_blocks",
    "misses_by_cause",
)
# The parts of a prompt at different worth: what two requests share stays, turns go after half a minute, answers first.
THREE_PARTS = [
    {"system_prompt": {"min_sessions": 2}, "priority": 100},
    {"turns": True, "priority": 50, "duration_s": 30},
    {"decode": True, "priority": 20, "duration_s": 10},
]
POOLS = {"mooncake_arxiv_first1000": 1_000_000, "mooncake_conversation": 3_000_000}


def cases() -> list[dict[str, Any]]:
    """Name, trace and spec of every case."""
    out = []
    for trace, tokens in POOLS.items():
        for tpb in (512, 128):
            host = {"gpu_tokens": tokens, "host_tokens": tokens}
            specs: dict[str, dict[str, Any]] = {
                "gpu": {"capacity": {"gpu_tokens": tokens, "host_tokens": 0}},
                "host": {"capacity": host},
                "cascade": {"capacity": {**host, "disk_tokens": 2 * tokens}, "profile": {"name": "cascade"}},
            }
            for threshold in (0, 30, 36, 100):
                specs[f"retention, threshold {threshold}"] = {
                    "capacity": host,
                    "retention": THREE_PARTS,
                    "kv_cache_config": {"secondary_offload_min_priority": threshold},
                }
            if (trace, tpb) == ("mooncake_conversation", 128):  # a million blocks a run: three of them are enough
                specs = {name: specs[name] for name in ("host", "cascade", "retention, threshold 36")}
            for name, spec in specs.items():
                config = {"tokens_per_block": tpb, **spec.get("kv_cache_config", {})}
                full = {**spec, "kv_cache_config": config}
                out.append({"name": f"{trace}, {tpb} tokens a block, {name}", "trace": trace, "spec": full})
    return out


@cache
def _requests(trace: str) -> Requests:
    return read(trace)


def counted(case: dict[str, Any]) -> dict[str, Any]:
    """The counts of one case, replayed now."""
    row = run(Spec.model_validate(case["spec"]), _requests(case["trace"]), timing=False)
    return {name: row[name] for name in COUNTS}


def recorded() -> list[dict[str, Any]]:
    """What is in the file."""
    return list(json.loads(FILE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    FILE.write_text(
        json.dumps([{**case, "counts": counted(case)} for case in cases()], indent=1) + "\n", encoding="utf-8"
    )
    print(FILE)
