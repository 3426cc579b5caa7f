"""The commands that replay a trace many times, and those that read what they wrote."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from experiments import options as o


@o.bundled
def sweep(
    trace: o.StudyOptions,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUES", help="a,b,c or start:stop:step, both included.")
    ] = None,
    *,
    configured: o.SpecOptions,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the results go; a file's own name otherwise.")
    ] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Seeds of each setting, where anything is random.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; one a core otherwise.")] = None,
    engine: Annotated[str, typer.Option(help="local, dask (a cluster, see --address) or slurm.")] = "local",
    address: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The Dask scheduler; own processes otherwise.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run and how long it takes.")] = False,
    json: o.Json = None,
    no_timing: o.NoTiming = False,
) -> None:
    """Replay a trace for every combination of settings, over all cores. Started again, it goes on where it stopped.

    TRACE may be a sweep file: spec, trace and what to vary in one YAML. Exit code 1 if any run failed.
    Example: [bold]kvtier sweep mooncake_conversation --spec mooncake_hour \
--grid tokens_per_block=512,1024 --grid secondary_offload_min_priority=0,40,60 --out runs/hour[/bold]
    """
    from experiments.console import check_target, tell
    from experiments.sweeping import Wish, engine_of, place_of, plan_lines, status, swept

    check_target(json)
    place = place_of(trace.trace, out)
    wish = Wish(
        trace.source(), configured.spec, configured.settings(), grid or (), repeats, False if no_timing else None
    )
    task = wish.task()
    made_by = engine_of(engine, jobs, address, place, task)
    for line in plan_lines(task, place, jobs):
        typer.echo(line, err=not dry_run)
    if not dry_run:
        rows = swept(task, place, made_by, sys.argv)
        tell(status(place), [place / "sweep.parquet"], json)
        raise typer.Exit(any(row["error"] for row in rows))


def sweep_status(directory: o.Directory, json: o.Json = None) -> None:
    """Say how far a sweep is: done, failed and left, whether it runs now, how to go on.

    Example: [bold]kvtier sweep status runs/hour[/bold]
    """
    from experiments.console import check_target, tell
    from experiments.sweeping import status, status_lines

    check_target(json)
    found = status(directory)
    tell(found, status_lines(found), json)


@o.bundled
def tune(
    trace: o.StudyOptions,
    objective: Annotated[
        list[str], typer.Option(metavar="FIGURE:min|max", help="E.g. ttft_s.p99:min; several allowed.")
    ],
    *,
    constraint: Annotated[
        list[str] | None, typer.Option(metavar="FIGURE<VALUE", help="A limit on a figure, e.g. 'tpot_s.p99<0.05'.")
    ] = None,
    budget: Annotated[int, typer.Option(min=1, help="Different runs, those that the directory holds included.")] = 100,
    grid: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUES", help="a,b,c or start:stop:step, both included.")
    ] = None,
    configured: o.SpecOptions,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the results go; a file's own name otherwise.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Processes, which is also how many points are proposed at a time.")
    ] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search.")] = 0,
    json: o.Json = None,
    no_timing: o.NoTiming = False,
) -> None:
    """Search for the settings worth choosing between with a budget of runs. Started again, it goes on where it stopped.

    Example: [bold]kvtier tune tune_multitenant --objective ttft_s.p99:min --objective host_cache_gib:min \
--constraint 'tpot_s.p99<0.05' --budget 60 --out runs/tuned[/bold]
    """
    from experiments.console import check_target, tell
    from experiments.sweeping import Wish, place_of
    from experiments.tuning import aim_of, lines, tuned

    check_target(json)
    place, aim = place_of(trace.trace, out), aim_of(objective, constraint or (), budget, seed)
    wish = Wish(trace.source(), configured.spec, configured.settings(), grid or (), None, False if no_timing else None)
    found, front = tuned(wish.task(), aim, place, jobs, sys.argv)
    result = {"runs": len(found.rows), "held": found.held, "front": front}
    tell(result, [*lines(found, front, aim), place / "front.csv"], json)


def pareto(
    directory: o.Directory,
    x: Annotated[str, typer.Option("--x", help="Figure of the horizontal axis, e.g. moved_bytes.")],
    y: Annotated[str, typer.Option("--y", help="Figure of the vertical axis, e.g. hit_rate_tokens.")],
    z: Annotated[str | None, typer.Option("--z", help="A third figure to choose by, drawn as colour.")] = None,
    colour: Annotated[str | None, typer.Option(metavar="COLUMN", help="What colour stands for.")] = None,
    shape: Annotated[str | None, typer.Option(metavar="COLUMN", help="What markers stand for.")] = None,
    constraint: Annotated[
        list[str] | None,
        typer.Option(metavar="FIGURE<VALUE", help="Choose only among runs within, e.g. 'ttft_p99<1s'."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.png|svg|pdf", help="The plot; in DIR otherwise.")] = None,
    json: o.Json = None,
) -> None:
    """Plot the runs of a sweep, mark those no other run beats, and write them to a CSV beside the plot.

    Example: [bold]kvtier pareto runs/hour --x moved_bytes --y hit_rate_tokens --constraint 'ttft_mean<5.4s'[/bold]
    """
    from experiments.console import check_target, tell
    from reports.choice import Wish, as_json, choose, lines

    check_target(json)
    choice = choose(directory, Wish(x, y, z, colour, shape, constraint or ()), out)
    tell(as_json(choice), [*lines(choice), choice.plot, choice.table], json)


def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A directory of `kvtier sweep`: before.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another: after.")],
    figure: Annotated[
        list[str] | None, typer.Option(help="Compare this figure only, e.g. ttft_p99; several allowed.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Also show what is the same or not told apart.")] = False,
    json: o.Json = None,
) -> None:
    """Compare two sweeps setting by setting: what differs, by how much, and whether it is more than noise.

    Example: [bold]kvtier diff runs/before runs/after --figure hit_rate_tokens --figure ttft_p99[/bold]
    """
    from experiments.console import check_target, tell
    from reports.diff import as_json, compare, lines

    check_target(json)
    found = compare(a, b, figure or ())
    tell(as_json(found), lines(found, every), json)


def why(directory: o.Directory, json: o.Json = None) -> None:
    """Explain a sweep: which blocks stopped moving, what that saved and cost, what the block size loses.

    Example: [bold]kvtier why kvtier-demo/hour[/bold]
    """
    from experiments.console import check_target, tell
    from experiments.why import why as explained

    check_target(json)
    lines = explained(directory)
    tell(lines, lines, json)
