"""`kvtier trace convert | generate | slice | scale | mix`: what writes traces."""

from typing import Annotated

import typer

from experiments import options as o

Out = Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="By its end packed: .gz, .zst. - for stdout.")]
To = Annotated[
    str | None,
    typer.Option(metavar="FORMAT", help="parquet, mooncake, aiperf, bailian, dynamo, tokens, ...; by FILE's end."),
]
Block = Annotated[int | None, typer.Option("--tokens-per-block", min=1, help="Cut content into blocks of this size.")]
Params = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the generator.")]


@o.bundled
def convert(source: o.TraceOptions, out: Out, to: To = None, tokens_per_block: Block = None) -> None:
    """Write a trace in another format. What that format cannot hold is said where it first occurs; --strict refuses.

    Example: [bold]kvtier trace convert mooncake_arxiv_first1000 --to dynamo -o arxiv.jsonl.gz[/bold]
    """
    from experiments.trace_make import save

    typer.echo(save(source.source().stream(), out, to, tokens_per_block, strict=source.strict), err=out == "-")


def generate(
    what: Annotated[str, typer.Argument(metavar="NAME|FILE.yaml", help="chat, agents, rag, lengths, servegen, ...")],
    out: Out,
    set_: Params = None,
    to: To = None,
    strict: o.Strict = False,
) -> None:
    """Write a made-up workload: seeded, of any length, in memory that does not grow.

    Example: [bold]kvtier trace generate chat --set requests=100000 --set tenants=500 -o chat.parquet[/bold]
    """
    from experiments.trace_make import generate as generated

    typer.echo(generated(what, set_ or [], out, to, strict=strict), err=out == "-")


@o.bundled
def slice_(
    source: o.TraceOptions,
    out: Out,
    from_s: Annotated[float, typer.Option("--from", help="Seconds from the start of the trace.")] = 0.0,
    to_s: Annotated[float, typer.Option("--until", help="Up to, not including.")] = float("inf"),
    session: Annotated[list[int] | None, typer.Option(help="Only these sessions, by number.")] = None,
    where: Annotated[list[str] | None, typer.Option(metavar="LABEL=VALUE", help="Only these, e.g. tenant=a.")] = None,
    sample: Annotated[float, typer.Option(help="Share of whole sessions (or prefix groups) to keep.")] = 1.0,
    sample_by: Annotated[str, typer.Option(help="What stays together: session or prefix.")] = "session",
    seed: Annotated[int, typer.Option(min=0, help="Another seed keeps other groups.")] = 0,
    to: To = None,
) -> None:
    """Write a part of a trace; what is kept shares what it shared.

    Example: [bold]kvtier trace slice mooncake_conversation --from 600 --until 1200 -o ten-minutes.parquet[/bold]
    """
    from experiments.trace_make import save
    from traces.change import Slice, labels_of, sliced

    wanted = Slice(from_s, to_s, tuple(session or ()), labels_of(where or []), sample, sample_by, seed)
    typer.echo(save(sliced(source.source().stream(), wanted), out, to, strict=source.strict), err=out == "-")


@o.bundled
def scale(
    source: o.TraceOptions,
    out: Out,
    rate: Annotated[float, typer.Option(help="Arrivals come so many times as fast.")] = 1.0,
    prompt: Annotated[float, typer.Option(help="Prompts are so many times as long.")] = 1.0,
    output: Annotated[float, typer.Option(help="Outputs are so many times as long.")] = 1.0,
    to: To = None,
) -> None:
    """Write a trace at another rate or with other lengths, and say what that does to its content.

    Example: [bold]kvtier trace scale mooncake_conversation --rate 2 -o twice.parquet[/bold]
    """
    from experiments.trace_make import save
    from traces.change import Scale, scaled

    made = scaled(source.source().stream(), Scale(rate, prompt, output))
    typer.echo(save(made, out, to, strict=source.strict), err=out == "-")


def mix(
    traces: Annotated[list[str], typer.Argument(metavar="TRACE...", help="Files, samples, synthetic:NAME.")],
    out: Out,
    rate: Annotated[list[float] | None, typer.Option(help="One for each trace: so many times as fast.")] = None,
    to: To = None,
    tokens_per_block: Block = None,
) -> None:
    """Write several traces as one, by time; their contents and sessions are kept apart.

    Example: [bold]kvtier trace mix mooncake_arxiv_first1000 synthetic:rag?block_tokens=512 -o both.parquet[/bold]
    """
    from experiments.trace_make import mix as mixed

    typer.echo(mixed(traces, rate or [], out, to, tokens_per_block), err=out == "-")
