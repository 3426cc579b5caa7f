"""The doctor: facts of this machine, answers to machines that are played, and nothing that hangs."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from experiments.doctor import advice, examine, lines, paths
from hw import probe


def test_it_runs_here_in_time_and_prints_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "LIMIT_S", 5.0)
    facts = examine(tmp_path)
    assert json.loads(json.dumps(facts))["host"]["cpus"] >= 1
    assert facts["storage"]["o_direct"]
    assert facts["paths"]["device"]
    text = "\n".join(lines(facts))
    assert "storage" in text
    assert "to do" in text
    assert list(tmp_path.iterdir()) == []


def test_a_call_that_hangs_is_given_up() -> None:
    begun = time.monotonic()
    answer = probe.child("import time; print('{\"before\": 1}', flush=True); time.sleep(60)", limit_s=0.5)
    assert answer == {"before": 1, "error": "no answer in 0.5 s"}
    assert time.monotonic() - begun < 5


def test_a_call_that_crashes_is_told_apart_from_one_that_raises() -> None:
    assert probe.child("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")["error"] == "died of signal 9"
    assert probe.child("raise RuntimeError('no driver')")["error"] == "RuntimeError: no driver"
    assert probe.child("print('{\"fine\": true}')") == {"fine": True}


def played(**changes: Any) -> dict[str, Any]:
    """A GPU node where all is well, but for `changes`."""
    facts: dict[str, Any] = {
        "host": {"memlock_soft": "unlimited"},
        "gpu": {"nvidia_smi": ["0, NVIDIA H100"], "libcuda": "libcuda.so.1", "torch": {"gpus": [{"name": "H100"}]}},
        "storage": {"directory": "/mnt/nvme", "writable": True, "file_system": "ext4", "o_direct": "works"},
        "gds": {
            "nvidia_fs": True,
            "udev_readable": True,
            "kvikio": {"io": "works", "gds_available": True, "posix_preferred": False},
            "cufile_driver_open": {"opened": True},
        },
        "nixl": {"plugins": {"UCX": "opens"}},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        facts[section][name] = value
    return facts


def test_a_node_where_all_is_well_has_nothing_to_do() -> None:
    assert list(advice(played())) == []
    assert paths(played())["disk"] == "kvikio, GPUDirect Storage"
    assert paths(played())["device"] == "cuda:0"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpu__torch": {"error": "No module named 'torch'"}}, "install a CUDA build of torch"),
        ({"gpu__torch": {}, "gpu__nvidia_smi": None}, "--gpus all"),
        ({"gpu__torch": {}, "gpu__nvidia_smi": None, "gpu__libcuda": None}, "no GPU here"),
        ({"host__memlock_soft": 65536}, "memlock is 64 KiB"),
        ({"gpu__pinned": {"largest_mib": 64, "refused_mib": 1024}}, "1024 MiB of host memory could not be pinned"),
        ({"gpu__nvml": {"gpus": [{"name": "H100", "pcie_width": 8, "pcie_width_max": 16}]}}, "8 of 16 PCIe lanes"),
        ({"storage__writable": False}, "cannot be written"),
        ({"storage__file_system": "tmpfs"}, "is on tmpfs"),
        ({"storage__o_direct": "no O_DIRECT here"}, "page cache"),
        ({"gds__nvidia_fs": False}, "nvidia-fs is not loaded"),
        ({"gds__udev_readable": False}, "-v /run/udev:/run/udev:ro"),
        ({"gds__cufile_driver_open": {"error": "no answer in 20 s"}}, "KVIKIO_COMPAT_MODE=ON"),
        ({"gds__kvikio": {"error": "No module named 'kvikio'"}}, "kvtier[gds-cu13]"),
        ({"nixl__error": "No module named 'nixl_cu13'"}, "kvtier[nixl]"),
    ],
)
def test_each_thing_that_is_wrong_says_what_to_do(changes: dict[str, Any], said: str) -> None:
    assert said in "\n".join(advice(played(**changes)))


def test_bytes_that_were_counted_decide_whether_gds_is_in_force() -> None:
    said = {"io": "works", "gds_available": True, "posix_preferred": False}
    counted = played(gds__kvikio={**said, "bytes_by_backend": {"POSIX": 1 << 20}})
    assert "by way of host memory" in paths(counted)["disk"]
    assert (
        paths(played(gds__kvikio={**said, "bytes_by_backend": {"GDS": 1 << 20}}))["disk"] == "kvikio, GPUDirect Storage"
    )


def test_the_numa_node_is_found_by_the_kernels_name_of_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(probe, "_text", lambda path: asked.append(path) or "1")
    assert probe._numa("00000000:4E:00.0") == "1"
    assert asked == ["/sys/bus/pci/devices/0000:4e:00.0/numa_node"]


def test_without_gds_the_path_is_named_as_the_detour_it_is() -> None:
    assert "by way of host memory" in paths(played(gds__nvidia_fs=False))["disk"]
    assert paths(played(gpu__torch={}))["disk"] == "pread/pwrite with O_DIRECT"
