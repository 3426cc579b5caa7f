"""Statistics agree with a plain count over sets of prefixes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcache.request import Requests
from traces.stats import hits, measure


def workload(prompts: list[list[int]], salt: list[int] | None = None, unit_tokens: int = 4) -> Requests:
    lengths = [len(p) for p in prompts]
    return Requests(
        source="test",
        unit_tokens=unit_tokens,
        arrival_s=np.arange(len(prompts), dtype=np.float64),
        prompt_tokens=np.array([n * unit_tokens for n in lengths], np.int32),
        output_tokens=np.full(len(prompts), 10, np.int32),
        unit_offset=np.cumsum([0, *lengths], dtype=np.int64),
        units=np.array([u for p in prompts for u in p], np.int32),
        salt=np.array(salt if salt is not None else [-1] * len(prompts), np.int32),
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=6), st.integers(-1, 1)), max_size=12))
def test_hits_are_the_longest_prefix_seen_before_in_the_same_namespace(rows: list[tuple[list[int], int]]) -> None:
    seen: set[tuple[int, ...]] = set()
    expected = []
    for prompt, salt in rows:
        prefixes = [(salt, *prompt[: k + 1]) for k in range(len(prompt))]
        expected.append(sum(p in seen for p in prefixes))
        seen.update(prefixes)
    requests = workload([p for p, _ in rows], [s for _, s in rows])
    assert hits(requests).tolist() == expected
    assert measure(requests).unique_blocks == len(seen)


def test_a_small_workload_is_measured_as_by_hand() -> None:
    # Three prompts of 8, 12 and 8 tokens, one second apart. The second repeats both blocks of the first, the third one.
    stats = measure(workload([[1, 2], [1, 2, 3], [1, 9]]))
    assert (stats.requests, stats.span_s, stats.request_rate_rps) == (3, 2.0, 1.5)
    assert (stats.input_tokens, stats.output_tokens) == (28, 30)
    assert (stats.total_blocks, stats.unique_blocks, stats.hit_blocks, stats.hit_tokens) == (7, 4, 3, 12)
    assert stats.hit_token_share == pytest.approx(12 / 28)
    assert (stats.prompt.p50_tokens, stats.prompt.max_tokens) == (8, 12)
    assert (stats.sessions, stats.requests_with_session) == (0, 0)


def test_requests_at_one_instant_have_no_rate_and_none_have_no_statistics() -> None:
    assert np.isnan(measure(workload([[1]])).request_rate_rps)
    assert measure(workload([])).requests == 0
    assert measure(workload([])).hit_token_share == 0
