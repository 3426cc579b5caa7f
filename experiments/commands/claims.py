"""`kvtier claims ...`: statements about TensorRT-LLM's KV cache as experiments."""

from pathlib import Path
from typing import Annotated

import typer

from experiments import options as o

app = typer.Typer(no_args_is_help=True, help="Run what is claimed about TensorRT-LLM's KV cache, and see what holds.")

Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME...]", help="Which claims; all of them otherwise.")]
Results = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the runs are kept.")]
QuickForm = Annotated[bool, typer.Option("--quick", help="Fewer requests and settings.")]


@app.command("list")
def names(json: o.Json = None) -> None:
    """List the claims with our verdicts.

    Example: [bold]kvtier claims list[/bold]
    """
    from experiments.claiming import claims
    from experiments.console import check_target, tell

    check_target(json)
    known = [(claim.name, claim.text.verdict, claim.text.says) for claim in claims()]
    fields = ("name", "verdict", "says")
    plain = [dict(zip(fields, one, strict=True)) for one in known]
    tell(plain, (f"{name:24} {verdict:28} {says}" for name, verdict, says in known), json)


@app.command()
def run(wanted: Names = None, out: Results = Path("claims"), quick: QuickForm = False, json: o.Json = None) -> None:
    """Run the claims' experiments and say what they show. Exit code 1 if a verdict is not the one in its file.

    Example: [bold]kvtier claims run priority_20_percent[/bold]
    """
    from experiments.claim_runs import as_json, lines, run_claim
    from experiments.claiming import claims
    from experiments.console import check_target, write_json

    check_target(json)
    findings = []
    for claim in claims(wanted or ()):
        findings.append(run_claim(claim, out, quick=quick))
        if json != "-":
            typer.echo("\n".join(lines(findings[-1:])))
    if json is not None:
        write_json(as_json(findings), json)
    if not all(one.agrees for one in findings):
        raise typer.Exit(1)


@app.command()
def report(
    out: Results = Path("claims"),
    page: Annotated[Path, typer.Option("--page", "-o", metavar="FILE.html", help="The page.")] = Path("claims.html"),
    markdown: Annotated[Path | None, typer.Option(metavar="FILE.md", help="Also the table, as Markdown.")] = None,
) -> None:
    """Write the page of all claims from the runs that `kvtier claims run` kept.

    Example: [bold]kvtier claims report --out claims -o claims.html[/bold]
    """
    from experiments.claim_runs import write_report
    from experiments.version import kvtier_version

    for path in write_report(out, page, markdown, f"Made by kvtier {kvtier_version()}: kvtier claims report"):
        typer.echo(path)


@app.command()
def draw(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which claim.")],
    path: Annotated[Path, typer.Option("--plot", "-o", metavar="FILE.png", help="The picture.")],
    out: Results = Path("claims"),
    along: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The swept key along the axis; by default the one with most values."),
    ] = None,
) -> None:
    """Draw where a claim holds and where it fails, from the runs that `kvtier claims run` kept.

    Example: [bold]kvtier claims draw priority_20_percent --out claims -o priority.png[/bold]
    """
    from experiments.claim_runs import draw_claim
    from experiments.claiming import claims

    typer.echo(draw_claim(claims([name])[0], out, path, along))
