"""The tables: every fact of one cache manager as rows of integers, made here and changed only by the compiled loops.

It does not decide anything. TensorRT-LLM keeps one C++ object a block (`KVCacheBlock`), a trie node an entry
(`UnifiedBlockTree`) and a linked list a priority (`LRUEvictionPolicy`); here each of them is a row, a row and a ring of
rows, so that a whole request is served by one compiled call.

Who refers to whom (all references are row numbers, -1 = none):

    nodes[node]  --value[window, node]-->  blocks[block]  --NODE-->  nodes[node]     (attached: both ways)
    blocks[block] --KEY--> nodes[node]      what its memory holds; stays when the block leaves the tree ("stale key")
    blocks[block] <--NEXT/PREV--> ...       the ring of its (window, level, priority); the ring's head is a row too
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcache.gate import Gate, OffloadRule, gate_for, make_gate
from kvcache.policies import Policy
from kvcache.shelf import with_contents
from kvcache.shelved import Shelved, make_shelved

Array = NDArray[Any]

DEFAULT_PRIORITY = 35  # KvCacheRetentionConfig::kDefaultRetentionPriority
DEFAULT_OFFLOAD_MIN_PRIORITY = 30  # kDefaultSecondaryOffloadMinPriority (the documentation says 35; the code says 30)
PRIORITIES = 101  # 0..100

# Columns of `blocks`. One row is 64 bytes: one cache line a block.
NEXT, PREV, NODE, KEY, SLOT, REFS, LEVEL, PRIORITY = range(8)
DURATION_MS, SCHED_REFS, CLAIM_BATCH, CLAIMANT, CLAIM_FULL, WINDOW, QUEUE_LEVEL, EXPIRED = range(8, 16)

# Columns of `nodes`. Fixed when a key is made: PARENT, TOKENS (in the key), CONTENT (its first run), SPACE (namespace of
# LoRA, salt and extra ids), HASH_LOW and HASH_HIGH (31 bits each), GROUP (representative of the siblings whose keys start
# with the same run). Following what is attached: LIVE (values and existing children), FATE (see below), and the list of the
# group's existing members: HEAD (in the representative's row), GNEXT, GPREV.
PARENT, GROUP, HEAD, GNEXT, GPREV, LIVE, TOKENS, CONTENT, SPACE, HASH_LOW, HASH_HIGH, FATE = range(12)
RUN_ID, RUN_TOKENS = range(2)  # columns of `runs`
T_SIZE, T_FREE, T_LOWEST = range(3)  # last axis of `tier`; no ring below priority T_LOWEST is filled

ROOT = 0

# What became of a node's block, for `misses_by_cause`.
NEVER_SEEN, RESIDENT, IN_FLIGHT, EVICTED_GPU, BELOW_THRESHOLD, EVICTED_HOST, EVICTED_DISK, EXPIRED_FATE = range(8)
CHAIN_DETACHED, OVERWRITTEN, BEHIND_GAP, LAST_TOKEN, SHORT_BLOCK, TRUNCATED, OTHER_NAMESPACE = range(8, 15)
CAUSES = (
    "never_seen",
    "resident",
    "in_flight",
    "evicted_from_gpu",
    "dropped_below_threshold",
    "evicted_from_host",
    "evicted_from_disk",
    "expired",
    "ancestor_evicted",
    "overwritten_in_place",
    "behind_a_gap",
    "last_prompt_token",
    "shorter_than_a_block",
    "truncated",
    "other_salt_or_lora",
)

# Rows of `conf`.
(
    C_TOKENS_PER_BLOCK,
    C_WINDOWS,
    C_LEVELS,
    C_OFFLOAD_MIN_PRIORITY,
    C_COLD_MIN_PRIORITY,
    C_REUSE,
    C_PARTIAL,
    C_COPY_ON_PARTIAL,
    C_EVICT_DESCENDANTS,
    C_DETACHED_FIRST,
    C_EMPTIED_FRONT,
    C_RECORD_COPIES,
    C_RECORD_EVENTS,
    C_BLOCKS,
    C_ONBOARD,
    C_SEQUENTIAL,
    C_TELL_ALL,
) = range(17)
CONF_ROWS = 17

# Rows of `tally`.
N_NODES, N_RUNS, N_TABLE, N_HEAP, N_COPIES, N_EVENTS, N_PRIVATE, CLOCK_US, BATCH = range(9)
COUNT_ROWS = 9

# Columns of `stats` (one row a window); all grow only.
(
    ALLOC_TOTAL,
    ALLOC_NEW,
    REUSED,
    FULL_REUSED,
    PARTIAL_REUSED,
    MISSED,
    GEN_ALLOC,
    OFFLOADED,
    ONBOARDED,
    ONBOARDED_FROM_DISK,
    INTRA_COPIES,
    INTRA_TOKENS,
    DISK_WRITES,
    DROPPED,
    DROPPED_BELOW_THRESHOLD,
    HIT_TOKENS_GPU,
    HIT_TOKENS_HOST,
    HIT_TOKENS_DISK,
    PARTIAL_FROM_HOST,
    STORED,
    CAUSE_0,
) = range(21)
STATS = CAUSE_0 + len(CAUSES)
P_OFFLOADED, P_ONBOARDED, P_DROPPED = range(3)  # rows of `by_priority`

# Kinds in `copies`; columns: kind, window, source slot, destination slot, tokens (0 = whole block), key node.
OFFLOAD, ONBOARD, DISK_WRITE, DISK_READ, INTRA_COPY = range(5)
COPY_COLUMNS = 6
# Kinds in `events`; columns: kind, window, node (stored-open: parent), old or level, new or priority, unused.
EV_STORED_OPEN, EV_STORED_BLOCK, EV_REMOVED, EV_LEVEL, EV_PRIORITY = range(5)
EVENT_COLUMNS = 6


class Pool(NamedTuple):
    """Size of one attention window's block pools: tokens of the window and blocks per level, warm to cold."""

    window_tokens: int
    blocks: tuple[int, ...]  # (gpu, host) or (gpu, host, disk)
    sliding: bool = False
    chunk_tokens: int = 0  # temporary attention window: prefill tokens a sliding window may hold beyond the window


class State(NamedTuple):
    """All tables of one manager. Compiled functions take it as their first argument."""

    conf: Array  # int64[CONF_ROWS]
    tally: Array  # int64[COUNT_ROWS]
    nodes: Array  # int32[node, 12]
    value: Array  # int32[window, node]: the block that holds the node's content
    kids: Array  # int32[node, 3]: first child, next and previous sibling; one row only unless evict_descendants
    twin: Array  # int32[node]: the same content without a namespace; one row only unless the workload has several
    runs: Array  # int32[run, 2]: identity and tokens
    tables: Array  # int32[2, 2^k]: open addressing, node by key and group by first run
    blocks: Array  # int32[block + ring heads, 16]
    window: Array  # int64[window, 4]: tokens, sliding, first block, temporary window tokens
    tier: Array  # int64[window, level, 3]
    expiry_us: Array  # int64[block]: -1 = none
    heap: Array  # int64[entries, 2]: expiry time in us and block, earliest first
    stats: Array  # int64[window, STATS]
    by_priority: Array  # int64[3, PRIORITIES]: blocks offloaded, brought back, dropped for being below the threshold
    copies: Array  # int32[entries, COPY_COLUMNS]
    events: Array  # int32[entries, EVENT_COLUMNS]
    gate: Gate | None  # further rules for moving to the host
    shelf: Shelved | None  # the order of free blocks under another eviction policy than TensorRT-LLM's


W_TOKENS, W_SLIDING, W_FIRST, W_TEMPORARY = range(4)


class Settings(NamedTuple):
    """Rules of one manager, in TensorRT-LLM's names; see `kvcache.profiles` for named sets."""

    tokens_per_block: int = 32
    secondary_offload_min_priority: int = DEFAULT_OFFLOAD_MIN_PRIORITY
    cold_tier_offload_min_priority: int = 0
    enable_block_reuse: bool = True
    enable_partial_reuse: bool = True
    copy_on_partial_reuse: bool = True
    onboard_blocks: bool = True
    evict_descendants: bool = False
    detached_first: bool = False
    emptied_host_slot_front: bool = False
    sequential_claim: bool = False
    record_copies: bool = False
    record_events: bool = False
    tell_all: bool = False  # events also of blocks that leave the tree without one in TensorRT-LLM
    offload: OffloadRule | None = None  # None: the threshold alone, as TensorRT-LLM
    eviction: Policy | None = None  # None: TensorRT-LLM's priority LRU (`kvcache.queues`)


def _check(pools: tuple[Pool, ...], settings: Settings) -> None:
    if settings.tokens_per_block < 1:
        raise ValueError(f"tokens_per_block is {settings.tokens_per_block}; it must be at least 1")
    for name in ("secondary_offload_min_priority", "cold_tier_offload_min_priority"):
        if not 0 <= getattr(settings, name) <= PRIORITIES:
            raise ValueError(f"{name} is {getattr(settings, name)}; priorities run from 0 to 100 (101 = never)")
    if not pools:
        raise ValueError("a manager needs at least one window")
    for pool in pools:
        if len(pool.blocks) != len(pools[0].blocks):
            raise ValueError("every window needs the same tiers")
        if pool.blocks[0] < 1 or min(pool.blocks) < 0:
            raise ValueError(f"block counts are {pool.blocks}; the GPU needs at least 1 block, other tiers 0 or more")


def make_state(
    pools: tuple[Pool, ...], settings: Settings, *, nodes: int = 1024, runs: int = 4096, branches: int | None = None
) -> State:
    """Fresh tables for `pools`; `nodes` and `runs` are the first room for keys (`kvcache.keys.grow` makes more).

    `branches` bounds the nodes that are not the first child made right after their parent: only those are hashed.
    """
    _check(pools, settings)
    windows, levels = len(pools), max(2, len(pools[0].blocks))
    sizes = np.zeros((windows, levels), np.int64)
    for w, pool in enumerate(pools):
        sizes[w, : len(pool.blocks)] = pool.blocks
    total = int(sizes.sum())
    conf = np.array(
        [
            settings.tokens_per_block,
            windows,
            levels,
            settings.secondary_offload_min_priority,
            settings.cold_tier_offload_min_priority,
            settings.enable_block_reuse,
            settings.enable_partial_reuse,
            settings.copy_on_partial_reuse,
            settings.evict_descendants,
            settings.detached_first,
            settings.emptied_host_slot_front,
            settings.record_copies,
            settings.record_events,
            total,
            settings.onboard_blocks,
            settings.sequential_claim,
            settings.tell_all,
        ],
        np.int64,
    )
    blocks, window = _fresh_blocks(pools, sizes)
    tier = np.zeros((windows, levels, 3), np.int64)
    tier[:, :, T_SIZE] = tier[:, :, T_FREE] = sizes
    tier[:, :, T_LOWEST] = DEFAULT_PRIORITY
    state = State(
        conf=conf,
        tally=np.zeros(COUNT_ROWS, np.int64),
        nodes=np.empty((nodes, 12), np.int32),
        value=np.full((windows, nodes), -1, np.int32),
        kids=np.full((nodes if settings.evict_descendants else 1, 3), -1, np.int32),
        twin=np.full(1, -1, np.int32),
        runs=np.empty((runs, 2), np.int32),
        tables=np.full((2, _table_size(branches or nodes)), -1, np.int32),
        blocks=blocks,
        window=window,
        tier=tier,
        expiry_us=np.full(total, -1, np.int64),
        heap=np.empty((2 * total + 64, 2), np.int64),
        stats=np.zeros((windows, STATS), np.int64),
        by_priority=np.zeros((3, PRIORITIES), np.int64),
        copies=np.empty((_copy_room(sizes) if settings.record_copies else 1, COPY_COLUMNS), np.int32),
        events=np.empty((4 * total + 4096 if settings.record_events else 1, EVENT_COLUMNS), np.int32),
        gate=settings.offload and make_gate(settings.offload, total, nodes),
        shelf=settings.eviction and make_shelved(settings.eviction, sizes.ravel().tolist(), nodes),
    )
    state.tally[N_NODES] = 1
    # LIVE 1: the root is never pruned. Hash 0 belongs to no other key.
    state.nodes[ROOT] = (-1, ROOT, -1, -1, -1, 1, 0, 0, -1, 0, 0, RESIDENT)
    return state


def _copy_room(sizes: Array) -> int:
    """Twice the most copies of one call: each GPU block taken fills one host and one disk block, and is filled itself."""
    return int(6 * sizes[:, 0].sum()) + 64


def _table_size(nodes: int) -> int:
    return 1 << max(8, int(nodes).bit_length())


def _fresh_blocks(pools: tuple[Pool, ...], sizes: Array) -> tuple[Array, Array]:
    """Block rows all free at priority 35 in id order, GPU first, as TensorRT-LLM starts; and the window rows."""
    windows, levels = sizes.shape
    total = int(sizes.sum())
    blocks = np.full((total + windows * levels * PRIORITIES, 16), -1, np.int32)
    heads = np.arange(total, len(blocks), dtype=np.int32)
    blocks[heads, NEXT] = heads
    blocks[heads, PREV] = heads
    window = np.zeros((windows, 4), np.int64)
    first = 0
    for w, pool in enumerate(pools):
        window[w] = (pool.window_tokens, pool.sliding, first, pool.chunk_tokens)
        for level in range(levels):
            n = int(sizes[w, level])
            ids = np.arange(first, first + n, dtype=np.int32)
            head = total + (w * levels + level) * PRIORITIES + DEFAULT_PRIORITY
            ring = np.concatenate([[head], ids, [head]]).astype(np.int32)
            blocks[ring[:-1], NEXT] = ring[1:]
            blocks[ring[1:], PREV] = ring[:-1]
            blocks[ids, SLOT] = np.arange(n)
            blocks[ids, LEVEL] = level
            blocks[ids, QUEUE_LEVEL] = level
            blocks[ids, WINDOW] = w
            first += n
    rows = slice(0, total)
    for column in (REFS, SCHED_REFS, CLAIM_FULL, EXPIRED):
        blocks[rows, column] = 0
    blocks[rows, PRIORITY] = DEFAULT_PRIORITY
    return blocks, window


def grow(state: State, nodes: int, runs: int, branches: int) -> State:
    """`state` with room for so many further nodes and runs; call `kvcache.keys.grow`, which fills the new hash tables.

    `branches` bounds how many of the nodes are hashed, as in `make_state`.
    """
    need_nodes = int(state.tally[N_NODES]) + nodes
    need_runs = int(state.tally[N_RUNS]) + runs
    hashed = _table_size(int(state.tally[N_TABLE]) + branches)
    if need_runs > len(state.runs):
        state = state._replace(runs=_longer(state.runs, max(need_runs, 2 * len(state.runs))))
    if hashed > state.tables.shape[1]:
        state = state._replace(tables=np.full((2, hashed), -1, np.int32))
    if need_nodes <= len(state.nodes):
        return state
    size = max(need_nodes, 2 * len(state.nodes))
    value = np.full((len(state.value), size), -1, np.int32)
    value[:, : state.value.shape[1]] = state.value
    kids, twin = state.kids, state.twin
    if state.conf[C_EVICT_DESCENDANTS]:
        kids = np.full((size, 3), -1, np.int32)
        kids[: len(state.kids)] = state.kids
    if len(twin) > 1:
        twin = np.full(size, ROOT, np.int32)
        twin[: len(state.twin)] = state.twin
    gate = state.gate and gate_for(state.gate, size)
    shelf = state.shelf and state.shelf._replace(shelf=with_contents(state.shelf.shelf, size))
    return state._replace(nodes=_longer(state.nodes, size), value=value, kids=kids, twin=twin, gate=gate, shelf=shelf)


def _longer(array: Array, size: int) -> Array:
    new = np.empty((size, *array.shape[1:]), array.dtype)
    new[: len(array)] = array
    return new
