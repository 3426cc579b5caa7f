"""Level `scheduler`: the loop of the format around a capacity policy and a fresh manager.

A request that the policy pauses is removed unstored and goes on with its tokens so far as its prompt: so does the loop
of TensorRT-LLM's own tests.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from experiments.conformance import world
from experiments.conformance.adapter import Adapter, Step
from experiments.conformance.values import MismatchError, UnsupportedError
from kvcache.cache_request import CacheRequest
from kvcache.scheduler import POLICIES, first_chunk, pause
from kvcache.tables import REUSED

State = Mapping[str, Any]


class SchedulerAdapter(Adapter):
    """The manager of the last run, and how long it took."""

    config_keys: ClassVar[frozenset[str]] = world.CONFIG_KEYS

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._manager = world.make_manager(self.config)
        self._chunks: dict[int, int] = {}
        self._iterations = 0
        self._states: Sequence[State] = ()
        self._differs: MismatchError | None = None

    def op_run_scheduler(self, policy: str, requests: Sequence[Mapping[str, Any]]) -> None:
        if policy not in POLICIES:
            raise UnsupportedError(f"scheduler policy {policy}")
        self._manager = world.make_manager(self.config)
        self._differs = None
        active = [world.make_request(fields) for fields in requests]
        self._chunks = {f["request_id"]: f["context_chunk_size"] for f in requests if "context_chunk_size" in f}
        most = sum(r.prompt_tokens + r.max_new_tokens for r in active) * max(1, len(active)) + 100
        self._iterations = 0
        while active and self._iterations < most:
            active = self._iterate(policy, active)
            self._iterations += 1

    def run(self, step: Step) -> None:
        """What a case expects of the iterations is checked while they run."""
        self._states = step.get("expect", {}).get("states", ())
        super().run(step)

    def _iterate(self, policy: str, active: list[CacheRequest]) -> list[CacheRequest]:
        limit = self.config.get("max_num_sequences", len(active))
        scheduled, paused = POLICIES[policy](self._manager, active, limit)
        self._compare(active, scheduled)
        for request in paused:
            pause(self._manager, request, store=False)
            self._chunks.pop(request.request_id, None)
        done = set()
        for request in sorted(scheduled, key=lambda r: r.request_id):
            self._advance(request)
            if len(request.tokens) == request.prompt_tokens + request.max_new_tokens:
                self._manager.release(request.request_id)
                done.add(request.request_id)
        return [request for request in active if request.request_id not in done]

    def _advance(self, request: CacheRequest) -> None:
        m, r = self._manager, request
        if r.generating:
            m.add_tokens(r.request_id, [self._iterations])
            return
        chunk = self._chunks.get(r.request_id, r.prompt_tokens)
        if r.slot < 0:
            m.add_sequence_batch([r])
            chunk = first_chunk(r.position, chunk, r.prompt_tokens, m.settings.tokens_per_block)
        r.position = min(r.position + chunk, r.prompt_tokens)
        if r.position == r.prompt_tokens:
            m.store_context_blocks(r.request_id)
            m.append_tokens(r.request_id, [self._iterations])
            r.generating = True

    # ---- expectations ----------------------------------------------------------------------------------------------

    def _compare(self, active: Sequence[CacheRequest], scheduled: Sequence[CacheRequest]) -> None:
        for i, state in enumerate(self._states):
            if self._differs is None and state["from"] <= self._iterations < state["to"]:
                try:
                    self._compare_state(i, state, active, scheduled)
                except MismatchError as error:
                    self._differs = error

    def _compare_state(
        self, i: int, state: State, active: Sequence[CacheRequest], scheduled: Sequence[CacheRequest]
    ) -> None:
        what = f"states[{i}] iteration {self._iterations}"
        self.same(f"{what} active", list(state["active"]), [r.request_id for r in active])
        by_id = {r.request_id: r for r in scheduled}
        wants = {want["request_id"]: want for want in state["scheduled"]}
        self.same(f"{what} scheduled", sorted(wants), sorted(by_id))
        if self._iterations != state["from"]:
            return
        before = {want["request_id"] for want in self._states[i - 1]["scheduled"]} if i > 0 else set()
        for request_id, want in wants.items():
            r = by_id[request_id]
            if request_id not in before:
                self.same(f"{what} request {request_id} in its context phase", True, not r.generating)
            self._compare_request(f"{what} request {request_id}", want, r)

    def _compare_request(self, what: str, want: Mapping[str, Any], r: CacheRequest) -> None:
        got = {
            "request_id": r.request_id,
            "max_new_tokens": r.max_new_tokens,
            "prompt_len": r.prompt_tokens,
            "generated": len(r.tokens) - r.prompt_tokens,
            "position": r.position,
        }
        for name, value in want.items():
            if name not in got:
                raise UnsupportedError(f"expectation states.{name}")
            self.same(f"{what} {name}", value, got[name])

    def see_states(self, expected: Sequence[State], step: Step) -> None:
        if self._differs is not None:
            raise self._differs

    def see_iterations(self, expected: Any, step: Step) -> None:
        self.same("iterations", expected, self._iterations)

    def see_num_reused_blocks(self, expected: Any, step: Step) -> None:
        self.same("num_reused_blocks", expected, int(self._manager.state.stats[:, REUSED].sum()))
