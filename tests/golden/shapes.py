"""The shape of every command's `--json`: the path of each value and its type. docs/json.md is made from it.

    python -m tests.golden.shapes      records json_shapes.json and docs/json.md anew

A list is `[]` (its first element counts), keys that are data (priorities, tiers, causes, names of columns) are `*`.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from experiments.cli import app

HERE = Path(__file__).parent
SHAPES = HERE / "json_shapes.json"
PAGE = HERE.parents[1] / "docs" / "json.md"
POOLS = ["--gpu-tokens", "100000", "--host-tokens", "100000", "--set", "tokens_per_block=512", "--set", "too_long=drop"]
TRACE = ["mooncake_arxiv_first1000", "--limit", "20"]
COMMANDS = {
    "replay": ["replay", *TRACE, *POOLS],
    "explain": ["explain", "mooncake_arxiv_first1000", "3", *POOLS, "--no-timing"],
    "curve": ["curve", *TRACE, "--capacity", "10,inf"],
    "config": ["config"],
    "size": ["size", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--isl", "4096"],
    "breakeven": ["breakeven", "--model", "llama-3.1-8b", "--isl", "20000"],
    "xfer": ["xfer", "--bytes", "1e9", "--descriptors", "1000"],
    "figures": ["figures", "--section", "G"],
    "conform": ["conform", str(HERE.parent / "conformance" / "cases"), "--level", "policy"],
    "claims run": ["claims", "run", "default_threshold"],
}
DATA_KEYS = ("by_priority", "by_tier", "by_cause", "labels", "where", "options", "tiers")


def shape(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Paths and types of a JSON value."""
    if isinstance(value, dict):
        anything = path.rsplit(".", maxsplit=1)[-1].endswith(DATA_KEYS)
        for name, inner in value.items():
            yield from shape(inner, f"{path}.{'*' if anything else name}".lstrip("."))
    elif isinstance(value, list):
        yield from shape(value[0], f"{path}[]") if value else [(f"{path}[]", "empty")]
    else:
        kind = {bool: "true or false", int: "number", float: "number", str: "text", type(None): "nothing"}[type(value)]
        yield path or "(the value itself)", kind


def shapes() -> dict[str, dict[str, str]]:
    """What each command's JSON looks like now."""
    found = {}
    for name, arguments in COMMANDS.items():
        with tempfile.TemporaryDirectory() as directory:
            target = Path(directory) / "out.json"
            result = CliRunner().invoke(app, [*arguments, "--json", str(target)])
            assert result.exit_code == 0, (name, result.output)
            found[name] = dict(sorted(shape(json.loads(target.read_text(encoding="utf-8")))))
    return found


def page(found: dict[str, dict[str, str]]) -> str:
    """The documentation: a table a command."""
    lines = [
        "# What `--json` holds",
        "",
        "`--json FILE` writes a command's result as JSON, `--json -` to stdout in place of the table. Paths and types below are",
        "held stable by a test: new ones may come, none goes or changes without an entry in the CHANGELOG. Units are in the",
        "names (`_s` seconds, `_bytes`, `_tokens`, `_blocks`); shares are 0 to 1. `[]` is a list, `*` any key.",
    ]
    for name, paths in found.items():
        lines += ["", f"## kvtier {name}", "", "| path | type |", "| --- | --- |"]
        lines += [f"| `{path}` | {kind} |" for path, kind in paths.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    recorded = shapes()
    SHAPES.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(recorded), encoding="utf-8")
