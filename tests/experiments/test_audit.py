"""Audit: each kind of fault in a dump is found and named, a sound dump has none, leaks are counted apart."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments.audit import audit
from experiments.cli import app
from kvcache.blockhash import block_hash

ROOT = Path(__file__).parents[2]
A1 = block_hash([1, 2])
A2 = block_hash([3, 4], parent=A1)


def event(number: int, kind: str, window: int = 64, **data: Any) -> dict[str, Any]:
    return {"event_id": number, "data": {"type": kind, **data}, "window_size": window}


def stored(number: int, parent: int | None, *blocks: tuple[int, list[int]], window: int = 64) -> dict[str, Any]:
    rows = [
        {"block_hash": name, "tokens": [{"token_id": t} for t in tokens], "cache_level": 0, "priority": 35}
        for name, tokens in blocks
    ]
    return event(number, "stored", window, parent_hash=parent, blocks=rows)


def moved(number: int, name: int, old: int, new: int) -> dict[str, Any]:
    change = {"type": "event_diff", "old_value": old, "new_value": new}
    return event(number, "updated", block_hash=name, cache_level=change, priority=None)


CREATED = event(0, "created", num_blocks_per_cache_level=[2, 1])
BOTH = stored(1, None, (A1, [1, 2]), (A2, [3, 4]))


def written(path: Path, *events: dict[str, Any]) -> Path:
    path.write_text(json.dumps(events), encoding="utf-8")
    return path


def test_sound_dump_has_no_fault_and_tells_what_is_held(tmp_path: Path) -> None:
    result = audit(
        written(tmp_path / "e.json", CREATED, BOTH, moved(2, A2, 0, 1), event(3, "removed", block_hashes=[A2]))
    )
    assert result.faults == []
    assert result.leaks == 0
    assert result.lines[1:] == [
        "window 64, level 0: 1 of 2 blocks at the end, 2 at most",
        "window 64, level 1: 0 of 1 blocks at the end, 1 at most",
    ]


@pytest.mark.parametrize(
    ("events", "fault"),
    [
        ([CREATED, stored(2, None, (A1, [1, 2]))], "event 2: follows event 0: 1 lost"),
        ([BOTH, event(1, "removed", block_hashes=[A2])], "event 1: follows event 1: out of order"),
        ([stored(1, A1, (A2, [3, 4]))], f"event 1: stores below {A1}, which nobody told of in window 64"),
        (
            [BOTH, stored(2, A1, (A2, [3, 4]), window=32)],
            f"event 2: stores below {A1}, which nobody told of in window 32",
        ),
        ([BOTH, event(2, "removed", block_hashes=[77])], "event 2: removes 77, which is not there in window 64"),
        ([moved(1, A1, 0, 1)], f"event 1: updates {A1}, which is not there in window 64"),
        ([BOTH, moved(2, A1, 1, 0)], f"event 2: cache_level of {A1} was 0, not 1"),
        ([CREATED, event(1, "created", num_blocks_per_cache_level=[2, 1])], "event 1: window 64 was created before"),
    ],
)
def test_fault_is_named_with_its_event(tmp_path: Path, events: list[dict[str, Any]], fault: str) -> None:
    assert audit(written(tmp_path / "e.json", *events)).faults == [fault]


def test_block_below_a_removed_one_is_a_leak_and_no_fault(tmp_path: Path) -> None:
    result = audit(written(tmp_path / "e.json", CREATED, BOTH, event(2, "removed", block_hashes=[A1])))
    assert (result.faults, result.leaks) == ([], 1)


def test_ranks_and_workers_number_their_events_by_themselves(tmp_path: Path) -> None:
    events = [{**BOTH, "worker_id": 0}, {**BOTH, "worker_id": 1}, {**BOTH, "worker_id": 1, "attention_dp_rank": 1}]
    assert audit(written(tmp_path / "e.json", *events)).faults == []


def test_hash_of_other_content_is_counted(tmp_path: Path) -> None:
    result = audit(written(tmp_path / "e.json", stored(1, None, (A1, [1, 9]))))
    assert any(line.startswith("1 hashes are not TensorRT-LLM's") for line in result.lines)


def test_statistics_of_iterations_must_add_up(tmp_path: Path) -> None:
    good = {
        "freeNumBlocks": 6,
        "usedNumBlocks": 4,
        "maxNumBlocks": 10,
        "reusedBlocks": 3,
        "missedBlocks": 1,
        "cacheHitRate": 0.75,
    }
    bad = good | {"freeNumBlocks": 7, "reusedBlocks": 2, "cacheHitRate": 0.75}
    path = tmp_path / "stats.jsonl"
    path.write_text(
        "".join(json.dumps({"iter": i, "kvCacheStats": s}) + "\n" for i, s in enumerate((good, bad))), encoding="utf-8"
    )
    assert audit(path).faults == [
        f"{path}:2: 7 free + 4 used are not 10 blocks",
        f"{path}:2: reusedBlocks fell from 3 to 2",
        f"{path}:2: cacheHitRate 0.75 is not 2 reused of 3",
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "nothing in it"),
        ("[{", "not JSON"),
        ('{"a": 1}\nnot json', ":2: not JSON"),
        ("[1]", "element 0: int found, expected an object"),
        ('[{"a": 1}]', "element 0: no KV event"),
        ('[{"event_id": 1, "data": {"type": "stored"}}]', "event 1 of type stored lacks 'parent_hash'"),
        (
            '{"kvCacheStats": {"freeNumBlocks": null, "usedNumBlocks": 1}}',
            ":1: freeNumBlocks is None; expected a number",
        ),
    ],
)
def test_file_that_is_no_dump_is_one_clear_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "e.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        audit(path)


def junk(value: Any) -> Iterator[Any]:
    """The JSON value with one part of it after the other replaced by something else or left out."""
    yield from (None, "x", -1, [], {}, [7], {"a": 1}, True)
    if isinstance(value, dict):
        for name, inner in value.items():
            yield {key: other for key, other in value.items() if key != name}
            yield from ({**value, name: other} for other in junk(inner))
    elif isinstance(value, list) and value:
        yield from ([other, *value[1:]] for other in junk(value[0]))


@pytest.mark.parametrize("record", [CREATED, BOTH, moved(1, A1, 0, 1), {"kvCacheStats": {"freeNumBlocks": 1}}])
def test_dump_with_any_part_wrong_is_a_fault_or_one_line_and_never_breaks(tmp_path: Path, record: Any) -> None:
    path = tmp_path / "e.json"
    for wrong in junk(record):
        path.write_text(json.dumps([wrong, BOTH]), encoding="utf-8")
        with suppress(ValueError):
            audit(path)


def test_file_that_is_no_text_names_the_file_and_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "e.json"
    path.write_bytes(b"[\xff")
    with pytest.raises(ValueError, match=r"e\.json: byte 1 is not UTF-8 text"):
        audit(path)


def test_command_ends_with_1_on_a_fault_and_counts_our_own_events_sound(tmp_path: Path) -> None:
    bad = written(tmp_path / "e.json", BOTH, event(9, "removed", block_hashes=[A2]))
    result = CliRunner().invoke(app, ["audit", str(bad)])
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-2:] == ["event 9: follows event 1: 7 lost", f"{bad}: 1 fault"]
    trace, out = ROOT / "tests" / "traces" / "formats" / "mooncake.jsonl", tmp_path / "ours.json"
    pools = ["--gpu-blocks", "50", "--host-blocks", "20", "--set", "tokens_per_block=512"]
    made = CliRunner().invoke(app, ["replay", str(trace), *pools, "--no-timing", "--events", str(out)])
    assert made.exit_code == 0, made.output
    assert CliRunner().invoke(app, ["audit", str(out)]).exit_code == 0
