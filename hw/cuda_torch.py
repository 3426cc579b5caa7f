"""CUDA by way of torch, and of cuda-bindings where that is installed. Thin: `hw.cuda` decides what is called when.

Not yet run on a GPU.
"""

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.disk import SlotFile
from hw.errors import OutOfMemoryError, PinnedMemoryError, classify
from hw.memory import HostMemory
from hw.program import PATTERN, fill

GEMM = 4096
STRATEGIES = {
    "memcpy": "cudaMemcpyAsync, a call a block",
    "copy_": "torch copy_, a call a block",
    "batch": "cudaMemcpyBatchAsync",
    "gather": "one kernel for all blocks",
}
REFUSALS = (OSError, RuntimeError, TypeError, ValueError, AttributeError, ImportError)
MAPPED, PORTABLE = 2, 1  # cudaHostRegisterMapped, cudaHostRegisterPortable


def need_torch() -> Any:
    """torch, or how to get it."""
    try:
        import torch
    except ImportError:
        raise ValueError("device cuda needs torch: pip install kvtier[hw]") from None
    return torch


class TorchRuntime:
    """See `hw.cuda_runtime.Runtime`. All ways of `STRATEGIES` are tried with 64 rows of 64 KiB; what is refused or copies
    wrong bytes is left out, and `facts` says why. The fastest is in force.
    """

    def __init__(self, number: int) -> None:
        self._torch = torch = need_torch()
        if not torch.cuda.is_available():
            built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
            raise ValueError(
                f"device cuda:{number} is not there: torch {torch.__version__} (built with {built}) finds no GPU;"
                " use --device cpu, or see kvtier doctor"
            )
        if number >= torch.cuda.device_count():
            raise ValueError(f"device cuda:{number} is not there; this machine has {torch.cuda.device_count()} GPUs")
        self._device = torch.device("cuda", number)
        torch.cuda.set_device(self._device)
        self._bindings = _bindings(number)
        self._pinned: list[tuple[HostMemory, int | None]] = []  # what to add to an address for the GPU's view of it
        self._ramps: dict[tuple[str, int], Any] = {}
        self._scratch: dict[Any, Any] = {}
        self._gemm: tuple[Any, Any, Any, float] | None = None
        properties = torch.cuda.get_device_properties(self._device)
        self.name = f"cuda:{number} ({properties.name})"
        self.facts: dict[str, Any] = {
            "gpu": properties.name,
            "gpu_bytes": properties.total_memory,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        }
        self.strategy, rates = "copy_", self._tried()
        self.strategies = tuple(rates)
        self.strategy = max(rates, key=lambda name: rates[name])
        self.facts["copies"] = STRATEGIES[self.strategy]
        self.facts["copy_bytes_per_s"] = rates

    def _tried(self) -> dict[str, float]:
        """Bytes per second by strategy that works."""
        rows, stride, torch = 64, 64 << 10, self._torch
        gpu, host, stream = self.gpu_pool(rows, stride), self.host_pool(rows, stride), self.stream()
        order = np.random.default_rng(0).permutation(rows).tolist()
        moves, rates = [(host[i], gpu[order[i]]) for i in range(rows)], {}
        for number, name in enumerate(STRATEGIES):
            self.strategy = name
            self.randomize(gpu, number)
            try:
                spent = [self._try(moves, stream) for _ in range(8)]
                good = all(torch.equal(target, source.cpu()) for target, source in moves)
            except REFUSALS as error:
                self.facts[f"{name} refused"] = str(error)[:200]
                continue
            if good:
                rates[name] = rows * stride / float(np.median(spent[2:]))
            else:
                self.facts[f"{name} refused"] = "it copied wrong bytes"
        if not rates:
            raise classify(RuntimeError("no way of copying works"), f"device {self.name}")
        return rates

    def _try(self, moves: list[tuple[Any, Any]], stream: Any) -> float:
        first, last = self.event(), self.event()
        self.record(first, stream)
        self.copy(moves, stream)
        self.record(last, stream)
        stream.synchronize()
        return self.seconds(first, last)

    def gpu_pool(self, rows: int, stride: int) -> Any:
        """See `hw.cuda_runtime.Runtime`."""
        try:
            pool = self._torch.zeros((rows, stride), dtype=self._torch.uint8, device=self._device)
        except self._torch.cuda.OutOfMemoryError:
            free, total = self._torch.cuda.mem_get_info(self._device)
            raise OutOfMemoryError(
                errno.ENOMEM,
                f"a pool of {rows * stride / 2**30:.2f} GiB does not fit on {self.name}: {free / 2**30:.2f} of"
                f" {total / 2**30:.2f} GiB are free; lower capacity.gpu_tokens",
            ) from None
        self.settle()
        return pool

    def host_pool(self, rows: int, stride: int) -> Any:
        """Page-aligned memory, in huge pages where there are, registered with CUDA."""
        memory = HostMemory(max(1, rows * stride), "host pool")
        code = int(self._torch.cuda.cudart().cudaHostRegister(memory.address, memory.size, MAPPED | PORTABLE))
        if code != 0:
            memory.close()
            raise PinnedMemoryError(
                errno.ENOMEM,
                f"{rows * stride / 2**30:.2f} GiB of host memory could not be pinned (CUDA error {code}): raise the"
                " memlock limit (ulimit -l unlimited) or lower capacity.host_tokens",
            )
        self._pinned.append((memory, self._shift(memory.address)))
        return self._torch.from_numpy(memory.array[: rows * stride].reshape(rows, stride))

    def _shift(self, address: int) -> int | None:
        """From an address of pinned memory to the one by which kernels reach it; None: nobody here can tell."""
        if self._bindings is None:
            return None
        code, mapped = self._bindings.cudaHostGetDevicePointer(address, 0)
        return int(mapped) - address if int(code) == 0 else None

    def stream(self) -> Any:
        """See `hw.cuda_runtime.Runtime`."""
        return self._torch.cuda.Stream(self._device)

    def event(self) -> Any:
        """See `hw.cuda_runtime.Runtime`."""
        return self._torch.cuda.Event(enable_timing=True)

    def record(self, event: Any, stream: Any) -> None:
        """See `hw.cuda_runtime.Runtime`."""
        event.record(stream)

    def wait(self, stream: Any, event: Any) -> None:
        """See `hw.cuda_runtime.Runtime`."""
        stream.wait_event(event)

    def seconds(self, first: Any, last: Any) -> float:
        """See `hw.cuda_runtime.Runtime`."""
        return float(first.elapsed_time(last)) * 1e-3

    def copy(self, moves: list[tuple[Any, Any]], stream: Any) -> None:
        """See `hw.cuda_runtime.Runtime`."""
        if self.strategy == "copy_":
            with self._torch.cuda.stream(stream):
                for target, source in moves:
                    target.copy_(source, non_blocking=True)
        elif self.strategy == "gather":
            self._gather(moves, stream)
        elif self._bindings is None:
            raise ValueError("cuda-bindings is not installed")
        elif self.strategy == "batch":
            self._batch(moves, stream)
        else:
            runtime = self._bindings
            kind = runtime.cudaMemcpyKind.cudaMemcpyDefault
            for target, source in moves:
                _check(
                    runtime.cudaMemcpyAsync(
                        target.data_ptr(), source.data_ptr(), source.numel(), kind, stream.cuda_stream
                    )
                )

    def _batch(self, moves: list[tuple[Any, Any]], stream: Any) -> None:
        """One call for all rows. The Python form has no argument for the copy that failed, in CUDA 12 neither: it is returned."""
        runtime = self._bindings
        attributes = runtime.cudaMemcpyAttributes()
        attributes.srcAccessOrder = runtime.cudaMemcpySrcAccessOrder.cudaMemcpySrcAccessOrderStream
        targets = [target.data_ptr() for target, _ in moves]
        sources = [source.data_ptr() for _, source in moves]
        sizes = [source.numel() for _, source in moves]
        _check(
            runtime.cudaMemcpyBatchAsync(targets, sources, sizes, len(moves), [attributes], [0], 1, stream.cuda_stream)
        )

    def _gather(self, moves: list[tuple[Any, Any]], stream: Any) -> None:
        from hw.cuda_gather import copy_rows

        rows = np.array(
            [(self._seen(target), self._seen(source), source.numel() // 8) for target, source in moves], np.int64
        )
        with self._torch.cuda.stream(stream):
            copy_rows(self._torch, rows, self._device)

    def _seen(self, row: Any) -> int:
        """The address of a row as kernels see it."""
        address = int(row.data_ptr())
        if row.is_cuda:
            return address
        for memory, shift in self._pinned:
            if shift is not None and memory.address <= address < memory.address + memory.size:
                return address + shift
        raise ValueError("kernels cannot reach this host memory (cuda-bindings tells where it is mapped)")

    def ramp(self, words: int, device: Any) -> Any:
        """i * PATTERN for every word of a row, on a device."""
        key = (str(device), words)
        if key not in self._ramps:
            values = np.arange(words, dtype=np.int64) * np.int64(PATTERN)
            self._ramps[key] = self._torch.from_numpy(values).to(device)
            self.settle()
        return self._ramps[key]

    def settle(self) -> None:
        """Wait for everything, on all streams: they do not wait for the default one, on which tensors are made."""
        self._torch.cuda.synchronize(self._device)

    def stamp(self, row: Any, seed: int, stream: Any) -> None:
        """See `hw.cuda_runtime.Runtime`."""
        words = row.view(self._torch.int64)
        ramp = self.ramp(len(words), row.device)
        with self._torch.cuda.stream(stream):
            self._torch.add(ramp, seed, out=words)

    def compare(self, row: Any, seed: int, stream: Any) -> Callable[[], bool]:
        """See `hw.cuda_runtime.Runtime`. Host rows are brought to the GPU on the same stream, so that the order holds."""
        torch, ramp = self._torch, self.ramp(len(row) // 8, self._device)
        with torch.cuda.stream(stream):
            if not row.is_cuda:
                key = stream.cuda_stream
                if key not in self._scratch or len(self._scratch[key]) < len(row):
                    self._scratch[key] = torch.empty(len(row), dtype=torch.uint8, device=self._device)
                row = self._scratch[key][: len(row)].copy_(row, non_blocking=True)
            answer = (row.view(torch.int64) != ramp + seed).any()
        return lambda: bool(answer.item())

    def compute(self, seconds: float, stream: Any) -> None:
        """Matrix products, as many as take about so long."""
        torch = self._torch
        if self._gemm is None:
            a = torch.randn((GEMM, GEMM), dtype=torch.bfloat16, device=self._device)
            out = torch.empty_like(a)
            self._gemm = (a, a.clone(), out, _timed(torch, lambda: torch.mm(a, a, out=out), 10))
            self.settle()
        a, b, out, each = self._gemm
        with torch.cuda.stream(stream):
            for _ in range(max(1, round(seconds / each))):
                torch.mm(a, b, out=out)

    def synchronize(self, stream: Any) -> None:
        """See `hw.cuda_runtime.Runtime`."""
        stream.synchronize()

    def bytes_of(self, row: Any) -> NDArray[np.uint8]:
        """See `hw.cuda_runtime.Runtime`."""
        found: NDArray[np.uint8] = (row.cpu() if row.is_cuda else row).numpy()
        return found

    def put(self, row: Any, data: NDArray[np.uint8]) -> None:
        """See `hw.cuda_runtime.Runtime`."""
        row.copy_(self._torch.from_numpy(data[: len(row)]))
        self.settle()

    def randomize(self, pool: Any, seed: int) -> None:
        """See `hw.cuda_runtime.Runtime`."""
        if pool.is_cuda:
            self._torch.manual_seed(seed)
            pool.random_(0, 256)
            self.settle()
        else:
            fill(pool.numpy().reshape(-1).view(np.int64), seed)

    def gpu_file(self, file: SlotFile) -> Any:
        """See `hw.cuda_runtime.Runtime`."""
        from hw.kvikio_disk import KvikioFile, unavailable

        why = unavailable()
        if why is not None:
            self.facts["kvikio"] = why
            return None
        return KvikioFile(file, self.facts)

    def close(self) -> None:
        """See `hw.cuda_runtime.Runtime`."""
        with suppress(RuntimeError):  # a failure that sticks to the process was told when it came
            self.settle()
        for memory, _ in self._pinned:
            self._torch.cuda.cudart().cudaHostUnregister(memory.address)
            memory.close()
        self._pinned.clear()
        self._scratch.clear()


def _bindings(number: int) -> Any:
    """cuda-bindings' runtime API, None where it is not installed or does not load. It keeps a current device of its own."""
    try:
        from cuda.bindings import runtime
    except (ImportError, RuntimeError, OSError):
        return None
    (code,) = runtime.cudaSetDevice(number)
    return runtime if int(code) == 0 else None


def _check(answer: Any) -> None:
    code = answer[0] if isinstance(answer, tuple) else answer
    if int(code) != 0:
        name = getattr(code, "name", f"CUDA error {int(code)}")
        raise classify(RuntimeError(name), "a copy was refused", lost="the step's copies")


def _timed(torch: Any, work: Callable[[], Any], times: int) -> float:
    """Seconds of `work`, median of events around single calls, after a warm-up."""
    spent = []
    for _ in range(times + 3):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        work()
        last.record()
        last.synchronize()
        spent.append(first.elapsed_time(last) * 1e-3)
    return float(np.median(spent[3:]))
