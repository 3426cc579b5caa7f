"""Levels `manager` and `block_manager`: the ops, one call of the manager each. The `*_sight` modules look after it."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.conformance import world
from experiments.conformance.adapter import Adapter
from experiments.conformance.event_sight import EventSight
from experiments.conformance.manager_sight import ManagerSight
from experiments.conformance.pool_sight import PoolSight
from experiments.conformance.values import UnsupportedError, tokens
from kvcache.cache_request import CacheRequest
from kvcache.single_blocks import detach_block, offload_block, onboard_block, set_block_priority, truncate


class ManagerAdapter(Adapter):
    """One manager, the requests defined so far, the clock, and what the last step returned."""

    config_keys = world.CONFIG_KEYS

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.manager = world.make_manager(self.config)
        self.requests: dict[int, CacheRequest] = {}
        self.now_s = 0.0
        self.result: Any = None
        self.sight = ManagerSight(self)
        self.parts = [self, self.sight, PoolSight(self, self.sight), EventSight(self, lambda: self.result)]

    def before(self) -> None:
        """The counts of a step start here."""
        self.sight.start_step()

    # ---- requests --------------------------------------------------------------------------------------------------

    def request(self, request_id: int) -> CacheRequest:
        """A request defined before."""
        if request_id not in self.requests:
            raise ValueError(f"request {request_id} is not defined")
        return self.requests[request_id]

    def _defined(self, fields: Mapping[str, Any]) -> CacheRequest:
        if set(fields) != {"request_id"} or fields["request_id"] not in self.requests:
            self.requests[fields["request_id"]] = world.make_request(fields)
        return self.requests[fields["request_id"]]

    def op_new_manager(self, config_overrides: Mapping[str, Any]) -> None:
        unknown = set(config_overrides) - self.config_keys
        if unknown:
            raise UnsupportedError(f"config key {', '.join(sorted(unknown))}")
        self.manager = world.make_manager({**self.config, **config_overrides})
        self.requests.clear()
        self.sight.start_step()

    def op_define_request(self, request_id: int, **fields: Any) -> None:
        self.requests[request_id] = world.make_request({"request_id": request_id, **fields})

    def op_add_sequence(self, request_id: int, **fields: Any) -> None:
        self.manager.add_sequence_batch([self._defined({"request_id": request_id, **fields})])

    def op_add_sequence_batch(self, requests: Sequence[Mapping[str, Any]]) -> None:
        self.manager.add_sequence_batch([self._defined(fields) for fields in requests])

    def op_set_state(self, request_id: int, state: str) -> None:
        if state not in {"context", "generation"}:
            raise UnsupportedError(f"state {state}")
        self.request(request_id).generating = state == "generation"

    def op_prefill_done(self, request_id: int) -> None:
        self.request(request_id).position = self.request(request_id).prompt_tokens

    def op_set_context_position(self, request_id: int, position: int) -> None:
        self.request(request_id).position = position

    # ---- growing, storing, releasing -------------------------------------------------------------------------------

    def op_append_tokens(self, request_id: int, tokens: Any) -> None:
        self.request(request_id).append(_tokens(tokens))

    def op_add_tokens(self, request_id: int, tokens: Any) -> None:
        self.manager.add_tokens(request_id, _tokens(tokens))

    def op_grow_sequence(self, request_id: int, count: int) -> None:
        self.manager.add_slots(request_id, count)

    def op_remove_tokens(self, request_id: int, count: int) -> None:
        self.manager.remove_slots(request_id, count)

    def op_store_context_blocks(self, request_id: int) -> None:
        self.manager.store_context_blocks(request_id)

    def op_store_new_block(self, request_id: int) -> None:
        self.manager.store_new_block(request_id)

    def op_store_blocks_for_reuse(self, request_id: int, pin: bool = False, save_as: str = "") -> None:
        self._save(save_as, self.manager.store_blocks_for_reuse(request_id, pin=pin))

    def op_release_sequence(self, request_id: int, store: bool = True, stored_tokens: Any = None) -> None:
        instead = None if stored_tokens is None else _tokens(stored_tokens)
        self.manager.release(request_id, store=store, stored_tokens=instead)

    def op_pin_sequence(self, request_id: int, save_as: str = "") -> None:
        self._save(save_as, self.manager.pin_sequence(request_id))

    def op_unpin_blocks(self, blocks: str | list[int]) -> None:
        self.manager.unpin_blocks(self.saved[blocks] if isinstance(blocks, str) else blocks)

    def _save(self, name: str, value: Any) -> None:
        self.result = value
        if name:
            self.saved[name] = value

    # ---- single blocks, the clock ----------------------------------------------------------------------------------

    def op_advance_time(self, ms: float) -> None:
        self.now_s += ms / 1000
        self.manager.set_time(self.now_s)

    def op_refresh(self) -> None:
        self.manager.refresh(self.now_s)

    def op_set_block_priority(self, block_id: Any, priority: int) -> None:
        set_block_priority(self.manager, self.sight.block_id(block_id), priority)

    def op_offload_block(self, block_id: Any, transfer_mode: str = "DRAM", directory: str = "") -> None:
        _check_mode(transfer_mode)
        offload_block(self.manager, self.sight.block_id(block_id))

    def op_onboard_block(
        self, block_id: Any, request_id: int | None = None, transfer_mode: str = "DRAM", directory: str = ""
    ) -> None:
        _check_mode(transfer_mode)
        onboard_block(self.manager, self.sight.block_id(block_id))

    def op_truncate_blocks(self, tokens: Any, keep: int) -> None:
        truncate(self.manager, _tokens(tokens), keep)

    def op_find_blocks(self, tokens: Any, allow_partial: bool = True) -> None:
        self.result = self.manager.find_block(_tokens(tokens), allow_partial=allow_partial)

    def op_detach_block(self, tokens: Any) -> None:
        block = self.manager.find_block(_tokens(tokens))
        if block is None:
            raise ValueError("no block is stored for these tokens")
        detach_block(self.manager, block)

    # ---- estimates and reports -------------------------------------------------------------------------------------

    def op_start_scheduling(self) -> None:
        self.manager.start_scheduling()

    def op_scheduling_remove_sequence(self, request_id: int) -> None:
        self.manager.scheduling_remove_sequence(request_id)

    def op_analyze_prefix_reuse(self, request_id: int) -> None:
        request = self.request(request_id)
        self.result = [self.manager.analyze_prefix_reuse(request, w) for w in self.sight.windows()]

    def op_needed_blocks_one_step(self, request_id: int, two_steps_look_ahead: bool = False) -> None:
        request = self.request(request_id)
        self.result = [
            self.manager.needed_blocks_one_step(request, two_steps=two_steps_look_ahead, w=w)
            for w in self.sight.windows()
        ]

    def op_remaining_blocks_to_completion(self, request_id: int) -> None:
        request = self.request(request_id)
        self.result = [self.manager.remaining_blocks(request, w) for w in self.sight.windows()]

    def op_iteration_stats(self) -> None:
        self.result = self.manager.iteration_stats()

    def op_flush_events(self) -> None:
        self.result = self.manager.flush_events()

    def op_block_hashes(self, request_id: int, save_as: str = "") -> None:
        request = self.request(request_id)
        full = len(request.tokens) - len(request.tokens) % self.manager.settings.tokens_per_block
        self._save(save_as, [self.manager.node_hash(node) for node in self.manager.nodes_of(request, full)])

    def op_first_new_block_key(self, tokens: Any, save_as: str = "") -> None:
        first = self.manager.analyze_prefix_reuse(CacheRequest(-1, _tokens(tokens))).first_new
        self._save(save_as, None if first == -1 else first)

    def op_probe_reuse(self, tokens: Any) -> None:
        reuse = self.manager.analyze_prefix_reuse(CacheRequest(-1, _tokens(tokens)))
        self.result = reuse.reusable_all * self.manager.settings.tokens_per_block


_tokens = tokens


def _check_mode(mode: str) -> None:
    """Where the bytes go changes nothing that is checked here; an unknown mode is refused as a retention would."""
    world.make_retention({"transfer_mode": mode})
