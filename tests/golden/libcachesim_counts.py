"""Records the hits of libCacheSim, an outside check (GPL-3) that nothing here depends on.

    python -m tests.golden.libcachesim_counts

Accesses are the prompt blocks of a bundled trace in replay order, of one size, with the cache counted in blocks and the
library's default parameters. MIN is its Belady. The file also says which version counted.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvcache.curve import prefix_blocks
from traces.read import read

FILE = Path(__file__).with_name("libcachesim_counts.json")
CLASSES = {
    "lru": "LRU",
    "fifo": "FIFO",
    "lfu": "LFU",
    "sieve": "Sieve",
    "s3-fifo": "S3FIFO",
    "arc": "ARC",
    "min": "Belady",
}
SIZES = {
    "mooncake_conversation": (1_000, 5_000, 10_000, 50_000),
    "mooncake_arxiv_first1000": (100, 1_000, 3_000, 10_000),
    "llmservingsim_sharegpt300_blk16": (200, 1_000, 3_000, 10_000),
    "miniswe_hashed_blk16": (200, 500, 1_000, 2_000),
}


def accesses(trace: str) -> list[int]:
    """The blocks of all prompts, one after the other."""
    return [int(block) for block in prefix_blocks(read(trace))[0]]


def counted(blocks: Sequence[int], policy: str, size: int) -> int:
    """Hits of libCacheSim's `policy`."""
    import libcachesim

    cache = getattr(libcachesim, CLASSES[policy])(size)
    request, hits = libcachesim.Request(), 0
    following = _next_uses(blocks) if policy == "min" else blocks
    for block, after in zip(blocks, following, strict=True):
        request.obj_id, request.obj_size = block, 1
        request.next_access_vtime = after
        hits += bool(cache.get(request))
    return hits


def _next_uses(blocks: Sequence[int]) -> list[int]:
    """For each access the number of the next one to the same block; the largest number if there is none."""
    after, seen = [int(np.iinfo(np.int64).max)] * len(blocks), dict[int, int]()
    for i in range(len(blocks) - 1, -1, -1):
        after[i] = seen.get(blocks[i], after[i])
        seen[blocks[i]] = i
    return after


def recorded() -> dict[str, Any]:
    """What is in the file."""
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def record() -> dict[str, Any]:
    """Every policy on every trace at every size, counted now."""
    import libcachesim

    table: dict[str, dict[str, dict[str, int]]] = {}
    for trace, sizes in SIZES.items():
        blocks = accesses(trace)
        table[trace] = {p: {str(size): counted(blocks, p, size) for size in sizes} for p in CLASSES}
    return {"libcachesim": libcachesim.__version__, "hits": table}


if __name__ == "__main__":
    FILE.write_text(json.dumps(record(), indent=1) + "\n", encoding="utf-8")
    print(FILE)
