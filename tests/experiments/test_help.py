"""Every command: help with an example that its own options accept, `--json`, and completion in the shell."""

import os
import re
import shlex
import subprocess
import sysconfig
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from experiments.cli import app
from tests.golden.shapes import COMMANDS, FILES, OF_THE_MACHINE


def walk(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command that can be run, with its words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from walk(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


KNOWN = dict(walk(get_command(app)))


@pytest.mark.parametrize("name", KNOWN)
def test_help_has_a_sentence_and_an_example_that_the_command_accepts(name: str) -> None:
    shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "400"})
    assert shown.exit_code == 0
    examples = re.findall(r"Example: (kvtier [^│\n]+)", shown.stdout)
    assert len(examples) == 1, shown.stdout
    words = shlex.split(examples[0])
    assert words[1 : 1 + len(name.split())] == name.split()
    command = KNOWN[name]
    with command.make_context(name, words[1 + len(name.split()) :], resilient_parsing=False) as context:
        assert context.params
    assert command.help.split("\n", maxsplit=1)[0].rstrip().endswith((".", "?"))
    silent = [option.name for option in command.params if not option.help]
    assert silent == []


def test_every_command_has_json_but_those_whose_result_is_a_file() -> None:
    with_json = {name for name, command in KNOWN.items() if "--json" in {o for p in command.params for o in p.opts}}
    assert with_json == KNOWN.keys() - set(FILES)
    assert with_json == set(COMMANDS) | set(OF_THE_MACHINE)


def test_shell_completes_commands_and_options() -> None:
    environment = os.environ | {"_KVTIER_COMPLETE": "complete_bash", "COMP_WORDS": "kvtier re", "COMP_CWORD": "1"}
    made = subprocess.run(
        [f"{sysconfig.get_path('scripts')}/kvtier"], env=environment, capture_output=True, text=True, check=True
    )
    assert {"replay", "report", "recommend"} <= set(made.stdout.split())
