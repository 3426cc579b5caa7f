"""The `kvtier` command. Each command reads its options, calls one function and says where the result is.

A fault of the input is one line on stderr and exit code 2, Ctrl-C one line and 130. With KVTIER_DEBUG set the whole
traceback is shown instead.
"""

import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from experiments.commands import claims, cluster, conformance, machine, policies, quick, reading, runs, sweeps, trace


class Commands(TyperGroup):
    """Turns exceptions into the lines and exit codes above."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take two words for one command where there is such a command: `sweep status`."""
        words = [" ".join(args[:2]), *args[2:]]
        return super().parse_args(ctx, words if words[0] in self.commands else args)

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
        except MemoryError as error:
            typer.echo(f"kvtier: not enough memory ({_one_line(error)}); smaller pools (capacity) need less", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt as error:
            typer.echo(f"kvtier: {str(error) or 'stopped'}", err=True)
            raise typer.Exit(130) from None


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


app = typer.Typer(cls=Commands, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False)


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


PANELS = {
    "Start here": (runs.demo, quick.config),
    "Replay a trace": (runs.replay, runs.explain, policies.curve),
    "Several workers": (cluster.route, cluster.disagg),
    "Try many settings": (
        sweeps.sweep,
        sweeps.tune,
        sweeps.pareto,
        sweeps.why,
        sweeps.diff,
        policies.compare,
        policies.learn_retention,
    ),
    "Look and decide": (reading.report, reading.recommend, reading.audit),
    "Answers at once": (quick.size, quick.breakeven, quick.xfer),
    "Real memory": (machine.doctor, machine.calibrate, machine.validate),
    "How right it is": (quick.figures, conformance.conform),
}
for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(command)
app.command("sweep status", rich_help_panel="Try many settings")(sweeps.sweep_status)
app.add_typer(trace.app, name="trace", rich_help_panel="Replay a trace")
app.add_typer(claims.app, name="claims", rich_help_panel="How right it is")


def main() -> None:
    """The console script."""
    app(prog_name="kvtier")
