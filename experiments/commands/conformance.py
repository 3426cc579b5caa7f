"""The command that holds the simulator against an engine's own tests."""

from pathlib import Path
from typing import Annotated

import typer

from experiments import options as o


def conform(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE_OR_DIR...", help="Case files, or directories of them.")],
    level: Annotated[
        str | None, typer.Option(help="Only cases of one level: manager, policy, tree, scheduler, ...")
    ] = None,
    json: o.Json = None,
) -> None:
    """Run conformance cases, what an engine's own tests assert, against the simulator's cache. Exit code 1 on failure.

    Example: [bold]kvtier conform tests/conformance/cases --level manager[/bold]
    """
    from experiments.conform import conform as conformed
    from experiments.conform import failures, show
    from experiments.console import check_target

    check_target(json)
    results = conformed(paths, level)
    show(results, json)
    if failures(results):
        raise typer.Exit(1)
