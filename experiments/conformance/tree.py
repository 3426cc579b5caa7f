"""Level `tree`: the prefix index alone. Blocks have names; `root` is none, yet counts as the value above first keys.

A node made without a value is held by a block of a window of our own, that no expectation looks at.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from experiments.conformance.adapter import Adapter, Step
from experiments.conformance.tree_scopes import ScopedTrees
from experiments.conformance.values import CaseError, MismatchError, tokens
from kvcache.content import Content, Namespace
from kvcache.keys import plain
from kvcache.tables import (
    C_COPY_ON_PARTIAL,
    LIVE,
    N_NODES,
    NODE,
    PARENT,
    REFS,
    ROOT,
    SPACE,
    TRUNCATED,
    WINDOW,
    Pool,
    Settings,
    make_state,
)
from kvcache.tree import attach, best_partial, common_tokens, detach, detach_below, is_leaf

ROOM = 512  # blocks a case may name


class TreeAdapter(Adapter):
    """A state whose blocks are used as bare values of the index."""

    config_keys: ClassVar[frozenset[str]] = frozenset({"windows", "tokens_per_block", "manager_version"})

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._sizes = list(config.get("windows", [1]))
        pools = tuple(Pool(size, (ROOM,)) for size in [*self._sizes, 0])
        self._holder = len(self._sizes)  # number of the window that holds value-less nodes
        self._state = make_state(pools, Settings(evict_descendants=True))
        self._content = Content()
        self._names: dict[str, int] = {}
        self._full: set[str] = set()  # a case says itself which blocks are full
        self._held: dict[int, int] = {}
        self._holders = list(range(self._holder * ROOM, (self._holder + 1) * ROOM))
        self._found: tuple[int, int, bool] = (-1, 0, False)
        self._matched_tokens = 0
        self.parts = [self, ScopedTrees(self)]

    # ---- names -----------------------------------------------------------------------------------------------------

    def _block(self, name: str) -> int:
        if name == "root":
            raise CaseError("the root is no block")
        if len(self._names) == ROOM:
            raise CaseError(f"more than {ROOM} blocks")
        return self._names.setdefault(name, len(self._names))

    def _name(self, block: int) -> str | None:
        return next((name for name, row in self._names.items() if row == block), None)

    def _window(self, size: int) -> int | None:
        return self._sizes.index(size) if size in self._sizes else None

    def _own(self, size: int) -> int:
        w = self._window(size)
        if w is None:
            raise CaseError(f"no window of {size} tokens; windows: {self._sizes}")
        return w

    def _child(self, parent: int, key: Any) -> int:
        self._state, node = self._content.child(self._state, parent, tokens(key))
        return node

    def _path(self, path: Sequence[Any]) -> int:
        node = ROOT
        for key in path:
            node = self._child(node, key)
        return node

    def _node_of(self, name: str) -> int:
        """Node of a block's place; -1 if it has none."""
        return ROOT if name == "root" else int(self._state.blocks[self._block(name), NODE])

    def _value(self, w: int | None, node: int) -> int:
        return -1 if w is None else int(self._state.value[w, node])

    # ---- changing --------------------------------------------------------------------------------------------------

    def op_make_node(self, path: Sequence[Any]) -> None:
        node = self._path(path)
        if self._state.nodes[node, LIVE] == 0:
            block = self._holders.pop()
            attach(self._state, block, node)
            self._let_go(node, above_only=True)
            self._held[node] = block

    def _let_go(self, node: int, *, above_only: bool = False) -> None:
        """Nodes with a value or a child are no longer held: they go when those go."""
        node = int(self._state.nodes[node, PARENT]) if above_only else node
        while node > ROOT:
            if node in self._held:
                self._holders.append(self._held.pop(node))
                detach(self._state, self._holders[-1], TRUNCATED)
            node = int(self._state.nodes[node, PARENT])

    def op_attach(self, block: str, path: Sequence[Any], window: int) -> None:
        self._put(self._block(block), self._path(path), self._own(window))

    def _put(self, block: int, node: int, w: int) -> None:
        old = int(self._state.value[w, node])
        if old == block:
            return
        for moved in (block, old):
            if moved != -1:
                detach(self._state, moved, TRUNCATED)
        self._state.blocks[block, WINDOW] = w
        attach(self._state, block, node)
        self._let_go(node)

    def op_detach(self, block: str) -> None:
        detach(self._state, self._block(block), TRUNCATED)

    def op_add_next(self, parent: str, key: Any, block: str, window: int) -> None:
        above = self._node_of(parent)
        if above != -1:
            self._insert(self._child(above, key), block, window)

    def op_insert(self, path: Sequence[Any], block: str, window: int) -> None:
        self._insert(self._path(path), block, window)

    def _insert(self, node: int, block: str, window: int) -> None:
        row, w = self._block(block), self._own(window)
        if self._value(w, node) == -1:
            self._put(row, node, w)

    def op_remove_next(self, parent: str, key: Any, window: int) -> None:
        above = self._node_of(parent)
        block = -1 if above == -1 else self._value(self._window(window), self._child(above, key))
        if block != -1:
            detach(self._state, block, TRUNCATED)

    def op_ref_block(self, block: str, delta: int) -> None:
        self._state.blocks[self._block(block), REFS] += delta

    def op_set_block_key(self, block: str, key: Any, full: bool) -> None:
        self._block(block)
        (self._full.add if full else self._full.discard)(block)

    def op_free_leaf(self, block: str) -> None:
        row = self._block(block)
        if not is_leaf(self._state, row):
            raise ValueError(f"block {block} is no leaf")
        detach(self._state, row, TRUNCATED)

    def op_free_subtree(self, block: str) -> None:
        row = self._block(block)
        node = int(self._state.blocks[row, NODE])
        if node != -1:
            detach_below(self._state, int(self._state.blocks[row, WINDOW]), node)
            detach(self._state, row, TRUNCATED)

    # ---- looking up ------------------------------------------------------------------------------------------------

    def op_lookup(self, path: Sequence[Any], window: int, allow_partial: bool = False) -> None:
        block = self._value(self._window(window), self._path(path))
        self._found = (block, sum(len(tokens(key)) for key in path) if block != -1 else 0, False)

    def op_find_match(
        self, parent: str, key: Any, window: int, enable_partial: bool = True, copy_on_partial: bool = True
    ) -> None:
        self._found = (-1, 0, False)
        above, w = self._node_of(parent), self._window(window)
        if above == -1 or w is None:
            return
        node = self._child(above, key)
        block = self._value(w, node)
        if block != -1:
            self._found = (block, len(tokens(key)), self._name(block) not in self._full)
        elif enable_partial and self._state.nodes[node, LIVE] == 0:
            self._state.conf[C_COPY_ON_PARTIAL] = copy_on_partial
            block, shared = best_partial(self._state, w, node)
            self._found = (int(block), int(shared), block != -1)

    def op_key_match(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
        one, other = self._key(a), self._key(b)
        nodes = self._state.nodes
        same = nodes[one, SPACE] == nodes[other, SPACE] and plain(self._state, one) and plain(self._state, other)
        self._found = (-1, int(common_tokens(self._state, one, other)) if same else 0, False)

    def _key(self, key: Mapping[str, Any]) -> int:
        extra = tokens(key.get("extra_ids", []))
        space = Namespace(key.get("lora_id"), key.get("cache_salt"), key.get("uses_extra_ids", bool(extra)))
        self._state, node = self._content.child(self._state, ROOT, tokens(key["tokens"]), space, extra)
        return node

    # ---- expectations ----------------------------------------------------------------------------------------------

    def see_block(self, expected: str | None, step: Step) -> None:
        self.same("block", expected, self._name(self._found[0]))

    def see_partial(self, expected: bool, step: Step) -> None:
        self.same("partial", expected, self._found[2])

    def see_num_matched(self, expected: Any, step: Step) -> None:
        self.same("num_matched", expected, self._found[1])

    def _existing(self) -> list[int]:
        nodes = self._state.nodes[: int(self._state.tally[N_NODES])]
        return [int(node) for node in np.flatnonzero(nodes[:, LIVE] > 0) if node != ROOT]

    def _values(self, node: int) -> list[int]:
        return [b for b in (int(v) for v in self._state.value[: self._holder, node]) if b != -1]

    def _own_key(self, node: int) -> list[int]:
        return [token for token, _ in self._content.tokens_of(self._state, node)]

    def _keys_to(self, node: int) -> list[list[int]]:
        path: list[list[int]] = []
        while node != ROOT:
            path.insert(0, self._own_key(node))
            node = int(self._state.nodes[node, PARENT])
        return path

    def see_node_count(self, expected: Any, step: Step) -> None:
        self.same("node_count", expected, len(self._existing()))

    def see_attached(self, expected: Mapping[str, bool], step: Step) -> None:
        for name, want in expected.items():
            self.same(f"attached[{name}]", want, self._node_of(name) != -1)

    def see_prev(self, expected: Mapping[str, str | None], step: Step) -> None:
        for name, want in expected.items():
            self.same(f"prev[{name}]", want, self._prev(name))

    def _prev(self, name: str) -> str | None:
        node = self._node_of(name)
        if node in {-1, ROOT}:
            return None
        w, above = int(self._state.blocks[self._block(name), WINDOW]), int(self._state.nodes[node, PARENT])
        if above == ROOT:
            return "root" if w == 0 else None
        return self._name(self._value(w, above))

    def see_leaf(self, expected: Mapping[str, bool], step: Step) -> None:
        for name, want in expected.items():
            if name == "root":
                self.same("leaf[root]", want, not self._existing())
            else:
                self.same(f"leaf[{name}]", want, bool(is_leaf(self._state, self._block(name))))

    def see_next(self, expected: Mapping[str, Sequence[Any]], step: Step) -> None:
        for name, want in expected.items():
            above = self._node_of(name)
            got = [
                [self._own_key(node), self._name(block)]
                for node in self._existing()
                if above != -1 and self._state.nodes[node, PARENT] == above
                for block in self._values(node)
            ]
            self.same(f"next[{name}]", sorted([tokens(key), child] for key, child in want), sorted(got))

    def see_value_at(self, expected: Any, step: Step) -> None:
        for want in [expected] if isinstance(expected, dict) else expected:
            got = self._value(self._window(want["window"]), self._path(want["path"])) != -1
            self.same(f"value_at {want['path']} window {want['window']}", want["present"], got)

    def see_edges(self, expected: Sequence[Any], step: Step) -> None:
        got = [self._keys_to(node) for node in self._existing() if self._values(node)]
        want = [[tokens(key) for key in path] for path in expected]
        if sorted(want) != sorted(got):
            raise MismatchError("edges", want, got)
