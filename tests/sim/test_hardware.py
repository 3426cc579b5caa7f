"""Machines: presets with sources, calibration files of the same form, and files that cannot be read."""

import pytest
import yaml

from sim.hardware import MEASURED, PRESETS, hardware_from, hardware_names, load_hardware

H100 = yaml.safe_load((PRESETS / "h100-sxm.yaml").read_text())


def unsourced(node: object, path: str = "") -> list[str]:
    """Places of figures in mappings that name no source."""
    if not isinstance(node, dict):
        return []
    found = [p for k, v in node.items() for p in unsourced(v, f"{path}.{k}")]
    figures = [k for k, v in node.items() if isinstance(v, int | float | list)]
    return found + ([f"{path}: {figures}"] if figures and not node.get("source") else [])


def test_the_presets_are_these():
    assert hardware_names() == [
        "a100-40gb",
        "b200",
        "gb200",
        "gh200",
        "h100-sxm",
        "h100-sxm-gds4",
        "h200",
        "l40s",
        "rtx4090",
    ]


@pytest.mark.parametrize("name", hardware_names())
def test_every_preset_figure_has_its_source_beside_it(name: str):
    assert unsourced(yaml.safe_load((PRESETS / f"{name}.yaml").read_text())) == []


@pytest.mark.parametrize("name", hardware_names())
def test_every_preset_loads_and_says_who_measured(name: str):
    machine = load_hardware(name)
    assert machine.name == name
    assert {"host", "disk", "gds", "network"} <= set(machine.links)
    assert machine.sources["memory.bandwidth"]


@pytest.mark.parametrize(
    ("name", "terabytes_per_s", "host_gb_per_s"),
    # aiconfigurator's system files: HBM 3.35, 4.8, 7.7 TB/s; peak PCIe 64 GB/s a direction on H100 and H200, 32 on A100
    [("h100-sxm", 3.35, 64), ("h200", 4.8, 64), ("b200", 7.7, 128), ("a100-40gb", 1.555, 32), ("gh200", 4.0, 450)],
)
def test_memory_is_the_published_one_and_links_stay_below_their_peak(name, terabytes_per_s, host_gb_per_s):
    machine = load_hardware(name)
    assert machine.hbm_bytes_per_s / 1e12 == pytest.approx(terabytes_per_s, rel=0.005)
    for direction in (machine.links["host"].h2d, machine.links["host"].d2h):
        assert 0.6 * host_gb_per_s < direction.bandwidth_bytes_per_s / 1e9 < host_gb_per_s or name == "b200"


def test_a_base_supplies_what_a_preset_does_not_state():
    h100, h200 = load_hardware("h100-sxm"), load_hardware("h200")
    assert h200.links["host"] == h100.links["host"]
    assert h200.hbm_efficiency == h100.hbm_efficiency
    assert h200.hbm_bytes > h100.hbm_bytes


def test_a_link_given_as_null_is_not_there():
    with pytest.raises(ValueError, match="hardware l40s has no nvlink link; it has host, disk, gds, network"):
        load_hardware("l40s").link("nvlink")


def test_a_calibration_file_replaces_one_link_and_keeps_the_rest(tmp_path):
    way = {"latency_s": "3e-6", "bandwidth_bytes_per_s": 55.0e9, "table": [[4096, 1.0e9], [65536, 16.0e9]]}
    path = tmp_path / "here.yaml"
    path.write_text(yaml.safe_dump({"base": "h100-sxm", "links": {"host": {"h2d": way, "d2h": way, "source": "us"}}}))
    machine = load_hardware(path)
    assert machine.name == "here"
    assert machine.links["host"].h2d.latency_s == pytest.approx(3e-6)
    assert machine.links["host"].h2d.table == ((4096.0, 1.0e9), (65536.0, 16.0e9))
    assert machine.links["host"].h2d.duplex_factor == 1
    assert machine.links["disk"] == load_hardware("h100-sxm").links["disk"]
    assert machine.sources["links.host"] == "us"


def test_an_unknown_name_lists_the_nearest():
    with pytest.raises(ValueError, match=r"hardware 'h100' is not known; nearest: .*h100-sxm"):
        load_hardware("h100")


def test_a_file_that_is_no_machine_is_refused(tmp_path):
    path = tmp_path / "m.yaml"
    with pytest.raises(ValueError, match="no such file"):
        load_hardware(path)
    path.write_text("[1]")
    with pytest.raises(ValueError, match="must hold keys and values, and holds list"):
        load_hardware(path)
    path.write_text("a: [")
    with pytest.raises(ValueError, match="not readable as YAML"):
        load_hardware(path)
    path.write_text(f"base: {path}")
    with pytest.raises(ValueError, match="based on itself"):
        load_hardware(path)
    path.write_text("memory: {}")
    with pytest.raises(ValueError, match=r"memory.size.bytes, .* not given; give them, or a `base`"):
        load_hardware(path)


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("memory", "size", {"gib": 80}, r"unknown key memory.size.gib; nearest: memory.size.bytes"),
        ("memory", "efficiency", {"value": 1.2}, r"hbm_efficiency is 1.2; it must be in \(0, 1\]"),
        ("memory", "bandwidth", {"bytes_per_s": 0}, r"hbm_bytes_per_s is 0.0; it must be above 0"),
        ("memory", "bandwidth", {"bytes_per_s": True}, "memory.bandwidth.bytes_per_s is True; it must be a number"),
        ("compute", "flops", {"fp8": 1.0e15}, "compute.flops has no bf16"),
        ("compute", "flops", {"fp32": 1.0e15}, "unknown key compute.flops.fp32"),
        ("links", "usb", {}, "unknown link usb; known: host, disk"),
        ("links", "host", {"h2d": {}}, "links.host must hold h2d, d2h"),
        ("links", "host", {"h2d": {"speed": 1}, "d2h": {}}, "links.host.h2d may hold bandwidth_bytes_per_s"),
        ("links", "host", {"h2d": {"latency_s": 0}, "d2h": {}}, "h2d.bandwidth_bytes_per_s is None"),
        ("links", "host", {"h2d": {"table": [1]}, "d2h": {}}, r"h2d.table must hold rows \[bytes, bytes_per_s\]"),
        ("links", "host", {"h2d": {"burst": [1]}, "d2h": {}}, r"h2d.burst must hold rows \[bytes, factor\]"),
        (
            "links",
            "host",
            {"h2d": {"latency_s": 0, "bandwidth_bytes_per_s": 0}, "d2h": {}},
            "links.host.h2d: bandwidth_bytes_per_s is 0.0; it must be above 0",
        ),
    ],
)
def test_a_wrong_figure_is_refused_by_its_place(section: str, key: str, value: object, message: str):
    with pytest.raises(ValueError, match=message):
        hardware_from({**H100, section: {**H100[section], key: value}})


def test_an_unknown_section_is_refused():
    with pytest.raises(ValueError, match="unknown keys power"):
        hardware_from({**H100, "power": {}})


def test_kernels_that_a_calibration_timed_are_rates_by_size():
    tables = {name: {"table": [[1, 2.0e12], ["4e3", 5.0e14]], "source": "us"} for name in MEASURED}
    machine = hardware_from({**H100, "compute": {**H100["compute"], "measured": tables}})
    assert machine.measured == dict.fromkeys(MEASURED, ((1.0, 2.0e12), (4000.0, 5.0e14)))
    assert machine.sources["compute.measured.linear"] == "us"
    assert hardware_from(H100).measured == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"linear": None}, r"compute.measured.linear.table must hold rows \[size, rate\]"),
        ({"linear": {"table": []}}, r"compute.measured.linear.table must hold rows"),
        ({"linear": {"table": [[1]]}}, r"compute.measured.linear.table must hold rows"),
        ({"linear": {"table": [[2, 1.0], [1, 1.0]]}}, "sizes must ascend"),
        ({"linear": {"table": [[1, 0]]}}, "rates be above 0"),
        ({"linear": {"table": [[1, "fast"]]}}, "compute.measured.linear is 'fast'; it must be a number"),
        ({"gemm": {"table": [[1, 1.0]]}}, "must hold linear, prefill_attention, decode_attention"),
    ],
)
def test_a_wrong_table_of_kernels_is_refused_by_its_place(change: object, message: str):
    tables = {name: {"table": [[1, 2.0e12]]} for name in MEASURED}
    with pytest.raises(ValueError, match=message):
        hardware_from({**H100, "compute": {**H100["compute"], "measured": {**tables, **change}}})
