"""A spec and a trace made ready to run: arrivals as the workload section wants them, requests that can be served, pools,
priorities, and each worker's share. Everything that runs, explains or records starts here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.pools import Plan, plan
from experiments.retention import check_labels, columns, counts_sessions
from experiments.spec import Spec
from kvcache.line import slack
from kvcache.request import Int32, Int64, Labels, Requests
from kvcache.retention import RetentionColumns
from sim.cluster import assign
from sim.turns import Turns, turns_before

STATIC = ("round_robin", "random", "session")
"""Routers whose choice follows from the trace alone."""


@dataclass(frozen=True)
class Ready:
    """What a run needs. `requests` are those that will be served; they may be a piece of a longer workload."""

    spec: Spec
    requests: Requests
    plan: Plan
    retention: RetentionColumns
    left_out: Counter[str]
    """How many requests were changed or dropped, by a sentence with a place for the number."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What whoever reads the results should know."""
        changed = [sentence.format(count) for sentence, count in self.left_out.items()]
        tpb, unit = self.spec.kv_cache_config.tokens_per_block, self.requests.unit_tokens
        finer = (
            f"lower bound: sharing inside a trace block of {unit} tokens is unknown (tokens_per_block {tpb} is finer)"
        )
        return (*changed, *self.plan.notes, *([finer] if tpb < unit else []))


@dataclass(frozen=True)
class Part:
    """One worker's share of the workload; `rows` are the requests' numbers in the whole of it."""

    rows: Int64
    requests: Requests
    retention: RetentionColumns


def ready(spec: Spec, requests: Requests, *, timing: bool) -> Ready:
    """Check and prepare; anything impossible is a ValueError that names the setting."""
    (work,) = ready_pieces(spec, [requests])
    if timing:
        check_timed(spec, work.requests, work.plan)
    else:
        check_untimed(spec)
    return work


def first_piece(spec: Spec, requests: Requests) -> Ready:
    """A workload that may go on; its pools are settled here."""
    fitting, left_out = fitted(spec, scheduled(spec, requests), 0)
    the_plan = plan(spec, longest_tokens(fitting))
    return _prepared(spec, fitting, the_plan, left_out, 0)


def next_piece(work: Ready, requests: Requests, first: int) -> Ready:
    """The piece after `work`, under the same pools; `first` is the number of its first request."""
    spec, the_plan = work.spec, work.plan
    fitting, left_out = fitted(spec, scheduled(spec, requests), first)
    if longest_tokens(fitting) > the_plan.max_seq_len:
        raise ValueError(
            f"a request of {longest_tokens(fitting)} tokens comes after request {first}, when pools were laid out for"
            f" {the_plan.max_seq_len}: set scheduler.max_seq_len"
        )
    return _prepared(spec, fitting, the_plan, work.left_out + left_out, first)


def ready_pieces(spec: Spec, pieces: Iterable[Requests]) -> Iterator[Ready]:
    """Piece after piece, checked and prepared. What only all of them can show is checked at the end."""
    work, first, served, labels = None, 0, 0, dict[str, Labels]()
    for piece in pieces:
        work = first_piece(spec, piece) if work is None else next_piece(work, piece, first)
        first, served = first + len(piece), served + len(work.requests)
        labels |= piece.labels
        yield work
    check_labels(spec.retention, labels)
    if work is not None and served == 0:
        raise _nothing_left(work)


def _prepared(spec: Spec, requests: Requests, the_plan: Plan, left_out: Counter[str], first: int) -> Ready:
    requests, more = servable(spec, requests, the_plan, first)
    return Ready(spec, requests, the_plan, columns(requests, spec.retention), left_out + more)


def _nothing_left(work: Ready) -> ValueError:
    return ValueError(f"every request is longer than what can be served: {'; '.join(work.notes)}")


def needs_whole_trace(spec: Spec) -> bool:
    """Whether what a request gets depends on requests after it."""
    return spec.workload.spread_arrivals or counts_sessions(spec.retention)


def on_a_fleet(spec: Spec) -> bool:
    """Whether something looks at the workers, or reaches into them, while they run."""
    reached = spec.cluster.disaggregated or spec.store.size > 0 or spec.autoscaling.wanted
    return reached or spec.workload.router not in STATIC


def check_by_turn(spec: Spec, what: str) -> None:
    """Refuse what goes worker by worker where workers do not run by themselves."""
    if on_a_fleet(spec):
        raise ValueError(
            f"{what} goes through one worker after the other; workers that a router looks at, a cluster, a store or a"
            f" growing pool cannot be: use router {', '.join(STATIC)}, without cluster, store and autoscaling"
        )


def whole(work: Ready) -> Part:
    """All requests on one worker."""
    return Part(np.arange(len(work.requests), dtype=np.int64), work.requests, work.retention)


def worker_of(work: Ready) -> Int32:
    """Which worker serves each request."""
    workload = work.spec.workload
    rng = np.random.default_rng(workload.seed)
    return assign(workload.router, len(work.requests), workload.workers, work.requests.session, rng)


def draws(spec: Spec) -> bool:
    """Whether `workload.seed` may change anything: all routers may draw but these two. Sweeps repeat such runs."""
    return spec.workload.workers > 1 and spec.workload.router not in {"round_robin", "session"}


def turns_of(work: Ready) -> Turns | None:
    """Who waits for whom, where the workload section wants that."""
    requests, workload = work.requests, work.spec.workload
    if not workload.takes_turns:
        return None
    return Turns(turns_before(requests.session), np.nan_to_num(requests.think_s), workload.concurrency)


def part_of(work: Ready, workers: Int32, worker: int) -> Part:
    """One worker's share."""
    rows = np.flatnonzero(workers == worker).astype(np.int64)
    return Part(rows, work.requests.take(rows), work.retention.take(rows))


def scheduled(spec: Spec, requests: Requests) -> Requests:
    """Arrivals as the workload section wants them."""
    arrival = requests.arrival_s
    if spec.workload.spread_arrivals:
        arrival = _spread(arrival)
    scale = spec.workload.rate_scale
    return replace(requests, arrival_s=np.ascontiguousarray(arrival / scale), think_s=requests.think_s / scale)


def _spread(arrival: np.ndarray[Any, np.dtype[np.float64]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Requests of one instant evenly up to the next instant; the last instant's as densely as the one before it."""
    instants, first, count = np.unique(arrival, return_index=True, return_counts=True)
    if len(instants) < 2:
        return arrival
    gap = np.append(np.diff(instants), instants[-1] - instants[-2])
    place = np.arange(len(arrival)) - np.repeat(first, count)
    return np.asarray(arrival + place * np.repeat(gap / count, count))


def longest_tokens(requests: Requests) -> int:
    return int((requests.prompt_tokens.astype(np.int64) + requests.output_tokens).max(initial=1))


def fitted(spec: Spec, requests: Requests, first: int) -> tuple[Requests, Counter[str]]:
    """The requests no longer than scheduler.max_seq_len, by the `too_long` policy; `first` is the first one's number."""
    limit = spec.scheduler.max_seq_len
    if limit is None:
        return requests, Counter()
    return _limited(spec, requests, first, limit, f"scheduler.max_seq_len={limit}")


def servable(spec: Spec, requests: Requests, the_plan: Plan, first: int) -> tuple[Requests, Counter[str]]:
    """The requests that the GPU pool can hold from first to last token, by the `too_long` policy."""
    tpb = spec.kv_cache_config.tokens_per_block
    full = [pool for pool in the_plan.pools if not pool.sliding]
    blocks = min((pool.blocks[0] for pool in full), default=the_plan.pools[0].blocks[0])
    for pool in the_plan.pools:
        if pool.sliding and pool.blocks[0] * tpb < pool.window_tokens + 2 * tpb:
            raise ValueError(
                f"the pool of the {pool.window_tokens}-token window holds {pool.blocks[0]} blocks of {tpb} tokens;"
                " one sequence needs more: raise capacity.gpu_tokens"
            )
    drafts = slack(not spec.scheduler.disable_overlap_scheduler, drafts_of(spec))
    aside = f" less {drafts} for drafts" if drafts else ""
    what = f"the GPU pool of {blocks} blocks of {tpb} tokens{aside}"
    return _limited(spec, requests, first, blocks * tpb - drafts, what)


def drafts_of(spec: Spec) -> int:
    """Tokens drafted for a request in each step."""
    return 0 if spec.speculative_config is None else spec.speculative_config.draft_len


def _limited(spec: Spec, requests: Requests, first: int, limit: int, what: str) -> tuple[Requests, Counter[str]]:
    total = requests.prompt_tokens.astype(np.int64) + requests.output_tokens
    over = np.flatnonzero(total > limit)
    if len(over) == 0:
        return requests, Counter()
    if spec.too_long == "error":
        i = int(over[0])
        raise ValueError(
            f"request {first + i} needs {int(requests.prompt_tokens[i])} prompt + {int(requests.output_tokens[i])} output"
            f" tokens, more than {what} can hold ({limit} tokens; {len(over)} of {len(requests)} requests are too long):"
            " raise capacity.gpu_tokens or set too_long=drop or too_long=truncate"
        )
    if spec.too_long == "drop":
        kept = np.flatnonzero(total <= limit).astype(np.int64)
        return requests.take(kept), Counter({f"dropped {{}} requests longer than {what} (too_long=drop)": len(over)})
    output = np.minimum(requests.output_tokens, limit - 1).astype(np.int32)
    prompt = np.minimum(requests.prompt_tokens, limit - output).astype(np.int32)
    cut = replace(requests, prompt_tokens=prompt, output_tokens=output, output_offset=None, output_units=None)
    return cut, Counter({f"truncated {{}} requests longer than {what} (too_long=truncate)": len(over)})


def check_timed(spec: Spec, requests: Requests, the_plan: Plan) -> None:
    """Refuse settings under which some request could never run."""
    tpb, tokens, batch = (
        the_plan.settings.tokens_per_block,
        spec.scheduler.max_num_tokens,
        spec.scheduler.max_batch_size,
    )
    drafts, unit = drafts_of(spec), spec.scheduler.chunk_unit_size or tpb
    if unit % tpb:
        raise ValueError(f"scheduler.chunk_unit_size is {unit}; it must be a multiple of tokens_per_block ({tpb})")
    if tokens < batch * (1 + drafts) + unit:
        each = f"max_batch_size x {1 + drafts}" if drafts else "max_batch_size"
        least = "chunk_unit_size" if spec.scheduler.chunk_unit_size else "tokens_per_block"
        raise ValueError(
            f"scheduler.max_num_tokens is {tokens}; it must be at least {each} + {least}"
            f" ({batch * (1 + drafts)} + {unit}), or prefill could starve"
        )
    resumes = spec.profile.name == "vllm" or spec.scheduler.capacity_scheduler_policy == "MAX_UTILIZATION"
    lengths = requests.prompt_tokens.astype(np.int64) + (requests.output_tokens if resumes else 0)
    longest = int(lengths.max(initial=0))
    if not spec.scheduler.enable_chunked_prefill and longest > tokens:
        more = " with what it may have generated before a pause" if resumes else ""
        raise ValueError(
            f"scheduler.enable_chunked_prefill is false and scheduler.max_num_tokens is {tokens}; the longest prompt has"
            f" {longest} tokens{more} and would never run: raise max_num_tokens or leave chunking on"
        )


def check_untimed(spec: Spec) -> None:
    """Refuse what only time can bring about."""
    if spec.workload.takes_turns:
        raise ValueError("workload.concurrency and wait_for_turns need a clock: leave out --no-timing, or them")
