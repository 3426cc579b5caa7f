"""What a format can hold comes back the same; what it cannot is said, and a file is whole or not there."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.trace_make import generate, mix, save
from kvcache.request import Requests
from traces.errors import TraceError
from traces.options import ReadOptions
from traces.read import opened, read
from traces.stats import hits
from traces.stream import in_pieces

FORMAT_FILES = Path(__file__).parent / "formats"
TOKEN_LEVEL = ("tokens", "llmservingsim")


def same(one: Requests, other: Requests, *, content: bool, sessions: bool, outputs: bool) -> None:
    assert one.arrival_s.tolist() == pytest.approx(other.arrival_s.tolist(), abs=2e-9)
    assert one.prompt_tokens.tolist() == other.prompt_tokens.tolist()
    assert one.output_tokens.tolist() == other.output_tokens.tolist()
    if content:
        assert one.unit_tokens == other.unit_tokens
        assert one.unit_offset.tolist() == other.unit_offset.tolist()
        assert hits(one).tolist() == hits(other).tolist()
    if sessions:
        assert renamed(one.session) == renamed(other.session)
    if outputs and other.output_units is not None:
        assert one.output_units is not None
        assert one.output_offset is not None
        assert other.output_offset is not None
        assert one.output_offset.tolist() == other.output_offset.tolist()


def renamed(numbers: np.ndarray) -> list[int]:  # type: ignore[type-arg]
    """In order of first appearance."""
    seen: dict[int, int] = {}
    return [-1 if n < 0 else seen.setdefault(n, len(seen)) for n in numbers.tolist()]


SAMPLES = sorted(path.name for path in FORMAT_FILES.iterdir() if path.suffix in {".csv", ".json", ".jsonl"})


def whole(name: str) -> Requests | None:
    """A sample, or None where it is not one that is read without being told more."""
    try:
        return read(FORMAT_FILES / name, options=ReadOptions(default_output=7, default_prompt=9, bytes_per_token=4))
    except TraceError:
        return None


def refusal(requests: Requests, out: Path, target: str) -> str:
    try:
        save(in_pieces(requests), str(out), target)
    except TraceError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "target", ["parquet", "mooncake", "aiperf", "bailian", "dynamo", *TOKEN_LEVEL, "aibrix", "vidur"]
)
def test_every_sample_comes_back_as_far_as_the_target_can_hold_it(target: str, tmp_path: Path) -> None:
    done = 0
    for name in SAMPLES:
        requests = whole(name)
        if requests is None:
            continue
        out = tmp_path / f"{name}.{target}{'.parquet' if target == 'parquet' else '.gz'}"
        named = len(requests.units) > 0
        refused = refusal(requests, out, target)
        if refused:  # blocks this format cannot say
            assert "--tokens-per-block" in refused or "every token" in refused
            assert not out.exists()
            continue
        if target in TOKEN_LEVEL and not named:
            continue  # its readers want content
        again = read(out, format=None if target != "aiperf" else "mooncake", options=ReadOptions(link_outputs=False))
        same(
            again,
            requests,
            content=target not in {"vidur", "aibrix"} and (named or target == "parquet"),
            sessions=target in {"parquet", "mooncake", "aiperf", "dynamo", "tokens"},
            outputs=target in {"parquet", "mooncake", *TOKEN_LEVEL},
        )
        done += 1
    assert done >= (1 if target in TOKEN_LEVEL else 3)


def test_a_chat_keeps_its_conversations_in_bailians_chain_of_parents(tmp_path: Path) -> None:
    made = read("synthetic:chat?requests=300&block_tokens=16")
    save(in_pieces(made, 50), str(tmp_path / "chat.jsonl"), "bailian")
    again = read(tmp_path / "chat.jsonl", options=ReadOptions(link_outputs=False))
    same(again, made, content=True, sessions=True, outputs=False)
    rows = [json.loads(line) for line in (tmp_path / "chat.jsonl").read_text(encoding="utf-8").splitlines()]
    later = [row for row in rows if row["parent_chat_id"] >= 0]
    assert all(rows[row["parent_chat_id"]]["turn"] == row["turn"] - 1 for row in later)
    assert len(later) > 50


def test_parquet_in_pieces_is_the_whole_with_labels_and_think_times(tmp_path: Path) -> None:
    made = read("synthetic:agents?requests=500&block_tokens=64")
    save(in_pieces(made, 77), str(tmp_path / "a.parquet"), None)
    again = read(tmp_path / "a.parquet")
    assert again.units.tolist() == made.units.tolist()
    assert again.labels["tenant"].codes.tolist() == made.labels["tenant"].codes.tolist()
    np.testing.assert_array_equal(again.think_s, made.think_s)
    pieces = list(opened(tmp_path / "a.parquet").pieces)
    assert sum(map(len, pieces)) == 500


def test_what_is_lost_is_said_once_and_strict_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = read("synthetic:chat?requests=60&block_tokens=16")
    made = replace(made, salt=np.zeros(60, np.int32))
    save(in_pieces(made, 20), str(tmp_path / "a.jsonl"), "aiperf")
    said = capsys.readouterr().err
    assert said.count("cannot hold") == 1
    assert "content of outputs, salts and LoRA adapters, think times, label tenant: left out" in " ".join(said.split())
    with pytest.raises(TraceError, match=r"aiperf cannot hold .*--strict refuses"):
        save(in_pieces(made), str(tmp_path / "b.jsonl"), "aiperf", strict=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl"]


def test_coarser_blocks_are_cut_on_the_way(tmp_path: Path) -> None:
    save(opened("llmservingsim_sharegpt300_blk8"), str(tmp_path / "a.jsonl"), "bailian", 16)
    again = read(tmp_path / "a.jsonl", options=ReadOptions(link_outputs=False))
    assert int(hits(again).sum()) == int(hits(read("llmservingsim_sharegpt300_blk16")).sum())


@pytest.mark.parametrize(
    ("out", "to", "message"),
    [
        ("x.jsonl", None, "say the format with --to"),
        ("x.jsonl", "bert", "--to is 'bert'; it can be parquet, mooncake"),
        ("-", "parquet", "cannot go to standard output"),
        ("x.parquet.gz", "parquet", "packs its columns itself"),
    ],
)
def test_a_target_that_cannot_be_meant_is_refused(out: str, to: str | None, message: str) -> None:
    with pytest.raises(TraceError, match=message):
        save(opened("mooncake_arxiv_first1000"), out, to)


def test_generate_writes_the_same_bytes_for_the_same_seed_and_other_bytes_for_another(tmp_path: Path) -> None:
    made = {}
    for name, settings in (("a", ["seed=1"]), ("b", ["seed=1"]), ("c", ["seed=2"])):
        for suffix in (".parquet", ".jsonl.gz", ".jsonl.zst"):
            out = tmp_path / (name + suffix)
            to = None if suffix == ".parquet" else "mooncake"
            generate("chat", ["requests=300", *settings], str(out), to, strict=False)
            made[name + suffix] = out.read_bytes()
    for suffix in (".parquet", ".jsonl.gz", ".jsonl.zst"):
        assert made["a" + suffix] == made["b" + suffix]
        assert made["a" + suffix] != made["c" + suffix]
    assert read(tmp_path / "a.jsonl.zst").units.tolist() == read(tmp_path / "a.jsonl.gz").units.tolist()


def test_a_mix_of_files_keeps_each_ones_hits(tmp_path: Path) -> None:
    one, other = tmp_path / "one.jsonl", tmp_path / "other.jsonl"
    for path, seed in ((one, 1), (other, 2)):
        generate("rag", ["requests=200", f"seed={seed}", "documents=20"], str(path), "mooncake", strict=False)
    mix([str(one), str(other)], [1, 3], str(tmp_path / "both.parquet"), None, None)
    both = read(tmp_path / "both.parquet")
    assert len(both) == 400
    found, part = hits(both), both.labels["part"].codes
    for k, path in enumerate((one, other)):
        assert found[part == k].tolist() == hits(read(path)).tolist()
    last = [float(both.arrival_s[part == k][-1]) for k in (0, 1)]
    assert last[1] == pytest.approx(float(read(other).arrival_s[-1]) / 3)


def test_standard_output_gets_rows_and_nothing_else() -> None:
    code = "from experiments.cli import main; main()"
    command = ["trace", "convert", "mooncake_arxiv_first1000", "--limit", "3", "--to", "vidur", "-o", "-"]
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "arrived_at,num_prefill_tokens,num_decode_tokens"
    assert len(done.stdout.splitlines()) == 4
    assert "standard output: 3 requests" in done.stderr
