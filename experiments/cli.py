"""The `kvtier` command. Each command reads its options, calls one function and says where the result is.

A fault of the input is one line on stderr and exit code 2, Ctrl-C one line and 130. With KVTIER_DEBUG set the whole
traceback is shown instead.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from experiments import options as o
from experiments import quick


class Commands(TyperGroup):
    """Turns exceptions into the lines and exit codes above."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except (ValueError, OSError) as error:
            if os.environ.get("KVTIER_DEBUG"):
                raise
            typer.echo(f"kvtier: {_one_line(error)}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt as error:
            typer.echo(f"kvtier: {str(error) or 'stopped'}", err=True)
            raise typer.Exit(130) from None


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


app = typer.Typer(
    cls=Commands, no_args_is_help=True, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False
)


def _version(wanted: bool) -> None:
    if wanted:
        from experiments.version import kvtier_version

        typer.echo(f"kvtier {kvtier_version()}")
        raise typer.Exit


@app.callback()
def kvtier(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Where should each KV-cache block live, and for how long? Replays traces through a serving engine's rules."""


@app.command()
def replay(
    trace: o.TraceName,
    spec: o.SpecFile = None,
    set_: o.Settings = None,
    gpu_tokens: o.GpuTokens = None,
    gpu_blocks: o.GpuBlocks = None,
    host_tokens: o.HostTokens = None,
    host_blocks: o.HostBlocks = None,
    disk_tokens: o.DiskTokens = None,
    json: o.Json = None,
    events: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the KV events, in TensorRT-LLM's JSON shape.")
    ] = None,
    no_timing: o.NoTiming = False,
    format: o.Format = None,
    trace_block_size: o.BlockSize = None,
    time_unit: o.TimeUnit = None,
    default_output: o.DefaultOutput = None,
    skip_bad_lines: o.SkipBadLines = False,
    strict: o.Strict = False,
    limit: o.Limit = None,
) -> None:
    """Replay a trace once and show what was found where, what moved, and how long requests took.

    Example: [bold]kvtier replay mooncake_arxiv_first1000 --gpu-tokens 500000 --host-tokens 1e6[/bold]
    """
    from experiments.console import check_target
    from experiments.replay import Pools, record, replayed, show

    check_target(json)
    pools = Pools(gpu_tokens, gpu_blocks, host_tokens, host_blocks, disk_tokens)
    source = _trace(trace, format, trace_block_size, time_unit, default_output, skip_bad_lines, strict, limit)
    settings = [*(set_ or []), *pools.settings()]
    show(replayed(source, spec, settings, timing=not no_timing), json)
    if events is not None:
        typer.echo(record(source, spec, settings, events, timing=not no_timing), err=json == "-")


@app.command()
def explain(
    trace: o.TraceName,
    request: Annotated[int, typer.Argument(metavar="REQUEST", help="Its number in replay order, from 0.")],
    spec: o.SpecFile = None,
    set_: o.Settings = None,
    gpu_tokens: o.GpuTokens = None,
    gpu_blocks: o.GpuBlocks = None,
    host_tokens: o.HostTokens = None,
    host_blocks: o.HostBlocks = None,
    disk_tokens: o.DiskTokens = None,
    json: o.Json = None,
    no_timing: o.NoTiming = False,
    format: o.Format = None,
    trace_block_size: o.BlockSize = None,
    time_unit: o.TimeUnit = None,
    default_output: o.DefaultOutput = None,
    skip_bad_lines: o.SkipBadLines = False,
    strict: o.Strict = False,
) -> None:
    """Say for each block of one request whether it was found, where, or why not and who pushed it out.

    Example: [bold]kvtier explain mooncake_arxiv_first1000 900 --gpu-tokens 500000 --set tokens_per_block=512[/bold]
    """
    from experiments.console import check_target
    from experiments.replay import Pools, explained

    check_target(json)
    pools = Pools(gpu_tokens, gpu_blocks, host_tokens, host_blocks, disk_tokens)
    source = _trace(trace, format, trace_block_size, time_unit, default_output, skip_bad_lines, strict, None)
    for line in explained(source, spec, [*(set_ or []), *pools.settings()], request, json, timing=not no_timing):
        typer.echo(line)


@app.command()
def sweep(
    trace: o.TraceName,
    grid: Annotated[list[str], typer.Option(metavar="KEY=VALUES", help="a,b,c or start:stop:step, both included.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the results go.")],
    spec: o.SpecFile = None,
    set_: o.Settings = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; one a core otherwise.")] = None,
    no_timing: o.NoTiming = False,
    format: o.Format = None,
    trace_block_size: o.BlockSize = None,
    time_unit: o.TimeUnit = None,
    default_output: o.DefaultOutput = None,
    skip_bad_lines: o.SkipBadLines = False,
    strict: o.Strict = False,
    limit: o.Limit = None,
) -> None:
    """Replay a trace for every combination of settings, over all cores.

    Example: [bold]kvtier sweep mooncake_conversation --spec mooncake_hour \
--grid tokens_per_block=32,64 --out runs/hour[/bold]
    """
    from experiments.replay import swept

    source = _trace(trace, format, trace_block_size, time_unit, default_output, skip_bad_lines, strict, limit)
    table = swept(source, spec, set_ or [], grid, out, timing=not no_timing, workers=jobs, command=sys.argv)
    typer.echo(table)


@app.command()
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


@app.command()
def why(directory: o.Directory) -> None:
    """Explain a sweep: which blocks stopped moving, what that saved and cost, what the block size loses.

    Example: [bold]kvtier why kvtier-demo/hour[/bold]
    """
    from experiments.why import why as explained

    for line in explained(directory):
        typer.echo(line)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where tables and plots go.")] = Path("kvtier-demo"),
) -> None:
    """Show what the offload threshold and the block size do, on bundled traces: tables, plots, explanations.

    Example: [bold]kvtier demo[/bold]
    """
    from experiments.demo import demo as shown

    shown(out)


@app.command()
def curve(
    trace: o.TraceName,
    capacity: Annotated[str, typer.Option(metavar="N,N,...", help="Cache sizes in trace blocks; inf: no limit.")],
    view: Annotated[str, typer.Option(help="flat: blocks by themselves; tree: prefixes.")] = "tree",
    policy: Annotated[
        str, typer.Option(metavar="P,P,...", help="Which block leaves first: lru, fifo, lfu, ...")
    ] = "lru",
    host_capacity: Annotated[int | None, typer.Option(min=0, help="Second tier, trace blocks.")] = None,
    inclusion: Annotated[str, typer.Option(help="exclusive: one copy of a block; inclusive: two.")] = "exclusive",
    json: o.Json = None,
    format: o.Format = None,
    trace_block_size: o.BlockSize = None,
    time_unit: o.TimeUnit = None,
    default_output: o.DefaultOutput = None,
    skip_bad_lines: o.SkipBadLines = False,
    strict: o.Strict = False,
    limit: o.Limit = None,
) -> None:
    """Hit rates of plain policies over cache sizes: what any cache could find in this trace.

    Example: [bold]kvtier curve mooncake_conversation --policy lru,fifo,lfu --capacity 1000,5000,10000,inf[/bold]
    """
    from experiments.console import check_target
    from experiments.curves import curves, show

    check_target(json)
    source = _trace(trace, format, trace_block_size, time_unit, default_output, skip_bad_lines, strict, limit)
    show(*curves(source, view, policy, capacity, host_capacity, inclusion), json)


@app.command()
def conform(
    paths: Annotated[list[Path], typer.Argument(metavar="FILE_OR_DIR...", help="Case files, or directories of them.")],
    level: Annotated[
        str | None, typer.Option(help="Only cases of one level: manager, policy, tree, scheduler, ...")
    ] = None,
    json: o.Json = None,
) -> None:
    """Run conformance cases, what an engine's own tests assert, against the simulator's cache. Exit code 1 on failure.

    Example: [bold]kvtier conform tests/conformance/cases --level manager[/bold]
    """
    from experiments.conform import conform as conformed
    from experiments.conform import failures, show
    from experiments.console import check_target

    check_target(json)
    results = conformed(paths, level)
    show(results, json)
    if failures(results):
        raise typer.Exit(1)


app.command()(quick.size)
app.command()(quick.breakeven)
app.command()(quick.xfer)
app.command()(quick.figures)


@app.command()
def doctor(
    storage: Annotated[Path, typer.Option(metavar="DIR", help="Where slot files would lie.")] = Path(),
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show what this machine has for moving KV cache, which path bytes would take, and what to fix. Changes nothing.

    Example: [bold]kvtier doctor --storage /mnt/nvme[/bold]
    """
    from experiments.doctor import as_json, examine, lines

    facts = examine(storage)
    typer.echo(as_json(facts) if json else "\n".join(lines(facts)))


@app.command()
def calibrate(
    out: Annotated[Path, typer.Option(metavar="FILE.yaml", help="The hardware file; samples go beside it.")],
    device: o.Device = "cpu",
    storage: o.Storage = None,
    base: Annotated[str, typer.Option(help="Preset for what is not measured, such as FLOPs.")] = "h100-sxm",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes and repeats, under 40 seconds.")] = False,
) -> None:
    """Measure copies and files on this machine and write a hardware file for simulations. Goes on where it was stopped.

    Example: [bold]kvtier calibrate --device cuda:0 --storage /mnt/nvme --out profile.yaml[/bold]
    """
    from experiments.calibrate import calibrate as calibrated

    for line in calibrated(device, storage, out, quick=quick, base=base):
        typer.echo(line)


@app.command()
def validate(
    trace: o.TraceName,
    device: o.Device = "cpu",
    profile: Annotated[str | None, typer.Option(metavar="FILE.yaml", help="What calibrate wrote here.")] = None,
    storage: o.Storage = None,
    mode: Annotated[str, typer.Option(help="lockstep: same decisions, times compared; live; both.")] = "lockstep",
    repeats: Annotated[int, typer.Option(min=1, help="Passes in lockstep; they show the noise.")] = 3,
    check: Annotated[str, typer.Option(help="Compare bytes after each copy (each) or each step (end).")] = "end",
    speed: Annotated[float, typer.Option(min=1, help="Live: kernels and idle time run so much faster.")] = 1000,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Figures, transfers and a picture go here.")] = None,
    spec: o.SpecFile = None,
    set_: o.Settings = None,
    gpu_tokens: o.GpuTokens = None,
    gpu_blocks: o.GpuBlocks = None,
    host_tokens: o.HostTokens = None,
    host_blocks: o.HostBlocks = None,
    disk_tokens: o.DiskTokens = None,
    format: o.Format = None,
    trace_block_size: o.BlockSize = None,
    time_unit: o.TimeUnit = None,
    default_output: o.DefaultOutput = None,
    skip_bad_lines: o.SkipBadLines = False,
    strict: o.Strict = False,
    limit: o.Limit = None,
) -> None:
    """Make a simulated run on real memory: are decisions the same, are the bytes right, how far off are the times?

    Exit code 1 if decisions or bytes differ.
    Example: [bold]kvtier validate mooncake_arxiv_first1000 --profile profile.yaml --gpu-tokens 131072 \
--host-tokens 262144 --set tokens_per_block=8 --set dtype=fp8 --set parallel.tensor_parallel_size=8[/bold]
    """
    from experiments.replay import Pools
    from experiments.validate import validated

    pools = Pools(gpu_tokens, gpu_blocks, host_tokens, host_blocks, disk_tokens)
    source = _trace(trace, format, trace_block_size, time_unit, default_output, skip_bad_lines, strict, limit)
    settings = [*(set_ or []), *pools.settings()]
    lines, failed = validated(source, spec, settings, device, profile, storage, mode, repeats, check, speed, out)
    for line in lines:
        typer.echo(line)
    if failed:
        raise typer.Exit(1)


def _trace(
    name: str,
    format: str | None,
    trace_block_size: int | None,
    time_unit: str | None,
    default_output: int | None,
    skip_bad_lines: bool,
    strict: bool,
    limit: int | None,
) -> Any:
    from experiments.trace import Trace
    from traces.options import ReadOptions

    options = ReadOptions(trace_block_size, time_unit, default_output, skip_bad_lines, strict)
    return Trace(name, format, options, limit)


def main() -> None:
    """The console script."""
    app(prog_name="kvtier")
