"""Policies side by side, ranked, below the bound; and rules learned on one half of a trace, counted on the other."""

import json
from pathlib import Path

import pytest

from tests.experiments.test_cli import kvtier

TRACE = ["mooncake_arxiv_first1000", "--limit", "200", "--set", "tokens_per_block=512", "--gpu-blocks", "300"]


def test_a_comparison_is_ranked_bounded_and_drawn(tmp_path: Path) -> None:
    picture, file = tmp_path / "policies.png", tmp_path / "policies.json"
    (tmp_path / "own.py").write_text(
        "class Mine:\n    def score(now_s, uses, depth, priority, floor):\n        return now_s\n", encoding="utf-8"
    )
    names = f"priority,lru,fifo,arc,{tmp_path / 'own.py'}:Mine"
    result = kvtier(
        "compare",
        *TRACE,
        "--host-blocks",
        "100",
        "--no-timing",
        "--policies",
        names,
        "--json",
        str(file),
        "--plot",
        str(picture),
    )
    assert result.exit_code == 0, result.stderr
    found = json.loads(file.read_text())
    rows = {row["policy"]: row for row in found["policies"]}
    assert [row["hit_rate_tokens"] for row in found["policies"]] == sorted(
        (row["hit_rate_tokens"] for row in found["policies"]), reverse=True
    )
    assert all(row["full_blocks"] <= found["bound"]["all_blocks"] for row in rows.values())
    assert rows["lru"]["headroom"] == rows["lru"]["cost_headroom"] == 0
    bound = found["bound"]
    assert bound["gpu_blocks"] <= bound["all_blocks"] <= bound["lookup_blocks"]
    assert bound["least_cost_s"] <= min(row["lookup_cost_s"] for row in rows.values())
    # Nothing found costs everything; the best finds all it can in the GPU or pays a load.
    everything = bound["lookup_blocks"] * bound["compute_s"]
    saved = bound["all_blocks"] * (bound["compute_s"] - bound["load_s"]) + bound["gpu_blocks"] * bound["load_s"]
    assert bound["least_cost_s"] == pytest.approx(everything - saved)
    assert 0 < bound["most_saved_s"] < bound["all_prefill_s"]
    assert "pushed out of the host" in result.stdout
    own = next(row for name, row in rows.items() if name.endswith(":Mine"))
    assert own["full_blocks"] == rows["lru"]["full_blocks"]  # the time of the last use is LRU
    assert "best possible" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--policies", "lru,arx"], "policy: unknown policy arx; did you mean arc"),
        (["--policies", ","], "--policies needs at least one name"),
    ],
)
def test_a_wrong_comparison_is_one_line(more: list[str], message: str) -> None:
    result = kvtier("compare", *TRACE, "--no-timing", *more)
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def test_several_workers_have_no_bound_and_a_note_says_so() -> None:
    result = kvtier("compare", *TRACE, "--policies", "priority", "--set", "workload.workers=2")
    assert result.exit_code == 0, result.stderr
    assert "no bound: several workers have a cache each" in result.stderr
    assert "TTFT" in result.stdout


def test_three_system_prompts_kept_by_priority_beat_lru_while_the_pool_is_small(tmp_path: Path) -> None:
    spec = tmp_path / "kept.yaml"
    spec.write_text("retention:\n  - {system_prompt: {min_sessions: 100}, priority: 100}\n", encoding="utf-8")
    rates = {}
    for blocks in (250, 1000):
        result = kvtier(
            *("compare", "mooncake_arxiv_first1000", "--spec", str(spec), "--policies", "priority,lru", "--no-timing"),
            *("--set", "tokens_per_block=512", "--gpu-blocks", str(blocks), "--set", "too_long=drop", "--json", "-"),
        )
        assert result.exit_code == 0, result.stderr
        rows = {row["policy"]: row["hit_rate_tokens"] for row in json.loads(result.stdout)["policies"]}
        rates[blocks] = rows["priority"] / rows["lru"] - 1
    assert 0.03 < rates[250] < 0.06
    assert -0.005 < rates[1000] < 0.005


def shared_starts(path: Path) -> Path:
    """Every other prompt begins with one of two long starts that all share; the others are one-time and push them out."""
    lines, fresh = [], 1000
    for i in range(120):
        if i % 6 == 0:
            ids = [1, 2, 3, 4, 10 + i]
        else:
            ids = list(range(fresh, fresh + 5))
            fresh += 5
        lines.append({"timestamp": 1000 * i, "input_length": 512 * 5, "output_length": 1, "hash_ids": ids})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_rules_learned_on_the_first_half_pay_on_the_second(tmp_path: Path) -> None:
    # 24 blocks hold less than the 30 of one round: LRU never finds the shared start, 4 of 5 blocks of every sixth prompt.
    # Kept from the first half on, 10 prompts of the second half find at most 4 x 512 tokens of 2,560: 13.3 % of all. A rule
    # for the first tokens also keeps those of the one-time prompts, so the room for it is not all of the cache.
    trace = shared_starts(tmp_path / "trace.jsonl")
    arguments = [str(trace), "--set", "tokens_per_block=512", "--gpu-blocks", "24"]
    result = kvtier("learn-retention", *arguments, "--json", str(tmp_path / "learned.json"))
    assert result.exit_code == 0, result.stderr
    learned = json.loads((tmp_path / "learned.json").read_text())
    assert learned["second_without"] < 0.01
    assert 0.09 < learned["second_gain"] <= 10 * 4 / (60 * 5)
    assert "KvCacheRetentionConfig.TokenRangeRetentionConfig(0, " in result.stdout
    spec = tmp_path / "learned.yaml"
    block = result.stdout.split("as a spec:\n")[1].split("\n\n")[0]
    spec.write_text(block + "\n", encoding="utf-8")
    again = kvtier("replay", *arguments, "--spec", str(spec), "--no-timing", "--json", "-")
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["hit_rate_tokens"] > 0.09


def test_a_trace_of_one_request_has_no_two_halves(tmp_path: Path) -> None:
    trace = tmp_path / "one.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 4, "output_length": 1, "hash_ids": [1]}\n', encoding="utf-8")
    result = kvtier("learn-retention", str(trace), "--gpu-blocks", "10")
    assert (result.exit_code, "learning needs at least 2" in result.stderr) == (2, True), result.stderr
