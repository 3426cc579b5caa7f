"""A request as the manager's callers hold it: its tokens, what isolates them, and how far it has come. It decides nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvcache.content import MultimodalItem, Namespace
from kvcache.retention import KvCacheRetentionConfig


class OutOfBlocksError(RuntimeError):
    """No GPU block is free for an allocation. What the call had taken is given back; what it had evicted stays evicted."""


@dataclass(eq=False)
class CacheRequest:
    """One request as the manager sees it. Tokens grow while it generates; `position` is how much of the prompt is computed."""

    request_id: int
    tokens: list[int]
    max_new_tokens: int = 0
    extra_ids: list[int] | None = None
    lora_id: int | None = None
    cache_salt: int | None = None
    items: tuple[MultimodalItem, ...] = ()
    retention: KvCacheRetentionConfig | None = None
    draft_tokens: int = 0
    prompt_tokens: int = 0
    position: int = 0
    generating: bool = False
    prepopulated: int = 0
    estimated_reusable_tokens: int = 0
    alloc_total: int = 0
    alloc_new: int = 0
    reused: int = 0
    missed: int = 0
    slot: int = -1
    namespace: Namespace = field(init=False)

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ValueError(f"request {self.request_id} has no tokens; a prompt needs at least one")
        if self.extra_ids is not None and len(self.extra_ids) != len(self.tokens):
            raise ValueError(
                f"request {self.request_id} has {len(self.extra_ids)} extra ids for {len(self.tokens)} tokens"
            )
        self.prompt_tokens = len(self.tokens)
        self.namespace = Namespace(self.lora_id, self.cache_salt, self.extra_ids is not None)

    def append(self, tokens: Sequence[int]) -> None:
        """Generated tokens; their extra ids are 0."""
        self.tokens = [*self.tokens, *tokens]
        if self.extra_ids is not None:
            self.extra_ids = [*self.extra_ids, *[0] * len(tokens)]

    def usable(self) -> int:
        """Tokens whose keys and values are in memory: while prefill goes on only the computed part counts, less one."""
        n = len(self.tokens)
        if 0 < self.position < self.prompt_tokens:
            n = min(n, self.position)
        return n - 1
