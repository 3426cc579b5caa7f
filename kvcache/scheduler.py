"""Admission: which of the active requests run in the next iteration, and which must give their blocks back.

It changes nothing: it looks at a `KVCacheManager` and at requests in arrival order. Models `CapacityScheduler` with
GUARANTEED_NO_EVICT, MAX_UTILIZATION and STATIC_BATCH, reuse-aware, and the rule that lets a request wait one step when
another one is just computing its first new block. Adapter pages (PEFT) and encoders are not modelled.
`kvcache.engine` applies the same policies inside its compiled iteration.

    request         context, no sequence   -> pending: may be admitted
                    context, has sequence  -> a later chunk: runs unless it is paused
                    generating             -> runs unless it is paused
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvcache.cache_request import CacheRequest
from kvcache.manager import KVCacheManager
from kvcache.schedule import same_key


class Admission(NamedTuple):
    """One decision, both lists in the order in which it was taken."""

    scheduled: list[CacheRequest]
    paused: list[CacheRequest]


CapacityPolicy = Callable[[KVCacheManager, Sequence[CacheRequest], int], Admission]


class _Contributed:
    """First new blocks of the prompts that this iteration computes; two are the same if their own tokens are."""

    def __init__(self, manager: KVCacheManager, active: Sequence[CacheRequest]) -> None:
        self._manager = manager
        self._relevant = manager.settings.enable_block_reuse and len(manager.pools) == 1
        self._nodes: list[int] = []
        for request in active:
            if not request.generating and request.slot >= 0:
                self.add(request)

    def add(self, request: CacheRequest) -> None:
        """The request's first new block is being computed."""
        if self._relevant:
            node = self._manager.analyze_prefix_reuse(request).first_new
            if node != -1:
                self._nodes.append(node)

    def makes_wait(self, request: CacheRequest) -> bool:
        """A request that has not started would compute what another one is computing."""
        if not self._relevant or _started(request):
            return False
        node = self._manager.analyze_prefix_reuse(request).first_new
        return node != -1 and any(same_key(self._manager.state, node, other) for other in self._nodes)


def _started(request: CacheRequest) -> bool:
    return request.slot >= 0


def guaranteed_no_evict(manager: KVCacheManager, active: Sequence[CacheRequest], max_requests: int) -> Admission:
    """Whoever runs is promised blocks up to its last token; the first that cannot be promised ends the round."""
    return _promising(manager, active, max_requests, _Contributed(manager, active))


def static_batch(manager: KVCacheManager, active: Sequence[CacheRequest], max_requests: int) -> Admission:
    """As GUARANTEED_NO_EVICT, but nobody joins before the whole batch is done, and nobody waits for reuse."""
    if any(request.generating for request in active):
        running = [request for request in active if request.generating]
        return Admission(running[:max_requests], [])
    return _promising(manager, active, max_requests, None)


def _promising(
    manager: KVCacheManager, active: Sequence[CacheRequest], max_requests: int, contributed: _Contributed | None
) -> Admission:
    windows = range(len(manager.pools))
    available = [manager.num_free(w) for w in windows]
    scheduled = [request for request in active if request.generating][:max_requests]
    for request in scheduled:
        available = [available[w] - manager.remaining_blocks(request, w) for w in windows]
    for request in active:
        if request.generating or (contributed is not None and contributed.makes_wait(request)):
            continue
        left = [available[w] - manager.remaining_blocks(request, w) for w in windows]
        if len(scheduled) >= max_requests or min(left) < 0:
            break
        if contributed is not None:
            contributed.add(request)
        scheduled.append(request)
        available = left
    return Admission(scheduled, [])


def max_utilization(
    manager: KVCacheManager, active: Sequence[CacheRequest], max_requests: int, *, two_steps: bool = False
) -> Admission:
    """Whoever fits for one step runs; if one does not, the last started request not yet looked at gives way to it."""
    manager.start_scheduling()
    contributed = _Contributed(manager, active)
    windows = range(len(manager.pools))
    needed = [0] * len(manager.pools)
    scheduled: list[CacheRequest] = []
    paused: list[CacheRequest] = []
    at, end = 0, len(active)
    while at < end:
        request = active[at]
        if contributed.makes_wait(request):
            at += 1
            continue
        more = [needed[w] + manager.needed_blocks_one_step(request, two_steps=two_steps, w=w) for w in windows]
        if len(scheduled) < max_requests and all(more[w] <= manager.scheduling_free_blocks(w) for w in windows):
            if not _started(request):
                contributed.add(request)
            scheduled.append(request)
            needed = more
            at += 1
            continue
        victim = next((i for i in range(end - 1, at - 1, -1) if _started(active[i])), None)
        if victim is None:
            break
        manager.scheduling_remove_sequence(active[victim].request_id)
        paused.append(active[victim])
        end = victim
    return Admission(scheduled, paused)


POLICIES: dict[str, CapacityPolicy] = {
    "guaranteed_no_evict": guaranteed_no_evict,
    "max_utilization": max_utilization,
    "static_batch": static_batch,
}


def pause(manager: KVCacheManager, request: CacheRequest, *, store: bool = True) -> None:
    """Take a paused request's blocks; what it generated becomes part of its prompt. `store` keeps them for reuse."""
    manager.release(request.request_id, store=store)
    generated = len(request.tokens) - request.prompt_tokens
    request.prompt_tokens += generated
    request.max_new_tokens -= generated
    request.generating = False
    request.position = request.prepopulated = 0


def first_chunk(position: int, chunk: int, prompt: int, tokens_per_block: int) -> int:
    """Tokens of the first chunk once `position` tokens are reused: it ends on a block boundary or with the prompt."""
    if position + chunk >= prompt:
        return prompt - position
    if position == 0:
        return chunk
    return (position + chunk) // tokens_per_block * tokens_per_block - position
