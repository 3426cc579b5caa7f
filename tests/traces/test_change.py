"""Parts and multiples of a trace: what is kept shares what it shared."""

import numpy as np
import pytest

from kvcache.request import Requests
from traces.change import Scale, Slice, labels_of, scaled, sliced
from traces.errors import TraceError
from traces.read import read
from traces.stats import hits, measure
from traces.stream import in_pieces, joined

CHAT = "synthetic:chat?requests=2000&block_tokens=64&tenants=12"


def cut(requests: Requests, wanted: Slice, size: int = 300) -> Requests:
    return joined(sliced(in_pieces(requests, size), wanted))


def grown(requests: Requests, by: Scale) -> Requests:
    return joined(scaled(in_pieces(requests, 300), by))


def test_a_stretch_of_time_starts_at_its_own_beginning() -> None:
    requests = read(CHAT)
    part = cut(requests, Slice(from_s=50, to_s=100))
    inside = (requests.arrival_s >= 50) & (requests.arrival_s < 100)
    assert part.arrival_s.tolist() == (requests.arrival_s[inside] - 50).tolist()
    assert part.session.tolist() == requests.session[inside].tolist()


def test_sessions_and_labels_are_kept_whole() -> None:
    requests = read(CHAT)
    some = cut(requests, Slice(sessions=(3, 5, 9)))
    assert set(some.session.tolist()) == {3, 5, 9}
    assert len(some) == int(np.isin(requests.session, [3, 5, 9]).sum())
    column = requests.labels["tenant"]
    wanted = labels_of(["tenant=tenant-1", "tenant=tenant-2"])
    assert len(cut(requests, Slice(labels=wanted))) == int(np.isin(column.codes, [1, 2]).sum())


@pytest.mark.parametrize("by", ["session", "prefix"])
def test_a_sample_keeps_whole_groups_about_as_many_as_asked_and_does_not_depend_on_pieces(by: str) -> None:
    requests = read("synthetic:chat?requests=4000&block_tokens=64&tenants=400&tenant_zipf_exponent=0")
    part = cut(requests, Slice(sample=0.3, sample_by=by))
    group = requests.session if by == "session" else requests.units[requests.unit_offset[:-1]]
    kept = part.session if by == "session" else part.units[part.unit_offset[:-1]]
    assert len(part) == int(np.isin(group, kept).sum())
    assert len(np.unique(kept)) / len(np.unique(group)) == pytest.approx(0.3, abs=0.08)
    assert cut(requests, Slice(sample=0.3, sample_by=by), size=77).arrival_s.tolist() == part.arrival_s.tolist()
    other = cut(requests, Slice(sample=0.3, sample_by=by, seed=1))
    assert other.arrival_s.tolist() != part.arrival_s.tolist()


def test_a_sample_of_prefix_groups_shares_as_much_as_the_whole() -> None:
    requests = read("synthetic:chat?requests=4000&block_tokens=64&tenants=400&tenant_zipf_exponent=0")
    part = cut(requests, Slice(sample=0.25, sample_by="prefix"))
    assert measure(part).hit_token_share == pytest.approx(measure(requests).hit_token_share, abs=0.04)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"from_s": 5, "to_s": 5}, "--from is 5 and --until 5"),
        ({"sample": 0}, "--sample is 0"),
        ({"sample_by": "tenant"}, "--sample-by is 'tenant'; it must be session or prefix"),
        ({"from_s": 1e9}, "no request is left"),
        ({"labels": (("tenant", "x"),)}, "no request is left; tenant has tenant-0, tenant-1"),
    ],
)
def test_a_part_that_cannot_be_is_refused(wanted: dict[str, object], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        cut(read(CHAT), Slice(**wanted))  # type: ignore[arg-type]


def test_a_label_needs_a_value() -> None:
    with pytest.raises(TraceError, match="--where is 'tenant'; write it as LABEL=VALUE"):
        labels_of(["tenant"])


def test_twice_the_rate_is_half_the_time_between_requests_and_thoughts() -> None:
    requests = read(CHAT)
    fast = grown(requests, Scale(rate=2))
    assert fast.arrival_s.tolist() == (requests.arrival_s / 2).tolist()
    np.testing.assert_array_equal(fast.think_s, requests.think_s / 2)
    assert fast.units.tolist() == requests.units.tolist()


def test_shorter_prompts_keep_their_first_blocks() -> None:
    requests = read("mooncake_arxiv_first1000").head(100)
    half = grown(requests, Scale(prompt=0.5))
    assert half.prompt_tokens.tolist() == np.rint(requests.prompt_tokens * 0.5).astype(int).tolist()
    for i in range(100):
        assert half.prompt_units(i).tolist() == requests.prompt_units(i).tolist()[: int(half.prompt_tokens[i]) // 512]


@pytest.mark.parametrize("factor", [2, 2.5])
def test_longer_prompts_share_in_proportion(factor: float) -> None:
    # Whole blocks that were shared become `factor` times as many shared ones, to within a block a request.
    requests = read("mooncake_arxiv_first1000").head(300)
    long = grown(requests, Scale(prompt=factor))
    was, now = hits(requests), hits(long)
    assert (np.abs(now - factor * was) <= factor + 1).all()
    whole = long.prompt_tokens // 512
    assert (np.diff(long.unit_offset) <= whole).all()
    assert (np.diff(long.unit_offset) >= whole - factor - 1).all()


def test_other_lengths_say_what_they_do_to_content() -> None:
    notes = scaled(in_pieces(read(CHAT)), Scale(prompt=2)).notes
    assert "content is scaled block by block" in notes[0]
    assert "content of outputs is left out" in notes[1]
    assert scaled(in_pieces(read(CHAT)), Scale(rate=2)).notes == []


@pytest.mark.parametrize("wrong", [{"rate": 0}, {"prompt": float("inf")}, {"output": -1}])
def test_factors_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(TraceError, match="must be a finite number above 0"):
        Scale(**wrong)
