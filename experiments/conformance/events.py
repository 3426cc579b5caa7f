"""Level `events`: V2's event queue alone, fed by hand."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from experiments.conformance.adapter import Adapter
from experiments.conformance.event_sight import EventSight
from experiments.conformance.values import CaseError, tokens
from kvcache.events_v2 import LogicalBlock, LogicalEventManager

DEFAULT_BUFFER = 1024


class EventsAdapter(Adapter):
    """One event manager, and blocks by the names the case gives them."""

    config_keys: ClassVar[frozenset[str]] = frozenset({
        "event_buffer_max_size",
        "default_window_size",
        "manager_version",
    })

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._manager: LogicalEventManager | None = None
        self._blocks: dict[str, LogicalBlock] = {}
        self._lora_id: int | None = None
        self._latest: list[dict[str, Any]] = []
        self.parts = [self, EventSight(self, lambda: self._latest)]

    def _events(self) -> LogicalEventManager:
        if self._manager is None:
            raise CaseError("no em_new came before")
        return self._manager

    def _block(self, name: str) -> LogicalBlock:
        if name not in self._blocks:
            raise CaseError(f"no block is named {name!r}")
        return self._blocks[name]

    def op_em_new(self) -> None:
        capacity = self.config.get("event_buffer_max_size", DEFAULT_BUFFER)
        self._manager = LogicalEventManager(capacity, self.config.get("default_window_size"))

    def op_em_root(self, lora_id: int | None = None) -> None:
        self._lora_id = lora_id

    def op_em_set_life_cycle_windows(self, windows: Mapping[str, int | None]) -> None:
        self._events().set_life_cycle_windows({int(cycle): w for cycle, w in windows.items()})

    def op_em_block(self, name: str, tokens: Any, parent: str, cache_levels: Sequence[int]) -> None:
        above = None if parent == "root" else self._block(parent)
        self._blocks[name] = LogicalBlock(_tokens(tokens), list(cache_levels), above, self._lora_id)

    def op_em_created(self, num_blocks_per_cache_level: Sequence[int]) -> None:
        self._events().created(num_blocks_per_cache_level)

    def op_em_stored(self, blocks: Sequence[str], window_size: int | None = None) -> None:
        self._events().stored([self._block(name) for name in blocks], window_size)

    def op_em_removed(self, block: str, window_size: int | None = None, life_cycle: int | None = None) -> None:
        self._events().removed(self._block(block), window_size=window_size, life_cycle=life_cycle)

    def op_em_updated(self, block: str, life_cycle: int, old: int, new: int) -> None:
        self._events().updated(self._block(block), life_cycle, old, new)

    def op_em_flush(self) -> None:
        self._events().flush()
        self._latest = self._events().latest()


def _tokens(value: Any) -> Sequence[int | bytes]:
    """Tokens, some of which may be digests."""
    if isinstance(value, list):
        return [bytes.fromhex(t["digest_hex"]) if isinstance(t, dict) else t for t in value]
    return tokens(value)
