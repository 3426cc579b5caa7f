"""Tests whose tables would each need loops of their own type: a minute of compilation, for seconds of Python.

The compiled form of these loops is run by `tests/experiments/test_compare.py`; here their rules are checked as plain Python.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba import config

HERE = Path(__file__).parent


@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="they run by themselves")
@pytest.mark.parametrize("name", ["test_shelved.py", "test_gate.py"])
def test_the_rules_hold_as_plain_python(name: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", str(HERE / name)]
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "skipped" not in done.stdout
