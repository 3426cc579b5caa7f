"""The shape of every command's `--json`: the path of each value and its type. docs/json.md is made from it.

    python -m tests.golden.shapes      records json_shapes.json and docs/json.md anew

A list is `[]` (its first element counts), keys that are data (priorities, tiers, causes, names of columns) are `*`.
"""

import json
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from experiments.cli import app

HERE = Path(__file__).parent
SHAPES = HERE / "json_shapes.json"
PAGE = HERE.parents[1] / "docs" / "json.md"
POOLS = ["--gpu-tokens", "100000", "--host-tokens", "100000", "--set", "tokens_per_block=512", "--set", "too_long=drop"]
TRACE = ["mooncake_arxiv_first1000", "--limit", "20"]
GRID = ["--grid", "secondary_offload_min_priority=0,100", "--grid", "capacity.gpu_blocks=180,190"]
SMALL = ["--set", "capacity.host_blocks=50", "--set", "tokens_per_block=512"]
REAL = ["--set", "tokens_per_block=8", "--set", "dtype=fp8", "--set", "parallel.tensor_parallel_size=8"]
COMMANDS = {
    "replay": ["replay", *TRACE, *POOLS, "--events", "events.json"],
    "explain": ["explain", "mooncake_arxiv_first1000", "3", *POOLS, "--no-timing"],
    "compare": ["compare", *TRACE, *POOLS, "--policies", "priority,lru"],
    "curve": ["curve", *TRACE, "--capacity", "10,inf"],
    "learn-retention": ["learn-retention", "mooncake_arxiv_first1000", "--limit", "100", *POOLS],
    "route": ["route", *TRACE, *POOLS, "--workers", "2", "--router", "kv"],
    "disagg": ["disagg", "--isl", "512", "--osl", "8", "--requests", "10"],
    "trace stats": ["trace", "stats", *TRACE],
    "trace check": ["trace", "check", "mooncake_arxiv_first1000"],
    "sweep": ["sweep", *TRACE, *GRID, *SMALL, "--jobs", "1", "--out", "s"],
    "sweep status": ["sweep", "status", "s"],
    "tune": ["tune", *TRACE, *GRID, *SMALL, "--objective", "hit_rate_tokens:max", "--budget", "2", "--out", "t"],
    "pareto": ["pareto", "s", "--x", "moved_bytes", "--y", "hit_rate_tokens"],
    "diff": ["diff", "s", "s"],
    "why": ["why", "s"],
    "recommend": ["recommend", "s", "--slo", "ttft_p99<1h", "--check"],
    "audit": ["audit", "events.json"],
    "validate": [
        "validate",
        *TRACE,
        "--gpu-tokens",
        "40000",
        "--host-tokens",
        "40000",
        *REAL,
        "--set",
        "too_long=drop",
        "--repeats",
        "2",
    ],
    "config": ["config"],
    "size": ["size", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--isl", "4096"],
    "breakeven": ["breakeven", "--model", "llama-3.1-8b", "--isl", "20000"],
    "xfer": ["xfer", "--bytes", "1e9", "--descriptors", "1000"],
    "figures": ["figures", "--section", "G"],
    "conform": ["conform", str(HERE.parent / "conformance" / "cases"), "--level", "policy"],
    "claims list": ["claims", "list"],
    "claims run": ["claims", "run", "default_threshold"],
}
"""In this order, in one directory: some read what others wrote."""
OF_THE_MACHINE = ("doctor", "calibrate")
"""Their JSON is the machine's facts and its hardware file: every path depends on what is there."""
FILES = (
    "demo",
    "report",
    "claims draw",
    "claims report",
    *(f"trace {verb}" for verb in ("convert", "generate", "slice", "scale", "mix")),
)
"""Commands whose result is a file and nothing else; they have no `--json`."""
DATA_KEYS = (
    *(
        "by_priority",
        "by_tier",
        "by_cause",
        "by_direction",
        "by_bytes",
        "by_path",
        "labels",
        "where",
        "options",
        "tiers",
    ),
    *("grid", "settings", "runner_up", "device_facts"),
)


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
    with tempfile.TemporaryDirectory() as directory, chdir(directory):
        for name, arguments in COMMANDS.items():
            result = CliRunner().invoke(app, [*arguments, "--json", "out.json"])
            assert result.exit_code == 0, (name, result.output, result.exception)
            found[name] = dict(sorted(shape(json.loads(Path("out.json").read_text(encoding="utf-8")))))
    return found


def page(found: dict[str, dict[str, str]]) -> str:
    """The documentation: a table a command."""
    lines = [
        "# What `--json` holds",
        "",
        "`--json FILE` writes a command's result as JSON, `--json -` to stdout in place of the table. Paths and types below are",
        "held stable by a test: new ones may come, none goes or changes without an entry in the CHANGELOG. Units are in the",
        "names (`_s` seconds, `_bytes`, `_tokens`, `_blocks`); shares are 0 to 1. `[]` is a list, `*` any key.",
        "",
        f"`kvtier {'` and `kvtier '.join(OF_THE_MACHINE)}` have it too: the facts of the machine, and the content of the",
        f"hardware file; their paths depend on what is there. The result of these is a file: {', '.join(FILES)}.",
    ]
    for name, paths in found.items():
        lines += ["", f"## kvtier {name}", "", "| path | type |", "| --- | --- |"]
        lines += [f"| `{path}` | {kind} |" for path, kind in paths.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    recorded = shapes()
    SHAPES.write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(recorded), encoding="utf-8")
