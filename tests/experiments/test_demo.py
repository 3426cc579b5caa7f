"""The demo's sweeps are commands that can be run by hand, on specs and traces that exist."""

import pytest

from experiments.demo import SHOWS, Show
from experiments.grid import axes, points
from experiments.load import finished, read
from traces.read import samples


@pytest.mark.parametrize("show", SHOWS, ids=lambda show: show.name)
def test_every_run_of_the_demo_has_a_valid_spec(show: Show) -> None:
    for point in points(axes(show.grid)):
        finished(read(show.spec), list(point.items()))
    assert show.trace in samples() or show.trace.startswith("synthetic:")


def test_command_by_hand_names_trace_spec_grid_and_limit() -> None:
    command = " ".join(SHOWS[-1].command())
    assert command.startswith("kvtier sweep claude_code_weka_a --spec coding_blocks --grid tokens_per_block=64")
    assert command.endswith("--limit 1000 --out coding")
