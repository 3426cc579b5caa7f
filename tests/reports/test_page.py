"""Pages: one file, no network, numbers of the table, and nothing that a value could break out of."""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from reports.page.kinds import report
from reports.page.run import Sliced
from reports.page.sweep import specs
from reports.page.write import as_json
from tests.reports import sweeps


def data_of(page: Path) -> dict[str, Any]:
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL
    )
    assert found is not None
    data: dict[str, Any] = json.loads(found.group(1))
    return data


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return report(sweeps.write(tmp_path / "sweep"), tmp_path / "page.html", "kvtier test")


def test_page_asks_nothing_of_a_network(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert set(re.findall(r"https?://[^\"'\s<]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|iframe)\b|\bfetch\(|import\(", text)


def test_page_holds_every_finished_run_with_the_figures_of_the_table(page: Path) -> None:
    explore = data_of(page)["sections"][0]
    names = [column["name"] for column in explore["columns"]]
    assert len(explore["rows"]) == 17
    third = dict(zip(names, explore["rows"][2], strict=True))
    # Block 16, threshold 40: 61^2 x 1.5e8 bytes, 0.5 - 0.04 - 4/100.
    assert third["moved_bytes"] == 558150000000
    assert third["hit_rate_tokens"] == pytest.approx(0.42)
    assert third["tokens_per_block"] == 16


def test_failed_run_is_listed_with_its_error_and_cannot_end_the_script(page: Path) -> None:
    failed = next(section for section in data_of(page)["sections"] if section.get("title") == "Runs that failed")
    assert failed["rows"] == [[17, "request 3 </script> does not fit"]]


def test_title_is_escaped(page: Path) -> None:
    assert "<title>a &lt;trace&gt;</title>" in page.read_text(encoding="utf-8")


def test_specs_are_kept_once_and_then_as_differences(tmp_path: Path) -> None:
    base, own = specs(sweeps.write(tmp_path), [0, 1, 6])
    assert base == {
        "kv_cache_config.tokens_per_block": 16,
        "kv_cache_config.secondary_offload_min_priority": 0,
        "model": "llama-3.1-8b",
    }
    assert own == [
        {},
        {"kv_cache_config.secondary_offload_min_priority": 20},
        {"kv_cache_config.tokens_per_block": 32},
    ]


def test_numbers_that_are_none_become_null_and_others_keep_six_digits() -> None:
    assert (
        as_json([float("nan"), float("inf"), 1.0, 1234567.89, 0.123456789, True])
        == "[null,null,1,1234570,0.123457,true]"
    )


def test_levels_are_carried_over_slices_without_a_step() -> None:
    # Three steps make three slices of 4 s: the first two steps end in the first, the last in the third.
    # Worker 1 has one step only: it still holds its 7 blocks in the second and third slice.
    steps = pd.DataFrame({
        "worker": [0, 1, 0],
        "start_s": [0.0, 0.0, 2.0],
        "end_s": [2.0, 4.0, 12.0],
        "host_blocks": [3, 7, 5],
    })
    assert Sliced(steps).level("host_blocks").tolist() == [10, 10, 12]


def test_rates_spread_a_step_evenly_over_its_time() -> None:
    # Slices of 4 s to 12 s. Worker 0: 1 s of kernels in 0..2 s, 5 s in 2..12 s, so 1 + 1, 2 and 2 s. Worker 1: 4 s in 0..4 s.
    steps = pd.DataFrame({
        "worker": [0, 1, 0],
        "start_s": [0.0, 0.0, 2.0],
        "end_s": [2.0, 4.0, 12.0],
        "compute_s": [1.0, 4.0, 5.0],
    })
    sliced = Sliced(steps)
    assert sliced.rate("compute_s") == pytest.approx([6 / 4, 2 / 4, 2 / 4])
    assert sliced.share("compute_s") == pytest.approx([6 / 8, 2 / 8, 2 / 8])


def test_page_of_a_run_has_its_misses_and_its_specification(tmp_path: Path) -> None:
    run = {
        "requests": 2, "prompt_tokens": 100, "hit_rate_tokens": 0.25, "hit_tokens_by_tier": {"gpu": 20, "host": 5, "disk": 0},
        "misses_by_cause": {"never_seen": 3}, "spec": {"model": "m"}, "ttft_s": None, "version": "0", "notes": ["a note"],
    }  # fmt: skip
    (tmp_path / "run.json").write_text(json.dumps(run), encoding="utf-8")
    data = data_of(report(tmp_path / "run.json", tmp_path / "run.html", "kvtier"))
    bars = {section["title"]: section["rows"] for section in data["sections"] if section["kind"] == "bars"}
    assert bars["Where prompt tokens came from"] == [{"name": "all requests", "parts": [20, 5, 0, 75]}]
    assert bars["Why blocks were not found"] == [{"name": "content nobody had yet", "parts": [3]}]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("nothing.json", None, "no such file or directory"),
        ("other.json", '{"a": 1}', "JSON, but not of a run"),
        ("other.txt", "hello", "neither JSON nor a hardware file"),
        ("directory", None, "none of sweep.parquet"),
    ],
)
def test_path_that_holds_no_result_is_one_clear_line(
    tmp_path: Path, name: str, content: str | None, words: str
) -> None:
    path = tmp_path / name
    if name == "directory":
        path.mkdir()
    elif content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        report(path, tmp_path / "page.html", "kvtier")
    assert not (tmp_path / "page.html").exists()


def test_page_must_be_named_html(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"page\.pdf: the page is HTML"):
        report(sweeps.write(tmp_path / "sweep"), tmp_path / "page.pdf", "kvtier")
