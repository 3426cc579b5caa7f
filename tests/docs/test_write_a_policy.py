"""The page about writing a policy: its file, copied as it is, gives the table that the page shows, in under 40 lines."""

import os
import re
import subprocess
import sysconfig
from pathlib import Path

from tests.docs.test_console import words

PAGE = Path(__file__).parents[2] / "docs" / "write-a-policy.md"


def test_the_pages_file_and_command_give_the_pages_table(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    code = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (block,) = re.findall(r"^    \$ (kvtier .*?)\n((?:    .*\n)+)", text, re.MULTILINE)
    (tmp_path / "my_policy.py").write_text("".join(code), encoding="utf-8")
    command, shown = block
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        command,
        shell=True,
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    table = result.stdout.split("\n\n", maxsplit=1)[0]  # below it: causes and costs
    assert words(table) == words(shown)
    assert len("".join(code).splitlines()) + 1 < 40
