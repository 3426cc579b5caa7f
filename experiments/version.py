"""The version of the installed package, and of the very code that runs."""

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

DECIDING = ("kvcache", "sim", "traces", "experiments", "reports/columns.py")
"""What can change a row: the rooms that decide, spend time, read traces and make rows, presets included."""


def kvtier_version() -> str:
    """As pip knows it; a source tree that is not installed has none."""
    try:
        return version("kvtier")
    except PackageNotFoundError:
        return "0+unknown"


@cache
def code_sha256() -> str:
    """The SHA-256 over everything of kvtier that can change a row, names and contents."""
    root = Path(__file__).parent.parent
    files = sorted(path for name in DECIDING for path in _sources(root / name))
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _sources(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return [file for pattern in ("*.py", "presets/**/*.yaml") for file in path.rglob(pattern)]
