"""Decides how many blocks of a workload a cache of a given size would have hit: the plain cache-research view.

A block is a trace block (one content unit), requests run one after the other in replay order, only prompts count and
the cache starts empty. There is no time, no output and no engine here: nothing of what a serving engine's rules do.

Two views. `flat`: every block access is an object of its own, in prompt order; a hit may renew it, a miss inserts it
and evicts one other. This is what a general cache simulator does: libCacheSim's LRU, FIFO and LFU count the same hits
(LFU: ties by least recent use, the frequency is forgotten on eviction). `tree`: a hit counts only inside the longest
cached prefix; then the request touches its blocks deepest first; then an over-full cache is trimmed, leaves only, the
request's own blocks last. With LRU that is the prefix-trie LRU (current request pinned) of prefixlens and
kvcache-simulator, to the last count. With LFU and FIFO no other prefix-trie simulator was compared: "the first leaf in
the policy's order that the running request does not use" is our own definition (for LFU the leaf rule and the order
never conflict). `strict-fifo` evicts the oldest block even while others continue it: those stay, and are not hit before
it is back. One computation serves both views: `flat` is `tree` over requests of one block without parents.

A second tier ("host") is `exclusive` (a victim of the first tier moves there with its frequency, a hit moves it back)
or `inclusive` (both tiers see every access; a hit in either counts). Under LRU the former hits what one tier of the
summed size hits, the latter what one tier of the larger size hits. Between the two is `shadow`: as exclusive, but a hit
in the second tier leaves its copy there, so that the block's next way down costs no copy. Otherwise they are our own
definition: each tier applies the policy to the order in which blocks entered it or were touched in it.

`low_watermark`: a tier that overflows evicts in one go until it holds this share of its capacity.
"""

from dataclasses import dataclass

import numpy as np

from kvcache.categories import categories
from kvcache.compiled import compiled
from kvcache.curve_tiers import COPIED_DOWN, COUNTS, EVICTIONS, HIT_TOKENS, HITS_COLD, HITS_WARM, note_depths, replay
from kvcache.eviction import SCORE
from kvcache.policies import POLICIES, pointer
from kvcache.request import Int32, Int64, Requests
from kvcache.shelf import CATEGORIES, make_shelf

INFINITE = -1
VIEWS = ("flat", "tree")
INCLUSIONS = ("exclusive", "inclusive", "shadow")


@dataclass(frozen=True)
class CurveRow:
    """One point of a hit-rate curve. Capacities in trace blocks; INFINITE (-1) means that nothing is evicted."""

    view: str
    policy: str
    capacity_blocks: int
    host_capacity_blocks: int  # 0 = no second tier
    inclusion: str  # "none" without a second tier
    hit_blocks: int  # of all tiers
    lookup_blocks: int
    hit_blocks_by_tier: tuple[int, int]  # warm, cold; a block in both counts as warm
    evictions: int  # blocks that left the last tier that held them
    hit_tokens: int
    prompt_tokens: int
    copied_down: int | None = (
        0  # blocks written to the second tier; None: not known (a bound). Copies up are the cold hits
    )

    @property
    def hit_rate_blocks(self) -> float:
        """Share of the block accesses that hit."""
        return self.hit_blocks / max(1, self.lookup_blocks)

    @property
    def hit_rate_tokens(self) -> float:
        """Share of the prompt tokens that lie in hit blocks."""
        return self.hit_tokens / max(1, self.prompt_tokens)


def curve(
    requests: Requests,
    *,
    view: str,
    policy: str,
    capacity_blocks: int | None,
    host_capacity_blocks: int | None = None,
    inclusion: str = "exclusive",
    low_watermark: float = 1.0,
) -> CurveRow:
    """One point: the hits of `requests` in a cache of `capacity_blocks` (None = infinite) and perhaps a second tier."""
    _check("view", view, VIEWS)
    _check("policy", policy, tuple(POLICIES))
    _check("inclusion", inclusion, INCLUSIONS)
    if not 0 < low_watermark <= 1:
        raise ValueError(
            f"low_watermark is {low_watermark:g}; it must be above 0 and at most 1 (1: evict one at a time)"
        )
    blocks, parents = prefix_blocks(requests)
    offset, tokens = requests.unit_offset, requests.prompt_tokens
    arrival_s, category = requests.arrival_s, categories(requests)
    if view == "flat":
        tokens = tokens_of_units(requests)
        arrival_s, category = np.repeat(arrival_s, np.diff(offset)), np.repeat(category, np.diff(offset))
        offset = np.arange(len(blocks) + 1)
        parents = np.full_like(parents, -1)
    capacities = [_capacity("capacity_blocks", capacity_blocks, len(parents))]
    if host_capacity_blocks is not None:
        capacities.append(_capacity("host_capacity_blocks", host_capacity_blocks, len(parents)))
    chosen, lists = POLICIES[policy], max(CATEGORIES, int(np.bincount(blocks).max(initial=0)))
    shelf = make_shelf(chosen.rule, pointer(chosen.score), capacities, len(parents), len(parents), lists)
    if chosen.rule.kind == SCORE:
        note_depths(shelf.facts, blocks, requests.unit_offset, requests.unit_tokens)
    how = INCLUSIONS.index(inclusion)
    counts = np.zeros(COUNTS, np.int64)
    replay(
        shelf, parents, blocks, offset, tokens, arrival_s, category, requests.unit_tokens, how, low_watermark, counts
    )
    return CurveRow(
        view=view,
        policy=policy,
        capacity_blocks=INFINITE if capacity_blocks is None else capacity_blocks,
        host_capacity_blocks=host_capacity_blocks or 0,
        inclusion="none" if host_capacity_blocks is None else inclusion,
        hit_blocks=int(counts[HITS_WARM] + counts[HITS_COLD]),
        lookup_blocks=len(blocks),
        hit_blocks_by_tier=(int(counts[HITS_WARM]), int(counts[HITS_COLD])),
        evictions=int(counts[EVICTIONS]),
        hit_tokens=int(counts[HIT_TOKENS]),
        prompt_tokens=int(requests.prompt_tokens.sum(dtype=np.int64)),
        copied_down=int(counts[COPIED_DOWN]),
    )


def prefix_blocks(requests: Requests) -> tuple[Int32, Int32]:
    """The block of every unit, and the parent of every block (-1 - namespace at the root).

    A block is its content and everything before it. Where unit numbers already say so (each number has one parent, as
    in hash-chained traces) they are the blocks; otherwise every (parent, unit) gets a number of its own.
    """
    namespace = np.unique(np.stack([requests.salt, requests.lora]), axis=1, return_inverse=True)[1]
    roots = (-1 - namespace.ravel()).astype(np.int32)
    units, offset = requests.units, requests.unit_offset
    parents = np.full(int(units.max(initial=-1)) + 1, UNSEEN, np.int32)
    if _chained(units, offset, roots, parents):
        return units, parents
    table = np.full(1 << (2 * len(units)).bit_length(), -1, np.int32)
    blocks, parents = np.empty_like(units), np.empty_like(units)
    return blocks, parents[: _intern(units, offset, roots, table, blocks, parents)]


UNSEEN = np.iinfo(np.int32).min


@compiled
def _chained(units: Int32, offset: Int64, roots: Int32, parents: Int32) -> bool:
    """Whether every unit always follows the same unit; fills `parents` on the way."""
    for i in range(len(roots)):
        parent = roots[i]
        for unit in units[offset[i] : offset[i + 1]]:
            if parents[unit] == UNSEEN:
                parents[unit] = parent
            if parents[unit] != parent:
                return False
            parent = unit
    return True


@compiled
def _intern(units: Int32, offset: Int64, roots: Int32, table: Int32, blocks: Int32, parents: Int32) -> int:
    """Number the distinct (parent, unit) pairs in order of appearance; `table` is an open-addressed hash of numbers."""
    mask, n = len(table) - 1, 0
    unit_of = np.empty_like(units)
    for i in range(len(roots)):
        parent = int(roots[i])
        for j in range(offset[i], offset[i + 1]):
            unit = int(units[j])
            place = (parent * 1_000_003 + unit) & mask
            while table[place] >= 0 and (parents[table[place]] != parent or unit_of[table[place]] != unit):
                place = (place + 1) & mask
            if table[place] < 0:
                table[place] = n
                parents[n], unit_of[n] = parent, unit
                n += 1
            parent = int(table[place])
            blocks[j] = parent
    return n


def tokens_of_units(requests: Requests) -> Int32:
    """How many prompt tokens each unit holds: all of them full, but the last of a prompt may be short."""
    units_of = np.diff(requests.unit_offset)
    position = np.arange(len(requests.units)) - np.repeat(requests.unit_offset[:-1], units_of)
    left: Int64 = np.repeat(requests.prompt_tokens, units_of) - position * requests.unit_tokens
    return np.asarray(np.minimum(left, requests.unit_tokens), np.int32)


def _capacity(name: str, blocks: int | None, everything: int) -> int:
    """A capacity the loops can compare with; infinite is what holds every block."""
    if blocks is not None and blocks < 0:
        raise ValueError(f"{name} is {blocks}; it must be at least 0 (None for infinite)")
    return everything if blocks is None else blocks


def _check(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} is {value!r}; known are {', '.join(known)}")
