"""What `kvtier trace stats` does: measures a trace piece by piece, and shows it as a table, JSON or one page of pictures."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from experiments import console
from experiments.trace import Trace
from traces.prefixes import MOST
from traces.recut import recut
from traces.stats import Quantiles, Stats, measured

Line = tuple[str, str, str, str]
"""Group, label, figure, unit."""


def stats_of(trace: Trace, tokens_per_block: int | None, *, exact: bool = False) -> Stats:
    """The statistics of a trace, in its own blocks or in others; `exact`: follow every prefix, however many there are."""
    stream = trace.stream() if tokens_per_block is None else recut(trace.stream(), tokens_per_block)
    return measured(stream, None if exact else MOST)


def show(stats: Stats, json: str | None, plot: Path | None) -> None:
    """Notes, then the tables; with `--json FILE` the figures go there, and with `-` they take the tables' place."""
    console.note([*stats.notes, *_sampled(stats)])
    row = {**asdict(stats), "hit_block_share": stats.hit_block_share, "hit_token_share": stats.hit_token_share}
    if json is not None:
        console.write_json(console.without_nan(row), json)
    if plot is not None:
        from reports.trace_page import draw

        draw(row, plot)
    if json != "-":
        console.figures(list(_lines(stats)))
        console.spreads(list(_spreads(stats)))
    for path in (json, plot):
        if path not in {None, "-"}:
            console.say(str(path))


def _lines(stats: Stats) -> Iterator[Line]:
    yield "trace", "format", stats.format or "kvtier", ""
    yield "", "tokens of a block", f"{stats.unit_tokens:,}", "tokens"
    yield "requests", "number", f"{stats.requests:,}", ""
    yield "", "from first to last", console.number(stats.span_s), "s"
    if stats.span_s > 0:
        yield "", "rate", console.number(stats.request_rate_rps), "requests/s"
        yield "", "variation of the gaps", console.number(stats.gap_cv), "deviation / mean"
    if stats.sessions:
        yield "", "sessions", f"{stats.sessions:,}", f"of {stats.requests_with_session:,} requests"
    yield "tokens", "in prompts", f"{stats.input_tokens:,}", "tokens"
    yield "", "generated", f"{stats.output_tokens:,}", "tokens"
    if stats.span_s > 0:
        yield "", "prompt rate", console.number(stats.prompt_rate_tokens_per_s), "tokens/s"
        yield "", "output rate", console.number(stats.output_rate_tokens_per_s), "tokens/s"
    yield "blocks", "in prompts", f"{stats.total_blocks:,}", "blocks"
    if stats.total_blocks:
        yield from _reuse(stats)


def _sampled(stats: Stats) -> Iterator[str]:
    if stats.followed_share < 1:
        yield (
            f"{stats.source}: more different blocks than are followed one by one: from some point on a sample, in the end 1"
            f" of {1 / stats.followed_share:,.0f} new ones; what depends on it is estimated (±: 95 %); --exact follows all"
        )


def _reuse(stats: Stats) -> Iterator[Line]:
    blocks = _about(stats.unique_blocks_error, "blocks")
    yield "", "different ones", f"{stats.unique_blocks:,}", blocks
    yield "", "used once", f"{stats.blocks_used_once:,}", "blocks"
    if stats.requests_with_known_output:
        yield "", "answers with known content", f"{stats.requests_with_known_output:,}", "requests"
    yield "no limit", "blocks found again", console.number(stats.hit_block_share, 0.01), "% of blocks"
    yield "", "", f"{stats.hit_blocks:,}", blocks
    if stats.sessions:
        yield "", "first used by other sessions", f"{stats.hit_blocks_of_other_sessions:,}", "blocks"
    yield "", "tokens found again", console.number(stats.hit_token_share, 0.01), "% of prompt tokens"
    yield "", "", f"{stats.hit_tokens:,}", _about(stats.hit_tokens_error, "tokens")
    most = max(stats.timeline.working_set_blocks, default=0)
    yield "", "largest working set", f"{most:,}", "blocks"


def _about(error: float, unit: str) -> str:
    return f"{unit}, ± {error:,.0f}" if error else unit


def _spreads(stats: Stats) -> Iterator[tuple[str, Quantiles]]:
    yield "prompt (tokens)", stats.prompt_tokens
    yield "output (tokens)", stats.generated_tokens
    if stats.sessions:
        yield "session (requests)", stats.turns
    if stats.hit_blocks:
        yield "between two uses (blocks)", stats.reuse_distance_blocks
        yield "between two uses (s)", stats.reuse_age_s
