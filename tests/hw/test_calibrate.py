"""Calibration files: figures that were planted in samples come out, the simulator loads them, a stopped run goes on."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments import calibrate as module
from experiments.calibrate import Plan, calibrate
from experiments.calibration_fit import duplex_factor, fit, medians
from hw.measure import Cell, Sample
from sim.hardware import load_hardware
from sim.transfer import copy_seconds

TINY = Plan((4096, 65536, 262144), (1, 8), (65536,), (1, 2), 1 << 22, 1 << 20, 1 << 18, 2)
CELLS = 3 * (3 * 2 + 2) + 2 * 2 * 2


def planted(latency_s: float, bytes_per_s: float, noise: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = []
    for size in (4096, 16384, 65536, 1 << 20, 1 << 24):
        for repeat in range(9):
            seconds = (latency_s + size / bytes_per_s) * (1 + noise * rng.standard_normal())
            rows += [("h2d", size, 16, "alone", repeat, seconds), ("h2d", size, 16, "both", repeat, seconds / 0.8)]
    return pd.DataFrame(rows, columns=["way", "size", "blocks", "mode", "repeat", "seconds"])


def test_latency_bandwidth_and_duplex_come_out_as_they_were_planted() -> None:
    cells = medians(planted(3e-6, 50e9))
    line = fit(cells, "h2d")
    assert line.latency_s == pytest.approx(3e-6, rel=1e-6)
    assert line.bytes_per_s == pytest.approx(50e9, rel=1e-6)
    assert line.r2 == pytest.approx(1.0)
    assert line.worst_line < 1e-6
    assert line.table[2] == (65536, pytest.approx(65536 / (3e-6 + 65536 / 50e9)))
    assert duplex_factor(cells) == pytest.approx(0.8)


def test_noise_is_reported_and_the_fit_survives_it() -> None:
    line = fit(medians(planted(3e-6, 50e9, noise=0.05)), "h2d")
    assert line.bytes_per_s == pytest.approx(50e9, rel=0.1)
    assert 0.05 < line.spread < 0.3


def test_a_larger_block_never_takes_less_time() -> None:
    frame = planted(3e-6, 50e9)
    frame.loc[frame["size"] == 16384, "seconds"] = 1e-9
    table = fit(medians(frame), "h2d").table
    seconds = [size / rate for size, rate in table]
    assert seconds == sorted(seconds)


def test_a_direction_without_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples of d2d"):
        fit(medians(planted(1e-6, 1e9)), "d2d")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUICK", TINY)


@pytest.mark.usefixtures("tiny")
def test_the_file_loads_and_predicts_what_was_measured(tmp_path: Path) -> None:
    lines = calibrate("cpu", tmp_path / "slots", tmp_path / "mine.yaml", quick=True)
    assert lines[-2:] == [str(tmp_path / "mine.yaml"), str(tmp_path / "mine.samples.parquet")]
    machine = load_hardware(tmp_path / "mine.yaml")
    assert machine.name == "mine"
    samples = pd.read_parquet(tmp_path / "mine.samples.parquet")
    assert len(samples) <= CELLS * TINY.repeats
    cells = medians(samples)
    for way, direction in (("h2d", machine.link("host").h2d), ("d2h", machine.link("host").d2h)):
        for size in TINY.sizes:
            mine = cells[(cells.way == way) & (cells["size"] == size) & (cells["mode"] == "alone")]
            low, high = 0.99 * mine.median_s.min(), 1.01 * mine.median_s.max()
            if size == TINY.sizes[0]:  # larger ones may have been lifted to a smaller one's time
                assert low <= copy_seconds(direction, 1, size) <= high
            assert copy_seconds(direction, 1, size) >= low
    assert {"host", "disk", "gds"} <= set(machine.links)
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
    assert len(kept | set(measured)) == 24
    assert not (tmp_path / "mine.partial.parquet").exists()


def test_another_name_than_yaml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ends in \.yaml"):
        calibrate("cpu", None, tmp_path / "mine.json", quick=True)
