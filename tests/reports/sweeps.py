"""A made-up sweep on disk, with figures that can be told from each other, for tests that read one."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

BLOCKS = (16, 32, 64)
THRESHOLDS = tuple(range(0, 101, 20))


def rows() -> list[dict[str, Any]]:
    """A run for each block size and threshold; the last one failed."""
    made: list[dict[str, Any]] = [
        {
            "run": i,
            "tokens_per_block": block,
            "secondary_offload_min_priority": threshold,
            "error": None,
            "offload_bytes": (101 - threshold) ** 2 * 1e8,
            "moved_bytes": (101 - threshold) ** 2 * 1.5e8,
            "hit_rate_tokens": 0.5 - threshold / 1000 - float(np.log2(block)) / 100,
            "ttft_p99_s": 1 + threshold / 100,
            "tpot_p99_s": 0.02 + threshold / 1e4,
            "misses_never_seen_blocks": 100 + threshold,
            "notes": "",
        }
        for i, (block, threshold) in enumerate(itertools.product(BLOCKS, THRESHOLDS))
    ]
    failed = dict.fromkeys(made[0]) | {"run": len(made), "tokens_per_block": 64, "secondary_offload_min_priority": 100}
    return [*made[:-1], failed | {"run": made[-1]["run"], "error": "request 3 </script> does not fit"}]


def repeated() -> list[dict[str, Any]]:
    """The same with three seeds each: seed s has s percentage points more hits; every run served the whole trace."""
    return [
        row
        | {"run": 3 * row["run"] + seed, "seed": seed, "prompt_tokens": 5}
        | {"hit_rate_tokens": row["hit_rate_tokens"] + seed / 100}
        for row in rows()[:-1]
        for seed in range(3)
    ]


def write(directory: Path, made: list[dict[str, Any]] | None = None) -> Path:
    """The sweep's files, as `kvtier sweep --out` leaves them."""
    directory.mkdir(parents=True, exist_ok=True)
    frame = pd.DataFrame(made or rows())
    frame.convert_dtypes().to_parquet(directory / "sweep.parquet", index=False)
    grid = {"tokens_per_block": list(BLOCKS), "secondary_offload_min_priority": list(THRESHOLDS)}
    grid |= {"seed": [0, 1, 2]} if made else {}
    about = {
        "version": "0",
        "trace": "a <trace>",
        "grid": grid,
        "timing": True,
        "unlimited": {"hit_rate_tokens": 0.6, "prompt_tokens": [5]},
        "runs": len(frame),
        "command": ["kvtier", "sweep"],
    }
    (directory / "about.json").write_text(json.dumps(about), encoding="utf-8")
    specs = [
        {
            "run": row["run"],
            "spec": {"kv_cache_config": {name: row[name] for name in grid if name != "seed"}, "model": "llama-3.1-8b"},
        }
        for row in made or rows()
    ]
    (directory / "specs.jsonl").write_text("".join(f"{json.dumps(spec)}\n" for spec in specs), encoding="utf-8")
    return directory
