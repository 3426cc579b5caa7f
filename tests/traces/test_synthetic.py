"""Generated workloads follow from their parameters and seed, and have the structure they promise."""

import time

import numpy as np
import pytest

from kvcache.request import Requests
from traces.errors import TraceError
from traces.options import ReadOptions
from traces.read import read
from traces.repeat_scan import RepeatScan
from traces.stats import hits, measure
from traces.synthetic import MultiTenant, generate_multitenant


@pytest.fixture(scope="module")
def workload() -> Requests:
    return read("synthetic:multitenant?seed=1")


def content(workload: Requests) -> bytes:
    assert workload.output_units is not None
    arrays = (workload.arrival_s, workload.units, workload.unit_offset, workload.output_units, workload.session)
    return b"".join(a.tobytes() for a in arrays)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(workload: Requests) -> None:
    assert content(workload) == content(read("synthetic:multitenant?seed=1&requests=2000"))
    assert content(workload) != content(read("synthetic:multitenant?seed=2"))


def test_a_generator_handed_in_is_the_only_source_of_chance() -> None:
    few = MultiTenant(requests=50)
    np.random.seed(3)
    one = generate_multitenant(few, np.random.default_rng(8))
    np.random.seed(4)
    assert content(one) == content(generate_multitenant(few, 8))


def test_the_preset_has_two_thousand_requests_and_five_to_eight_million_tokens(workload: Requests) -> None:
    stats = measure(workload)
    assert stats.requests == 2000
    assert 5e6 < stats.input_tokens < 8e6
    assert workload.prompt_tokens.min() > 180
    assert workload.prompt_tokens.max() <= 8192
    assert stats.hit_token_share > 0.5


def test_the_preset_is_made_in_under_three_seconds() -> None:
    start = time.perf_counter()
    read("synthetic:multitenant?seed=5")
    assert time.perf_counter() - start < 3


def test_a_turns_prompt_is_the_one_before_its_answer_and_new_tokens(workload: Requests) -> None:
    assert workload.output_units is not None
    assert workload.output_offset is not None
    last: dict[int, np.ndarray] = {}  # type: ignore[type-arg]
    continued = 0
    for i, session in enumerate(workload.session.tolist()):
        prompt = workload.prompt_units(i)
        assert len(prompt) == workload.prompt_tokens[i]
        if session in last:
            continued += 1
            assert len(prompt) > len(last[session])
            assert np.array_equal(prompt[: len(last[session])], last[session])
        answer = workload.output_units[workload.output_offset[i] : workload.output_offset[i + 1]]
        assert len(answer) == workload.output_tokens[i]
        last[session] = np.concatenate((prompt, answer))
    assert continued > 1000


def test_popular_tenants_ask_more_and_tenants_share_no_prefix(workload: Requests) -> None:
    tenant = workload.labels["tenant"]
    counts = np.bincount(tenant.codes, minlength=len(tenant.names))
    assert counts[:5].sum() > counts[20:].sum()
    first_token = {(int(t), int(workload.prompt_units(i)[0])) for i, t in enumerate(tenant.codes)}
    assert len(first_token) == len(set(tenant.codes.tolist()))


def test_headers_of_a_tenant_branch_inside_blocks() -> None:
    # One tenant, sessions of one turn, no questions to speak of: prompts differ first where the headers branch.
    one = MultiTenant(
        requests=60, tenants=1, turns_mean=1, header_variants=4, question_median_tokens=5, question_sigma=0
    )
    workload = generate_multitenant(one, 3)
    shared = {int(h) for h in hits(workload)[1:]}
    branches = {s for s in shared if s % 32}
    assert len(branches) >= 3


def test_arrivals_are_irregular_and_in_order(workload: Requests) -> None:
    gaps_s = np.diff(workload.arrival_s)
    assert (gaps_s >= 0).all()
    assert 0.7 < gaps_s.std() / gaps_s.mean() < 1.5  # an exponential gap has 1


def test_repeat_scan_asks_every_prompt_once_a_round() -> None:
    cyclic = read("synthetic:repeat_scan?prompts=7&rounds=3&prompt_tokens=16")
    assert hits(cyclic).tolist() == [0] * 7 + [16] * 14
    shuffled = read("synthetic:repeat_scan?prompts=7&rounds=3&prompt_tokens=16&order=shuffled")
    rounds = shuffled.units.reshape(3, 7, 16)
    assert {tuple(r) for r in rounds[0].tolist()} == {tuple(r) for r in rounds[2].tolist()}
    assert not np.array_equal(rounds[0], rounds[1])
    assert np.array_equal(cyclic.units[: 7 * 16], cyclic.units[7 * 16 : 2 * 7 * 16])


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ("synthetic:multitenat", "no generator is called 'multitenat'; known: multitenant, repeat_scan"),
        ("synthetic:multitenant?request=5", "multitenant has no parameter 'request'; known: seed, requests, tenants"),
        ("synthetic:multitenant?seed=x", "seed is 'x'; it must be a whole number"),
        ("synthetic:multitenant?seed=-1", "seed is -1; it must be 0 or more"),
        ("synthetic:multitenant?seed", "'seed' is not of the form name=value"),
        ("synthetic:multitenant?seed=1&seed=2", "seed is given twice"),
        ("synthetic:multitenant?think_mean_s=soon", "think_mean_s is 'soon'; it must be a number"),
        ("synthetic:multitenant?turns_mean=0.5", "turns_mean is 0.5; it must be at least 1"),
        ("synthetic:multitenant?requests=0", "requests is 0; it must be a finite number above 0"),
        ("synthetic:multitenant?requests_per_s=nan", "requests_per_s is nan; it must be a finite number above 0"),
        ("synthetic:multitenant?answer_sigma=inf", "answer_sigma is inf; it must be a finite number, 0 or more"),
        ("synthetic:multitenant?vocabulary=3000000000", "vocabulary is 3000000000; it must be at most 2147483647"),
        ("synthetic:multitenant?prompt_max_tokens=1000", "prompt_max_tokens is 1000; it must be above 3800"),
        ("synthetic:repeat_scan?order=random", "order is 'random'; it must be one of cyclic, shuffled"),
    ],
)
def test_a_name_that_cannot_be_generated_is_refused(trace: str, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        read(trace)
    assert str(caught.value).startswith(f"{trace}: {message}")


def test_absurd_spreads_are_capped_and_end() -> None:
    wild = generate_multitenant(MultiTenant(requests=200, question_sigma=900, answer_sigma=900), 1)
    assert wild.prompt_tokens.max() <= 8192
    assert wild.output_tokens.max() <= 8192


def test_file_options_are_refused_for_generated_traces() -> None:
    with pytest.raises(TraceError, match="--time-unit does not apply"):
        read("synthetic:multitenant", options=ReadOptions(time_unit="s"))


def test_parameters_are_checked_where_they_are_made() -> None:
    with pytest.raises(ValueError, match="header_min_tokens is 950, above header_max_tokens = 900"):
        MultiTenant(header_min_tokens=950)
    with pytest.raises(ValueError, match="it must be a finite number, 0 or more"):
        RepeatScan(output_tokens=-1)


def test_salts_follow_customers_or_conversations_and_change_nothing_else() -> None:
    plain, tenants, sessions = (
        read(f"synthetic:multitenant?requests=200&salt={whose}") for whose in ("none", "tenant", "session")
    )
    assert (plain.salt == -1).all()
    assert tenants.salt.tolist() == tenants.labels["tenant"].codes.tolist()
    assert sessions.salt.tolist() == sessions.session.tolist()
    assert content(plain) == content(tenants) == content(sessions)
    with pytest.raises(TraceError, match="salt is 'user'; it must be none, tenant or session"):
        read("synthetic:multitenant?salt=user")
