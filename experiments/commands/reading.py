"""The commands that turn results into something to look at or to act on."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from experiments import options as o


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


def recommend(
    directory: o.Directory,
    slo: Annotated[
        list[str] | None, typer.Option(metavar="LIMIT,...", help="What must hold, e.g. ttft_p99<1s,tpot_p99<40ms.")
    ] = None,
    prefer: Annotated[
        list[str] | None, typer.Option(metavar="FIGURE:min|max", help="What to save first; host memory, then traffic.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE.yaml", help="The options file; in DIR otherwise.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Run it again: another seed, and the trace's second half.")
    ] = False,
    json: o.Json = None,
) -> None:
    """Pick a configuration of a sweep, say why and how sure, and write it as TensorRT-LLM's options.

    Exit code 1 if --check finds a limit missed.
    Example: [bold]kvtier recommend kvtier-demo/hour --slo 'ttft_p99<30s' --check[/bold]
    """
    from experiments.console import check_target, tell
    from experiments.recommend import recommended

    check_target(json)
    found = recommended(directory, slo or [], prefer or [], out, check=check)
    tell(found.as_json(), [*found.lines, found.file], json)
    if not found.held:
        raise typer.Exit(1)


def audit(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="KV events or iteration statistics, JSON or a line each.")
    ],
    json: o.Json = None,
) -> None:
    """Check an engine's KV-event dump or statistics against what must hold. Exit code 1 if something does not.

    Example: [bold]kvtier audit events.json[/bold]
    """
    from experiments.audit import audit as audited
    from experiments.audit import lines
    from experiments.console import check_target, tell

    check_target(json)
    result = audited(file)
    tell(result.as_json(), lines(result), json)
    if result.faults:
        raise typer.Exit(1)
