"""Retention rules become token ranges: which part of which request gets which priority, for how long."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.complaints import SpecError
from experiments.retention import check_labels, columns
from experiments.spec import RetentionRule
from kvcache.request import Requests

Build = Callable[..., Requests]


def rules(*fields: dict[str, Any]) -> tuple[RetentionRule, ...]:
    return tuple(RetentionRule.model_validate(rule) for rule in fields)


def ranges(requests: Requests, *fields: dict[str, Any]) -> list[list[list[int]]]:
    found = columns(requests, rules(*fields))
    pieces = np.split(found.ranges, found.range_offset[1:-1])
    return [piece.tolist() for piece in pieces]


ESSAY: tuple[dict[str, Any], ...] = (
    {"system_prompt": {"min_sessions": 2}, "priority": 100},
    {"turns": True, "priority": 50, "duration_s": 30},
    {"decode": True, "priority": 20, "duration_s": 10},
)


def test_shared_prefix_is_system_prompt_and_the_rest_are_turns(build: Build) -> None:
    requests = build([[1, 2, 3], [1, 2, 4, 5], [6]], session=[0, 1, 2])
    assert ranges(requests, *ESSAY) == [
        [[0, 32, 100, -1], [32, 48, 50, 30_000]],
        [[0, 32, 100, -1], [32, 64, 50, 30_000]],
        [[0, 16, 50, 30_000]],
    ]
    found = columns(requests, rules(*ESSAY))
    assert found.decode_priority.tolist() == [20, 20, 20]
    assert found.decode_duration_ms.tolist() == [10_000, 10_000, 10_000]


def test_a_session_that_repeats_itself_shares_nothing(build: Build) -> None:
    requests = build([[1, 2], [1, 2, 3], [1, 2, 3, 4]], session=[7, 7, 7])
    assert ranges(requests, ESSAY[0]) == [[], [], []]


def test_sessions_that_interleave_are_counted_once_each(build: Build) -> None:
    requests = build([[1], [1], [1], [1]], session=[0, 1, 0, 1])
    assert ranges(requests, {"system_prompt": {"min_sessions": 2}, "priority": 9})[0] == [[0, 16, 9, -1]]
    assert ranges(requests, {"system_prompt": {"min_sessions": 3}, "priority": 9})[0] == []


def test_without_sessions_every_request_counts(build: Build) -> None:
    requests = build([[1], [1], [1]])
    assert ranges(requests, {"system_prompt": {"min_sessions": 3}, "priority": 9}) == [[[0, 16, 9, -1]]] * 3


def test_equal_content_after_different_prefixes_is_not_shared(build: Build) -> None:
    requests = build([[1, 9], [2, 9]], session=[0, 1])
    assert ranges(requests, ESSAY[0]) == [[], []]


def test_sharing_stops_at_the_first_unit_that_is_not_shared(build: Build) -> None:
    requests = build([[1, 2, 9], [1, 3, 9]], session=[0, 1])
    assert ranges(requests, ESSAY[0]) == [[[0, 16, 100, -1]]] * 2


def test_different_salts_share_no_system_prompt(build: Build) -> None:
    requests = build([[1, 2], [1, 2]], session=[0, 1], salt=[0, 1])
    assert ranges(requests, ESSAY[0]) == [[], []]


def test_later_sessions_count_for_earlier_requests_too(build: Build) -> None:
    requests = build([[1], [2], [1]], session=[0, 1, 2])
    assert ranges(requests, ESSAY[0])[0] == [[0, 16, 100, -1]]


def test_range_never_passes_the_end_of_a_prompt_whose_last_unit_is_short(build: Build) -> None:
    requests = build([[1, 2], [1, 2]], session=[0, 1], prompt_tokens=[20, 20])
    assert ranges(requests, *ESSAY)[0] == [[0, 20, 100, -1]]


def test_prompt_tail_without_identity_belongs_to_the_turns(build: Build) -> None:
    requests = build([[1], [1]], session=[0, 1], prompt_tokens=[20, 30])
    assert ranges(requests, *ESSAY) == [
        [[0, 16, 100, -1], [16, 20, 50, 30_000]],
        [[0, 16, 100, -1], [16, 30, 50, 30_000]],
    ]


def test_first_tokens_cut_a_short_prompt_at_its_end(build: Build) -> None:
    requests = build([[1], [2, 3]])
    assert ranges(requests, {"system_prompt": {"first_tokens": 24}, "priority": 70}) == [
        [[0, 16, 70, -1]],
        [[0, 24, 70, -1]],
    ]


def test_of_two_rules_for_a_token_the_first_wins(build: Build) -> None:
    requests = build([[1, 2, 3]])
    first, second = (
        {"system_prompt": {"first_tokens": 16}, "priority": 90},
        {"system_prompt": {"first_tokens": 32}, "priority": 60},
    )
    turns = {"turns": True, "priority": 40}
    assert ranges(requests, first, second, turns) == [[[0, 16, 90, -1], [16, 32, 60, -1], [32, 48, 40, -1]]]
    assert ranges(requests, second, first, turns) == [[[0, 32, 60, -1], [32, 48, 40, -1]]]


def test_rule_for_one_tenant_leaves_the_others_to_the_next_rule(build: Build) -> None:
    requests = build([[1], [2]], tenant=["gold", "free"])
    gold = {"where": {"tenant": ["gold"]}, "priority": 80}
    rest = {"turns": True, "priority": 10}
    assert ranges(requests, gold, rest) == [[[0, 16, 80, -1]], [[0, 16, 10, -1]]]
    assert columns(requests, rules(gold, rest)).decode_priority.tolist() == [80, 35]


def test_no_rules_say_nothing(build: Build) -> None:
    found = columns(build([[1], [2, 3]]), ())
    assert len(found.ranges) == 0
    assert found.decode_priority.tolist() == [35, 35]
    assert found.decode_duration_ms.tolist() == [-1, -1]


def test_empty_trace_gets_empty_columns(build: Build) -> None:
    found = columns(build([]), rules(*ESSAY))
    assert found.range_offset.tolist() == [0]


def test_duration_below_a_millisecond_does_not_become_for_ever(build: Build) -> None:
    assert ranges(build([[1]]), {"turns": True, "priority": 1, "duration_s": 0.0001}) == [[[0, 16, 1, 1]]]


def test_unknown_label_and_unknown_value_name_the_near_ones(build: Build) -> None:
    labels = build([[1], [2]], tenant=["gold", "free"]).labels
    with pytest.raises(SpecError, match=r"retention\[0\]\.where\.tennant: .* did you mean tenant"):
        check_labels(rules({"where": {"tennant": ["gold"]}, "priority": 1}), labels)
    with pytest.raises(SpecError, match=r"no request has 'golden'; did you mean gold"):
        check_labels(rules({"where": {"tenant": ["golden"]}, "priority": 1}), labels)
    with pytest.raises(SpecError, match="it has none"):
        check_labels(rules({"where": {"tenant": ["gold"]}, "priority": 1}), {})


PROMPTS = st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=6)


@given(PROMPTS, st.integers(1, 3), st.data())
def test_shared_prefix_agrees_with_a_set_of_sessions_per_prefix(
    prompts: list[list[int]], least: int, data: st.DataObject
) -> None:
    session = data.draw(st.lists(st.integers(-1, 2), min_size=len(prompts), max_size=len(prompts)))
    offset = np.cumsum([0, *map(len, prompts)]).astype(np.int64)
    units = np.array([unit for prompt in prompts for unit in prompt], np.int32)
    tokens = np.array(list(map(len, prompts)), np.int32)
    arrival = np.zeros(len(prompts))
    requests = Requests("test", 1, arrival, tokens, tokens, offset, units, session=np.array(session, np.int32))
    owners: dict[tuple[int, ...], set[object]] = {}
    for i, prompt in enumerate(prompts):
        for end in range(1, len(prompt) + 1):
            owners.setdefault(tuple(prompt[:end]), set()).add(session[i] if session[i] >= 0 else f"request {i}")
    shared = [sum(len(owners[tuple(p[:end])]) >= least for end in range(1, len(p) + 1)) for p in prompts]
    found = ranges(requests, {"system_prompt": {"min_sessions": least}, "priority": 1})
    assert found == [[[0, end, 1, -1]] if end else [] for end in shared]


@given(PROMPTS, st.permutations(range(4)))
def test_ranges_are_sorted_disjoint_and_inside_the_prompt(prompts: list[list[int]], order: list[int]) -> None:
    offset = np.cumsum([0, *map(len, prompts)]).astype(np.int64)
    units = np.array([unit for prompt in prompts for unit in prompt], np.int32)
    tokens = np.array([len(prompt) * 4 for prompt in prompts], np.int32)
    requests = Requests("test", 4, np.zeros(len(prompts)), tokens, tokens, offset, units)
    every: list[dict[str, Any]] = [
        {"system_prompt": {"min_sessions": 2}, "priority": 1},
        {"system_prompt": {"first_tokens": 5}, "priority": 2},
        {"turns": True, "priority": 3},
        {"priority": 4},
    ]
    for i, found in enumerate(ranges(requests, *(every[k] for k in order))):
        edges = [edge for start, end, *_ in found for edge in (start, end)]
        assert edges == sorted(edges)
        assert all(start < end for start, end, *_ in found)
        assert sum(end - start for start, end, *_ in found) == tokens[i]  # the rule without a part leaves no hole
