"""`pytest -m benchmark tests/benchmarks -s` prints the ratio; it asserts no time."""

import pytest

from tests.benchmarks.cluster import REQUESTS, main


@pytest.mark.benchmark
def test_the_cost_of_a_request_with_few_and_many_workers_can_be_printed() -> None:
    main(REQUESTS)
