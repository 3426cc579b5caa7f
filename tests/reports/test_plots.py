"""Plots: no label covers another, series differ without colour, axes have units, files are whole."""

import itertools
import json
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import matplotlib.colors
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from reports import front_plot, plots
from reports.choice import Wish, choose, lines
from reports.files import written
from reports.front_plot import View, pareto_plot
from reports.labels import Label, place
from tests.reports import sweeps

PLAIN, VIEW = Wish("moved_bytes", "hit_rate_tokens"), View("moved_bytes", "hit_rate_tokens")
KEYS = ["secondary_offload_min_priority", "tokens_per_block"]


@pytest.fixture
def frame() -> pd.DataFrame:
    rows = [
        {
            "run": i,
            "tokens_per_block": block,
            "secondary_offload_min_priority": threshold,
            "offload_bytes": (101 - threshold) ** 2 * 1e8,
            "moved_bytes": (101 - threshold) ** 2 * 1.5e8,
            "hit_rate_tokens": 0.5 - threshold / 1000 - np.log2(block) / 100,
            "notes": "",
        }
        for i, (block, threshold) in enumerate(itertools.product([16, 32, 64], range(0, 101, 20)))
    ]
    return pd.DataFrame(rows)


@pytest.fixture
def sweep(frame: pd.DataFrame, tmp_path: Path) -> Path:
    frame.to_parquet(tmp_path / "sweep.parquet")
    (tmp_path / "about.json").write_text(
        '{"trace": "a_trace", "grid": {"tokens_per_block": [], "secondary_offload_min_priority": []}}', encoding="utf-8"
    )
    return tmp_path


def test_front_goes_to_a_csv_beside_the_plot_with_the_configuration_first(sweep: Path) -> None:
    choice = choose(sweep, PLAIN)
    assert choice.plot.read_bytes()[:4] == b"\x89PNG"
    table = pd.read_csv(choice.table)
    assert list(table.columns[:5]) == [*reversed(KEYS), "moved_bytes", "hit_rate_tokens", "knee"]
    assert table["tokens_per_block"].unique().tolist() == [16]
    assert table["moved_bytes"].is_monotonic_increasing
    assert table["knee"].sum() == 1
    count, held, knee = lines(choice)
    assert count == "6 runs in the front"
    assert re.fullmatch(r"hypervolume: [\d.]+% of the box from the best to the worst figures", held)
    assert knee.startswith("knee: block 16, threshold ")


def test_same_figures_give_the_same_bytes(sweep: Path) -> None:
    first = choose(sweep, PLAIN, sweep / "a.png")
    second = choose(sweep, PLAIN, sweep / "b.png")
    assert first.plot.read_bytes() == second.plot.read_bytes()


def test_plot_whose_name_says_no_format_is_refused_before_drawing(sweep: Path) -> None:
    with pytest.raises(ValueError, match=r"give a name that ends in \.png, \.svg, \.pdf"):
        choose(sweep, PLAIN, sweep / "plot.jpg")


def test_runs_without_the_figure_are_left_out(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.loc[0, "hit_rate_tokens"] = None
    front = pareto_plot(frame, VIEW, KEYS, tmp_path / "p.png").rows
    assert 0 not in front["run"].tolist()


def test_one_run_is_a_plot_too(frame: pd.DataFrame, tmp_path: Path) -> None:
    front = pareto_plot(frame.head(1), VIEW, KEYS, tmp_path / "p.png").rows
    assert front["knee"].tolist() == [False]


def test_sweep_over_one_key_or_none_is_a_plot_too(frame: pd.DataFrame, tmp_path: Path) -> None:
    for keys in ([], KEYS[:1], KEYS[1:]):
        pareto_plot(frame, VIEW, keys, tmp_path / "p.png")
    plots.threshold_plot(frame, tmp_path / "t.png")
    plots.block_plot(frame, tmp_path / "b.png", group="secondary_offload_min_priority")
    assert len(list(tmp_path.iterdir())) == 3


def test_only_runs_within_the_limits_are_chosen(sweep: Path) -> None:
    choice = choose(sweep, replace(PLAIN, limits=["moved_bytes<500GB"]))
    assert choice.front["moved_bytes"].max() < 500e9
    assert next(lines(choice)) == f"{len(choice.front)} runs in the front of 9 within the limits, 18 in all"
    with pytest.raises(ValueError, match="none of 18 runs is within moved_bytes<1B"):
        choose(sweep, replace(PLAIN, limits=["moved_bytes<1B"]))


def test_third_figure_widens_the_front(frame: pd.DataFrame, tmp_path: Path) -> None:
    """Larger blocks move no less and find less, but take fewer look-ups: with these as a third figure all 18 runs stay."""
    frame = frame.assign(lookup_blocks=1 / frame["tokens_per_block"])
    assert len(pareto_plot(frame, VIEW, KEYS, tmp_path / "two.png").rows) == 6
    view = View("moved_bytes", "hit_rate_tokens", "lookup_blocks", shape="tokens_per_block")
    assert len(pareto_plot(frame, view, KEYS, tmp_path / "three.png").rows) == 18


@pytest.mark.parametrize(
    ("colour", "shape", "entries"),
    [
        ("tokens_per_block", None, ["16", "32", "64"]),
        ("tokens_per_block", "tokens_per_block", ["16", "32", "64"]),
        (None, "tokens_per_block", ["16", "32", "64"]),
        ("hit_rate_tokens", "tokens_per_block", ["16", "32", "64"]),
        ("secondary_offload_min_priority", "tokens_per_block",
         [*(f"threshold {t}" for t in (0, 20, 40, 60, 80, 100)), "block 16", "block 32", "block 64"]),
    ],
)  # fmt: skip
def test_legend_names_what_colour_and_marker_stand_for(
    frame: pd.DataFrame, colour: str | None, shape: str | None, entries: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    told: list[str] = []

    def noted(page: Figure, axes: Axes, group: str | None) -> None:
        told.extend(str(handle.get_label()) for handle in axes.get_legend_handles_labels()[0])

    monkeypatch.setattr(front_plot, "legend", noted)
    pareto_plot(frame, replace(VIEW, colour=colour, shape=shape), KEYS, tmp_path / "p.png")
    assert told == [*entries, "Pareto front"]


def test_repeats_are_averaged_into_one_point(frame: pd.DataFrame, sweep: Path) -> None:
    twice = pd.concat([frame.assign(seed=0), frame.assign(seed=1, hit_rate_tokens=frame["hit_rate_tokens"] + 0.02)])
    twice.to_parquet(sweep / "sweep.parquet")
    grid = {"tokens_per_block": [], "secondary_offload_min_priority": [], "seed": [0, 1]}
    (sweep / "about.json").write_text(json.dumps({"grid": grid, "repeats": 2}), encoding="utf-8")
    front = choose(sweep, PLAIN).front
    assert front["repeats"].tolist() == [2] * 6
    assert front["hit_rate_tokens"].max() == pytest.approx(frame["hit_rate_tokens"].max() + 0.01)


def test_series_differ_in_marker_in_line_and_in_grey() -> None:
    assert len({marker for _, marker, _ in plots.STYLES}) == len(plots.STYLES)
    assert len({str(dashes) for _, _, dashes in plots.STYLES}) == len(plots.STYLES)
    grey = [matplotlib.colors.to_rgb(colour) @ np.array([0.2126, 0.7152, 0.0722]) for colour, _, _ in plots.STYLES]
    assert min(abs(a - b) for a, b in itertools.pairwise(grey)) > 0.1


def test_equal_results_share_one_label_over_a_range(frame: pd.DataFrame) -> None:
    rows = frame[frame["tokens_per_block"] == 16]
    assert plots.words(rows, KEYS) == "threshold 0 to 100, block 16"
    assert plots.words(rows.head(1), KEYS) == "threshold 0, block 16"
    assert plots.words(rows.head(2), KEYS) == "threshold 0/20, block 16"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3_000_000, "3M"),
        (32.0, "32"),
        (0.25, "0.25"),
        (2_500_000, "2.5M"),
        (1024, "1024"),
        (None, "default"),
        ("x", "x"),
    ],
)
def test_configuration_values_are_short(value: object, text: str) -> None:
    assert plots.shown(value) == text


def test_labels_of_a_crowd_touch_neither_each_other_nor_a_point() -> None:
    figure = Figure(figsize=(6, 4))
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    spots = np.random.default_rng(1).random((90, 2))
    axes.plot(*spots.T, "o")
    placed = place(axes, [Label(float(x), float(y), f"label {i}") for i, (x, y) in enumerate(spots)])
    canvas.draw()  # type: ignore[no-untyped-call]
    boxes = [text.get_window_extent() for text in axes.texts]
    pixels = axes.transData.transform(spots)
    assert 0 < placed == len(boxes) < 90
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    assert not any(box.contains(*pixel) for box in boxes for pixel in pixels)


def test_label_that_must_be_there_is_there_in_any_crowd() -> None:
    figure = Figure(figsize=(3, 2))
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(*np.random.default_rng(1).random((2000, 2)).T, "o")
    assert place(axes, [Label(0.5, 0.5, "knee", must=True), Label(0.5, 0.5, "other")]) == 1


def test_interrupted_file_leaves_the_old_one_and_no_scraps(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old", encoding="utf-8")
    with suppress(RuntimeError), written(path) as temporary:
        temporary.write_text("half", encoding="utf-8")
        raise RuntimeError
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_axis_of_close_values_says_them_whole(tmp_path: Path) -> None:
    from matplotlib import pyplot as plt
    from matplotlib import rc_context

    from reports.plots import LOOK

    with rc_context(LOOK):
        figure, axes = plt.subplots()
        axes.plot([1, 2], [90.899, 90.905])
        figure.savefig(tmp_path / "close.png")
        assert not axes.yaxis.get_offset_text().get_text()
        assert all(label.get_text().startswith("90.") for label in axes.get_yticklabels())
        plt.close(figure)


@pytest.mark.parametrize(("name", "begins"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml"), ("p.pdf", b"%PDF")])
def test_the_name_says_the_format_and_the_same_figures_give_the_same_bytes(
    tmp_path: Path, name: str, begins: bytes
) -> None:
    made = []
    for which in ("a", "b"):
        plot = choose(sweeps.write(tmp_path / which), PLAIN, tmp_path / which / name).plot
        made.append(plot.read_bytes())
    assert made[0].startswith(begins)
    assert made[0] == made[1]
