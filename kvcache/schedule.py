"""Estimates that admission rests on: what could be reused, what a request still needs, what would be free.

It decides nothing by itself; `kvcache.engine` and the conformance scheduler apply the policies. Models
`analyzePrefixReuse`, `getNeededBlocksOneStep`, `getRemainingBlocksToCompletion` and the scheduling snapshot.
"""

from typing import NamedTuple

from kvcache.compiled import loop
from kvcache.sequences import Sequences
from kvcache.tables import (
    C_BLOCKS,
    C_REUSE,
    C_TOKENS_PER_BLOCK,
    REFS,
    SCHED_REFS,
    SPACE,
    T_FREE,
    TOKENS,
    W_SLIDING,
    W_TEMPORARY,
    W_TOKENS,
    Array,
    State,
)
from kvcache.tree import common_tokens


class PrefixReuse(NamedTuple):
    """One walk over the full blocks of a prompt."""

    reusable_all: int  # blocks in the cache, on any tier
    reusable_allocated: int  # of those, the ones somebody uses right now
    first_new: int  # node of the first full block that would have to be computed, -1 if there is none


@loop
def analyze(s: State, w: int, keys: Array, full_prompt: int) -> PrefixReuse:
    """Walk the full blocks of a prompt: no partial matches, no cap; a sliding window may pass gaps as in matching."""
    every, used, reached, first_new, gap = 0, 0, 0, -1, -1
    if not s.conf[C_REUSE]:
        return PrefixReuse(0, 0, -1)
    tpb = s.conf[C_TOKENS_PER_BLOCK]
    seen, seen_used = 0, 0
    for i in range(full_prompt):
        block = s.value[w, keys[i]]
        if block != -1:
            seen += 1
            if s.blocks[block, REFS] > 0:
                seen_used += 1
        elif s.window[w, W_SLIDING] == 1:
            gap = (i + 1) * tpb
        else:
            first_new = int(keys[i])
            break
        if gap < 0 or (i + 1) * tpb >= gap + s.window[w, W_TOKENS]:
            every, used, reached = seen, seen_used, i + 1
    if first_new == -1 and reached < full_prompt:
        first_new = int(keys[reached])
    return PrefixReuse(every, used, first_new)


@loop
def same_key(s: State, a: int, b: int) -> bool:
    """Two nodes have the same own key, whatever stands before it: the May 2026 skip rule compares no more than that."""
    if a == b:
        return True
    tokens = s.nodes[a, TOKENS]
    return bool(
        s.nodes[a, SPACE] == s.nodes[b, SPACE] and tokens == s.nodes[b, TOKENS] and common_tokens(s, a, b) == tokens
    )


@loop
def window_reach(s: State, w: int) -> int:
    """Tokens a sequence may hold in this window: window plus temporary window; unbounded for full attention."""
    if s.window[w, W_SLIDING] == 0:
        return 1 << 40
    return int(s.window[w, W_TOKENS] + s.window[w, W_TEMPORARY])


@loop
def remaining_at(
    s: State, w: int, prompt: int, new_tokens: int, tokens: int, allocated: int, reusable_used: int
) -> int:
    """Blocks a request of `tokens` tokens still needs until its last one, on beam width 1.

    `allocated` is what it holds already; `reusable_used` the cached blocks somebody uses (0 once it has started). A
    cached block that nobody uses is in the free count already, so it is not subtracted. A sliding window takes its next
    block before it gives up its oldest: one more if blocks are still to come and not all of them fit.
    """
    tpb = s.conf[C_TOKENS_PER_BLOCK]
    reach = window_reach(s, w)
    context = min(prompt, reach) // tpb
    total = (min(prompt + new_tokens, reach) + tpb - 1) // tpb
    last = (prompt + new_tokens + tpb - 1) // tpb
    extra = 0
    if s.window[w, W_SLIDING] == 1 and prompt + new_tokens > s.window[w, W_TOKENS]:
        extra = 1 if last > (tokens + tpb - 1) // tpb and last > total else 0
    reusable = min(reusable_used, context, (prompt - 1) // tpb)
    return int(max(0, total + extra - allocated - reusable))


@loop
def remaining_blocks(s: State, w: int, prompt: int, new_tokens: int, allocated: int, reusable_used: int) -> int:
    """`remaining_at` for a request that has not started, or that holds all blocks it ever took."""
    tokens = max(prompt, allocated * int(s.conf[C_TOKENS_PER_BLOCK]))
    return remaining_at(s, w, prompt, new_tokens, tokens, allocated, reusable_used)


@loop
def needed_context(s: State, w: int, prompt: int, draft: int, reusable_used: int) -> int:
    """Blocks a request that has not started needs for its first step."""
    tpb = s.conf[C_TOKENS_PER_BLOCK]
    tokens = min(prompt + draft, window_reach(s, w))
    shared = tokens // tpb
    rest = 1 if tokens % tpb > 0 else 0
    reusable = min(reusable_used, shared, (min(prompt, window_reach(s, w)) - 1) // tpb)
    return int(shared + rest - reusable)


@loop
def needed_generation(s: State, slots: int, step_tokens: int, left: int, longest: int) -> int:
    """Blocks newly entered by the next `step_tokens` tokens of a sequence of `slots`; at most `left` will come.

    0 if the step would pass the longest sequence (0: no limit): then it cannot run anyway.
    """
    tpb = s.conf[C_TOKENS_PER_BLOCK]
    after = slots + max(0, min(step_tokens, left))
    if 0 < longest < after:
        return 0
    return int((after + tpb - 1) // tpb - (slots + tpb - 1) // tpb)


@loop
def start_scheduling(s: State, snapshot: Array) -> None:
    """Copy free counts and reference counts: MAX_UTILIZATION tries pauses on the copy. `snapshot` is int64[window]."""
    for w in range(len(snapshot)):
        snapshot[w] = s.tier[w, 0, T_FREE]
    for block in range(s.conf[C_BLOCKS]):
        s.blocks[block, SCHED_REFS] = s.blocks[block, REFS]


@loop
def scheduling_remove(s: State, q: Sequences, snapshot: Array, w: int, seq: int) -> None:
    """In the snapshot, the sequence gives its blocks back."""
    for i in range(q.length[seq]):
        block = q.blocks[w, seq, i]
        if block >= 0:
            s.blocks[block, SCHED_REFS] -= 1
            if s.blocks[block, SCHED_REFS] == 0:
                snapshot[w] += 1
