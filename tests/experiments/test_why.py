"""The explanation of a sweep quotes its rows: which blocks stop moving, what that saves and costs."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments.load import load
from experiments.why import rule_names, why

GIB = 2**30


def sweep(path: Path, grid: dict[str, list[Any]], rows: list[dict[str, Any]], settings: list[str]) -> Path:
    """A finished sweep of the multi-tenant spec, its rows as given."""
    spec = load("multitenant_blocks", settings)[0].shown()
    same = {"error": None, "requests": 100, "prompt_tokens": 1000, "output_tokens": 0, "block_bytes": 2**21}
    pd.DataFrame([{"run": number, **same, **row} for number, row in enumerate(rows)]).to_parquet(path / "sweep.parquet")
    (path / "about.json").write_text(json.dumps({"trace": "t", "grid": grid}), encoding="utf-8")
    lines = [json.dumps({"run": number, "spec": spec}) for number in range(len(rows))]
    (path / "specs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return path


def row(found: int, gib: int, offloads: int, **more: Any) -> dict[str, Any]:
    figures = {"hit_tokens": found, "hit_rate_tokens": found / 1000, "hit_tokens_gpu": found, "hit_tokens_host": 0}
    moved = {"moved_bytes": gib * GIB, "offload_blocks_15": offloads, "onboard_blocks_15": 0}
    return {**figures, **moved, "offload_blocks": offloads, "onboard_blocks": 0, "ttft_mean_s": None, **more}


def test_step_names_the_priority_its_rule_and_the_change(tmp_path: Path) -> None:
    rows = [row(500, 7, 40), row(500, 7, 40), row(490, 2, 0)]
    rows = [{"secondary_offload_min_priority": value, **r} for value, r in zip((0, 10, 20), rows, strict=True)]
    text = "\n".join(why(sweep(tmp_path, {"secondary_offload_min_priority": [0, 10, 20]}, rows, [])))
    assert "10 to 20: blocks of priority 15 (generated tokens) are dropped when evicted. Of 40 offloads 0.0%" in text
    assert "Traffic falls by 5 GiB to 2, tokens found fall by 10 tokens to 49.0% of the prompts." in text
    assert "0 to 10:" not in text
    assert "Priority 15 does not pay in host memory: 0 of 40 blocks came back." in text


def test_block_sizes_tell_empty_space_lost_chains_and_fixed_cost(tmp_path: Path) -> None:
    rows = [
        row(500, 7, 40, tokens_per_block=16, tail_tokens=0, misses_evicted_from_host_blocks=50),
        row(600, 8, 4, tokens_per_block=512, tail_tokens=1000, misses_evicted_from_host_blocks=1),
    ]
    text = "\n".join(why(sweep(tmp_path, {"tokens_per_block": [16, 512]}, rows, [])))
    assert "tokens found: 50.0% → 60.0% of the prompts" in text
    assert "0.0% → 50.0% of the space requests take is empty (0 → 10 tokens a request)" in text
    assert "recomputed because a block was dropped or lost from the host: 800 tokens → 512 tokens. Generated" in text
    assert "copies: 40 → 4" in text


def test_other_setting_is_compared_at_each_block_size(tmp_path: Path) -> None:
    rows = [row(500, 8, 0, enable_partial_reuse=True), row(300, 2, 0, enable_partial_reuse=False)]
    text = why(sweep(tmp_path, {"enable_partial_reuse": [True, False]}, rows, []))
    assert text[1:] == ["Partial reuse on, off:", "  tokens found 50.0%, 30.0%; moved 8, 2 GiB"]


def test_setting_that_begins_with_nothing_said_does_not_hide_the_others(tmp_path: Path) -> None:
    grid = {"ttl_s": [None, 1.0], "enable_partial_reuse": [True, False]}
    rows = [
        row(100 * i, 2, 0, ttl_s=ttl, enable_partial_reuse=on) for i, (ttl, on) in enumerate(product(*grid.values()))
    ]
    text = why(sweep(tmp_path, grid, rows, []))
    assert text[1:] == [
        "Ttl s default, 1:",
        "  tokens found 0.0%, 20.0%; moved 2, 2 GiB",
        "Partial reuse on, off:",
        "  tokens found 0.0%, 10.0%; moved 2, 2 GiB",
    ]


@pytest.mark.parametrize(
    ("priority", "words"),
    [
        (90, "prompt tokens 0 to 1,024"),
        (75, "prompt tokens 1,024 to 4,096"),
        (15, "generated tokens"),
        (35, "TensorRT-LLM's default"),
    ],
)
def test_priority_is_named_by_its_rule(priority: int, words: str) -> None:
    assert rule_names(load("multitenant_blocks")[0])[priority] == words
