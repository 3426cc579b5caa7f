"""Says what of a machine `kvtier` can use, which path bytes would take, and what to do about the rest."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hw import probe


def examine(directory: Path) -> dict[str, Any]:
    """All facts, plain, with `advice`."""
    facts: dict[str, Any] = {
        "host": probe.host(),
        "gpu": probe.gpus(),
        "storage": probe.storage(directory),
        "gds": probe.gds(directory),
        "nixl": probe.nixl(),
    }
    facts["paths"] = paths(facts)
    facts["advice"] = list(advice(facts))
    return facts


def paths(facts: dict[str, Any]) -> dict[str, str]:
    """How bytes would move here."""
    has_gpu = bool(facts["gpu"]["torch"].get("gpus"))
    kvikio, gds = facts["gds"]["kvikio"], facts["gds"]
    direct = facts["storage"]["o_direct"] == "works"
    files = "pread/pwrite with O_DIRECT" if direct else "pread/pwrite through the page cache"
    if has_gpu and kvikio.get("io") == "works":
        real = _gds_in_force(kvikio, nvidia_fs=bool(gds["nvidia_fs"]))
        detour = "kvikio, POSIX by way of host memory (GPUDirect Storage not in force)"
        files = "kvikio, GPUDirect Storage" if real else detour
    return {
        "device": "cuda:0" if has_gpu else "cpu (host memory stands in for the GPU's)",
        "gpu to host": "cudaMemcpyAsync, pinned host memory" if has_gpu else "memcpy",
        "disk": files,
        "between workers": "NIXL or shared memory" if "plugins" in facts["nixl"] else "shared memory",
    }


def _gds_in_force(kvikio: dict[str, Any], *, nvidia_fs: bool) -> bool:
    """By the bytes kvikio counted of a GPU buffer, where it counts; libcufile itself may still fall back without nvidia-fs."""
    counted = kvikio.get("bytes_by_backend")
    asked = "GDS" in counted if counted else kvikio.get("gds_available") is True and not kvikio.get("posix_preferred")
    return bool(asked and nvidia_fs)


def advice(facts: dict[str, Any]) -> Iterator[str]:
    """What to fix, most important first."""
    host, gpu, storage, gds = facts["host"], facts["gpu"], facts["storage"], facts["gds"]
    if not gpu["torch"].get("gpus"):
        if gpu["nvidia_smi"]:
            why = gpu["torch"].get("error", "no CUDA build")
            yield f"nvidia-smi sees a GPU but torch does not ({why}): install a CUDA build of torch"
        elif gpu["libcuda"]:
            yield "libcuda is there but no GPU answers: docker run --gpus all, or Slurm --gres=gpu:1"
        else:
            yield "no GPU here: device cpu is used; its figures are those of host memory"
    if gpu["torch"].get("gpus") and isinstance(host["memlock_soft"], int) and host["memlock_soft"] < 1 << 30:
        yield (
            f"memlock is {host['memlock_soft'] >> 10} KiB: pinned pools and RDMA may be refused; raise it"
            " (ulimit -l unlimited; docker run --ulimit memlock=-1; Slurm: PropagateResourceLimitsExcept=MEMLOCK)"
        )
    refused = gpu.get("pinned", {}).get("refused_mib")
    if refused:
        yield (
            f"{refused} MiB of host memory could not be pinned: raise memlock, or the memory limit of the container or job"
        )
    for one in gpu.get("nvml", {}).get("gpus", []):
        width, most = one.get("pcie_width"), one.get("pcie_width_max")
        if isinstance(width, int) and isinstance(most, int) and width < most:
            yield f"{one['name']} has {width} of {most} PCIe lanes: the slot or the riser limits its host copies"
    if not storage["writable"]:
        yield f"{storage['directory']} cannot be written: give another --storage"
    if storage["file_system"] in {"tmpfs", "ramfs", "overlay"}:
        yield f"{storage['directory']} is on {storage['file_system']}, not on a disk: give a directory on NVMe"
    elif storage["o_direct"] != "works":
        yield f"no O_DIRECT at {storage['directory']} ({storage['o_direct']}): figures will be those of the page cache"
    if gpu["torch"].get("gpus"):
        yield from _gds_advice(gds)
    if "No module" in str(facts["nixl"].get("error", "")):
        yield "NIXL is not installed (optional, transfer between workers): pip install kvtier[nixl]"


def _gds_advice(gds: dict[str, Any]) -> Iterator[str]:
    if "error" in gds["kvikio"] and "No module" in gds["kvikio"]["error"]:
        yield "kvikio is not installed (files straight to the GPU): pip install kvtier[gds-cu13] or [gds-cu12]"
    if not gds["nvidia_fs"]:
        yield "nvidia-fs is not loaded, so GPUDirect Storage cannot be in force; files go by way of host memory"
    if not gds["udev_readable"]:
        yield "/run/udev cannot be read, so kvikio uses POSIX without saying so: docker run -v /run/udev:/run/udev:ro"
    if "no answer" in str(gds["cufile_driver_open"].get("error", "")):
        yield "opening the cuFile driver hangs here: set KVIKIO_COMPAT_MODE=ON so that nothing tries"


def lines(facts: dict[str, Any]) -> list[str]:
    """As text."""
    shown = []
    for section, values in facts.items():
        if section == "advice":
            continue
        shown += ["", section]
        shown += [f"  {key:22} {_plain(value)}" for key, value in values.items()]
    shown += ["", "to do" if facts["advice"] else "nothing to do"]
    return [*shown[1:], *(f"  - {text}" for text in facts["advice"])]


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_plain(inner)}" for key, inner in value.items()) or "no answer"
    if isinstance(value, list):
        return "; ".join(_plain(item) for item in value) or "none"
    return "no" if value is None or value is False else "yes" if value is True else str(value)
