"""Level `policy`: the eviction queues alone, on a fresh pool whose blocks are all free."""

from collections.abc import Mapping
from typing import Any, ClassVar

from experiments.conformance.adapter import Adapter, Step
from experiments.conformance.values import CaseError, MismatchError
from kvcache.blocks import may_offload, swap_places
from kvcache.inspection import check
from kvcache.manager import KVCacheManager
from kvcache.queues import claim, front, release
from kvcache.tables import (
    DEFAULT_OFFLOAD_MIN_PRIORITY,
    LEVEL,
    NEXT,
    PRIORITY,
    REFS,
    T_FREE,
    Pool,
    Settings,
)


class PolicyAdapter(Adapter):
    """Blocks by the names the case gives them."""

    config_keys: ClassVar[frozenset[str]] = frozenset({
        "primary_blocks",
        "secondary_blocks",
        "secondary_offload_min_priority",
    })

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        threshold = config.get("secondary_offload_min_priority", DEFAULT_OFFLOAD_MIN_PRIORITY)
        pool = Pool(1 << 20, (config["primary_blocks"], config.get("secondary_blocks", 0)))
        self._manager = KVCacheManager([pool], Settings(secondary_offload_min_priority=threshold))
        self._state = self._manager.state
        self._names: dict[str, int] = {}
        self._found: int | None = None
        self._may_offload = False
        self._now_s = 0.0

    def _block(self, name: Any) -> int:
        if isinstance(name, int):
            return name
        if name not in self._names:
            raise CaseError(f"no block is named {name!r}")
        return self._names[name]

    def op_get_free_block(self, level: int, save_as: str = "") -> None:
        self._found = int(front(self._state, 0, level))
        if self._found == -1:
            raise ValueError(f"level {level} has no free block")
        self._may_offload = level == 0 and bool(may_offload(self._state, 0, self._found))
        if save_as:
            self._names[save_as] = self._found

    def op_claim_block(self, block: Any, priority: int | None = None, duration_ms: int | None = None) -> None:
        given = -1 if priority is None else priority
        claim(self._state, self._block(block), given, -1 if duration_ms is None else duration_ms)

    def op_release_block(self, block: Any, to_front: bool = False) -> None:
        row = self._block(block)
        if self._state.blocks[row, NEXT] != -1:
            raise ValueError(f"block {block} is free already")
        release(self._state, row, to_front)

    def op_refresh(self) -> None:
        self._manager.refresh(self._now_s)

    def op_advance_time(self, ms: float) -> None:
        self._now_s += ms / 1000
        self._manager.set_time(self._now_s)

    def op_swap_memory(self, a: Any, b: Any) -> None:
        swap_places(self._state, self._block(a), self._block(b))

    def see_num_free(self, expected: Mapping[str, Any], step: Step) -> None:
        for level, want in expected.items():
            self.same(f"num_free[{level}]", want, int(self._state.tier[0, int(level), T_FREE]))

    def _column(self, step: Step, column: int) -> int:
        row = self._block(step["block"]) if "block" in step else self._found
        if row is None:
            raise CaseError("the expectation names no block")
        return int(self._state.blocks[row, column])

    def see_has_refs(self, expected: Any, step: Step) -> None:
        if isinstance(expected, dict):
            for name, want in expected.items():
                self.same(f"has_refs[{name}]", want, bool(self._state.blocks[self._block(name), REFS] > 0))
        else:
            self.same("has_refs", expected, self._column(step, REFS) > 0)

    def see_primary(self, expected: Any, step: Step) -> None:
        if isinstance(expected, dict):
            for name, want in expected.items():
                self.same(f"primary[{name}]", want, bool(self._state.blocks[self._block(name), LEVEL] == 0))
        else:
            self.same("primary", expected, self._column(step, LEVEL) == 0)

    def see_should_offload(self, expected: bool, step: Step) -> None:
        self.same("should_offload", expected, self._may_offload)

    def see_is(self, expected: str, step: Step) -> None:
        self.same("is", self._block(expected), self._found)

    def see_is_not(self, expected: str, step: Step) -> None:
        self.same("is_not", {"ne": self._block(expected)}, self._found)

    def see_priorities(self, expected: Mapping[str, Any], step: Step) -> None:
        for name, want in expected.items():
            self.same(f"priorities[{name}]", want, int(self._state.blocks[self._block(name), PRIORITY]))

    def see_queue_integrity(self, expected: bool, step: Step) -> None:
        try:
            check(self._manager)
        except AssertionError as error:
            if expected:
                raise MismatchError("queue_integrity", expected, str(error)) from None
        else:
            self.same("queue_integrity", expected, True)
