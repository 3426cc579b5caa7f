"""The options that several commands share, each described once."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

TRACE = "Reading the trace"
POOLS = "Pool sizes"

TraceName = Annotated[str, Argument(metavar="TRACE", help="A file, a bundled sample's name, or synthetic:NAME.")]
Format = Annotated[
    str | None, Option(help="Format of the trace; found out by itself otherwise.", rich_help_panel=TRACE)
]
BlockSize = Annotated[
    int | None, Option("--trace-block-size", help="Tokens one hash id stands for.", rich_help_panel=TRACE)
]
TimeUnit = Annotated[
    str | None, Option(help="Unit of plain-number timestamps: s, ms, us or ns.", rich_help_panel=TRACE)
]
DefaultOutput = Annotated[
    int | None, Option(help="Output length, tokens, of requests that give none.", rich_help_panel=TRACE)
]
SkipBadLines = Annotated[
    bool, Option("--skip-bad-lines", help="Leave out unreadable lines and count them.", rich_help_panel=TRACE)
]
Strict = Annotated[
    bool, Option("--strict", help="Refuse a trace that would be repaired with a note.", rich_help_panel=TRACE)
]
Limit = Annotated[int | None, Option(min=1, help="Replay the first N requests only.", rich_help_panel=TRACE)]

SpecFile = Annotated[
    str | None, Option("--spec", help="YAML file, a TensorRT-LLM option file, or default, essay_retention, ...")
]
Settings = Annotated[
    list[str] | None, Option("--set", metavar="KEY=VALUE", help="Change one key of the spec, e.g. tokens_per_block=64.")
]
NoTiming = Annotated[bool, Option("--no-timing", help="Decisions only: no clock, no latencies, much faster.")]
Json = Annotated[str | None, Option("--json", metavar="FILE", help="Write the result as JSON; - for stdout.")]
Directory = Annotated[Path, Argument(metavar="DIR", help="Where `kvtier sweep --out` wrote its results.")]

GpuTokens = Annotated[str | None, Option(metavar="N", help="GPU pool, tokens.", rich_help_panel=POOLS)]
GpuBlocks = Annotated[str | None, Option(metavar="N", help="GPU pool, blocks.", rich_help_panel=POOLS)]
HostTokens = Annotated[str | None, Option(metavar="N", help="Host pool, tokens.", rich_help_panel=POOLS)]
HostBlocks = Annotated[str | None, Option(metavar="N", help="Host pool, blocks.", rich_help_panel=POOLS)]
DiskTokens = Annotated[str | None, Option(metavar="N", help="Disk tier, tokens (cascade).", rich_help_panel=POOLS)]

Device = Annotated[str, Option(help="cpu (host memory stands in for the GPU's) or cuda:0.")]
Storage = Annotated[Path | None, Option(metavar="DIR", help="Where slot files of the disk tier lie.")]
