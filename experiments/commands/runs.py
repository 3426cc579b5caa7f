"""The commands that replay a trace, and the demo."""

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


def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where tables and plots go.")] = Path("kvtier-demo"),
) -> None:
    """Show what the offload threshold and the block size do, on bundled traces: tables, plots, explanations.

    Example: [bold]kvtier demo[/bold]
    """
    from experiments.demo import demo as shown

    shown(out)
