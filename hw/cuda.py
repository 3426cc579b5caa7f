"""A GPU: pools as tensors, pinned host memory, CUDA streams and events, files by kvikio or by way of pinned memory.

Not yet run on a GPU: what decides the order (`hw.cuda_issue`) is tested with a stand-in for the runtime that delays and
reorders everything streams allow; what talks to CUDA (`hw.cuda_torch`) is thin.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hw.cuda_issue import Issue
from hw.cuda_runtime import Runtime
from hw.device import STREAMS, Ran, Report
from hw.disk import SlotFile, aligned, check_storage
from hw.errors import HardwareError, StreamStoppedError, classify
from hw.memory import GPU, HOST, Layout
from hw.program import Program, fill, first_wrong


class CudaDevice:
    """See the module's text and `hw.device.Device`."""

    def __init__(
        self, layout: Layout, storage: Path | None = None, number: int = 0, runtime: Runtime | None = None
    ) -> None:
        if runtime is None:
            from hw.cuda_torch import TorchRuntime

            runtime = TorchRuntime(number)
        self.layout = layout
        self.runtime: Runtime = runtime
        self.strategies, self.strategy = runtime.strategies, runtime.strategy
        self.report = Report(runtime.name, facts=runtime.facts)
        self.files: dict[int, SlotFile] = {}
        self.gpu_files: dict[int, Any] = {}
        self._pools: dict[int, Any] = {}
        self._issued = [0] * len(STREAMS)
        self._failed = False
        self.streams: list[Any] = []
        try:
            self._open(storage)
        except BaseException:
            self.close()
            raise

    def _open(self, storage: Path | None) -> None:
        layout, runtime = self.layout, self.runtime
        for i, rows in enumerate(layout.rows):
            if rows.tier == GPU:
                self._pools[i] = runtime.gpu_pool(rows.blocks, rows.stride)
            elif rows.tier == HOST:
                self._pools[i] = runtime.host_pool(rows.blocks, rows.stride)
            elif rows.blocks > 0:
                self._open_file(i, storage)
        self.streams = [runtime.stream() for _ in STREAMS]
        self.bounce = runtime.host_pool(1, max((rows.stride for rows in layout.rows), default=4096))

    def _open_file(self, pool: int, storage: Path | None) -> None:
        file = self.files[pool] = SlotFile(check_storage(storage), self.layout.rows[pool])
        if file.note:
            self.report.note(file.note)
        self.gpu_files[pool] = self.runtime.gpu_file(file)
        if self.gpu_files[pool] is None:
            self.report.note("files are read into pinned memory and copied to the GPU from there (no kvikio)")

    def done(self, stream: int) -> int:
        """See `hw.device.Device`."""
        return self._issued[stream]

    def run(self, programs: Mapping[int, Program]) -> dict[int, Ran]:
        """See `hw.device.Device`."""
        if self._failed:
            raise StreamStoppedError(5, "a stream has failed; nothing more is done before recover()")
        issue = Issue(self, programs)
        try:
            issue.all()
            return issue.results()
        except HardwareError:
            self._failed = True
            raise
        except (OSError, RuntimeError) as error:
            self._failed = True
            raise classify(error, f"device {self.report.device}", lost="contents of the pools") from error
        finally:
            for stream, program in programs.items():
                self._issued[stream] = issue.first[stream] + len(program)

    def row(self, pool: int, slot: int) -> Any:
        """A row of memory, as the runtime has it."""
        assert 0 <= slot < self.layout.rows[pool].blocks, f"slot {slot} of the {self.layout.rows[pool].name}"
        return self._pools[pool][slot]

    def bytes_of(self, pool: int, slot: int) -> NDArray[np.uint8]:
        """See `hw.device.Device`."""
        return self.runtime.bytes_of(self.row(pool, slot))

    def put(self, pool: int, slot: int, data: NDArray[np.uint8]) -> None:
        """See `hw.device.Device`."""
        self.runtime.put(self.row(pool, slot)[: len(data)], data)

    def fill(self, pool: int, slot: int, seed: int) -> None:
        """See `hw.device.Device`."""
        page = aligned(self.layout.rows[pool].stride)
        fill(page[: self.layout.rows[pool].size].view(np.int64), seed)
        if pool in self.files:
            self.files[pool].write(slot, page)
        else:
            self.runtime.put(self.row(pool, slot), page)

    def randomize(self, pool: int, seed: int) -> None:
        """See `hw.device.Device`."""
        self.runtime.randomize(self._pools[pool], seed)

    def first_wrong(self, pool: int, slot: int, seed: int, size: int) -> int:
        """See `hw.device.Device`."""
        if pool in self.files:
            page = aligned(self.layout.rows[pool].stride)
            self.files[pool].read(slot, page)
        else:
            page = self.runtime.bytes_of(self.row(pool, slot))
        return int(first_wrong(page[:size].view(np.int64), seed))

    def recover(self) -> None:
        """See `hw.device.Device`. A CUDA failure that sticks to the process shows again at the next run."""
        self._failed = False

    def verify(self) -> None:
        """See `hw.device.Device`."""
        for file in self.files.values():
            file.verify()

    def close(self) -> None:
        """See `hw.device.Device`."""
        for gpu_file in self.gpu_files.values():
            if gpu_file is not None:
                gpu_file.close()
        for file in self.files.values():
            file.close()
        self._pools.clear()
        self.runtime.close()
