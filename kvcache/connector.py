"""The connector: how an engine asks a store outside of it for blocks, and hands blocks over to it.

It moves nothing. Models TensorRT-LLM's KV connector API (and vLLM's, whose names are the same): the scheduler side is asked
about every new request, matched tokens count as computed, a request whose load is asynchronous stays out of the batch until
it is reported finished, and blocks whose save is asynchronous are kept until that is. Who implements it moves the bytes:
`sim.store` spends their time, real memory really moves them.
"""

from typing import NamedTuple, Protocol

from kvcache.request import Int64


class Matched(NamedTuple):
    """What a store has beyond what the engine has: `tokens` of the prompt, counted from its start."""

    tokens: int
    load_async: bool


class Connector(Protocol):
    """One store as the schedulers see it. `names` are those of a prompt's full blocks (`kvcache.event_rows`), in order."""

    def get_num_new_matched_tokens(self, names: Int64, num_computed_tokens: int) -> Matched:
        """Tokens of the prompt that the store holds without a gap; no more than `num_computed_tokens`: nothing new."""

    def start_load(self, worker: int, request: int, names: Int64, num_computed_tokens: int) -> None:
        """The request has its blocks; fill those behind `num_computed_tokens`. `finished_loads` tells when."""

    def request_finished(self, worker: int, request: int, names: Int64) -> bool:
        """The request has ended and its blocks can be saved. True: they are being read until it is reported finished."""
