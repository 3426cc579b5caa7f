"""Level `function`: pure functions of sizes."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from experiments.conformance.adapter import Adapter, Step
from experiments.conformance.values import UnsupportedError, tokens
from kvcache import functions
from kvcache.functions import LifeCycle, ReusedTokens


class FunctionAdapter(Adapter):
    """The last result."""

    config_keys: ClassVar[frozenset[str]] = frozenset({"tokens_per_block", "manager_version"})
    result: Any = None
    _reused = ReusedTokens({}, [])

    def op_chop_tokens(self, tokens: Any, usable: int, block_size: int, allow_partial: bool) -> None:
        self.result = functions.chop_tokens(_tokens(tokens), usable, block_size, allow_partial=allow_partial)

    def op_max_blocks_per_beam(
        self, sequence_length: int, sink_tokens: int, window: int, tokens_per_block: int
    ) -> None:
        self.result = functions.max_blocks_per_beam(sequence_length, sink_tokens, window, tokens_per_block)

    def op_max_blocks(
        self,
        input_length: int,
        output_length: int,
        sink_tokens: int,
        window: int,
        beam_width: int,
        tokens_per_block: int,
    ) -> None:
        self.result = functions.max_blocks(
            input_length, output_length, sink_tokens, window, beam_width, tokens_per_block
        )

    def op_max_attention_window(
        self,
        input_length: int,
        output_length: int,
        sink_tokens: int,
        block_capacity: int,
        beam_width: int,
        tokens_per_block: int,
    ) -> None:
        self.result = functions.max_attention_window(
            input_length, output_length, sink_tokens, block_capacity, beam_width, tokens_per_block
        )

    def op_window_size_to_share(
        self, cache_size_per_token: Mapping[str, int], window_to_layers: Any = None, total: int | None = None
    ) -> None:
        self.result = functions.window_size_to_share({int(w): size for w, size in cache_size_per_token.items()})

    def op_attribute_reuse_tiers(
        self, life_cycles: Sequence[Mapping[str, Any]], blocks: Sequence[Mapping[str, Any]], num_tokens: int
    ) -> None:
        self._reused = functions.reused_tokens_by_tier(
            [LifeCycle(row.get("window"), row.get("sink_blocks", 0)) for row in life_cycles],
            [(row["tokens"], row["tiers"]) for row in blocks],
            num_tokens,
            self.config["tokens_per_block"],
        )

    def see_chunks(self, expected: Any, step: Step) -> None:
        self.same("chunks", [tokens(chunk) for chunk in expected], self.result)

    def see_num_blocks(self, expected: Any, step: Step) -> None:
        self.same("num_blocks", expected, self.result)

    def see_num_blocks_needed(self, expected: Any, step: Step) -> None:
        self.same("num_blocks_needed", expected, self.result)

    def see_attention_window(self, expected: Any, step: Step) -> None:
        self.same("attention_window", expected, self.result)

    def see_equals_max_blocks_per_beam(self, expected: Mapping[str, int], step: Step) -> None:
        self.same("equals_max_blocks_per_beam", functions.max_blocks_per_beam(**expected), self.result)

    def see_shares(self, expected: Mapping[str, float], step: Step) -> None:
        tolerance = step["expect"].get("tolerance", 1e-6)
        self.same("shares", sorted(int(w) for w in expected), sorted(self.result))
        for window, share in expected.items():
            limits = {"ge": share - tolerance, "le": share + tolerance}
            self.same(f"shares[{window}]", limits, self.result[int(window)])

    def see_tolerance(self, expected: float, step: Step) -> None:
        """Read by `shares` and `sum`."""

    def see_total(self, expected: int, step: Step) -> None:
        """Read by `rounded_blocks`."""

    def see_sum(self, expected: float, step: Step) -> None:
        tolerance = step["expect"].get("tolerance", 1e-6)
        self.same("sum", {"ge": expected - tolerance, "le": expected + tolerance}, sum(self.result.values()))

    def see_rounded_blocks(self, expected: Mapping[str, Any], step: Step) -> None:
        total = step.get("total", step["expect"].get("total", expected.get("total")))
        if total is None:
            raise UnsupportedError("expectation rounded_blocks without a total")
        for window, want in expected.get("blocks", expected).items():
            if window != "total":
                self.same(f"rounded_blocks[{window}]", want, int(self.result[int(window)] * total + 0.5))

    def see_reused_tokens_by_tier(self, expected: Mapping[str, Any], step: Step) -> None:
        self.same("reused_tokens_by_tier", expected, self._reused.by_tier)

    def see_pages_loaded(self, expected: Sequence[Any], step: Step) -> None:
        single = all(not isinstance(block, list) for block in expected)
        got = [any(block) for block in self._reused.loaded] if single else self._reused.loaded
        self.same("pages_loaded", list(expected), got)


_tokens = tokens
