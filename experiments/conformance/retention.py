"""Level `retention`: retention configurations alone."""

from typing import Any

from experiments.conformance.adapter import Adapter, Step
from experiments.conformance.values import MismatchError
from experiments.conformance.world import make_retention
from kvcache.retention import KvCacheRetentionConfig


class RetentionAdapter(Adapter):
    """The configuration made last, and what it says of each block."""

    _config: KvCacheRetentionConfig | None = None
    _per_block: list[int | None] | None = None

    def op_make_retention(self, retention: dict[str, Any]) -> None:
        self._config = make_retention(retention)

    def op_per_block_retention(self, retention: dict[str, Any], block_size: int, sequence_length: int) -> None:
        self._config = make_retention(retention)
        priorities, _ = self._config.per_block(block_size, sequence_length)
        self._per_block = [None if p == -1 else int(p) for p in priorities]

    def see_fields(self, expected: dict[str, Any], step: Step) -> None:
        config = self._config
        if config is None:
            raise MismatchError("fields", expected, None)
        ranges = [
            {"start": r.token_start, "end": r.token_end, "priority": r.priority, "duration_ms": r.duration_ms}
            for r in config.ranges
        ]
        got = {
            "ranges": ranges,
            "decode_priority": config.decode_retention_priority,
            "decode_duration_ms": config.decode_duration_ms,
            "transfer_mode": config.transfer_mode,
            "directory": config.directory,
        }
        self.same("fields", expected, got)

    def see_block_retention_priorities(self, expected: list[Any], step: Step) -> None:
        self.same("block_retention_priorities", expected, self._per_block)
