"""The commands about several workers: which router, and prefill apart from decoding."""

from pathlib import Path
from typing import Annotated

import typer

from experiments import options as o


@o.bundled
def route(
    trace: o.TraceOptions,
    configured: o.SpecOptions,
    workers: Annotated[int, typer.Option(min=1, help="Engines with a cache each.")] = 4,
    router: Annotated[
        str,
        typer.Option(
            metavar="R,R,...",
            help="round_robin, random, session, least_loaded, approximate, kv, scored_load, scored_approximate, scored.",
        ),
    ] = "random,least_loaded,approximate,kv",
    event_delay: Annotated[str, typer.Option(metavar="S,S,...", help="KV events are under way so long, s.")] = "0",
    event_loss: Annotated[float, typer.Option(min=0, max=1, help="Share of events that never arrive.")] = 0.0,
    routers: Annotated[int, typer.Option(min=1, help="Replicas of the router, each with its own view.")] = 1,
    report_period: Annotated[float, typer.Option(min=0, help="Workers report loads so often, s; 0: always.")] = 0.0,
    json: o.Json = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png|svg|pdf", help="Draw hits and TTFT over the events' delay.")
    ] = None,
) -> None:
    """Compare routers on one trace: hit rates, times and how evenly the work is spread.

    Example: [bold]kvtier route mooncake_arxiv_first1000 --workers 4 --gpu-tokens 500000 --router random,kv[/bold]
    """
    from experiments.comparison import compared, show
    from experiments.console import check_target

    check_target(json)
    given = {
        "event_loss": event_loss,
        "replicas": routers,
        "report_period_s": report_period,
    }
    settings = [*configured.settings(), f"workload.workers={workers}", *(f"router.{k}={v}" for k, v in given.items())]
    show(compared(trace.source(), configured.spec, settings, router, event_delay), json, plot)


@o.bundled
def disagg(
    configured: o.SpecOptions,
    isl: Annotated[int, typer.Option(min=1, help="Prompt tokens of every request.")],
    osl: Annotated[int, typer.Option(min=2, help="Generated tokens of every request.")],
    ctx: Annotated[str, typer.Option(metavar="n=,tp=,pp=", help="Context workers and their split.")] = "n=1,tp=1",
    gen: Annotated[str, typer.Option(metavar="n=,tp=,pp=", help="Generation workers and their split.")] = "n=1,tp=1",
    link: Annotated[
        str, typer.Option(help="nixl-ucx, nixl-libfabric, ucx, mpi, mooncake, nvlink, or a YAML file.")
    ] = "nixl-ucx",
    layerwise: Annotated[bool, typer.Option("--layerwise", help="Send each layer once it is computed.")] = False,
    zero_copy: Annotated[
        bool, typer.Option("--zero-copy", help="Send blocks as they lie where layouts agree.")
    ] = False,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Requests/s; 70 % of what is sustained otherwise.")
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests to simulate.")] = 200,
    json: o.Json = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png|svg|pdf", help="Draw tokens/s/GPU over tokens/s/user.")
    ] = None,
) -> None:
    """Compute prompts on some GPUs and decode on others: where the first token's time goes, and whether it pays.

    Example: [bold]kvtier disagg --isl 8192 --osl 256 --ctx n=2,tp=4 --gen n=1,tp=8 --set model=llama-3.1-70b[/bold]
    """
    from experiments.console import check_target
    from experiments.disagg_study import Study, show, side, studied
    from experiments.rate_match import Load

    check_target(json)
    study = Study(Load(isl, osl), side(ctx, "--ctx"), side(gen, "--gen"), requests, rate)
    given = {"link": link, "layerwise": str(layerwise).lower(), "zero_copy": str(zero_copy).lower()}
    settings = [*configured.settings(), *(f"cluster.{k}={v}" for k, v in given.items())]
    show(studied(study, configured.spec, settings), json, plot)
