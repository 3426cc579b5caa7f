"""What a store of blocks outside a worker must answer and do: the two sides of TensorRT-LLM's KV-cache connector.

It stores nothing and moves nothing. Models `KvCacheConnectorScheduler` and `KvCacheConnectorWorker`, whole blocks instead of
layers: there is no call a layer, and blocks go by their key nodes. A simulated store spends time behind the same calls.

    scheduler                                     worker
    get_num_new_matched_tokens -> n, later
    (blocks are allocated)            ------->    start_load(request, nodes, slots)
    the request waits, if later       <-------    get_finished() -> saved, loaded
    (the request has ended)           ------->    start_save(request, nodes, slots); its blocks stay until saved
"""

from collections.abc import Sequence
from typing import Protocol


class ConnectorScheduler(Protocol):
    """Asked while a request's blocks are allocated."""

    def get_num_new_matched_tokens(self, nodes: Sequence[int], num_computed_tokens: int) -> tuple[int, bool]:
        """Tokens that the store holds beyond the first `num_computed_tokens` of the blocks `nodes`; whether they come later."""


class ConnectorWorker(Protocol):
    """Carries out what the scheduler decided, beside the engine's own copies."""

    def start_load(self, request: int, nodes: Sequence[int], slots: Sequence[int]) -> None:
        """Bring the blocks `nodes` into the GPU slots `slots`."""

    def start_save(self, request: int, nodes: Sequence[int], slots: Sequence[int]) -> None:
        """Take the blocks in the GPU slots `slots` as `nodes`; the slots may not change before they are reported."""

    def get_finished(self) -> tuple[list[int], list[int]]:
        """Requests whose blocks are saved, and loaded, since the last call."""
