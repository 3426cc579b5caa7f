"""Names of token content: turns a request's tokens, extra ids, namespaces and multimodal items into nodes, and back.

Used where whole tokens are known: the manager's Python face, events and hashes. Traces take the compiled way through
`kvcache.keys.intern_all`. Models `BlockKey` building (`buildBlockKeys`): multimodal items are keyed per block by (item hash,
offset of the block's first covered token in the item).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvcache.blockhash import MultimodalEntry, block_hash
from kvcache.keys import grow, intern
from kvcache.tables import CONTENT, N_RUNS, PARENT, ROOT, RUN_ID, RUN_TOKENS, SPACE, TOKENS, State


@dataclass(frozen=True)
class MultimodalItem:
    """One item of a prompt: 8 words of hash, first token position, number of tokens."""

    item_hash: tuple[int, ...]
    start: int
    tokens: int


@dataclass(frozen=True)
class Namespace:
    """What else must be equal for two blocks to be the same: LoRA task, cache salt, use of extra ids."""

    lora_id: int | None = None
    cache_salt: int | None = None
    uses_extra_ids: bool = False


class Content:
    """The interned names of one manager; `state` is handed in and returned, for its tables may grow."""

    def __init__(self) -> None:
        self._units: dict[tuple[int, int], int] = {}
        self._unit_names: list[tuple[int, int]] = []
        self._spaces: dict[Namespace, int] = {}
        self._space_names: list[Namespace] = []
        self._extras: dict[tuple[MultimodalEntry, ...], int] = {}
        self._node_extras: dict[int, tuple[MultimodalEntry, ...]] = {}
        self._hashes: dict[int, int] = {ROOT: 0}

    def space(self, namespace: Namespace) -> int:
        """Number of a namespace."""
        if namespace not in self._spaces:
            self._spaces[namespace] = len(self._space_names)
            self._space_names.append(namespace)
        return self._spaces[namespace]

    def _unit(self, token: int, extra: int) -> int:
        name = (token, extra)
        if name not in self._units:
            self._units[name] = len(self._unit_names)
            self._unit_names.append(name)
        return self._units[name]

    def nodes(
        self,
        state: State,
        tokens: Sequence[int],
        usable: int,
        *,
        tokens_per_block: int,
        namespace: Namespace,
        extra_ids: Sequence[int] | None = None,
        items: Sequence[MultimodalItem] = (),
    ) -> tuple[State, list[int]]:
        """Nodes of the first `usable` tokens cut into blocks; the last one may be short."""
        parent, out = ROOT, []
        state = grow(state, usable // tokens_per_block + 2, usable + tokens_per_block)
        for start in range(0, usable, tokens_per_block):
            stop = min(start + tokens_per_block, usable)
            entries = tuple(
                MultimodalEntry(item.item_hash, max(0, start - item.start))
                for item in items
                if item.start < stop and start < item.start + item.tokens
            )
            extra = [extra_ids[i] if i < len(extra_ids) else 0 for i in range(start, stop)] if extra_ids else ()
            parent = self._child(state, parent, tokens[start:stop], namespace, extra, entries)
            out.append(parent)
        return state, out

    def child(
        self,
        state: State,
        parent: int,
        tokens: Sequence[int],
        namespace: Namespace = Namespace(),
        extra_ids: Sequence[int] = (),
    ) -> tuple[State, int]:
        """Node of one key of any length under `parent`."""
        state = grow(state, 2, len(tokens))
        return state, self._child(state, parent, tokens, namespace, extra_ids, ())

    def _child(
        self,
        state: State,
        parent: int,
        tokens: Sequence[int],
        namespace: Namespace,
        extra_ids: Sequence[int],
        entries: tuple[MultimodalEntry, ...],
    ) -> int:
        at = int(state.tally[N_RUNS])
        for i, token in enumerate(tokens):
            state.runs[at + i, RUN_ID] = self._unit(token, extra_ids[i] if extra_ids else 0)
            state.runs[at + i, RUN_TOKENS] = 1
        extras = self._extras.setdefault(entries, len(self._extras)) if entries else -1
        node = int(intern(state, parent, self.space(namespace), extras, len(tokens)))
        if entries:
            self._node_extras[node] = entries
        return node

    def tokens_of(self, state: State, node: int) -> list[tuple[int, int]]:
        """(token, extra id) pairs of a node's own key."""
        first, n = int(state.nodes[node, CONTENT]), int(state.nodes[node, TOKENS])
        return [self._unit_names[int(run)] for run in state.runs[first : first + n, RUN_ID]]

    def namespace_of(self, state: State, node: int) -> Namespace:
        """Namespace of a node's key."""
        return self._space_names[int(state.nodes[node, SPACE])]

    def extras_of(self, node: int) -> tuple[MultimodalEntry, ...]:
        """Multimodal entries of a node's key."""
        return self._node_extras.get(node, ())

    def hash_of(self, state: State, node: int) -> int:
        """TensorRT-LLM's hash of the node's key, chained through its parents."""
        chain = []
        while node not in self._hashes:
            chain.append(node)
            node = int(state.nodes[node, PARENT])
        for missing in reversed(chain):
            names, pairs = self.namespace_of(state, missing), self.tokens_of(state, missing)
            self._hashes[missing] = block_hash(
                [token for token, _ in pairs],
                parent=self._hashes[int(state.nodes[missing, PARENT])],
                extra_ids=[extra for _, extra in pairs] if names.uses_extra_ids else None,
                lora_id=names.lora_id,
                cache_salt=names.cache_salt,
                multimodal=self.extras_of(missing),
            )
        return self._hashes[chain[0] if chain else node]
