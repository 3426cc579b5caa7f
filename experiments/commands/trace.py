"""`kvtier trace ...`: what a trace holds and what is doubtful about it. What makes new traces is in `making`."""

from pathlib import Path
from typing import Annotated

import typer

from experiments import options as o
from experiments.commands import making

app = typer.Typer(no_args_is_help=True, help="Look at traces, check them, convert them, make new ones.")


@app.command()
@o.bundled
def stats(
    source: o.TraceOptions,
    tokens_per_block: Annotated[
        int | None, typer.Option(min=1, help="Count blocks of so many tokens; those of the trace otherwise.")
    ] = None,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Follow every block, in memory that grows with them; else above 2 M a sample."),
    ] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png|svg|pdf", help="One page of pictures.")] = None,
    json: o.Json = None,
) -> None:
    """Count, rates, lengths, sessions, sharing, and what a cache without limit would find again. Reads piece by piece.

    Example: [bold]kvtier trace stats mooncake_arxiv_first1000 --plot arxiv.png[/bold]
    """
    from experiments.console import check_target
    from experiments.trace_stats import show, stats_of

    check_target(json)
    show(stats_of(source.source(), tokens_per_block, exact=exact), json, plot)


@app.command()
@o.bundled
def check(source: o.TraceOptions, json: o.Json = None) -> None:
    """Read a trace to its end and list everything inferred or doubtful, with lines. With --strict, exit code 1 if any.

    Example: [bold]kvtier trace check mooncake_arxiv_first1000[/bold]
    """
    from experiments.console import check_target, tell
    from experiments.trace_check import check as checked

    check_target(json)
    report = checked(source.source())
    tell({name: value for name, value in vars(report).items() if name != "about"}, report.lines(), json)
    if source.strict and (report.doubts or report.inferred):
        raise typer.Exit(1)


for name, command in (
    ("convert", making.convert),
    ("generate", making.generate),
    ("slice", making.slice_),
    ("scale", making.scale),
    ("mix", making.mix),
):
    app.command(name)(command)
