"""Every ```console block of the README and of docs/ does what it shows: same lines, same words, same exit code.

Numbers are not compared (a golden test does that), nor spaces, nor progress lines. A block that shows only the first
lines of an output is compared as far as it goes.
"""

import os
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")))
]


def words(text: str) -> list[str]:
    """The lines of an output without numbers, units that depend on them, and space."""
    lines = (re.sub(r"\d[\d,.]*", "N", line) for line in text.splitlines())
    lines = (re.sub(r" (ms|s)\b", " s", re.sub(r"\s+", " ", line)).strip() for line in lines)
    return [line for line in lines if line and not re.match(r"N of N \w+, ", line)]


@pytest.mark.parametrize("block", BLOCKS)
def test_console_block_does_what_it_shows(block: str, tmp_path: Path) -> None:
    scripts = sysconfig.get_path("scripts")
    environment = os.environ | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "80"}
    for part in block.split("$ ")[1:]:
        command, _, shown = part.partition("\n")
        result = subprocess.run(
            command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        fault = shown.startswith("kvtier: ")
        assert result.returncode == (2 if fault else 0), result.stderr
        output = words(result.stderr if fault else result.stdout)
        assert output[: len(words(shown))] == words(shown)


def test_every_page_has_something_to_say() -> None:
    assert len(PAGES) >= 3
    assert all(page.read_text(encoding="utf-8").startswith("# ") for page in PAGES)
