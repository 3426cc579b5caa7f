"""The bundled samples give exactly the counts that were measured on them by other means, at a bounded cost."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from traces.read import read, samples
from traces.stats import measure

REFERENCE = json.loads((Path(__file__).parent / "reference.json").read_text())
COUNTS = ("requests", "input_tokens", "output_tokens", "total_blocks", "hit_blocks", "hit_tokens", "unique_blocks")


@pytest.mark.parametrize("file", [name for name in REFERENCE if name != "note"])
def test_sample_has_exactly_the_reference_counts(file: str) -> None:
    workload = read(file.removesuffix(".jsonl.gz"))
    stats = measure(workload)
    assert {name: getattr(stats, name) for name in COUNTS} == {name: REFERENCE[file][name] for name in COUNTS}
    assert workload.unit_tokens == REFERENCE[file]["block_size"]


@pytest.mark.parametrize("name", samples())
def test_sample_reads_in_order_of_arrival_from_zero(name: str) -> None:
    workload = read(name)
    assert workload.arrival_s[0] == 0
    assert (np.diff(workload.arrival_s) >= 0).all()
    assert workload.source == name
    assert not any("overrides" in note for note in workload.notes)


@pytest.mark.parametrize("name", samples())
def test_sample_is_named_in_the_readme_beside_it(name: str) -> None:
    file = samples()[name]
    assert file.name in (file.parent / "README.md").read_text(encoding="utf-8")


def test_seven_million_ids_read_within_ten_seconds_and_500_mib() -> None:
    script = (
        "import re, time, pathlib; from traces.read import read; start = time.process_time();"
        "n = len(read('claude_code_weka_a').units); spent_s = time.process_time() - start;"
        "peak = re.search(r'VmHWM:\\s+(\\d+) kB', pathlib.Path('/proc/self/status').read_text());"
        "print(n, spent_s, int(peak[1]) / 1024)"
    )
    root = Path(__file__).parents[2]
    out = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True).stdout
    n, spent_s, peak_mib = (float(word) for word in out.split())
    assert n == REFERENCE["claude_code_weka_a.jsonl.gz"]["total_blocks"]
    assert spent_s < 10
    assert peak_mib < 500


@pytest.mark.parametrize(
    ("name", "block"), [("llmservingsim_sharegpt300_blk8", 8), ("llmservingsim_sharegpt300_blk16", 16)]
)
def test_output_units_continue_where_the_prompts_whole_blocks_end(name: str, block: int) -> None:
    workload = read(name)
    assert workload.output_offset is not None
    total = workload.prompt_tokens + workload.output_tokens
    n_output = np.diff(workload.output_offset)
    assert set(n_output - (total // block - workload.prompt_tokens // block)) <= {0, 1}
    # The first row: 2,358 tokens in and 531 out. Prompt ids run from 0; the generated ones go on without a gap.
    first = workload.output_units[: n_output[0]] if workload.output_units is not None else []
    assert len(workload.prompt_units(0)) == -(-2358 // block)
    assert len(first) in {(2358 + 531) // block - 2358 // block, -(-(2358 + 531) // block) - 2358 // block}


def test_sub_agents_start_when_they_were_spawned_and_share_ids_with_their_session() -> None:
    workload = read("claude_code_weka_a")
    agents = workload.labels["agent"]
    sub_agent = np.flatnonzero(agents.codes == agents.names.index("sub-agent"))
    assert len(sub_agent) == 166
    assert len(np.unique(workload.session[sub_agent])) == 14
    assert len(np.unique(workload.session)) == 57 + 14
    # Session trace_0004 spawned agent_001 at 440,243.409 s.
    starts = sorted({float(workload.arrival_s[workload.session == s].min()) for s in workload.session[sub_agent]})
    assert 440243.409 in starts


def test_dynamo_prompts_explain_most_of_the_tokens_that_the_engine_found_cached() -> None:
    # The engine measured 50,256 cached tokens of 66,520 (the sum of cached_tokens in the file); it may also reuse
    # answers, which this count leaves out, and it had blocks in flight that this count takes as present.
    stats = measure(read("dynamo_pi_request_trace"))
    assert (stats.requests, stats.input_tokens, stats.hit_tokens) == (17, 66_520, 47_680)
    assert (stats.unit_tokens, stats.sessions) == (16, 5)
