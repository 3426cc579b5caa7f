"""`pytest -m benchmark tests/benchmarks -s` prints the table; it asserts no time."""

import pytest

from tests.benchmarks.speed import main


@pytest.mark.benchmark
def test_the_table_of_speeds_can_be_printed() -> None:
    main()
