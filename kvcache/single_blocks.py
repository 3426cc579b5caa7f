"""What TensorRT-LLM's tests do to one block by hand: its priority, its tier, a prompt's tail. The engine never calls these."""

from collections.abc import Sequence

from kvcache.blocks import drop, note_copy, note_event, onboard, swap_places
from kvcache.cache_request import OutOfBlocksError
from kvcache.content import Namespace
from kvcache.manager import KVCacheManager
from kvcache.queues import claim, front, release
from kvcache.tables import (
    DURATION_MS,
    EV_LEVEL,
    EVICTED_HOST,
    GNEXT,
    GROUP,
    HEAD,
    LEVEL,
    NEXT,
    NODE,
    OFFLOAD,
    OFFLOADED,
    PRIORITY,
    TOKENS,
    TRUNCATED,
    State,
)
from kvcache.tree import children, common_tokens, detach, in_tree


def set_block_priority(manager: KVCacheManager, block_id: int, priority: int, w: int = 0) -> None:
    """Set a block's priority; a queued block moves to the back of its new queue."""
    block = manager.block_row(block_id, w)
    queued = manager.state.blocks[block, NEXT] != -1
    if queued:
        claim(manager.state, block, priority, int(manager.state.blocks[block, DURATION_MS]))
        release(manager.state, block, False)
    manager.state.blocks[block, PRIORITY] = priority


def offload_block(manager: KVCacheManager, block_id: int, w: int = 0) -> None:
    """Move one block to the host, whoever uses it."""
    block = manager.block_row(block_id, w)
    host = int(front(manager.state, w, 1))
    if manager.state.blocks[block, LEVEL] != 0 or host == -1:
        return
    drop(manager.state, host, EVICTED_HOST)
    note_copy(manager.state, OFFLOAD, block, host, 0)
    manager.state.stats[w, OFFLOADED] += 1
    swap_places(manager.state, block, host)
    if in_tree(manager.state, block):
        note_event(manager.state, EV_LEVEL, w, int(manager.state.blocks[block, NODE]), 0, 1)
    for moved in (block, host):
        if manager.state.blocks[moved, NEXT] != -1:
            claim(manager.state, moved, -1, -1)
            release(manager.state, moved, False)
    manager.collect()


def onboard_block(manager: KVCacheManager, block_id: int, w: int = 0) -> None:
    """Move one block back to the GPU."""
    block = manager.block_row(block_id, w)
    queued = manager.state.blocks[block, NEXT] != -1 and manager.state.blocks[block, LEVEL] != 0
    if queued:  # a free block must not be the victim of its own onboarding
        claim(manager.state, block, -1, int(manager.state.blocks[block, DURATION_MS]))
    done = onboard(manager.state, block)
    if queued:
        release(manager.state, block, False)
    manager.collect()
    if not done:
        raise OutOfBlocksError(f"no GPU block is free to onboard block {block_id}")


def truncate(manager: KVCacheManager, tokens: Sequence[int], keep: int, namespace: Namespace = Namespace()) -> None:
    """Forget what is stored for `tokens` behind the block that holds token `keep`; other prompts' blocks stay.

    The block at the border stays whole: TensorRT-LLM saves it for the prompts that share its beginning.
    """
    nodes = manager.find_node(tokens, len(tokens), namespace)
    for i in range(len(nodes) - 1, keep // manager.settings.tokens_per_block, -1):
        for node in _beginnings(manager.state, nodes[i]):
            for w in manager.window_order:
                block = int(manager.state.value[w, node])
                if block != -1 and children(manager.state, node) == 0:
                    _forget(manager.state, block)
    manager.collect()


def _beginnings(state: State, node: int) -> list[int]:
    """Existing siblings whose whole key starts `node`'s key, itself among them."""
    out, nodes = [], state.nodes
    other = int(nodes[nodes[node, GROUP], HEAD])
    while other != -1:
        if common_tokens(state, node, other) == nodes[other, TOKENS]:
            out.append(other)
        other = int(nodes[other, GNEXT])
    return out


def _forget(state: State, block: int) -> None:
    queued = state.blocks[block, NEXT] != -1
    drop(state, block, TRUNCATED)
    if queued:
        claim(state, block, -1, -1)
        release(state, block, True)


def detach_block(manager: KVCacheManager, block: int) -> None:
    """Take a block out of the tree, leaving its children there."""
    detach(manager.state, block, TRUNCATED)
