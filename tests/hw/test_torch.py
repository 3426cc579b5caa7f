"""What of the torch runtime works without a GPU: stamps and comparisons in torch are those of the compiled loops.

Skipped where torch is not installed: it is an extra of hundreds of megabytes. tests/gpu/run.sh runs these too.
"""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hw.cuda_torch import TorchRuntime
from hw.program import fill, first_wrong

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install kvtier[hw]")


class OnCpu(TorchRuntime):
    """Without CUDA's parts: streams do nothing."""

    def __init__(self) -> None:  # the real one asks for a GPU
        quiet = SimpleNamespace(stream=lambda _: _Nothing())
        self._torch = SimpleNamespace(
            int64=torch.int64,
            uint8=torch.uint8,
            from_numpy=torch.from_numpy,
            add=torch.add,
            empty=torch.empty,
            cuda=quiet,
        )
        self._device = torch.device("cpu")
        self._ramps, self._scratch, self._bindings, self.strategy = {}, {}, None, "copy_"

    def settle(self) -> None: ...


class _Nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


STREAM: Any = SimpleNamespace(cuda_stream=0)


@pytest.mark.parametrize("seed", [0, 1, 987654321, (1 << 62) - 1])
def test_stamps_made_by_torch_are_those_of_the_compiled_loops(seed: int) -> None:
    runtime, row, expected = OnCpu(), torch.zeros(4096, dtype=torch.uint8), np.zeros(512, np.int64)
    runtime.stamp(row, seed, STREAM)
    fill(expected, seed)
    assert (row.numpy().view(np.int64) == expected).all()
    assert first_wrong(row.numpy().view(np.int64), seed) == -1
    assert not runtime.compare(row, seed, STREAM)()
    row[77] ^= 1
    assert runtime.compare(row, seed, STREAM)()


def test_rows_are_copied_and_read_back() -> None:
    runtime, a, b = OnCpu(), torch.arange(256, dtype=torch.uint8), torch.zeros(256, dtype=torch.uint8)
    runtime.copy([(b[:100], a[:100])], STREAM)
    assert (b[:100] == a[:100]).all()
    assert (b[100:] == 0).all()
    runtime.put(b, np.full(256, 9, np.uint8))
    assert (runtime.bytes_of(b) == 9).all()


def test_without_a_gpu_the_real_runtime_says_what_to_do() -> None:
    if torch.cuda.is_available():
        TorchRuntime(0).close()
        return
    with pytest.raises(ValueError, match="finds no GPU; use --device cpu"):
        TorchRuntime(0)


GATHER = """
import numpy as np, torch
from hw.cuda_gather import copy_rows
a = torch.randint(0, 2**60, (20, 1500), dtype=torch.int64)
b = torch.zeros_like(a)
order = np.random.default_rng(0).permutation(20).tolist()
words = [1500 if i % 3 else 7 for i in range(20)]
rows = [(b[i].data_ptr(), a[order[i]].data_ptr(), words[i]) for i in range(20)]
copy_rows(torch, np.array(rows, np.int64), torch.device("cpu"))
for i in range(20):
    assert (b[i, : words[i]] == a[order[i], : words[i]]).all()
    assert (b[i, words[i] :] == 0).all()
"""


def test_the_gather_kernel_copies_rows_of_several_lengths_in_tritons_interpreter() -> None:
    pytest.importorskip("triton", reason="triton is not installed; it comes with CUDA builds of torch")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", GATHER], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
