"""The eviction policies by name: one entry each, with where it comes from and where ours differs.

`priority` is TensorRT-LLM's own and the default: it is `kvcache.queues`, not a rule here. The others ignore retention
priorities, unless their score asks for them. A policy that gives each block a number is one function and one line; the
lowest number goes first, of equal ones the one that was queued first.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from numba import cfunc, config

from kvcache.eviction import ARC, LISTS, REUSE, S3FIFO, SCORE, SIEVE, TINYLFU
from kvcache.shelf import SCORE_SIGNATURE, Rule, ScoreFunction

PRIORITY = "priority"
EQUAL_COST_TOKENS = 32_768.0
"""Context at which attention costs what the rest of a token's forward pass costs: 2 x parameters / (4 x layers x hidden
size) floating-point operations, 30.5 k tokens for Llama-3.1-8B (8.03e9, 32, 4096). It sets the scale of `gdsf`."""


def recency(now_s: float, uses: int, depth: int, priority: int, floor: float) -> float:
    """No score of its own: the time of the use, as LRU."""
    return now_s


def frequency_with_ageing(now_s: float, uses: int, depth: int, priority: int, floor: float) -> float:
    """LFU-DA: uses, above the score of the last block that was evicted (Arlitt et al., "Evaluating content management
    techniques for Web proxy caches", 1999)."""
    return floor + uses


def greedy_dual(now_s: float, uses: int, depth: int, priority: int, floor: float) -> float:
    """GDSF (Cherkasova 1998): floor + uses x cost / size. All blocks have one size; the cost is that of computing the block
    again, which grows with its position (as RAGCache's PGDSF does): 1 + depth / EQUAL_COST_TOKENS."""
    return floor + uses * (1.0 + depth / 32_768.0)


def length_aware(now_s: float, uses: int, depth: int, priority: int, floor: float) -> float:
    """Mooncake's LengthAwareCache (arXiv 2407.00079, section 4.2: as LFU, with the later blocks of a request going first).
    The paper gives no code; we read it as: fewest uses, then deepest."""
    return uses - depth / 1e9


class Policy(NamedTuple):
    """One policy: what the loops read, its score if it has one, and in a few words what it is and who described it."""

    rule: Rule
    score: ScoreFunction
    about: str


def _rule(
    kind: int,
    *,
    renews: bool = True,
    counts: bool = False,
    leaves_only: bool = True,
    first_share: float = 0.0,
    ghost_share: float = 0.0,
    past: int = 0,
) -> Rule:
    return Rule(kind, renews, counts, leaves_only, first_share, ghost_share, past)


POLICIES: Mapping[str, Policy] = {
    "lru": Policy(_rule(LISTS), recency, "least recently used"),
    "fifo": Policy(_rule(LISTS, renews=False), recency, "first in, first out; a use changes nothing"),
    "lfu": Policy(_rule(LISTS, counts=True), recency, "fewest uses since it came in, then least recent"),
    "lfu-da": Policy(_rule(SCORE, counts=True), frequency_with_ageing, "LFU whose counts age"),
    "sieve": Policy(_rule(SIEVE, renews=False), recency, "FIFO with one mark and a hand (Zhang et al., NSDI 2024)"),
    "s3-fifo": Policy(
        _rule(S3FIFO, renews=False, first_share=0.1, ghost_share=0.9, past=2),
        recency,
        "small and main FIFO, ghosts (Yang et al., SOSP 2023; as libCacheSim: two uses promote)",
    ),
    "arc": Policy(
        _rule(ARC, ghost_share=1.0), recency, "recent against frequent, adaptive (Megiddo & Modha, FAST 2003)"
    ),
    "w-tinylfu": Policy(
        _rule(TINYLFU, first_share=0.01),
        recency,
        "window of 1 %, segmented LRU, admission by counts (Einziger et al., ToS 2017); counts are exact, not sketched",
    ),
    "gdsf": Policy(_rule(SCORE, counts=True), greedy_dual, "uses x cost to compute again, ageing (Cherkasova 1998)"),
    "length-aware": Policy(_rule(SCORE, counts=True), length_aware, "LFU, deepest first (Mooncake, arXiv 2407.00079)"),
    "workload-aware": Policy(
        _rule(REUSE),
        recency,
        "least likely to be used again by category and age (KVCache Cache in the Wild, USENIX ATC 2025)",
    ),
    "strict-fifo": Policy(
        _rule(LISTS, renews=False, leaves_only=False), recency, "FIFO that evicts a block others continue"
    ),
}


@cache
def pointer(score: ScoreFunction) -> Any:
    """`score` as the loops call it: machine code behind one signature, so that no loop is compiled anew for it."""
    return score if config.DISABLE_JIT else cfunc(SCORE_SIGNATURE)(score)  # type: ignore[attr-defined]


def policy_named(name: str) -> Policy:
    """A policy of `POLICIES`; an unknown name is a ValueError with those known."""
    if name not in POLICIES:
        raise ValueError(f"policy is {name!r}; known are {', '.join((PRIORITY, *POLICIES))}")
    return POLICIES[name]
