"""The commands that touch real memory: what is here, how fast it is, how right the simulator is."""

from pathlib import Path
from typing import Annotated

import typer

from experiments import options as o


def doctor(
    storage: Annotated[Path, typer.Option(metavar="DIR", help="Where slot files would lie.")] = Path(),
    json: o.Json = None,
) -> None:
    """Show what this machine has for moving KV cache, which path bytes would take, and what to fix. Changes nothing.

    Example: [bold]kvtier doctor --storage /mnt/nvme[/bold]
    """
    from experiments.console import check_target, tell
    from experiments.doctor import examine, lines

    check_target(json)
    facts = examine(storage)
    tell(facts, lines(facts), json)


def calibrate(
    out: Annotated[Path, typer.Option(metavar="FILE.yaml", help="The hardware file; samples go beside it.")],
    device: o.Device = "cpu",
    storage: o.Storage = None,
    base: Annotated[str, typer.Option(help="Preset for what is not measured, such as FLOPs.")] = "h100-sxm",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes and repeats, under 40 seconds.")] = False,
    json: o.Json = None,
) -> None:
    """Measure copies and files on this machine and write a hardware file for simulations. Goes on where it was stopped.

    Example: [bold]kvtier calibrate --device cuda:0 --storage /mnt/nvme --out profile.yaml[/bold]
    """
    from experiments.calibrate import calibrate as calibrated
    from experiments.console import check_target, tell

    check_target(json)
    found, lines = calibrated(device, storage, out, quick=quick, base=base)
    tell(found, lines, json)


@o.bundled
def validate(
    trace: o.TraceOptions,
    configured: o.SpecOptions,
    device: o.Device = "cpu",
    profile: Annotated[str | None, typer.Option(metavar="FILE.yaml", help="What calibrate wrote here.")] = None,
    storage: o.Storage = None,
    mode: Annotated[str, typer.Option(help="lockstep: same decisions, times compared; live; both.")] = "lockstep",
    repeats: Annotated[int, typer.Option(min=1, help="Passes in lockstep; they show the noise.")] = 3,
    check: Annotated[str, typer.Option(help="Compare bytes after each copy (each) or each step (end).")] = "end",
    speed: Annotated[float, typer.Option(min=1, help="Live: kernels and idle time run so much faster.")] = 1000,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Figures, transfers and a picture go here.")] = None,
    json: o.Json = None,
) -> None:
    """Make a simulated run on real memory: are decisions the same, are the bytes right, how far off are the times?

    Exit code 1 if decisions or bytes differ.
    Example: [bold]kvtier validate mooncake_arxiv_first1000 --profile profile.yaml --gpu-tokens 131072 \
--host-tokens 262144 --set tokens_per_block=8 --set dtype=fp8 --set parallel.tensor_parallel_size=8[/bold]
    """
    from experiments.console import check_target, tell
    from experiments.validate import validated

    check_target(json)
    found, lines = validated(
        trace.source(),
        configured.spec,
        configured.settings(),
        device,
        profile,
        storage,
        mode,
        repeats,
        check,
        speed,
        out,
    )
    tell(found.figures, lines, json)
    if found.failed:
        raise typer.Exit(1)
