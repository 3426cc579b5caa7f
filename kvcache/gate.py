"""Decides which victims of the GPU may move to the host beyond the priority threshold, and how long they may be found there.

TensorRT-LLM has the threshold only (`kvcache.blocks.may_offload`); these are what-ifs that others have or ask for: content
used at least so often (vLLM's and Dynamo's frequency filters), only content that stays reachable (a block is found only
behind all blocks before it), and an age after which the host's copy no longer counts. Without a gate no loop knows of it.
"""

from typing import NamedTuple

import numpy as np

from kvcache.compiled import loop
from kvcache.shelf import Array


class OffloadRule(NamedTuple):
    """What a victim must fulfil, and its time to live in the host; `NO_LIMIT`: for ever."""

    min_uses: int = 1
    contiguous: bool = False
    ttl_us: int = -1


NO_LIMIT = -1


class Gate(NamedTuple):
    """Tables of the rule."""

    rule: OffloadRule
    uses: Array  # int32[node]: times the content was computed or found
    moved_us: Array  # int64[block]: when the block last moved to a colder level


def make_gate(rule: OffloadRule, blocks: int, nodes: int) -> Gate:
    """Nothing used, nothing moved."""
    if rule.min_uses < 1:
        raise ValueError(f"min_uses is {rule.min_uses}; content that is evicted has been used at least once")
    return Gate(rule, np.zeros(nodes, np.int32), np.zeros(blocks, np.int64))


def gate_for(gate: Gate, nodes: int) -> Gate:
    """`gate` with room for so many nodes."""
    more = nodes - len(gate.uses)
    return gate if more <= 0 else gate._replace(uses=np.concatenate([gate.uses, np.zeros(more, np.int32)]))


def renumber_gate(gate: Gate, number: Array) -> None:
    """Nodes have new, lower numbers (`number[old]`; -1: forgotten)."""
    old = np.flatnonzero(number >= 0)
    gate.uses[: len(old)] = gate.uses[old]
    gate.uses[len(old) : len(number)] = 0


@loop
def too_old(gate: Gate, block: int, now_us: int) -> bool:
    """The copy of a block in the host no longer counts."""
    return bool(gate.rule.ttl_us != NO_LIMIT and now_us - gate.moved_us[block] > gate.rule.ttl_us)
