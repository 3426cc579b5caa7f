"""Pictures of clusters are PNG files; anything else is refused."""

from pathlib import Path

import pytest

from reports.cluster_plots import delay_plot, pace_plot


def test_curves_are_drawn_to_a_png(tmp_path: Path) -> None:
    pace_plot(
        {"apart": [(1.0, 3.0), (2.0, 2.0)], "together": [(1.0, 2.0), (2.0, 1.0)]}, tmp_path / "pace.png", "two ways"
    )
    rows = [
        {"router": router, "delay_s": delay, "hit_rate_tokens": 0.5, "ttft_mean_s": 1.0}
        for router in ("kv", "random")
        for delay in (0.0, 1.0)
    ]
    delay_plot(rows, tmp_path / "delay.png")
    for name in ("pace.png", "delay.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a picture is PNG, SVG or PDF; give a name"):
        pace_plot({"one": [(1.0, 1.0)]}, tmp_path / "pace.jpg")
