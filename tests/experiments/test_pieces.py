"""A cache-only run of a trace in pieces gives the row of the whole trace."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest

from experiments import untimed
from experiments.complaints import SpecError
from experiments.ready import Ready, needs_whole_trace
from experiments.run import run
from experiments.spec import Spec
from experiments.untimed import run_pieces
from kvcache.request import Requests
from traces.read import read
from traces.stream import in_pieces

Build = Callable[..., Requests]
OF_THE_CLOCK = {"wall_s", "events_per_s"}


def spec_of(gpu: int, host: int = 0, tpb: int = 16, **more: Any) -> Spec:
    return Spec.model_validate({
        "capacity": {"gpu_blocks": gpu, "host_blocks": host},
        "kv_cache_config": {"tokens_per_block": tpb},
        **more,
    })


def without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in OF_THE_CLOCK | set(names)}


RULES = [{"turns": True, "priority": 50, "duration_s": 30}, {"decode": True, "priority": 20}]


@pytest.mark.parametrize("size", [7, 100, 100_000])
def test_the_row_of_a_bundled_trace_is_that_of_the_whole(size: int) -> None:
    requests, spec = read("llmservingsim_sharegpt300_blk8"), spec_of(2000, 4000, retention=RULES)
    whole = run(spec, requests, timing=False)
    assert whole["misses_by_cause"]["evicted_from_host"] > 0
    assert without(run_pieces(spec, in_pieces(requests, size).pieces)) == without(whole)


def test_with_little_room_for_keys_only_causes_of_misses_are_forgotten_and_a_note_says_so() -> None:
    requests, spec = read("mooncake_arxiv_first1000"), spec_of(3000, 3000, 64)
    whole = run(spec, requests, timing=False)
    row = run_pieces(spec, in_pieces(requests, 20).pieces, remembered=0)
    assert without(row, "misses_by_cause", "notes") == without(whole, "misses_by_cause", "notes")
    assert sum(row["misses_by_cause"].values()) == sum(whole["misses_by_cause"].values())
    assert row["misses_by_cause"]["never_seen"] > whole["misses_by_cause"]["never_seen"]
    assert "keys that were in no cache were forgotten" in row["notes"][-1]


def test_requests_left_out_are_counted_over_all_pieces(build: Build) -> None:
    requests = build([[1], [1, 2, 3, 4], [5], [1, 2, 3, 6]])
    row = run_pieces(spec_of(3, too_long="drop"), in_pieces(requests, 1).pieces)
    assert (row["requests"], row["prompt_tokens"]) == (2, 32)
    assert row["notes"][0] == "dropped 2 requests longer than the GPU pool of 3 blocks of 16 tokens (too_long=drop)"


def test_a_request_that_does_not_fit_is_named_by_its_number_in_the_whole(build: Build) -> None:
    with pytest.raises(ValueError, match="request 2 needs 64 prompt"):
        run_pieces(spec_of(3), in_pieces(build([[1], [2], [1, 2, 3, 4]]), 1).pieces)


def test_a_value_no_piece_has_is_refused_and_one_that_comes_late_is_not(build: Build) -> None:
    requests = build([[1], [2], [3]], tenant=["free", "gold", "free"])
    pieces = [requests.take(np.array([i], np.int64)) for i in range(3)]
    rule = {"where": {"tenant": ["gold"]}, "priority": 80}
    assert run_pieces(spec_of(8, retention=[rule]), pieces)["requests"] == 3
    with pytest.raises(SpecError, match="no request has 'golden'"):
        run_pieces(spec_of(8, retention=[{**rule, "where": {"tenant": ["golden"]}}]), pieces)


def test_a_request_longer_than_the_pools_were_laid_out_for_names_the_setting(build: Build) -> None:
    requests = build([[1], [2]], prompt_tokens=[16, 200_000])
    with pytest.raises(ValueError, match=r"a request of 200010 tokens comes after request 1.*scheduler.max_seq_len"):
        run_pieces(spec_of(20_000), in_pieces(requests, 1).pieces)


def test_rules_that_look_ahead_need_the_whole_trace() -> None:
    assert needs_whole_trace(spec_of(8, retention=[{"system_prompt": {"min_sessions": 2}, "priority": 100}]))
    assert needs_whole_trace(spec_of(8, workload={"spread_arrivals": True}))
    assert not needs_whole_trace(spec_of(8, retention=[{"system_prompt": {"first_tokens": 64}, "priority": 100}]))


def test_a_piece_is_cut_into_parts_of_bounded_content_and_no_request_is_lost(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Prompts of 2 blocks and 10 tokens more: 2 whole blocks each, so running sums 2, 4, 6, ...; a part ends before the sum
    # reaches 6, 12, 18: after 2, 5, 8 requests.
    monkeypatch.setattr(untimed, "PART_BLOCKS", 6)
    requests, parts = build([[i, i + 1] for i in range(10)]), list[int]()
    ready_pieces = untimed.ready_pieces

    def watched(spec: Spec, pieces: Iterable[Requests]) -> Iterator[Ready]:
        for work in ready_pieces(spec, pieces):
            parts.append(len(work.requests))
            yield work

    monkeypatch.setattr(untimed, "ready_pieces", watched)
    assert run_pieces(spec_of(8), [requests])["requests"] == 10
    assert parts == [2, 3, 3, 2]
