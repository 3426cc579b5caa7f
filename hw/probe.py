"""What this machine has for moving KV cache: GPUs, drivers, limits, the file system behind a directory.

It changes nothing and needs nothing: what is not there is reported as not there. Everything that is known to hang or
crash in some set-ups (opening the cuFile driver, CUDA itself, NIXL's plug-ins) runs in a child process with a time
limit.
"""

import ctypes.util
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LIMIT_S = 20.0

TORCH = """
import json, torch
n = torch.cuda.device_count() if torch.cuda.is_available() else 0
gpus = [torch.cuda.get_device_properties(i) for i in range(n)]
print(json.dumps({'version': torch.__version__, 'cuda': torch.version.cuda, 'gpus': [
    {'name': g.name, 'bytes': g.total_memory, 'capability': [g.major, g.minor]} for g in gpus]}))
"""
CUDA_ATTRIBUTES = """
import json
from cuda.bindings import driver as d
d.cuInit(0)
names = ('ASYNC_ENGINE_COUNT', 'PAGEABLE_MEMORY_ACCESS', 'PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES',
         'HOST_REGISTER_SUPPORTED', 'GPU_DIRECT_RDMA_SUPPORTED', 'DMA_BUF_SUPPORTED', 'HOST_NUMA_ID')
A = d.CUdevice_attribute
known = {n: getattr(A, 'CU_DEVICE_ATTRIBUTE_' + n, None) for n in names}
got = {n: d.cuDeviceGetAttribute(a, 0) for n, a in known.items() if a is not None}
print(json.dumps({n: int(v[1]) for n, v in got.items()}))
"""
NVML = """
import json, pynvml as n
n.nvmlInit()
out = []
for i in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(i)
    def ask(f, *a):
        try: return f(h, *a)
        except Exception as e: return str(e)
    c2c = ask(getattr(n, 'nvmlDeviceGetC2cModeInfoV', lambda h: None))
    bus = getattr(ask(n.nvmlDeviceGetPciInfo), 'busId', '')
    bus = bus.decode() if isinstance(bus, bytes) else str(bus)
    out.append({'name': str(ask(n.nvmlDeviceGetName)), 'pcie_generation': ask(n.nvmlDeviceGetCurrPcieLinkGeneration),
        'pcie_width': ask(n.nvmlDeviceGetCurrPcieLinkWidth),
        'pcie_generation_max': ask(n.nvmlDeviceGetMaxPcieLinkGeneration),
        'pcie_width_max': ask(n.nvmlDeviceGetMaxPcieLinkWidth),
        'nvlink_c2c': getattr(c2c, 'isC2cEnabled', None), 'bus': bus})
print(json.dumps({'driver': str(n.nvmlSystemGetDriverVersion()), 'gpus': out}))
"""
PINNED = """
import json, mmap, numpy as np, torch
api, taken = torch.cuda.cudart(), 0
for mib in (64, 1024, 4096):
    memory = np.frombuffer(mmap.mmap(-1, mib << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    code = int(api.cudaHostRegister(memory.ctypes.data, memory.size, 0))
    if code:
        print(json.dumps({'largest_mib': taken, 'refused_mib': mib, 'cuda_error': code})); break
    api.cudaHostUnregister(memory.ctypes.data)
    taken = mib
    print(json.dumps({'largest_mib': taken}), flush=True)
"""
KVIKIO = """
import json, os, sys, tempfile, numpy as np, kvikio, kvikio.defaults as d, kvikio.cufile_driver as c
out = {'version': kvikio.__version__, 'compat_mode': str(d.get('compat_mode')),
       'posix_preferred': bool(d.is_compat_mode_preferred())}
try: out['gds_available'] = bool(c.get('is_gds_available'))
except Exception as e: out['gds_available'] = str(e)[:200]
print(json.dumps(out), flush=True)
out['buffer'], buffer = 'host memory', np.zeros(1 << 20, np.uint8)
try:
    import torch
    if torch.cuda.is_available(): out['buffer'], buffer = 'gpu memory', torch.zeros(1 << 20, dtype=torch.uint8, device='cuda')
except ImportError: pass
fd, name = tempfile.mkstemp(dir=sys.argv[1])
os.close(fd)
try:
    monitor = kvikio.SummaryMonitor() if hasattr(kvikio, 'SummaryMonitor') else None
    with kvikio.CuFile(name, 'w') as f: f.write(buffer)
    out['io'] = 'works'
    if monitor: out['bytes_by_backend'] = {k: v['bytes_transferred'] for k, v in monitor.get().by_backend.items()}
except Exception as e: out['io'] = f'{type(e).__name__}: {e}'[:300]
finally: os.unlink(name)
print(json.dumps(out))
"""
CUFILE_OPEN = "from cuda.bindings import cufile as c; c.driver_open(); print('{\"opened\": true}')"
NIXL = """
import json
from nixl_cu13 import nixl_agent, nixl_agent_config
a = nixl_agent('doctor', nixl_agent_config(backends=[]))
out = {}
import sys
for name in sys.argv[1:]:
    try: a.create_backend(name); out[name] = 'opens'
    except Exception as e: out[name] = type(e).__name__
print(json.dumps({'listed': list(a.get_plugin_list()), 'plugins': out}))
"""


def child(code: str, *arguments: str, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """The JSON that `code` printed last, or why there is none: not installed, a crash, no answer in time."""
    command = [sys.executable, "-c", code, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as error:
        heard = _last_json(
            (error.stdout or b"").decode() if isinstance(error.stdout, bytes) else str(error.stdout or "")
        )
        return {**heard, "error": f"no answer in {limit_s:g} s"}
    heard = _last_json(done.stdout)
    if done.returncode < 0:
        return {**heard, "error": f"died of signal {-done.returncode}"}
    if done.returncode:
        text = done.stderr.strip().splitlines()
        return {**heard, "error": (text[-1] if text else f"exit code {done.returncode}")[:300]}
    return heard


def _last_json(text: str) -> dict[str, Any]:
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                found: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            return found
    return {}


def host() -> dict[str, Any]:
    """Processor, memory, limits."""
    nodes = sorted(path.name for path in Path("/sys/devices/system/node").glob("node[0-9]*"))
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "numa_nodes": len(nodes) or 1,
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "memlock_soft": _limit(soft),
        "memlock_hard": _limit(hard),
        "huge_pages": _text("/sys/kernel/mm/transparent_hugepage/enabled"),
        "container": Path("/.dockerenv").exists() or "container" in os.environ,
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
    }


def _limit(value: int) -> int | str:
    return "unlimited" if value == resource.RLIM_INFINITY else value


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def gpus() -> dict[str, Any]:
    """NVIDIA GPUs by nvidia-smi, NVML, torch and the driver's attributes, each for itself."""
    out: dict[str, Any] = {"nvidia_smi": None, "libcuda": ctypes.util.find_library("cuda")}
    if shutil.which("nvidia-smi"):
        fields = "index,name,memory.total,driver_version,pcie.link.gen.current,pcie.link.width.current"
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            out["nvidia_smi"] = done.stdout.strip().splitlines() if done.returncode == 0 else done.stdout.strip()[:300]
        except subprocess.TimeoutExpired:
            out["nvidia_smi"] = f"no answer in {LIMIT_S:g} s"
    out["nvml"] = child(NVML)
    out["torch"] = child(TORCH, limit_s=60)
    out["attributes"] = child(CUDA_ATTRIBUTES)
    if out["torch"].get("gpus"):
        out["pinned"] = child(PINNED)
    out["numa"] = {gpu["bus"]: _numa(gpu["bus"]) for gpu in out["nvml"].get("gpus", [])}
    return out


def _numa(bus: str) -> str | None:
    """NUMA node of a PCIe device; NVML writes eight digits of the domain, the kernel four."""
    domain, _, rest = bus.lower().partition(":")
    return _text(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node")


def storage(directory: Path) -> dict[str, Any]:
    """The file system behind a directory, its device, whether O_DIRECT works there."""
    existing = next(path for path in (directory.resolve(), *directory.resolve().parents) if path.exists())
    mounts = [line.split()[:4] for line in (_text("/proc/mounts") or "").splitlines()]
    under = [m for m in mounts if existing.is_relative_to(m[1])]
    source, point, kind, options = max(under, key=lambda m: len(m[1]), default=["?", "?", "?", "?"])
    number = existing.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    queue = next((path / "queue" for path in (device, device.parent) if (path / "queue").exists()), device / "queue")
    out: dict[str, Any] = {
        "directory": str(directory),
        "exists": directory.exists(),
        "mount": point,
        "file_system": kind,
        "source": source,
        "options": options,
        "free_bytes": shutil.disk_usage(existing).free,
        "block_device": device.name if device.exists() else None,
        "logical_block_bytes": _text(str(queue / "logical_block_size")),
        "rotational": _text(str(queue / "rotational")),
        "writable": os.access(existing, os.W_OK),
    }
    out["o_direct"] = _direct(existing)
    return out


def _direct(directory: Path) -> str:
    """works, or why not; tried with a file of one page."""
    from hw.disk import SlotFile
    from hw.errors import HardwareError
    from hw.memory import Rows

    try:
        file = SlotFile(directory, Rows(0, 2, 0, 1, 4096))
    except HardwareError as error:
        return str(error)
    try:
        return "works" if file.direct else file.note
    finally:
        file.close()


def gds(directory: Path) -> dict[str, Any]:
    """GPUDirect Storage and kvikio: what is there, and what is in force."""
    out: dict[str, Any] = {
        "nvidia_fs": Path("/proc/driver/nvidia-fs").exists(),
        "nvidia_fs_version": _text("/proc/driver/nvidia-fs/version"),
        "udev_readable": os.access("/run/udev", os.R_OK),
        "cufile_json": os.environ.get("CUFILE_ENV_PATH_JSON") or Path("/etc/cufile.json").exists(),
        "libcufile": ctypes.util.find_library("cufile"),
    }
    existing = next(path for path in (directory.resolve(), *directory.resolve().parents) if path.exists())
    out["kvikio"] = child(KVIKIO, str(existing))
    begun = time.monotonic()
    out["cufile_driver_open"] = child(CUFILE_OPEN)
    out["cufile_driver_open"]["seconds"] = round(time.monotonic() - begun, 1)
    return out


def nixl() -> dict[str, Any]:
    """NIXL's plug-ins: being listed means nothing, so each is opened, alone."""
    first = child(NIXL, "UCX")
    if "plugins" not in first:
        return first
    for name in ("POSIX", "GDS", "GDS_MT"):
        answer = child(NIXL, name)
        first["plugins"][name] = answer.get("plugins", {}).get(name, answer.get("error", "no answer"))
    return first
