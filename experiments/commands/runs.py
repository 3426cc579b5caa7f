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
    record: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also keep every request and step, for `kvtier report DIR`.")
    ] = None,
    timeline: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Also write a timeline for ui.perfetto.dev.")
    ] = None,
    no_timing: o.NoTiming = False,
) -> None:
    """Replay a trace once and show what was found where, what moved, and how long requests took.

    Example: [bold]kvtier replay mooncake_arxiv_first1000 --gpu-tokens 500000 --host-tokens 1e6[/bold]
    """
    from experiments.console import check_target
    from experiments.replay import Extras, replayed, show

    check_target(json)
    settings, extras = configured.settings(), Extras(events, record, timeline, timing=not no_timing)
    extras.check(configured.spec, settings)
    row = replayed(trace.source(), configured.spec, settings, timing=not no_timing)
    show(row, json)
    for path in extras.write(trace.source(), configured.spec, settings, row):
        typer.echo(path, err=json == "-")


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
