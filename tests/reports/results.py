"""Made-up results on disk, one of each kind that has a page: a run, a comparison, a curve, a calibration, a validation."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

POLICIES = {"arc": (60, 300), "lru": (50, 200), "fifo": (40, 100)}
"""Tokens found in GPU memory and in host memory, of 1,000."""


def comparison(path: Path) -> Path:
    """As `kvtier compare --json` writes it; MIN finds 25 blocks of 16 tokens."""
    rows: list[dict[str, Any]] = [
        {
            "policy": name,
            "full_blocks": (gpu + host) // 16,
            "hit_rate_tokens": (gpu + host) / 1000,
            "hit_rate_blocks": (gpu + host) / 1000,
            "hit_tokens_by_tier": {"gpu": gpu, "host": host, "disk": 0},
            "prompt_tokens": 1000,
            "lookup_blocks": 62,
            "offload_bytes": 2**30 * gpu,
            "onboard_bytes": 2**30 * host,
            "dropped_blocks": 3,
            "misses_by_cause": {"never_seen": 10, "evicted_from_host": 50 - gpu // 2},
            "ttft_s": {"mean": 0.5, "p50": 0.4, "p90": 0.9, "p99": 1.5},
            "gpu_blocks": 10,
            "host_blocks": 20,
        }
        for name, (gpu, host) in POLICIES.items()
    ]
    bound = {"gpu_blocks": 8, "all_blocks": 25, "lookup_blocks": 62, "tokens_per_block": 16}
    about = {"version": "0", "trace": "made up", "unlimited_hit_rate_tokens": 0.7, "spec": {"model": "m"}, "notes": []}
    path.write_text(json.dumps({"policies": rows, "bound": bound, **about}), encoding="utf-8")
    return path


def curve(path: Path) -> Path:
    """As `kvtier curve --json` writes it."""
    points = [("lru", 10, 0.1), ("lru", 100, 0.3), ("lru", None, 0.5), ("min", 10, 0.2), ("min", 100, 0.4)]
    rows = [{"policy": name, "capacity_blocks": size, "hit_rate_blocks": rate} for name, size, rate in points]
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def run(directory: Path) -> Path:
    """As `kvtier replay --record` writes it: two steps of 2 s, the host link busy for 1 s of the first."""
    directory.mkdir()
    row = {
        "trace": "made up", "requests": 2, "prompt_tokens": 100, "hit_rate_tokens": 0.25, "output_tokens": 20,
        "hit_tokens_by_tier": {"gpu": 20, "host": 5, "disk": 0}, "misses_by_cause": {"never_seen": 3, "expired": 1},
        "ttft_s": {"mean": 1.0, "p50": 1.0, "p90": 2.0, "p99": 2.0}, "spec": {"model": "m"}, "version": "0", "notes": [],
    }  # fmt: skip
    (directory / "run.json").write_text(json.dumps(row), encoding="utf-8")
    pd.DataFrame({
        "arrival_s": [0.0, 1.0], "first_token_s": [1.0, 3.0], "finish_s": [2.0, 4.0], "output_tokens": [11, 9],
    }).to_parquet(directory / "requests.parquet")  # fmt: skip
    pd.DataFrame({
        "worker": [0, 0], "start_s": [0.0, 2.0], "end_s": [2.0, 4.0], "compute_s": [1.0, 2.0], "copy_wait_s": [1.0, 0.0],
        "offload_bytes": [2**30, 0], "onboard_bytes": [0, 0], "offload_work_s": [1.0, 0.0], "onboard_work_s": [0.0, 0.0],
        "gpu_in_use_blocks": [3, 1], "gpu_cached_blocks": [0, 2], "host_blocks": [1, 1], "disk_blocks": [0, 0],
        "waiting": [1, 0], "active": [1, 1],
    }).to_parquet(directory / "steps.parquet")  # fmt: skip
    return directory


def calibration(path: Path) -> Path:
    """As `kvtier calibrate` writes it: 1 MiB at 10 GB/s and 4 KiB at 1 GB/s to the GPU."""
    path.write_text("# measured on a made-up machine\nname: mine\n", encoding="utf-8")
    rows = [("h2d", size, 10, "alone", size * 10 / rate) for size, rate in ((1 << 20, 1e10), (4096, 1e9))]
    frame = pd.DataFrame(rows, columns=["way", "size", "moved_blocks", "mode", "seconds"])
    frame = frame.assign(blocks=1, seconds=frame["seconds"] / frame["moved_blocks"], repeat=0)
    frame.to_parquet(path.with_suffix(".samples.parquet"))
    return path


def validation(directory: Path) -> Path:
    """As `kvtier validate --out` writes it."""
    directory.mkdir()
    head = {"transfers": 2, "predicted_s": 0.03, "measured_s": 0.02, "total_error": 0.5, "mape": 0.5}
    figures = {
        "trace": "made up", "device": "cpu", "verdict": "off: too slow", "by_direction": {"d2h": head}, "by_bytes": {},
        "decisions_identical": True,
    }  # fmt: skip
    (directory / "validation.json").write_text(json.dumps(figures), encoding="utf-8")
    pd.DataFrame({
        "direction": ["d2h", "d2h"], "bytes": [4096, 1 << 20], "predicted_s": [0.01, 0.02], "measured_s": [0.01, 0.01],
    }).to_parquet(directory / "transfers.parquet")  # fmt: skip
    return directory


MADE = {
    "comparison": (comparison, "c.json"),
    "curve": (curve, "curve.json"),
    "run": (run, "run"),
    "calibration": (calibration, "mine.yaml"),
    "validation": (validation, "v"),
}
