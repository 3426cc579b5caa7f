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
    inclusion: Annotated[
        str,
        typer.Option(help="exclusive: one copy of a block; inclusive: two; shadow: two once loaded."),
    ] = "exclusive",
    low_watermark: Annotated[
        float, typer.Option(metavar="SHARE", help="A full tier evicts down to this share of its size in one go.")
    ] = 1.0,
    sample: Annotated[
        float | None,
        typer.Option(metavar="SHARE", help="All sizes, flat: other policies than lru on samples, e.g. 0.1."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png|svg|pdf", help="Draw the curves.")] = None,
    json: o.Json = None,
) -> None:
    """Hit rates of policies over cache sizes, and of the best possible one: what any cache could find in this trace.

    Example: [bold]kvtier curve mooncake_conversation --policy lru,arc,min --capacity 1000,5000,10000,inf[/bold]
    """
    from experiments.console import check_target
    from experiments.curves import Tiers, all_sizes, curves, show

    check_target(json)
    if capacity is None:
        found = all_sizes(trace.source(), view, policy, sample)
    else:
        found = curves(trace.source(), view, policy, capacity, Tiers(host_capacity, inclusion, low_watermark))
    show(*found, json, plot)


@o.bundled
def compare(
    trace: o.TraceOptions,
    configured: o.SpecOptions,
    policies: Annotated[
        str,
        typer.Option(metavar="P,P,...", help="priority, lru, s3-fifo, ..., FILE.py:CLASS; all: every one there is."),
    ] = "priority,lru,s3-fifo,arc,w-tinylfu,gdsf",
    no_timing: o.NoTiming = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png|svg|pdf", help="Draw it.")] = None,
    json: o.Json = None,
) -> None:
    """Eviction policies side by side in the whole cache manager, ranked, beside the best that any could do.

    Example: [bold]kvtier compare mooncake_conversation --policies lru,arc --gpu-blocks 5000 --host-blocks 5000[/bold]
    """
    from experiments.compare import compare as compared
    from experiments.compare import show
    from experiments.console import check_target

    check_target(json)
    show(compared(trace.source(), configured.spec, configured.settings(), policies, timing=not no_timing), json, plot)


@o.bundled
def learn_retention(trace: o.TraceOptions, configured: o.SpecOptions, json: o.Json = None) -> None:
    """Learn retention rules from the first half of a trace and say what they are worth in the second.

    Example: [bold]kvtier learn-retention mooncake_arxiv_first1000 --gpu-blocks 300 --set tokens_per_block=512[/bold]
    """
    from experiments.console import check_target
    from experiments.learn import learn, show

    check_target(json)
    show(*learn(trace.source(), configured.spec, configured.settings()), json)
