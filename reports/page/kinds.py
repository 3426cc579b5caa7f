"""Finds out what a path holds, and writes its page."""

import json
from collections.abc import Callable
from pathlib import Path

from reports.page import comparison, hardware, run, sweep
from reports.page.sections import Section
from reports.page.write import write_page

Sections = Callable[[Path], tuple[str, str, list[Section]]]


def report(path: Path, out: Path, made_by: str) -> Path:
    """Write the page of whatever `path` holds to `out`; ValueError for what no command of ours wrote."""
    if out.suffix not in {".html", ".htm"}:
        raise ValueError(f"{out}: the page is HTML; give a name that ends in .html")
    title, lead, sections = kind_of(path)(path)
    return write_page(out, title, lead, sections, made_by)


def kind_of(path: Path) -> Sections:
    """Which page fits."""
    if not path.exists():
        raise ValueError(f"{path}: no such file or directory")
    if path.is_dir():
        return _directory(path)
    if path.suffix in {".yaml", ".yml"}:
        return hardware.calibration
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: neither JSON nor a hardware file ({error}); {KNOWN}") from None
    if isinstance(content, dict) and {"requests", "misses_by_cause", "spec"} <= set(content):
        return run.sections
    if isinstance(content, dict) and {"policies", "bound"} <= set(content):
        return comparison.comparison
    if isinstance(content, list) and content and "capacity_blocks" in content[0]:
        return comparison.curve
    raise ValueError(f"{path}: JSON, but not of a run or a comparison; {KNOWN}")


KNOWN = (
    "give a directory of `kvtier sweep`, `replay --record` or `validate --out`, a file of --json of `replay`,"
    " `compare` or `curve`, or a hardware file of `kvtier calibrate`"
)


def _directory(path: Path) -> Sections:
    kinds: dict[str, Sections] = {
        "sweep.parquet": sweep.sections,
        "run.json": run.sections,
        "validation.json": hardware.validation,
    }
    for name, found in kinds.items():
        if (path / name).exists():
            return found
    raise ValueError(f"{path}: none of {', '.join(kinds)} in it; {KNOWN}")
