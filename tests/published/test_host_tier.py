"""Host memory as a second tier, on and off: worth it where the link is faster than computing, harmful where it is not.

Timed runs: prompts of 10,000 tokens are asked for in turn, and the GPU holds fewer of them than there are. LRU has
always just lost the one that is wanted, so without a host pool every prompt is computed; with one, every prompt from
the second round on comes back from it.
"""

from pathlib import Path

import numpy as np
import pytest
import yaml

from experiments.breakeven import Ask, breakeven
from experiments.published.runs import Prompt, requests_of, served, spec_of

PROMPTS, ROUNDS, TOKENS = 4, 3, 10_000
GPU_TOKENS, HOST_TOKENS = 2 * TOKENS + 64, (PROMPTS + 1) * TOKENS


def machine(directory: Path, gb_per_s: float) -> str:
    """An H100 whose host link is a straight line of this bandwidth, both ways."""
    way = {"latency_s": 3.5e-6, "bandwidth_bytes_per_s": gb_per_s * 1e9, "source": "test"}
    path = directory / f"link-{gb_per_s}.yaml"
    path.write_text(yaml.safe_dump({"base": "h100-sxm", "links": {"host": {"h2d": way, "d2h": way}}}))
    return str(path)


def mean_first_token_s(hardware: str, host_tokens: int) -> tuple[float, int]:
    """Mean seconds to the first token from the second round on, and the tokens found."""
    prompts = [Prompt(i % PROMPTS, TOKENS, 100.0 * i) for i in range(PROMPTS * ROUNDS)]
    requests = requests_of(prompts)
    outcome = served(spec_of(GPU_TOKENS, host_tokens, hardware), requests)
    took = outcome.first_token_s - requests.arrival_s
    return float(np.mean(took[PROMPTS:])), int(outcome.reused.sum())


@pytest.mark.parametrize(("gb_per_s", "faster"), [(47.7, True), (12.0, True), (4.0, False), (1.0, False)])
def test_a_host_tier_helps_above_the_break_even_bandwidth_and_hurts_below(
    tmp_path: Path, gb_per_s: float, faster: bool
) -> None:
    hardware = machine(tmp_path, gb_per_s)
    without_s, none = mean_first_token_s(hardware, 0)
    with_s, found = mean_first_token_s(hardware, HOST_TOKENS)
    assert none == 0
    assert found == PROMPTS * (ROUNDS - 1) * (TOKENS - 1)
    assert (with_s < without_s) is faster


def test_the_change_lies_where_breakeven_says(tmp_path: Path) -> None:
    # 10,000 tokens are 1.31 GB; computing takes 0.275 s, of it 7 ms for the last token: 4.9 GB/s. Each prompt that
    # comes in pushes one out over the other direction at the same time, which this link does not mind.
    [point] = breakeven(Ask("llama-3.1-8b", isl=TOKENS, tokens_per_block=16)).points
    assert point.exact_gb_per_s is not None
    without_s, _ = mean_first_token_s(machine(tmp_path, 20.0), 0)
    for share, faster in ((0.94, False), (1.06, True)):
        with_s, _ = mean_first_token_s(machine(tmp_path, round(share * point.exact_gb_per_s, 3)), HOST_TOKENS)
        assert (with_s < without_s) is faster
