"""The commands that turn results into something to look at or to act on."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def report(
    result: Annotated[Path, typer.Argument(metavar="DIR_OR_FILE", help="What a kvtier command wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE.html", help="The page.")] = Path("report.html"),
) -> None:
    """Write one HTML page, readable without a network, of a run, a sweep, a calibration or a validation.

    Example: [bold]kvtier report kvtier-demo/blocks -o blocks.html[/bold]
    """
    from experiments.version import kvtier_version
    from reports.page.kinds import report as written

    made_by = f"Made by kvtier {kvtier_version()}: {' '.join(['kvtier', *sys.argv[1:]])}"
    typer.echo(written(result, out, made_by))
