"""A stream of pieces, joined again, is the workload it was cut from."""

from dataclasses import fields

import numpy as np
import pytest

from kvcache.request import Requests
from traces.read import opened, read
from traces.stream import in_pieces, joined


def assert_same(one: Requests, other: Requests) -> None:
    for field in fields(Requests):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if field.name == "labels":
            assert {name: (v.codes.tolist(), v.names) for name, v in a.items()} == {
                name: (v.codes.tolist(), v.names) for name, v in b.items()
            }
        elif isinstance(a, np.ndarray):
            assert a.dtype == b.dtype
            assert a.tolist() == b.tolist()
        else:
            assert a == b


@pytest.mark.parametrize("trace", ["llmservingsim_sharegpt300_blk16", "synthetic:multitenant?requests=300"])
@pytest.mark.parametrize("n", [7, 100, 10_000])
def test_pieces_joined_are_the_whole(trace: str, n: int) -> None:
    whole = read(trace)
    assert_same(joined(in_pieces(whole, n)), whole)


def test_an_opened_trace_is_the_trace_read() -> None:
    assert_same(joined(opened("mooncake_arxiv_first1000")), read("mooncake_arxiv_first1000"))
