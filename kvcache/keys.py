"""Keys: which node a block's content is. Equal content under an equal prefix always gets the same node number.

It does not know which blocks are cached. Models TensorRT-LLM's `BlockKey` equality (tokens with extra ids, LoRA, salt,
multimodal items, through the chain of parents), with content cut into *runs* of equal identity instead of tokens: a run is
one token, one trace block, or a stretch that only its own request knows. Differences: equality rests on a 62-bit hash
and the parent instead of the full tokens; among n keys under one parent a false match has chance n^2 / 2^63.

Most nodes are made right after their parent and found there again without a look-up:

    parent p, first child p + 1            (no table entry: "is row p + 1 a child of p with my hash?")
    other children of p                    (in tables[0])
"""

from typing import NamedTuple

import numpy as np

from kvcache import tables
from kvcache.compiled import inlined, loop
from kvcache.tables import (
    CONTENT,
    FATE,
    GNEXT,
    GPREV,
    GROUP,
    HASH_HIGH,
    HASH_LOW,
    HEAD,
    IN_FLIGHT,
    LIVE,
    N_NODES,
    N_PRIVATE,
    N_RUNS,
    N_TABLE,
    NEVER_SEEN,
    PARENT,
    ROOT,
    RUN_ID,
    RUN_TOKENS,
    SPACE,
    TOKENS,
    Array,
    State,
)

MULTIPLIER = 0x369DEA0F31A53F85  # odd, from L'Ecuyer's tables of multipliers for 64-bit congruential generators
MASK62 = (1 << 62) - 1
SHORT = 1 << 31
MOST_PRIVATE = 1 << 30
NO_SPACE = -2  # namespace of twins


@loop
def mix(h: int, x: int) -> int:
    """Fold x into h (62 bits). Only low bits of the product count, so it may wrap."""
    h = ((h ^ x) * MULTIPLIER) & MASK62
    return h ^ (h >> 29)


@loop
def _hash(s: State, node: int) -> int:
    return (int(s.nodes[node, HASH_HIGH]) << 31) | int(s.nodes[node, HASH_LOW])


@loop
def key_hash(s: State, parent: int, space: int, extras: int, first: int, runs: int) -> int:
    """Hash of the key below `parent` whose content is runs[first : first + runs]."""
    h = mix(mix(mix(1, parent), space), extras)
    for i in range(first, first + runs):
        h = mix(mix(h, int(s.runs[i, RUN_ID])), int(s.runs[i, RUN_TOKENS]))
    return h


@loop
def _group_hash(s: State, parent: int, space: int, extras: int, run: int) -> int:
    return mix(mix(mix(mix(2, parent), space), extras), int(s.runs[run, RUN_ID]))


@inlined
def intern(s: State, parent: int, space: int, extras: int, runs: int) -> int:
    """Node of the key whose `runs` runs were written behind the last kept one; they are kept only if the node is new.

    `space` numbers the namespace (LoRA, salt, use of extra ids), `extras` the multimodal items (-1 = none).
    """
    first = int(s.tally[N_RUNS])
    h = key_hash(s, parent, space, extras, first, runs)
    nodes = int(s.tally[N_NODES])
    child = parent + 1
    if child < nodes and s.nodes[child, PARENT] == parent and _hash(s, child) == h:
        return child
    mask = s.tables.shape[1] - 1
    at = h & mask
    while s.tables[0, at] >= 0:
        node = int(s.tables[0, at])
        if _hash(s, node) == h and s.nodes[node, PARENT] == parent:
            return node
        at = (at + 1) & mask
    if nodes != child:
        s.tables[0, at] = nodes
        s.tally[N_TABLE] += 1
    _make(s, nodes, parent, space, extras, first, runs, h)
    return nodes


@inlined
def _make(s: State, node: int, parent: int, space: int, extras: int, first: int, runs: int, h: int) -> None:
    tokens = 0
    for i in range(first, first + runs):
        tokens += int(s.runs[i, RUN_TOKENS])
    s.nodes[node, PARENT] = parent
    s.nodes[node, TOKENS] = tokens
    s.nodes[node, CONTENT] = first
    s.nodes[node, HEAD] = -1
    s.nodes[node, GNEXT] = -1
    s.nodes[node, GPREV] = -1
    s.nodes[node, LIVE] = 0
    s.nodes[node, GROUP] = node
    s.nodes[node, HASH_LOW] = h & (SHORT - 1)
    s.nodes[node, HASH_HIGH] = h >> 31
    s.nodes[node, SPACE] = space
    s.nodes[node, FATE] = NEVER_SEEN
    s.tally[N_NODES] = node + 1
    s.tally[N_RUNS] = first + runs
    if node != parent + 1:
        s.nodes[node, GROUP] = _group_of(s, node, parent, space, extras)


@loop
def _group_of(s: State, node: int, parent: int, space: int, extras: int) -> int:
    """Representative of the siblings of `node` that start with the same run in the same namespace."""
    run = int(s.nodes[node, CONTENT])
    if s.nodes[node, TOKENS] == 0:
        return node
    child = parent + 1
    if (
        extras == -1
        and s.nodes[child, PARENT] == parent
        and s.nodes[child, SPACE] == space
        and (
            s.runs[s.nodes[child, CONTENT], RUN_ID] == s.runs[run, RUN_ID]
            and s.nodes[child, TOKENS] > 0
            and plain(s, child)
        )
    ):
        return int(s.nodes[child, GROUP])
    mask = s.tables.shape[1] - 1
    h = _group_hash(s, parent, space, extras, run)
    at = h & mask
    while s.tables[1, at] >= 0:
        other = int(s.tables[1, at])
        same = s.nodes[other, PARENT] == parent and s.nodes[other, SPACE] == space
        if (
            same
            and s.runs[s.nodes[other, CONTENT], RUN_ID] == s.runs[run, RUN_ID]
            and plain(s, other) == (extras == -1)
        ):
            return other
        at = (at + 1) & mask
    s.tables[1, at] = node
    return node


@loop
def plain(s: State, node: int) -> bool:
    """The key has no multimodal items (such keys never take part in partial matching)."""
    first, runs = int(s.nodes[node, CONTENT]), runs_of(s, node)
    return bool(_hash(s, node) == key_hash(s, int(s.nodes[node, PARENT]), int(s.nodes[node, SPACE]), -1, first, runs))


@loop
def runs_of(s: State, node: int) -> int:
    """How many runs the node's own key has."""
    first = int(s.nodes[node, CONTENT])
    runs, tokens = 0, 0
    while tokens < s.nodes[node, TOKENS]:
        tokens += s.runs[first + runs, RUN_TOKENS]
        runs += 1
    return runs


@loop
def rebuild(s: State) -> None:
    """Fill empty hash tables from the nodes."""
    s.tally[N_TABLE] = 0
    mask = s.tables.shape[1] - 1
    for node in range(1, s.tally[N_NODES]):
        parent = int(s.nodes[node, PARENT])
        if node == parent + 1:
            continue
        at = _hash(s, node) & mask
        while s.tables[0, at] >= 0:
            at = (at + 1) & mask
        s.tables[0, at] = node
        s.tally[N_TABLE] += 1
        if s.nodes[node, GROUP] == node and s.nodes[node, TOKENS] > 0:
            h = _group_hash(s, parent, int(s.nodes[node, SPACE]), -1, int(s.nodes[node, CONTENT]))
            at = h & mask
            while s.tables[1, at] >= 0:
                at = (at + 1) & mask
            s.tables[1, at] = node


def grow(s: State, nodes: int, runs: int, branches: int | None = None) -> State:
    """`s` with room for `nodes` more nodes and `runs` more runs; `branches` of the nodes are hashed (None: all may be)."""
    new = tables.grow(s, nodes, runs, nodes if branches is None else branches)
    if new.tables is not s.tables:
        rebuild(new)
    return new


class Rows(NamedTuple):
    """The content columns of a workload, as the compiled loops read them; see `kvcache.request.Requests`."""

    unit_tokens: int
    prompt: Array
    output: Array
    unit_offset: Array
    units: Array
    output_offset: Array  # length 0: generated content is private
    output_units: Array
    space: Array  # int32[n]


@inlined
def run_at(rows: Rows, tpb: int, private: int, r: int, t: int, prompt_only: bool) -> tuple[int, int]:
    """Identity of the run that covers token t of request r, and the token it ends before."""
    u = rows.unit_tokens
    n_prompt = int(rows.prompt[r])
    j = t // u
    full = n_prompt // u
    block_end = (t // tpb + 1) * tpb
    end = min((j + 1) * u, block_end)
    known = -1
    if j < full:
        if rows.unit_offset[r] + j < rows.unit_offset[r + 1]:
            known = int(rows.units[rows.unit_offset[r] + j])
    elif not prompt_only and len(rows.output_offset) > 0:
        at = rows.output_offset[r] + j - full
        if at < rows.output_offset[r + 1]:
            known = int(rows.output_units[at])
    elif t < n_prompt:
        end = min(end, n_prompt)
        if rows.unit_offset[r] + j < rows.unit_offset[r + 1]:
            known = int(rows.units[rows.unit_offset[r] + j])
    if known >= 0:
        pieces = max(1, u // tpb)
        return known * pieces + (t % u) // tpb, end
    if t < n_prompt:
        return -2 - private - 2 * (t // tpb), min(block_end, n_prompt)
    return -3 - private - 2 * (t // tpb), block_end


@loop
def intern_prefix(s: State, node: int, tokens: int) -> int:
    """Node of the first `tokens` tokens of `node`'s key; -1 if the tables have no room left for it."""
    at, left, i = int(s.tally[N_RUNS]), tokens, int(s.nodes[node, CONTENT])
    runs = 0
    while left > 0:
        if at + runs == len(s.runs) or s.tally[N_NODES] == len(s.nodes):
            return -1
        n = min(left, int(s.runs[i + runs, RUN_TOKENS]))
        s.runs[at + runs, RUN_ID] = s.runs[i + runs, RUN_ID]
        s.runs[at + runs, RUN_TOKENS] = n
        left -= n
        runs += 1
    return intern(s, int(s.nodes[node, PARENT]), int(s.nodes[node, SPACE]), -1, runs)


@inlined
def intern_span(
    s: State, rows: Rows, private: int, r: int, parent: int, start: int, stop: int, prompt_only: bool
) -> int:
    """Node of tokens [start, stop) of request r below `parent`."""
    tpb = int(s.conf[tables.C_TOKENS_PER_BLOCK])
    at = int(s.tally[N_RUNS])
    runs = 0
    t = start
    while t < stop:
        name, end = run_at(rows, tpb, private, r, t, prompt_only)
        end = min(end, stop)
        s.runs[at + runs, RUN_ID] = name
        s.runs[at + runs, RUN_TOKENS] = end - t
        runs += 1
        t = end
    return intern(s, parent, int(rows.space[r]), -1, runs)


@loop
def intern_request(s: State, rows: Rows, r: int, private: int, keys: Array) -> int:
    """Write the nodes of request r into `keys` and return how many full blocks its prompt and output fill.

    keys[0..full) are the full blocks; keys[full] is the short key of the last prompt block, made of (prompt - 1) mod tpb
    tokens (-1 if that is 0); keys[full + 1] the short block left when it finishes (-1 if none). `private` is the first of
    the run names that only this request uses; see `reserve_private`.
    """
    tpb = int(s.conf[tables.C_TOKENS_PER_BLOCK])
    n_prompt = int(rows.prompt[r])
    total = n_prompt + int(rows.output[r])
    full = total // tpb
    last = (n_prompt - 1) // tpb
    parent, short = ROOT, -1
    for i in range(full):
        if i == last and (n_prompt - 1) % tpb > 0:
            short = parent
        parent = intern_span(s, rows, private, r, parent, i * tpb, (i + 1) * tpb, False)
        keys[i] = parent
    if last == full and (n_prompt - 1) % tpb > 0:
        short = parent
    usable = max(n_prompt - 1, total - 1)
    keys[full + 1] = -1
    if usable > full * tpb:
        keys[full + 1] = intern_span(s, rows, private, r, parent, full * tpb, usable, False)
    elif usable // tpb < full and usable % tpb > 0:
        above = int(keys[usable // tpb - 1]) if usable >= tpb else ROOT
        keys[full + 1] = intern_span(s, rows, private, r, above, usable // tpb * tpb, usable, False)
    keys[full] = -1
    if short >= 0:
        keys[full] = intern_span(s, rows, private, r, short, last * tpb, n_prompt - 1, True)
    return full


@loop
def reserve_private(s: State, tokens: int) -> int:
    """Names for the content of one request of `tokens` tokens that nobody else knows; returns the first.

    After 2^30 of them they begin anew: to be mistaken, a block would have to be that old and have the same parent.
    """
    private = int(s.tally[N_PRIVATE])
    if private > MOST_PRIVATE:
        private = 0
    s.tally[N_PRIVATE] = private + 2 * (tokens // int(s.conf[tables.C_TOKENS_PER_BLOCK]) + 1)
    return private


@loop
def intern_all(s: State, rows: Rows, offset: Array, keys: Array, private: Array) -> None:
    """`intern_request` for every request; request r's keys start at offset[r] and end with its two short ones."""
    for r in range(len(rows.prompt)):
        private[r] = reserve_private(s, int(rows.prompt[r]) + int(rows.output[r]))
        intern_request(s, rows, r, int(private[r]), keys[offset[r] : offset[r + 1]])


@loop
def name_twins(s: State, first: int) -> None:
    """Give every node from row `first` on its twin: the same content under the twin of its parent, in no namespace.

    A twin takes over that its node was seen.
    """
    for node in range(first, s.tally[N_NODES]):
        runs, at, content = runs_of(s, node), int(s.tally[N_RUNS]), int(s.nodes[node, CONTENT])
        for i in range(runs):
            s.runs[at + i, RUN_ID] = s.runs[content + i, RUN_ID]
            s.runs[at + i, RUN_TOKENS] = s.runs[content + i, RUN_TOKENS]
        twin = intern(s, int(s.twin[s.nodes[node, PARENT]]), NO_SPACE, -1, runs)
        s.twin[node] = twin
        if s.nodes[node, FATE] != NEVER_SEEN:
            s.nodes[twin, FATE] = IN_FLIGHT


def key_offsets(prompt: Array, output: Array, tokens_per_block: int) -> Array:
    """Where each request's keys start: one a full block of prompt and output, and two short ones (int64[n + 1])."""
    total = prompt.astype(np.int64) + output
    return np.concatenate([[0], np.cumsum(total // tokens_per_block + 2)])


def check_block_size(unit_tokens: int, tokens_per_block: int) -> None:
    """A block is whole units, or a whole fraction of one unit."""
    if tokens_per_block % unit_tokens and unit_tokens % tokens_per_block:
        below = [d for d in range(1, unit_tokens) if unit_tokens % d == 0 and d >= 8]
        fits = ", ".join(str(d) for d in [*below, unit_tokens, 2 * unit_tokens, 4 * unit_tokens])
        raise ValueError(
            f"tokens_per_block is {tokens_per_block}, but the trace knows content in blocks of {unit_tokens} tokens;"
            f" sizes that work: {fits}, and further multiples"
        )
