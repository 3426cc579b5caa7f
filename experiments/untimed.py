"""One run without a clock: requests are served one at a time in file order, with service time zero. The cache-only view.

The workload may come in pieces, of which one at a time is in memory. It owns no rule: `experiments.ready` checks and
prepares, `kvcache` decides.
"""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from experiments.outcome import Totals, no_times, row_of
from experiments.prepared import Prepare
from experiments.progress import Report
from experiments.ready import Ready, check_untimed, on_a_fleet, ready_pieces
from experiments.spec import Spec
from kvcache.feed import REMEMBERED, Feed
from kvcache.load import Load, longest_blocks
from kvcache.request import Requests
from kvcache.sequences import make_matches, make_sequences
from kvcache.serve import replay_serial
from kvcache.tables import State

PART_BLOCKS = 1 << 20


def run_pieces(
    spec: Spec, pieces: Iterable[Requests], *, progress: Report | None = None, remembered: int = REMEMBERED
) -> dict[str, Any]:
    """The row of `experiments.run.run` without timing, for a workload in pieces.

    The rules must not need the whole trace (`experiments.ready.needs_whole_trace`). `remembered` as for `kvcache.feed.Feed`.
    """
    begun = time.perf_counter()
    check_untimed(spec)
    parts = (part for piece in pieces for part in _parts(piece, spec.kv_cache_config.tokens_per_block))
    return decided(ready_pieces(spec, parts), None, progress, begun, remembered)


def _parts(piece: Requests, tokens_per_block: int) -> Iterator[Requests]:
    """A piece in parts of about a million blocks: tables have room for all of a part's keys, as if none were known."""
    total = piece.prompt_tokens.astype(np.int64) + piece.output_tokens
    part = np.cumsum(total // tokens_per_block) // PART_BLOCKS
    ends = np.flatnonzero(np.diff(part, append=-1) != 0) + 1
    if len(ends) < 2:
        yield piece
        return
    for first, end in zip([0, *ends[:-1]], ends, strict=True):
        yield piece.take(np.arange(first, end))


def decided(
    works: Iterable[Ready],
    total: int | None,
    progress: Report | None,
    begun: float,
    remembered: int = REMEMBERED,
    prepare: Prepare | None = None,
) -> dict[str, Any]:
    """Serve piece after piece on one cache. `prepare`: for a workload of one piece, whose tables other runs share."""
    totals, feed, work = Totals(), None, None
    for work in works:
        feed = feed or Feed(work.plan.pools, work.plan.settings, remembered=remembered)
        if prepare is None:
            state, load = feed.load(work.requests, work.retention)
        else:
            state, load = prepare(work.requests, work.retention, work.plan.pools, work.plan.settings)
        hits = _serve(work, state, load, totals.requests, total, progress)
        totals += Totals.of(work.requests, work.plan.settings.tokens_per_block, hits)
    assert work is not None, "a trace without requests is refused where it is read"
    assert feed is not None
    row = row_of(work.spec, work.plan, totals, [state], no_times(), [], wall_s=time.perf_counter() - begun)
    forgotten = (
        f"{feed.forgotten:,} keys that were in no cache were forgotten to save memory; if such content came back,"
        " misses_by_cause counts it as never_seen"
    )
    one = "without a clock all requests meet one cache: router, cluster, store and autoscaling play no part"
    notes = [*work.notes, *([forgotten] if feed.forgotten else []), *([one] if on_a_fleet(work.spec) else [])]
    return {**row, "notes": notes}


def _serve(work: Ready, state: State, load: Load, done: int, total: int | None, progress: Report | None) -> int:
    """Serve one piece; returns its hit tokens. `done` requests came before it."""
    requests, tpb, n = work.requests, work.plan.settings.tokens_per_block, len(work.requests)
    positions = longest_blocks(requests, tpb)
    q, m = make_sequences(len(work.plan.pools), 1, positions), make_matches(1, positions)
    reused, scratch = np.zeros(n, np.int64), np.zeros((3, 1), np.int64)
    arrival_us = np.asarray(requests.arrival_s * 1e6).astype(np.int64)
    step = max(1, n if progress is None else n // 50)
    for first in range(0, n, step):
        last = min(n, first + step)
        at = int(replay_serial(state, q, m, load, scratch, arrival_us, first, last, reused))
        if at < last:
            blocks = work.plan.pools[0].blocks[0]
            raise ValueError(f"request {done + at} does not fit in the GPU pool of {blocks} blocks")
        if progress is not None:
            progress(done + last, total)
    return int(reused.sum())
