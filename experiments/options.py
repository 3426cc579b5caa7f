"""The options that several commands share, each described once."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

if TYPE_CHECKING:
    from experiments.trace import Trace

TRACE = "Reading the trace"
POOLS = "Pool sizes"
CLOCK = "When requests come"

TraceName = Annotated[str, Argument(metavar="TRACE", help="A file, a bundled sample's name, or synthetic:NAME.")]
StudyName = Annotated[
    str, Argument(metavar="TRACE", help="A file, a bundled sample's name, or synthetic:NAME; or a sweep file (YAML).")
]
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
DefaultPrompt = Annotated[
    int | None, Option(help="Prompt length, tokens, of requests that give none.", rich_help_panel=TRACE)
]
Tokenizer = Annotated[
    str | None, Option(metavar="FILE", help="A tokenizer.json that cuts text into tokens.", rich_help_panel=TRACE)
]
BytesPerToken = Annotated[
    int | None, Option(help="Bytes of text that stand for one token; 4 otherwise.", rich_help_panel=TRACE)
]
LinkOutputs = Annotated[
    bool,
    Option(
        "--link-outputs/--no-link-outputs",
        help="Take an answer's content from the next turn's prompt where it fits.",
        rich_help_panel=TRACE,
    ),
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

Policy = Annotated[
    str | None, Option(metavar="NAME", help="Which free block goes first: priority, lru, arc, ..., or FILE.py:CLASS.")
]

GpuTokens = Annotated[str | None, Option(metavar="N", help="GPU pool, tokens.", rich_help_panel=POOLS)]
GpuBlocks = Annotated[str | None, Option(metavar="N", help="GPU pool, blocks.", rich_help_panel=POOLS)]
HostTokens = Annotated[str | None, Option(metavar="N", help="Host pool, tokens.", rich_help_panel=POOLS)]
HostBlocks = Annotated[str | None, Option(metavar="N", help="Host pool, blocks.", rich_help_panel=POOLS)]
DiskTokens = Annotated[str | None, Option(metavar="N", help="Disk tier, tokens (cascade).", rich_help_panel=POOLS)]

RateScale = Annotated[
    float | None,
    Option(metavar="X", help="Divide arrival and think times by X: 2 is twice the load.", rich_help_panel=CLOCK),
]
Concurrency = Annotated[
    int | None,
    Option(
        metavar="N",
        help="N requests in flight instead of arrival times; a session's next turn waits for its previous one.",
        rich_help_panel=CLOCK,
    ),
]

Device = Annotated[str, Option(help="cpu (host memory stands in for the GPU's) or cuda:0.")]
Storage = Annotated[Path | None, Option(metavar="DIR", help="Where slot files of the disk tier lie.")]


@dataclass(frozen=True)
class TraceOptions:
    """Which trace, and how to read it."""

    trace: TraceName
    format: Format = None
    trace_block_size: BlockSize = None
    time_unit: TimeUnit = None
    default_output: DefaultOutput = None
    default_prompt: DefaultPrompt = None
    tokenizer: Tokenizer = None
    bytes_per_token: BytesPerToken = None
    link_outputs: LinkOutputs = True
    skip_bad_lines: SkipBadLines = False
    strict: Strict = False
    limit: Limit = None

    def source(self) -> "Trace":
        """The trace, not yet read."""
        from experiments.trace import Trace
        from traces.options import ReadOptions

        options = ReadOptions(**{field.name: getattr(self, field.name) for field in fields(ReadOptions)})
        return Trace(self.trace, self.format, options, self.limit)


@dataclass(frozen=True)
class StudyOptions(TraceOptions):
    """A trace, or a sweep file."""

    trace: StudyName


@dataclass(frozen=True)
class SpecOptions:
    """The configuration of a run: a file, single keys, pool sizes, arrivals."""

    spec: SpecFile = None
    set_: Settings = None
    gpu_tokens: GpuTokens = None
    gpu_blocks: GpuBlocks = None
    host_tokens: HostTokens = None
    host_blocks: HostBlocks = None
    disk_tokens: DiskTokens = None
    rate_scale: RateScale = None
    concurrency: Concurrency = None
    policy: Policy = None

    def settings(self) -> list[str]:
        """All changes to the file as `key=value`; giving one pool twice is refused."""
        for tier in ("gpu", "host"):
            if getattr(self, f"{tier}_tokens") is not None and getattr(self, f"{tier}_blocks") is not None:
                raise ValueError(f"give --{tier}-tokens or --{tier}-blocks, not both")
        pools = ("gpu_tokens", "gpu_blocks", "host_tokens", "host_blocks", "disk_tokens")
        given = {f"capacity.{name}": getattr(self, name) for name in pools}
        given |= {
            "workload.rate_scale": self.rate_scale,
            "workload.concurrency": self.concurrency,
            "policy": self.policy,
        }
        return [*(self.set_ or []), *(f"{key}={value}" for key, value in given.items() if value is not None)]


def bundled(command: Callable[..., None]) -> Callable[..., None]:
    """The same command for typer, with the fields of its bundles (the dataclasses above) as options of its own."""
    signature = inspect.signature(command, eval_str=True)
    bundles: dict[str, Any] = {
        p.name: p.annotation for p in signature.parameters.values() if is_dataclass(p.annotation)
    }

    @functools.wraps(command)
    def spread(**given: Any) -> None:
        taken = {name: kind(**{f.name: given.pop(f.name) for f in fields(kind)}) for name, kind in bundles.items()}
        command(**taken, **given)

    options = [option for p in signature.parameters.values() for option in _options(p)]
    spread.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    spread.__annotations__ = {option.name: option.annotation for option in options}
    return spread


def _options(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    if not is_dataclass(parameter.annotation):
        return [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
    bundle: Any = parameter.annotation
    own = inspect.signature(bundle, eval_str=True).parameters.values()
    return [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in own]
