"""Runs the ```console blocks of the README and docs/ again and puts what they print now into the pages.

    python -m tests.docs.update [PAGE ...]

A block that shows only the first lines of an output keeps as many lines as it had. Run from the root of a checkout with the
`kvtier` command on the path; each block runs in an empty directory of its own.
"""

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from tests.docs.test_console import BLOCK, PAGES

WIDTH = {"COLUMNS": "80"}


def updated(block: str) -> str:
    """The block with today's output."""
    scripts = sysconfig.get_path("scripts")
    environment = os.environ | WIDTH | {"PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    parts = []
    with tempfile.TemporaryDirectory() as directory:
        for part in block.split("$ ")[1:]:
            command, _, shown = part.partition("\n")
            result = subprocess.run(
                command, shell=True, cwd=directory, env=environment, capture_output=True, text=True, check=False
            )
            output = (result.stderr if shown.startswith("kvtier: ") else result.stdout).rstrip("\n").splitlines()
            wanted = len(shown.rstrip("\n").splitlines())
            kept = output[:wanted] if wanted else output
            parts.append("".join(f"{line.rstrip()}\n" for line in [f"$ {command}", *kept]))
    return "".join(parts)


def main(pages: list[Path]) -> None:
    """Rewrite the pages in place; says which changed."""
    for page in pages:
        text = page.read_text(encoding="utf-8")
        new = BLOCK.sub(lambda found: f"```console\n{updated(found.group(1))}```", text)
        if new != text:
            page.write_text(new, encoding="utf-8")
            print(f"{page}: changed")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]] or PAGES)
