"""The prefix index: which block holds a node's content, which nodes exist, and which stored block shares most tokens.

It does not choose victims. Models `UnifiedBlockTree`: one trie for all windows; a node exists while it holds a value for
some window or has an existing child; clearing a value prunes upward. Difference: partial candidates of equal length are
tried newest first (TensorRT-LLM's order is that of an unordered map, i.e. undefined).
"""

from kvcache.compiled import inlined, loop
from kvcache.keys import plain
from kvcache.tables import (
    C_COPY_ON_PARTIAL,
    C_EVICT_DESCENDANTS,
    C_WINDOWS,
    CHAIN_DETACHED,
    CONTENT,
    FATE,
    GNEXT,
    GPREV,
    GROUP,
    HEAD,
    KEY,
    LIVE,
    NODE,
    PARENT,
    REFS,
    RESIDENT,
    ROOT,
    RUN_ID,
    RUN_TOKENS,
    TOKENS,
    WINDOW,
    State,
)


@loop
def _enter(s: State, node: int) -> None:
    """`node` starts to exist: it joins its group (and its parent's children where those are kept)."""
    rep = s.nodes[node, GROUP]
    head = s.nodes[rep, HEAD]
    s.nodes[node, GNEXT] = head
    s.nodes[node, GPREV] = -1
    if head != -1:
        s.nodes[head, GPREV] = node
    s.nodes[rep, HEAD] = node
    if s.conf[C_EVICT_DESCENDANTS]:
        parent = s.nodes[node, PARENT]
        first = s.kids[parent, 0]
        s.kids[node, 1] = first
        s.kids[node, 2] = -1
        if first != -1:
            s.kids[first, 2] = node
        s.kids[parent, 0] = node


@loop
def _leave(s: State, node: int) -> None:
    left, right = s.nodes[node, GPREV], s.nodes[node, GNEXT]
    if left == -1:
        s.nodes[s.nodes[node, GROUP], HEAD] = right
    else:
        s.nodes[left, GNEXT] = right
    if right != -1:
        s.nodes[right, GPREV] = left
    if s.conf[C_EVICT_DESCENDANTS]:
        left, right = s.kids[node, 2], s.kids[node, 1]
        if left == -1:
            s.kids[s.nodes[node, PARENT], 0] = right
        else:
            s.kids[left, 1] = right
        if right != -1:
            s.kids[right, 2] = left


@loop
def _live_more(s: State, node: int) -> None:
    while True:
        s.nodes[node, LIVE] += 1
        if s.nodes[node, LIVE] > 1:
            return
        _enter(s, node)
        node = s.nodes[node, PARENT]


@loop
def _live_less(s: State, node: int) -> None:
    while True:
        s.nodes[node, LIVE] -= 1
        if s.nodes[node, LIVE] > 0:
            return
        _leave(s, node)
        node = s.nodes[node, PARENT]


@inlined
def attach(s: State, block: int, node: int) -> None:
    """`block` becomes the value of `node` for its window."""
    s.blocks[block, NODE] = node
    s.value[s.blocks[block, WINDOW], node] = block
    s.nodes[node, FATE] = RESIDENT
    _live_more(s, node)


@inlined
def detach(s: State, block: int, fate: int) -> None:
    """`block` leaves the tree (its key stays); the node remembers the reason."""
    node = s.blocks[block, NODE]
    if node == -1:
        return
    s.blocks[block, NODE] = -1
    s.value[s.blocks[block, WINDOW], node] = -1
    s.nodes[node, FATE] = fate
    _live_less(s, node)


@loop
def children(s: State, node: int) -> int:
    """How many existing children `node` has."""
    values = 0
    for w in range(s.conf[C_WINDOWS]):
        if s.value[w, node] != -1:
            values += 1
    return int(s.nodes[node, LIVE] - values)


@loop
def is_leaf(s: State, block: int) -> bool:
    """Detached, or without an existing child of any window."""
    node = s.blocks[block, NODE]
    return bool(node == -1 or children(s, node) == 0)


@loop
def in_tree(s: State, block: int) -> bool:
    """TensorRT-LLM's test before an event: attached, and the parent position holds a block of the window (or is the root).

    A child whose parent was evicted on its own fails this test, so it leaves without an event (semantics 2.1).
    """
    node = s.blocks[block, NODE]
    if node == -1 or s.blocks[block, KEY] == -1:
        return False
    parent = s.nodes[node, PARENT]
    return bool(parent == ROOT or s.value[s.blocks[block, WINDOW], parent] != -1)


@loop
def common_tokens(s: State, a: int, b: int) -> int:
    """Tokens in the common start of two keys."""
    i, j = s.nodes[a, CONTENT], s.nodes[b, CONTENT]
    end = min(s.nodes[a, TOKENS], s.nodes[b, TOKENS])
    tokens = 0
    while tokens < end and s.runs[i, RUN_ID] == s.runs[j, RUN_ID]:
        n, m = s.runs[i, RUN_TOKENS], s.runs[j, RUN_TOKENS]
        tokens += min(n, m)
        if n != m:
            break
        i += 1
        j += 1
    return int(tokens)


@loop
def best_partial(s: State, w: int, node: int) -> tuple[int, int]:
    """The stored sibling of `node` with the longest common start that may be reused, and that length; (-1, 0) if none.

    Without copy_on_partial_reuse only unreferenced leaves may be.
    """
    best, best_tokens = -1, 0
    if not plain(s, node):
        return best, best_tokens
    other = s.nodes[s.nodes[node, GROUP], HEAD]
    while other != -1:
        block = s.value[w, other]
        if block != -1 and (s.conf[C_COPY_ON_PARTIAL] or (s.blocks[block, REFS] == 0 and is_leaf(s, block))):
            tokens = common_tokens(s, node, other)
            if tokens > best_tokens:
                best, best_tokens = int(block), tokens
                if tokens == s.nodes[node, TOKENS]:
                    break
        other = s.nodes[other, GNEXT]
    return best, best_tokens


@loop
def detach_below(s: State, w: int, top: int) -> None:
    """Detach every block of window `w` below node `top` (the 2025 rule): no events, they keep their places in the queues."""
    node = _deepest(s, int(top))
    while node != top:
        sibling, up, block = int(s.kids[node, 1]), int(s.nodes[node, PARENT]), int(s.value[w, node])
        if block != -1:
            detach(s, block, CHAIN_DETACHED)
        node = up if sibling == -1 else _deepest(s, sibling)


@loop
def _deepest(s: State, node: int) -> int:
    """The first leaf below `node`, by first children."""
    while s.kids[node, 0] != -1:
        node = s.kids[node, 0]
    return int(node)
