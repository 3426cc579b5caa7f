"""Calibration files: figures that were planted in samples come out, the simulator loads them, a stopped run goes on."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from experiments import calibrate as module
from experiments.calibrate import calibrate
from experiments.calibration_file import noise
from experiments.calibration_fit import fit, rates, slowdown, summary
from experiments.calibration_plan import FULL, Plan, batches_a_repeat, copy_cells, file_cells
from hw.measure import Cell, Sample
from sim.hardware import MEASURED, load_hardware
from sim.transfer import copy_seconds

TINY = Plan((4096, 65536, 262144), (1, 4, 8), 1 << 20, (65536,), (1, 2), 1 << 22, 1 << 20, 1 << 18, 64, 1, 2)


def planted(
    latency_s: float, bytes_per_s: float, noise: float = 0.0, burst: float = 1.0, batches: tuple[int, ...] = (16,)
) -> pd.DataFrame:
    """`burst`: batches of a MiB and more take that much longer a block."""
    rng = np.random.default_rng(0)
    rows = []
    for size in (4096, 16384, 65536, 1 << 20, 1 << 24):
        for repeat, blocks in itertools.product(range(9), batches):
            seconds = (latency_s + size / bytes_per_s) * (1 + noise * rng.standard_normal())
            seconds *= burst if size * blocks >= 1 << 20 else 1.0
            rows += [
                ("h2d", size, blocks, "alone", repeat, seconds, size),
                ("h2d", size, blocks, "both", repeat, seconds / 0.8, size),
            ]
    return pd.DataFrame(rows, columns=["way", "size", "blocks", "mode", "repeat", "seconds", "work"])


def test_latency_bandwidth_and_duplex_come_out_as_they_were_planted() -> None:
    cells = summary(planted(3e-6, 50e9))
    line = fit(cells, "h2d")
    assert line.latency_s == pytest.approx(3e-6, rel=1e-6)
    assert line.bytes_per_s == pytest.approx(50e9, rel=1e-6)
    assert line.r2 == pytest.approx(1.0)
    assert line.worst_line < 1e-6
    assert line.table[2] == (65536, pytest.approx(65536 / (3e-6 + 65536 / 50e9)))
    assert line.burst == ((65536, 1.0),)
    assert slowdown(cells, "both", ("h2d",)) == pytest.approx(0.8)
    assert slowdown(cells, "busy", ("h2d",)) == pytest.approx(1.0)


def test_what_a_large_batch_costs_beyond_a_small_one_is_told_apart_from_the_size_of_a_block() -> None:
    """Blocks of a batch of a MiB and more take 1.4 times as long, whatever their size."""
    line = fit(summary(planted(3e-6, 50e9, burst=1.4, batches=(1, 16, 256))), "h2d")
    factors = dict(line.burst)
    assert factors[4096] == pytest.approx(1.0)
    assert line.burst[-1][1] == pytest.approx(1.4, rel=0.05)
    assert all(factor == pytest.approx(1.0, abs=0.08) for size, factor in line.burst if size <= 1 << 16)
    assert 65536 / dict(line.table)[65536] == pytest.approx(3e-6 + 65536 / 50e9, rel=0.06)
    assert line.worst_table < 0.1


def test_a_disturbed_repeat_does_not_change_the_figure() -> None:
    """Two of nine repeats take ten times as long: the lower quartile is that of the others."""
    frame = planted(3e-6, 50e9)
    frame.loc[frame.repeat.isin([3, 7]), "seconds"] *= 10
    assert fit(summary(frame), "h2d").bytes_per_s == pytest.approx(50e9, rel=1e-6)
    assert noise(summary(frame), 0.0) == [noise(summary(frame), 0.0)[0]]
    assert "repeats spread by" in noise(summary(frame), 0.0)[0]


def test_a_busy_machine_is_said_to_be_one_even_if_repeats_agree() -> None:
    cells = summary(planted(3e-6, 50e9))
    assert noise(cells, 0.02) == []
    assert "others took 40 % of the processors" in noise(cells, 0.4)[0]


def test_the_full_plan_moves_a_quarter_gib_a_cell_and_covers_every_mode() -> None:
    cells = copy_cells(FULL, ("gather",))
    assert len(cells) == len(set(cells))
    assert {cell.mode for cell in cells} == {"alone", "both", "busy", "gather"}
    for cell in cells:
        moved = batches_a_repeat(FULL, cell) * cell.size * cell.blocks * FULL.repeats
        assert moved >= 1 << 28 or batches_a_repeat(FULL, cell) == FULL.most_batches
        assert cell.size * cell.blocks <= max(1 << 28, 8 * cell.size)
    assert {(cell.way, cell.mode) for cell in file_cells(FULL)} == {
        (way, mode) for way in ("write", "read") for mode in ("direct", "buffered", "cached")
    }


def test_a_kernels_table_is_its_work_over_its_time() -> None:
    frame = pd.DataFrame(
        [
            ("linear", tokens, 1, "kernel", repeat, 1e-3 * tokens, 2e9 * tokens**2)
            for tokens in (4, 1)
            for repeat in (0, 1)
        ],
        columns=["way", "size", "blocks", "mode", "repeat", "seconds", "work"],
    )
    assert rates(summary(frame), "linear") == [[1, 2e12], [4, 8e12]]


def test_noise_is_reported_and_the_fit_survives_it() -> None:
    line = fit(summary(planted(3e-6, 50e9, noise=0.05)), "h2d")
    assert line.bytes_per_s == pytest.approx(50e9, rel=0.1)
    assert 0.05 < line.spread < 0.3


def test_a_larger_block_never_takes_less_time() -> None:
    frame = planted(3e-6, 50e9)
    frame.loc[frame["size"] == 16384, "seconds"] = 1e-9
    table = fit(summary(frame), "h2d").table
    seconds = [size / rate for size, rate in table]
    assert seconds == sorted(seconds)


def test_a_direction_without_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples of d2d"):
        fit(summary(planted(1e-6, 1e9)), "d2d")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUICK", TINY)


@pytest.mark.usefixtures("tiny")
def test_the_file_loads_and_predicts_what_was_measured(tmp_path: Path) -> None:
    written, lines = calibrate("cpu", tmp_path / "slots", tmp_path / "mine.yaml", quick=True)
    assert yaml.safe_load((tmp_path / "mine.yaml").read_text(encoding="utf-8")) == written
    assert lines[-2:] == [str(tmp_path / "mine.yaml"), str(tmp_path / "mine.samples.parquet")]
    machine = load_hardware(tmp_path / "mine.yaml")
    assert machine.name == "mine"
    samples = pd.read_parquet(tmp_path / "mine.samples.parquet")
    cells = summary(samples)
    assert len(cells) <= len(copy_cells(TINY, ("gather",))) + len(file_cells(TINY)) + 3
    assert set(machine.measured) == set(MEASURED)
    assert all(rate > 1e6 for table in machine.measured.values() for _, rate in table)
    for way, direction in (("h2d", machine.link("host").h2d), ("d2h", machine.link("host").d2h)):
        mine = cells[(cells.way == way) & (cells["mode"] == "alone")]
        off = [
            copy_seconds(direction, row.blocks, row.size) / row.blocks / row.typical_s - 1 for row in mine.itertuples()
        ]
        assert np.median(np.abs(off)) < 1  # of the right size; how near is a matter of a quiet machine (quiet_run.sh)
    assert {"host", "host_gather", "disk", "gds"} <= set(machine.links)
    assert "device cpu" in machine.sources["links.host.h2d"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.samples.parquet", "mine.yaml", "slots"]
    assert list((tmp_path / "slots").iterdir()) == []


@pytest.mark.usefixtures("tiny")
def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Cell] = []
    whole = module.Copies.measure
    monkeypatch.setattr(module, "SAVE_EVERY_S", -1.0)

    def measure(self: module.Copies, cell: Cell, batches: int, repeats: int) -> list[Sample]:
        if len(measured) == 10:
            measured.append(cell)
            raise KeyboardInterrupt
        measured.append(cell)
        return list(whole(self, cell, batches, repeats))

    monkeypatch.setattr(module.Copies, "measure", measure)
    out = tmp_path / "mine.yaml"
    with pytest.raises(KeyboardInterrupt):
        calibrate("cpu", None, out, quick=True)
    assert not out.exists()
    assert (tmp_path / "mine.partial.parquet").exists()
    kept = {
        Cell(*row) for row in pd.read_parquet(tmp_path / "mine.partial.parquet")[list(Cell._fields)].values.tolist()
    }
    assert {
        cell for cell in measured[:10] if cell.mode == "alone"
    } <= kept  # both ways: too short here to overlap always
    measured.clear()
    monkeypatch.setattr(
        module.Copies, "measure", lambda self, cell, *more: (measured.append(cell), list(whole(self, cell, *more)))[1]
    )
    calibrate("cpu", None, out, quick=True)
    assert not kept & set(measured)
    assert len(kept | set(measured)) == len(copy_cells(TINY, ("gather",)))
    assert not (tmp_path / "mine.partial.parquet").exists()


def test_another_name_than_yaml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ends in \.yaml"):
        calibrate("cpu", None, tmp_path / "mine.json", quick=True)
