"""What a user may say about a trace that the file does not say itself. It does not read anything."""

from dataclasses import dataclass

from traces.errors import TraceError

TICKS_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

SAID_BY_ITSELF = (
    *("trace_block_size", "time_unit", "default_output"),
    *("default_prompt", "tokenizer", "bytes_per_token"),
)


@dataclass(frozen=True)
class ReadOptions:
    """Settings of `traces.read`; None means what the file or its format says."""

    trace_block_size: int | None = None
    """Tokens that one hash id stands for (`--trace-block-size`)."""
    time_unit: str | None = None
    """Unit of plain-number timestamps: s, ms, us or ns (`--time-unit`)."""
    default_output: int | None = None
    """Output length, in tokens, of requests that give none (`--default-output`)."""
    skip_bad_lines: bool = False
    """Leave unreadable lines out and count them instead of stopping (`--skip-bad-lines`)."""
    strict: bool = False
    """Refuse what would be repaired with a note: rows out of order, a guessed block size (`--strict`)."""
    default_prompt: int | None = None
    """Prompt length, in tokens, of requests that give none (`--default-prompt`)."""
    tokenizer: str | None = None
    """A `tokenizer.json` that cuts text into tokens (`--tokenizer`)."""
    bytes_per_token: int | None = None
    """UTF-8 bytes that stand for one token of text without a tokenizer (`--bytes-per-token`)."""
    link_outputs: bool = True
    """Take an answer's content from the next turn's prompt where it fits in there (`--no-link-outputs`: do not)."""

    def refuse_for(self, trace: str) -> None:
        """A trace that says everything itself must not be told a block size, a time unit or an output length."""
        for name in SAID_BY_ITSELF:
            if getattr(self, name) is not None:
                raise TraceError(f"{trace}: --{name.replace('_', '-')} does not apply: this trace says it itself")

    def __post_init__(self) -> None:
        if self.trace_block_size is not None and self.trace_block_size < 1:
            raise ValueError(f"--trace-block-size is {self.trace_block_size}; it must be at least 1 token")
        if self.time_unit is not None and self.time_unit not in TICKS_PER_S:
            raise ValueError(f"--time-unit is {self.time_unit!r}; it must be one of {', '.join(TICKS_PER_S)}")
        if self.default_prompt is not None and self.default_prompt < 1:
            raise ValueError(f"--default-prompt is {self.default_prompt}; it must be at least 1 token")
        if self.bytes_per_token is not None and self.bytes_per_token < 1:
            raise ValueError(f"--bytes-per-token is {self.bytes_per_token}; it must be at least 1 byte")
        if self.default_output is not None and self.default_output < 0:
            raise ValueError(f"--default-output is {self.default_output}; it must be 0 tokens or more")
