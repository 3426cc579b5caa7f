"""The commands that answer at once, without a trace: figures, size, breakeven, xfer."""

from typing import Annotated

import typer

from experiments import options as o

MODEL = "A preset (llama-3.1-8b, ...), a YAML file or a Hugging Face config.json."
ModelName = Annotated[str, typer.Option("--model", metavar="MODEL", help=MODEL)]
Gpu = Annotated[str, typer.Option(metavar="GPU", help="A hardware preset (h100-sxm, ...) or a calibration file.")]
TensorParallel = Annotated[int, typer.Option("--tp", min=1, help="GPUs that share each layer.")]
CacheDtype = Annotated[str, typer.Option("--dtype", help="Element type of the cache: auto, bf16, fp8, nvfp4, ...")]
Weights = Annotated[str | None, typer.Option(help="Number format of the weights: bf16, fp8, nvfp4, int4, ...")]
Block = Annotated[int, typer.Option("--tokens-per-block", min=1, help="Tokens in one block.")]


def figures(
    section: Annotated[
        str | None,
        typer.Option(
            help="Only B (copies), C (network), D (compute), E (routing), F (storage), G (capacity), Q (questions)."
        ),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="As Markdown, as in docs/figures.md.")] = False,
    json: o.Json = None,
) -> None:
    """Print published measurements beside what the simulator says. Exit code 1 when one is outside its tolerance.

    Example: [bold]kvtier figures --section D[/bold]
    """
    from experiments.console import check_target
    from experiments.figures import figures as compared
    from experiments.figures import markdown as as_markdown
    from experiments.figures import off, show

    check_target(json)
    groups = compared(section)
    if markdown:
        typer.echo(as_markdown(groups))
    else:
        show(groups, json)
    if off(groups):
        raise typer.Exit(1)


def size(
    model: ModelName,
    gpu: Annotated[str | None, typer.Option(metavar="GPU", help="A hardware preset or a calibration file.")] = None,
    gpu_gib: Annotated[float | None, typer.Option(help="Memory of a GPU without a preset, GiB.")] = None,
    free_gib: Annotated[
        float | None, typer.Option(help="What the engine's log says is free for the cache, GiB.")
    ] = None,
    tp: TensorParallel = 1,
    dtype: CacheDtype = "auto",
    weights: Weights = None,
    fraction: Annotated[float, typer.Option(help="free_gpu_memory_fraction.")] = 0.9,
    tokens_per_block: Block = 32,
    host_cache_gib: Annotated[float, typer.Option(help="host_cache_size of one rank, GiB.")] = 0.0,
    isl: Annotated[int | None, typer.Option(min=1, help="Prompt length, tokens.")] = None,
    osl: Annotated[int, typer.Option(min=0, help="Generated tokens.")] = 0,
    batch: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 1,
    route: Annotated[str, typer.Option(help="Who rounds: python (down) or cpp (up).")] = "python",
    json: o.Json = None,
) -> None:
    """Explain how many blocks fit on the GPU and in host memory, and warn of what will not work.

    Example: [bold]kvtier size --model llama-3.1-8b --gpu h100-sxm --host-cache-gib 40 --isl 131072[/bold]
    """
    from experiments.console import check_target
    from experiments.sizing import Ask, show
    from experiments.sizing import size as sized

    check_target(json)
    where = (model, gpu, gpu_gib, free_gib, tp, dtype, weights)
    show(sized(Ask(*where, fraction, tokens_per_block, host_cache_gib, isl, osl, batch, route)), json)


def breakeven(
    model: ModelName,
    gpu: Gpu = "h100-sxm",
    link: Annotated[str, typer.Option(help="host, disk, gds, c2c, nvlink, network or host_batched.")] = "host",
    isl: Annotated[int | None, typer.Option(min=2, help="Prompt length, tokens; several are shown otherwise.")] = None,
    prefill_s: Annotated[float | None, typer.Option(help="Its measured prefill time, seconds.")] = None,
    tp: TensorParallel = 1,
    dtype: CacheDtype = "auto",
    weights: Weights = None,
    tokens_per_block: Block = 32,
    json: o.Json = None,
) -> None:
    """Find the prompt length and the bandwidth at which loading a prefix beats computing it.

    Example: [bold]kvtier breakeven --model llama-3.1-8b --isl 20000 --prefill-s 0.9 --link disk[/bold]
    """
    from experiments.breakeven import Ask, show
    from experiments.breakeven import breakeven as found
    from experiments.console import check_target

    check_target(json)
    show(found(Ask(model, gpu, link, isl, prefill_s, tp, dtype, weights, tokens_per_block)), json)


def xfer(
    bytes: Annotated[float, typer.Option(metavar="N", help="Bytes in all, e.g. 4.9e9.")] = 1e9,
    descriptors: Annotated[int, typer.Option(min=1, metavar="N", help="Pieces they come in.")] = 1,
    link: Annotated[str, typer.Option(metavar="LINK,...", help="host, disk, gds, c2c, nvlink, network, ...")] = "host",
    gpu: Gpu = "h100-sxm",
    down: Annotated[bool, typer.Option("--down", help="Away from the GPU: offload, write, send.")] = False,
    busy: Annotated[bool, typer.Option("--busy", help="While the other direction works too.")] = False,
    submitters: Annotated[int, typer.Option(min=1, help="Threads that post side by side.")] = 1,
    latency_us: Annotated[float | None, typer.Option(help="Cost of a descriptor, instead of the link's own.")] = None,
    gbps: Annotated[float | None, typer.Option(help="Bandwidth, GB/s (bytes), instead of the link's own.")] = None,
    sweep_block: Annotated[bool, typer.Option("--sweep-block", help="Over sizes of a descriptor or block.")] = False,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="With --sweep-block: blocks of this model.")
    ] = None,
    tp: TensorParallel = 1,
    dtype: CacheDtype = "auto",
    json: o.Json = None,
) -> None:
    """Time one copy from its bytes and descriptors, and say what the time is spent on.

    Example: [bold]kvtier xfer --bytes 4.9e9 --descriptors 112000 --link host,network[/bold]
    """
    from experiments.console import check_target
    from experiments.xfer import Route, show, sweep, transfers

    check_target(json)
    route = Route(gpu, link, down, busy, submitters, latency_us, gbps)
    found = sweep(route, bytes, model, dtype, tp) if sweep_block or model else transfers(route, bytes, descriptors)
    show(found, json)


@o.bundled
def config(configured: o.SpecOptions, json: o.Json = None) -> None:
    """Show every key of a spec with the value in force, as YAML: defaults, what was set, what replaces a null.

    Example: [bold]kvtier config --spec mooncake_hour --set tokens_per_block=64[/bold]
    """
    from experiments import console
    from experiments.config_view import lines
    from experiments.load import load

    console.check_target(json)
    spec, notes = load(configured.spec, configured.settings())
    console.note(notes)
    if json is not None:
        console.write_json(spec.shown(), json)
    if json != "-":
        typer.echo("\n".join(lines(spec)))
