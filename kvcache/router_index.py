"""What a router believes a worker's cache holds, rebuilt from its KV events alone. It asks the worker nothing.

It reads TensorRT-LLM's JSON shape (`kvcache.events`). What the worker does not tell, the router does not know: a block
that is overwritten in place, or that goes after its parent went alone, leaves no Removed event and stays here for ever.
So the index may hold too much, never too little, as long as no event was lost.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Window = int | None


@dataclass
class IndexedBlock:
    """One block as last heard of."""

    parent: int | None  # hash of the block above; None at the root
    tokens: int
    level: int  # 0 is the GPU
    priority: int


class RouterIndex:
    """Blocks of one worker by window and hash."""

    def __init__(self) -> None:
        self.blocks: dict[Window, dict[int, IndexedBlock]] = {}
        self.next_id: int | None = None
        self.lost = 0

    def apply(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Take in events in their order; gaps in their numbers are counted in `lost`."""
        for event in events:
            if self.next_id is not None:
                self.lost += event["event_id"] - self.next_id
            self.next_id = event["event_id"] + 1
            window = self.blocks.setdefault(event["window_size"], {})
            data = event["data"]
            if data["type"] == "stored":
                _store(window, data["parent_hash"], data["blocks"])
            elif data["type"] == "removed":
                for block_hash in data["block_hashes"]:
                    window.pop(block_hash, None)
            elif data["type"] == "updated" and data["block_hash"] in window:
                _update(window[data["block_hash"]], data)

    def matched_blocks(self, hashes: Sequence[int], window: Window) -> int:
        """How many blocks of a prompt, from its first on, the worker is thought to hold."""
        known = self.blocks.get(window, {})
        return next((i for i, block_hash in enumerate(hashes) if block_hash not in known), len(hashes))


def _store(window: dict[int, IndexedBlock], parent: int | None, blocks: Sequence[Mapping[str, Any]]) -> None:
    """The blocks of one event follow one another below `parent`."""
    for block in blocks:
        window[block["block_hash"]] = IndexedBlock(
            parent, len(block["tokens"]), block["cache_level"], block["priority"]
        )
        parent = block["block_hash"]


def _update(block: IndexedBlock, data: Mapping[str, Any]) -> None:
    if data["cache_level"] is not None:
        block.level = data["cache_level"]["new_value"]
    if data["priority"] is not None:
        block.priority = data["priority"]["new_value"]
