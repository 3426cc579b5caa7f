"""KV events of KvCacheManager V2: one block, one page a life cycle, but one logical block to whoever listens.

It decides nothing about pages. Models V2's `KVCacheEventManager`: a block is stored once in each window of its life
cycles (windows ascending); its level there is the coldest of its pages, and an update goes out only when that changes.
Difference: a block with a multimodal digest is hashed as one with extra ids, where V2 falls back on its own key.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvcache.blockhash import block_hash
from kvcache.event_queue import Event, EventQueue
from kvcache.tables import DEFAULT_PRIORITY


@dataclass(eq=False)
class LogicalBlock:
    """Tokens (a digest of bytes stands for one token of an item) below a parent, with a cache level a life cycle."""

    tokens: Sequence[int | bytes]
    levels: list[int]
    parent: "LogicalBlock | None" = None
    lora_id: int | None = None
    priority: int = DEFAULT_PRIORITY
    known: set[int | None] = field(default_factory=set)  # windows it was stored in

    def unique_tokens(self) -> list[tuple[int, int]]:
        """(token id, extra id) pairs: of a digest, 0 and its first 8 bytes."""
        return [(0, int.from_bytes(t[:8], "little")) if isinstance(t, bytes) else (t, 0) for t in self.tokens]

    def hash(self) -> int:
        """TensorRT-LLM's V1 hash, chained."""
        extras = [extra for _, extra in self.unique_tokens()]
        return block_hash(
            [token for token, _ in self.unique_tokens()],
            parent=0 if self.parent is None else self.parent.hash(),
            extra_ids=extras if any(isinstance(t, bytes) for t in self.tokens) else None,
            lora_id=self.lora_id,
        )


class LogicalEventManager:
    """Events of one V2 manager."""

    def __init__(
        self, capacity: int, default_window_size: int | None = None, attention_dp_rank: int | None = None
    ) -> None:
        self._out = EventQueue(capacity, attention_dp_rank)
        self._default = default_window_size
        self._windows: dict[int, int | None] = {}

    def set_life_cycle_windows(self, windows: Mapping[int, int | None]) -> None:
        """Window of each life cycle; None is the default window."""
        self._windows = {cycle: self._default if w is None else w for cycle, w in windows.items()}

    def created(self, blocks_per_level: Sequence[int]) -> None:
        """Announce the pools."""
        self._out.add(self._default, {"type": "created", "num_blocks_per_cache_level": list(blocks_per_level)})

    def stored(self, blocks: Sequence[LogicalBlock], window_size: int | None = None) -> None:
        """Blocks, each the next one's parent, came in: in one window, or in those of the life cycles."""
        for window in [window_size] if window_size is not None else self._all_windows():
            for block in blocks:
                block.known.add(window)
            parent = blocks[0].parent
            self._out.stored(
                window, None if parent is None else parent.hash(), [self._stored(block, window) for block in blocks]
            )

    def _all_windows(self) -> list[int | None]:
        windows = set(self._windows.values()) or {self._default}
        return sorted(windows, key=lambda w: -1 if w is None else w)

    def _stored(self, block: LogicalBlock, window: int | None) -> Event:
        tokens = [{"type": "unique_token", "token_id": t, "token_extra_id": e} for t, e in block.unique_tokens()]
        return {
            "type": "stored_block",
            "block_hash": block.hash(),
            "tokens": tokens,
            "cache_level": self._level(block, window),
            "priority": block.priority,
            "lora_id": block.lora_id,
            "cache_salt": None,
            "mm_keys": [],
        }

    def _level(self, block: LogicalBlock, window: int | None) -> int:
        """The coldest page that the window needs."""
        levels = [level for cycle, level in enumerate(block.levels) if self._windows.get(cycle, window) == window]
        return max(levels or block.levels)

    def removed(self, block: LogicalBlock, *, window_size: int | None = None, life_cycle: int | None = None) -> None:
        """The block is gone: from one window, or from all it was stored in."""
        windows = set(block.known)
        if window_size is not None:
            windows &= {window_size}
        elif life_cycle is not None:
            windows &= {self._windows.get(life_cycle, self._default)}
        for window in sorted(windows, key=lambda w: -1 if w is None else w):
            block.known.discard(window)
            self._out.removed(window, block.hash())

    def updated(self, block: LogicalBlock, life_cycle: int, old: int, new: int) -> None:
        """The page of one life cycle moved from level `old` to `new`."""
        window = self._windows.get(life_cycle, self._default)
        before = self._level(block, window)
        block.levels[life_cycle] = new
        after = self._level(block, window)
        if before != after and window in block.known:
            self._out.updated(window, block.hash(), "cache_level", before, after)

    def flush(self) -> None:
        """End of an iteration."""
        self._out.flush()

    def latest(self) -> list[Event]:
        """Drain the buffer."""
        return self._out.latest()
