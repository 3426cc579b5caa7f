"""The commands that replay a trace, once or many times, and those that read what they wrote."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from experiments import options as o


@o.bundled
def replay(
    trace: o.TraceOptions,
    configured: o.SpecOptions,
    json: o.Json = None,
    events: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the KV events, in TensorRT-LLM's JSON shape.")
    ] = None,
    no_timing: o.NoTiming = False,
) -> None:
    """Replay a trace once and show what was found where, what moved, and how long requests took.

    Example: [bold]kvtier replay mooncake_arxiv_first1000 --gpu-tokens 500000 --host-tokens 1e6[/bold]
    """
    from experiments.console import check_target
    from experiments.replay import record, replayed, show

    check_target(json)
    settings = configured.settings()
    show(replayed(trace.source(), configured.spec, settings, timing=not no_timing), json)
    if events is not None:
        typer.echo(record(trace.source(), configured.spec, settings, events, timing=not no_timing), err=json == "-")


@o.bundled
def explain(
    trace: o.TraceOptions,
    request: Annotated[int, typer.Argument(metavar="REQUEST", help="Its number in replay order, from 0.")],
    configured: o.SpecOptions,
    json: o.Json = None,
    no_timing: o.NoTiming = False,
) -> None:
    """Say for each block of one request whether it was found, where, or why not and who pushed it out.

    Example: [bold]kvtier explain mooncake_arxiv_first1000 900 --gpu-tokens 500000 --set tokens_per_block=512[/bold]
    """
    from experiments.console import check_target
    from experiments.replay import explained

    check_target(json)
    for line in explained(trace.source(), configured.spec, configured.settings(), request, json, timing=not no_timing):
        typer.echo(line)


@o.bundled
def sweep(
    trace: o.TraceOptions,
    grid: Annotated[list[str], typer.Option(metavar="KEY=VALUES", help="a,b,c or start:stop:step, both included.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the results go.")],
    configured: o.SpecOptions,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; one a core otherwise.")] = None,
    no_timing: o.NoTiming = False,
) -> None:
    """Replay a trace for every combination of settings, over all cores.

    Example: [bold]kvtier sweep mooncake_conversation --spec mooncake_hour \
--grid tokens_per_block=32,64 --out runs/hour[/bold]
    """
    from experiments.replay import swept

    table = swept(
        trace.source(),
        configured.spec,
        configured.settings(),
        grid,
        out,
        timing=not no_timing,
        workers=jobs,
        command=sys.argv,
    )
    typer.echo(table)


def pareto(
    directory: o.Directory,
    x: Annotated[str, typer.Option("--x", help="Column of the horizontal axis, e.g. moved_bytes.")],
    y: Annotated[str, typer.Option("--y", help="Column of the vertical axis, e.g. hit_rate_tokens.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE.png", help="The plot; in DIR otherwise.")] = None,
) -> None:
    """Plot the runs of a sweep, mark those no other run beats, and write them to a CSV beside the plot.

    Example: [bold]kvtier pareto runs/hour --x moved_bytes --y hit_rate_tokens[/bold]
    """
    from reports.choice import choose, lines

    choice = choose(directory, x, y, out)
    for line in [*lines(choice, x, y), choice.plot, choice.table]:
        typer.echo(line)


def why(directory: o.Directory) -> None:
    """Explain a sweep: which blocks stopped moving, what that saved and cost, what the block size loses.

    Example: [bold]kvtier why kvtier-demo/hour[/bold]
    """
    from experiments.why import why as explained

    for line in explained(directory):
        typer.echo(line)


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where tables and plots go.")] = Path("kvtier-demo"),
) -> None:
    """Show what the offload threshold and the block size do, on bundled traces: tables, plots, explanations.

    Example: [bold]kvtier demo[/bold]
    """
    from experiments.demo import demo as shown

    shown(out)
