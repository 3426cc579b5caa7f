"""The linters are satisfied: ruff, mypy in strict mode, and the arrows between the rooms."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sysconfig.get_path("scripts"))


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-m", "ruff", "check", "--no-cache", "."],
        [sys.executable, "-m", "ruff", "format", "--no-cache", "--check", "."],
        [sys.executable, "-m", "mypy", "--cache-dir", "/dev/null"],
        [str(SCRIPTS / "lint-imports"), "--no-cache"],
    ],
    ids=["ruff check", "ruff format", "mypy", "lint-imports"],
)
def test_linter_finds_nothing(command: list[str]) -> None:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
