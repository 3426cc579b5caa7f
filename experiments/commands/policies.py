"""The commands that compare what caches could find in a trace."""

from typing import Annotated

import typer

from experiments import options as o


@o.bundled
def curve(
    trace: o.TraceOptions,
    capacity: Annotated[str, typer.Option(metavar="N,N,...", help="Cache sizes in trace blocks; inf: no limit.")],
    view: Annotated[str, typer.Option(help="flat: blocks by themselves; tree: prefixes.")] = "tree",
    policy: Annotated[
        str, typer.Option(metavar="P,P,...", help="Which block leaves first: lru, fifo, lfu, ...")
    ] = "lru",
    host_capacity: Annotated[int | None, typer.Option(min=0, help="Second tier, trace blocks.")] = None,
    inclusion: Annotated[str, typer.Option(help="exclusive: one copy of a block; inclusive: two.")] = "exclusive",
    json: o.Json = None,
) -> None:
    """Hit rates of plain policies over cache sizes: what any cache could find in this trace.

    Example: [bold]kvtier curve mooncake_conversation --policy lru,fifo,lfu --capacity 1000,5000,10000,inf[/bold]
    """
    from experiments.console import check_target
    from experiments.curves import curves, show

    check_target(json)
    show(*curves(trace.source(), view, policy, capacity, host_capacity, inclusion), json)
