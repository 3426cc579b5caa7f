"""The commands that compare what caches could find in a trace."""

from pathlib import Path
from typing import Annotated

import typer

from experiments import options as o


@o.bundled
def curve(
    trace: o.TraceOptions,
    capacity: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Cache sizes in trace blocks; inf: no limit. Without it: all sizes."),
    ] = None,
    view: Annotated[str, typer.Option(help="flat: blocks by themselves; tree: prefixes.")] = "tree",
    policy: Annotated[
        str,
        typer.Option(metavar="P,P,...", help="Which block leaves first: lru, s3-fifo, ...; min: the best possible."),
    ] = "lru",
    host_capacity: Annotated[int | None, typer.Option(min=0, help="Second tier, trace blocks.")] = None,
    inclusion: Annotated[str, typer.Option(help="exclusive: one copy of a block; inclusive: two.")] = "exclusive",
    sample: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="All sizes, flat: other policies than lru on samples, e.g. 0.1."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw the curves.")] = None,
    json: o.Json = None,
) -> None:
    """Hit rates of policies over cache sizes, and of the best possible one: what any cache could find in this trace.

    Example: [bold]kvtier curve mooncake_conversation --policy lru,arc,min --capacity 1000,5000,10000,inf[/bold]
    """
    from experiments.console import check_target
    from experiments.curves import all_sizes, curves, show

    check_target(json)
    if capacity is None:
        found = all_sizes(trace.source(), view, policy, sample)
    else:
        found = curves(trace.source(), view, policy, capacity, host_capacity, inclusion)
    show(*found, json, plot)
