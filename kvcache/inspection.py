"""A manager's blocks in words, for tests and explanations: invariants, the order of eviction, one block's facts."""

from typing import Any

import numpy as np

from kvcache.manager import KVCacheManager
from kvcache.queues import ring
from kvcache.tables import (
    C_BLOCKS,
    KEY,
    LEVEL,
    NEXT,
    NODE,
    PARENT,
    PRIORITY,
    QUEUE_LEVEL,
    REFS,
    ROOT,
    SLOT,
    T_FREE,
    T_SIZE,
    TOKENS,
    W_FIRST,
)


def check(manager: KVCacheManager) -> None:
    """Assert what stays true always (architecture, invariants 1, 2): places are a permutation, queues hold free blocks."""
    state, total = manager.state, int(manager.state.conf[C_BLOCKS])
    rows = state.blocks[:total]
    queued = rows[:, NEXT] != -1
    assert not (queued & (rows[:, REFS] > 0)).any(), "a queued block has references"
    assert (rows[queued, LEVEL] == rows[queued, QUEUE_LEVEL]).all(), "a queued block moved to another tier"
    for w in range(len(manager.pools)):
        for level in range(state.tier.shape[1]):
            mine = (rows[:, LEVEL] == level) & (np.arange(total) >= state.window[w, W_FIRST])
            mine &= np.arange(total) < state.window[w, W_FIRST] + state.tier[w, :, T_SIZE].sum()
            assert sorted(rows[mine, SLOT]) == list(range(int(state.tier[w, level, T_SIZE]))), (
                "slots are no permutation"
            )
            assert int((mine & queued).sum()) == int(state.tier[w, level, T_FREE]), "free count differs from the queues"
    attached = np.flatnonzero(rows[:, NODE] != -1)
    for block in attached:
        assert rows[block, KEY] == rows[block, NODE], "an attached block's key differs from its node"


def queue_order(manager: KVCacheManager, w: int, level: int) -> list[int]:
    """Block ids of a tier in the order in which they would be taken."""
    out = []
    for priority in range(101):
        head = int(ring(manager.state, w, level, priority))
        block = int(manager.state.blocks[head, NEXT])
        while block != head:
            out.append(manager.block_id(w, block))
            block = int(manager.state.blocks[block, NEXT])
    return out


def describe(manager: KVCacheManager, block_id: int, w: int = 0) -> dict[str, Any]:
    """One block's facts by name, for tests and explanations."""
    row = manager.state.blocks[manager.block_row(block_id, w)]
    node = int(row[NODE])
    parent = int(manager.state.nodes[node, PARENT]) if node != -1 else -1
    above = ROOT if parent == ROOT else parent
    prev = int(manager.state.value[w, above]) if node != -1 and above != ROOT else -1
    return {
        "primary": int(row[LEVEL]) == 0,
        "level": int(row[LEVEL]),
        "priority": int(row[PRIORITY]),
        "references": int(row[REFS]),
        "attached": node != -1,
        "key_tokens": int(manager.state.nodes[int(row[KEY]), TOKENS]) if row[KEY] != -1 else 0,
        "prev_block": None if prev == -1 else manager.block_id(w, prev),
    }
