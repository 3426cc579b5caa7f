"""Levels `manager` and `block_manager`: what a case may expect of pools, counters, estimates, look-ups and hashes."""

from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.conformance.adapter import Step
from experiments.conformance.manager_sight import ManagerSight, hit_rate
from experiments.conformance.values import MismatchError, is_by_window
from kvcache.blockhash import block_hash
from kvcache.capacity import AttentionLayers, ModelShape, bytes_per_token
from kvcache.tables import (
    ALLOC_NEW,
    ALLOC_TOTAL,
    FULL_REUSED,
    GEN_ALLOC,
    INTRA_COPIES,
    INTRA_TOKENS,
    MISSED,
    NODE,
    PARENT,
    PARTIAL_REUSED,
    REUSED,
    ROOT,
)

if TYPE_CHECKING:
    from experiments.conformance.manager import ManagerAdapter

COUNTERS = {
    "alloc_total_blocks": ALLOC_TOTAL,
    "alloc_new_blocks": ALLOC_NEW,
    "reused_blocks": REUSED,
    "full_reused_blocks": FULL_REUSED,
    "partial_reused_blocks": PARTIAL_REUSED,
    "missed_blocks": MISSED,
    "gen_alloc_blocks": GEN_ALLOC,
    "intra_device_copy_blocks": INTRA_COPIES,
}


class PoolSight:
    """Expectations about the manager as a whole, and about what the last op returned."""

    def __init__(self, adapter: "ManagerAdapter", sight: ManagerSight) -> None:
        self._a = adapter
        self._s = sight

    # ---- pools -----------------------------------------------------------------------------------------------------

    def see_num_free_blocks(self, expected: Any, step: Step) -> None:
        self._s.by_window("num_free_blocks", expected, self._a.manager.num_free, total=True)

    def see_num_allocated_blocks(self, expected: Any, step: Step) -> None:
        def allocated(w: int) -> int:
            return self._s.blocks(w) - self._a.manager.num_free(w)

        self._s.by_window("num_allocated_blocks", expected, allocated, total=True)

    def see_num_allocated_primary_blocks(self, expected: Any, step: Step) -> None:
        def allocated(w: int) -> int:
            return self._a.manager.pools[w].blocks[0] - self._a.manager.num_free(w)

        self._s.by_window("num_allocated_primary_blocks", expected, allocated, total=True)

    def see_max_num_blocks(self, expected: Any, step: Step) -> None:
        self._s.by_window("max_num_blocks", expected, self._s.blocks, total=True)

    def see_num_primary_blocks(self, expected: Any, step: Step) -> None:
        self._s.by_window("num_primary_blocks", expected, lambda w: self._a.manager.pools[w].blocks[0], total=True)

    def see_tokens_per_block(self, expected: Any, step: Step) -> None:
        self._a.same("tokens_per_block", expected, self._a.manager.settings.tokens_per_block)

    def see_layer_block_elements(self, expected: Any, step: Step) -> None:
        got = self._bytes_per_token(layers=1, dtype="int8") // 2 * self._a.manager.settings.tokens_per_block
        self._a.same("layer_block_elements", expected, got)

    def _bytes_per_token(self, layers: int, dtype: str) -> int:
        config = self._a.config
        shape = AttentionLayers(None, layers, config.get("num_kv_heads", 1), config.get("size_per_head", 1))
        return sum(bytes_per_token(ModelShape("case", (shape,)), dtype).values())

    # ---- counters and estimates ------------------------------------------------------------------------------------

    def see_iteration_stats(self, expected: Any, step: Step) -> None:
        wants = expected if is_by_window(expected) else {None: expected}
        for size, want in wants.items():
            rows = self._a.result if size is None else self._a.result[self._s.window(size)][None]
            sums = np.asarray(rows).sum(axis=0)
            got: dict[str, float] = {name: int(sums[column]) for name, column in COUNTERS.items()}
            got["hit_rate"] = hit_rate(int(sums[REUSED]), int(sums[MISSED]))
            layers = self._a.config.get("num_layers", 1)
            got["intra_device_copy_bytes"] = int(sums[INTRA_TOKENS]) * self._bytes_per_token(layers, "fp16")
            self._s.fields("iteration_stats", want, got)

    def see_alloc_total_blocks_delta(self, expected: Any, step: Step) -> None:
        got = int(self._a.manager.state.stats[:, ALLOC_TOTAL].sum()) - self._s.taken
        self._a.same("alloc_total_blocks_delta", expected, got)

    def see_scheduling_has_free_blocks(self, expected: Any, step: Step) -> None:
        wants = expected if is_by_window(expected) else {str(p.window_tokens): expected for p in self._a.manager.pools}
        for size, blocks in wants.items():
            got = self._a.manager.scheduling_free_blocks(self._s.window(size))
            self._a.same("scheduling_has_free_blocks", {"ge": blocks}, got)

    def see_reusable_blocks_all(self, expected: Any, step: Step) -> None:
        self._s.by_window("reusable_blocks_all", expected, lambda w: self._a.result[w].reusable_all)

    def see_reusable_blocks_allocated(self, expected: Any, step: Step) -> None:
        self._s.by_window("reusable_blocks_allocated", expected, lambda w: self._a.result[w].reusable_allocated)

    def see_num_blocks_needed(self, expected: Any, step: Step) -> None:
        self._s.by_window("num_blocks_needed", expected, lambda w: self._a.result[w])

    def see_num_tokens(self, expected: Any, step: Step) -> None:
        self._a.same("num_tokens", expected, self._a.result)

    # ---- look-ups and hashes ---------------------------------------------------------------------------------------

    def see_pinned_count(self, expected: Any, step: Step) -> None:
        self._a.same("pinned_count", expected, len(self._a.result))

    def see_found(self, expected: bool, step: Step) -> None:
        self._a.same("found", expected, self._a.result is not None)

    def see_chain_length(self, expected: Any, step: Step) -> None:
        if self._a.result is None:
            raise MismatchError("chain_length", expected, None)
        node, length = int(self._a.manager.state.blocks[self._a.result, NODE]), 0
        while node != ROOT:
            node, length = int(self._a.manager.state.nodes[node, PARENT]), length + 1
        self._a.same("chain_length", expected, length)

    def see_count(self, expected: Any, step: Step) -> None:
        self._a.same("count", expected, len(self._a.result))

    def see_matches_token_chain(self, expected: bool, step: Step) -> None:
        r, tpb = self._a.request(step["request_id"]), self._a.manager.settings.tokens_per_block
        chain: list[int] = []
        for start in range(0, len(r.tokens) - tpb + 1, tpb):
            own = slice(start, start + tpb)
            parent = chain[-1] if chain else 0
            extra = None if r.extra_ids is None else r.extra_ids[own]
            hashed = block_hash(
                r.tokens[own], parent=parent, extra_ids=extra, lora_id=r.lora_id, cache_salt=r.cache_salt
            )
            chain.append(hashed)
        self._a.same("matches_token_chain", expected, self._a.result == chain)

    def see_first_equals_first_of(self, expected: str, step: Step) -> None:
        self._a.same("first_equals_first_of", self._a.saved[expected][0], self._a.result[0])

    def see_equals(self, expected: str, step: Step) -> None:
        self._a.same("equals", self._a.saved[expected], self._a.result)

    def see_differs_from(self, expected: str, step: Step) -> None:
        if self._a.result == self._a.saved[expected]:
            raise MismatchError("differs_from", f"not {expected}", self._a.result)

    def see_is_null(self, expected: bool, step: Step) -> None:
        self._a.same("is_null", expected, self._a.result is None)
