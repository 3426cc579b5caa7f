"""Small engines that are stepped by hand."""

from collections.abc import Iterator, Sequence

import numpy as np

from kvcache.engine import Engine, Limits, arrive, begin_step, end_step, make_engine, make_outcome
from kvcache.load import longest_blocks, prepare
from kvcache.request import Requests
from kvcache.retention import RetentionColumns
from kvcache.tables import Pool, Settings

WIDE = 1 << 20


def requests_of(
    prompts: Sequence[Sequence[int]], outputs: Sequence[int], salt: Sequence[int] | None = None
) -> Requests:
    n = len(prompts)
    return Requests(
        "test",
        1,
        np.arange(n, dtype=np.float64),
        np.array([len(p) for p in prompts], np.int32),
        np.array(outputs, np.int32),
        np.cumsum([0, *(len(p) for p in prompts)]).astype(np.int64),
        np.array([token for p in prompts for token in p], np.int32),
        salt=np.array(salt, np.int32) if salt is not None else np.empty(0, np.int32),
    )


def engine_of(
    requests: Requests,
    blocks: tuple[int, ...],
    *,
    settings: Settings = Settings(tokens_per_block=4),
    limits: Limits = Limits(max_batch_size=4),
    keep: RetentionColumns | None = None,
) -> Engine:
    keep = RetentionColumns.none(len(requests)) if keep is None else keep
    settings = settings._replace(record_copies=True)
    state, load = prepare(requests, keep, (Pool(WIDE, blocks),), settings)
    positions = longest_blocks(requests, settings.tokens_per_block)
    return make_engine(state, load, make_outcome(len(requests)), limits, positions)


def moments(e: Engine, n: int, gaps: Sequence[int]) -> Iterator[tuple[float, bool]]:
    """Requests arrive `gaps` steps apart; (time, whether a step has just ended) after each half of a step."""
    now, due = 0.0, np.cumsum(gaps).tolist()
    came = 0
    while True:
        while came < n and due[came] <= now:
            arrive(e, came)
            came += 1
        busy = bool(begin_step(e, now))
        yield now, False
        now += 1.0
        if busy:
            end_step(e, now)
            yield now, True
        elif came == n:
            return
