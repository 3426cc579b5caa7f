"""Level `tree`, V2's scopes (LoRA id and salt): our index names keys by number; equal numbers mean equal keys.

A scope has no tree of its own here (`scoped_*` is not supported): there is one index, and the scope is in each key.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.conformance.adapter import Step
from experiments.conformance.values import tokens
from kvcache.content import Content, Namespace
from kvcache.tables import Pool, Settings, make_state

if TYPE_CHECKING:
    from experiments.conformance.tree import TreeAdapter


class ScopedTrees:
    """The keys of the last step."""

    def __init__(self, adapter: "TreeAdapter") -> None:
        self._a = adapter
        self._state = make_state((Pool(1, (1,)),), Settings())
        self._content = Content()
        self._asked: tuple[Sequence[Mapping[str, Any]], list[int]] = ([], [])
        self._chains: list[list[int]] = []

    def _chain(self, scope: Mapping[str, Any], of: list[int]) -> list[int]:
        space = Namespace(scope.get("lora_id"), scope.get("salt"))
        self._state, nodes = self._content.nodes(
            self._state, of, len(of), tokens_per_block=self._a.config["tokens_per_block"], namespace=space
        )
        return nodes

    def op_scope_chain_keys(self, a: Mapping[str, Any], b: Mapping[str, Any], tokens: Any) -> None:
        self._ask([a, b], tokens)

    def op_scope_root_keys(self, scopes: Sequence[Mapping[str, Any]], tokens: Any) -> None:
        self._ask(scopes, tokens)

    def _ask(self, scopes: Sequence[Mapping[str, Any]], value: Any) -> None:
        self._asked = (scopes, tokens(value))
        self._chains = [self._chain(scope, self._asked[1]) for scope in scopes]

    def see_equal(self, expected: bool, step: Step) -> None:
        self._a.same("equal", expected, self._chains[0] == self._chains[1])

    def see_distinct(self, expected: Any, step: Step) -> None:
        self._a.same("distinct", expected, len({chain[0] for chain in self._chains}))

    def see_deterministic(self, expected: bool, step: Step) -> None:
        scopes, of = self._asked
        self._a.same("deterministic", expected, [self._chain(scope, of) for scope in scopes] == self._chains)
