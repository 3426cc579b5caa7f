"""Calls to CUDA by the real cuda-bindings: without a driver each is answered with an error of CUDA's, not of Python's.

That is what can be known of them without a GPU: the functions exist and take what `hw.cuda_torch` gives them.
"""

import subprocess
import sys

CODE = """
from types import SimpleNamespace
from cuda.bindings import runtime
from hw import cuda_torch
from hw.cuda_torch import TorchRuntime
from hw.errors import HardwareError

made = TorchRuntime.__new__(TorchRuntime)  # the real one asks for a GPU first
made._bindings, made._pinned = runtime, []
row = SimpleNamespace(data_ptr=lambda: 4096, numel=lambda: 512, is_cuda=False)
stream = SimpleNamespace(cuda_stream=1)
for strategy in ("batch", "memcpy"):
    made.strategy = strategy
    try:
        made.copy([(row, row), (row, row)], stream)
        raise SystemExit("no error")
    except HardwareError as error:
        assert "InsufficientDriver" in str(error) or "NoDevice" in str(error), error
assert made._shift(4096) is None
assert cuda_torch._bindings(0) is None  # installed, but no device answers
made.strategy = "gather"
try:
    made._seen(row)
    raise SystemExit("no error")
except ValueError as error:
    assert "cannot reach" in str(error)
print("fine")
"""


def test_each_way_of_copying_calls_cuda_with_arguments_it_takes(real_libraries: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60, check=False, env=real_libraries
    )
    assert done.stdout == "fine\n", done.stdout + done.stderr
