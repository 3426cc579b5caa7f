"""Levels `manager` and `block_manager`: what a case may expect of requests and their blocks. Changes nothing."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.conformance.adapter import Step
from experiments.conformance.values import CaseError, MismatchError, UnsupportedError, agrees, is_by_window
from kvcache.inspection import check, describe
from kvcache.tables import (
    ALLOC_TOTAL,
    COPY_COLUMNS,
    DEFAULT_PRIORITY,
    INTRA_COPY,
    LEVEL,
    SLOT,
)

if TYPE_CHECKING:
    from experiments.conformance.manager import ManagerAdapter
    from kvcache.manager import KVCacheManager


class ManagerSight:
    """The expectations of the manager levels."""

    def __init__(self, adapter: "ManagerAdapter") -> None:
        self._a = adapter
        self.start_step()

    @property
    def _m(self) -> "KVCacheManager":
        return self._a.manager

    def start_step(self) -> None:
        """Copies and allocations are counted from here; blocks are known by the place they are in now."""
        m = self._m
        m.take_copies()
        self.taken = int(m.state.stats[:, ALLOC_TOTAL].sum())
        self._places = {
            (w, int(row[LEVEL]), int(row[SLOT])): block_id
            for w in self.windows()
            for block_id, row in enumerate(m.state.blocks[m.block_row(0, w) : m.block_row(self.blocks(w), w)])
        }

    # ---- windows ---------------------------------------------------------------------------------------------------

    def windows(self) -> range:
        """Numbers of the windows."""
        return range(len(self._m.pools))

    def window(self, size: str) -> int:
        sizes = [str(pool.window_tokens) for pool in self._m.pools]
        if size not in sizes:
            raise CaseError(f"no window of {size} tokens; windows: {', '.join(sizes)}")
        return sizes.index(size)

    def blocks(self, w: int) -> int:
        return sum(self._m.pools[w].blocks)

    def by_window(self, what: str, expected: Any, got: Callable[[int], Any], *, total: bool = False) -> None:
        """Each window by its size; a plain value is about the only window, or about all together where that adds up."""
        if is_by_window(expected):
            for size, value in expected.items():
                self._a.same(f"{what}[{size}]", value, got(self.window(size)))
        elif total:
            self._a.same(what, expected, sum(got(w) for w in self.windows()))
        elif len(self.windows()) == 1:
            self._a.same(what, expected, got(0))
        else:
            raise UnsupportedError(f"{what} without a window, but there are several")

    # ---- blocks of sequences ---------------------------------------------------------------------------------------

    def block_id(self, ref: Any, w: int = 0) -> int:
        """An id, given as it is or as a position of a request's list."""
        if isinstance(ref, dict):
            return int(self._ids(ref["request_id"], w)[ref["index"]] or 0)
        return int(ref)

    def _ids(self, request_id: int, w: int) -> list[int | None]:
        return self._m.block_ids(request_id, w)

    def see_block_ids(self, expected: Any, step: Step) -> None:
        wants = expected if is_by_window(expected) else {str(self._only_window().window_tokens): expected}
        for size, want in wants.items():
            got = self._ids(step["request_id"], self.window(size))
            what = f"block_ids[{size}]" if is_by_window(expected) else "block_ids"
            good = len(got) == len(want) and all(
                e is None or agrees(self._plain(e), g, self._a.saved) for e, g in zip(want, got, strict=True)
            )
            if not good:
                raise MismatchError(what, want, got)

    def _only_window(self) -> Any:
        if len(self._m.pools) != 1:
            raise UnsupportedError("block_ids without a window, but there are several")
        return self._m.pools[0]

    def _plain(self, value: Any) -> Any:
        """A block reference as the id it means."""
        if isinstance(value, dict) and "request_id" in value:
            return self.block_id(value)
        return value

    def see_num_blocks(self, expected: Any, step: Step) -> None:
        self.by_window("num_blocks", expected, lambda w: len(self._ids(step["request_id"], w)))

    def see_requests(self, expected: Mapping[str, Any], step: Step) -> None:
        for request_id, expect in expected.items():
            for key, value in expect.items():
                if key == "requests" or self._a.method(f"see_{key}") is None:
                    raise UnsupportedError(f"expectation requests.{key}")
                self._about(request_id, key, value)

    def _about(self, request_id: str, key: str, value: Any) -> None:
        try:
            self._a.see(key, value, {"request_id": int(request_id)})
        except MismatchError as error:
            raise MismatchError(f"requests[{request_id}].{error.what}", error.expected, error.got) from None

    def see_same_block(self, expected: Sequence[Any], step: Step) -> None:
        for one, other in expected:
            self._a.same(f"same_block {one}", self.block_id(other), self.block_id(one))

    def see_different_block(self, expected: Sequence[Any], step: Step) -> None:
        for one, other in expected:
            self._a.same(f"different_block {one}", {"ne": self.block_id(other)}, self.block_id(one))

    def see_front_blocks_removed(self, expected: Any, step: Step) -> None:
        self.by_window("front_blocks_removed", expected, lambda w: self._m.front_blocks_removed(step["request_id"], w))

    # ---- requests --------------------------------------------------------------------------------------------------

    def see_context_current_position(self, expected: Any, step: Step) -> None:
        self._a.same("context_current_position", expected, self._a.request(step["request_id"]).position)

    def see_prepopulated_prompt_len(self, expected: Any, step: Step) -> None:
        self._a.same("prepopulated_prompt_len", expected, self._a.request(step["request_id"]).prepopulated)

    def see_estimated_reusable_tokens(self, expected: Any, step: Step) -> None:
        got = self._a.request(step["request_id"]).estimated_reusable_tokens
        self._a.same("estimated_reusable_tokens", expected, got)

    def see_num_request_tokens(self, expected: Any, step: Step) -> None:
        self._a.same("num_request_tokens", expected, len(self._a.request(step["request_id"]).tokens))

    def see_num_sequence_tokens(self, expected: Any, step: Step) -> None:
        self._a.same("num_sequence_tokens", expected, self._m.sequence_slots(step["request_id"]))

    def see_request_stats(self, expected: Mapping[str, Any], step: Step) -> None:
        r = self._a.request(step["request_id"])
        got = {
            "reused_blocks": r.reused,
            "alloc_total_blocks": r.alloc_total,
            "alloc_new_blocks": r.alloc_new,
            "missed_blocks": r.missed,
            "hit_rate": hit_rate(r.reused, r.missed),
        }
        self.fields("request_stats", expected, got)

    def fields(self, what: str, expected: Mapping[str, Any], got: Mapping[str, Any]) -> None:
        for name, value in expected.items():
            if name not in got:
                raise UnsupportedError(f"expectation {what}.{name}")
            self._a.same(f"{what}.{name}", value, got[name])

    # ---- single blocks ---------------------------------------------------------------------------------------------

    def see_block_states(self, expected: Sequence[Mapping[str, Any]], step: Step) -> None:
        for want in expected:
            fields = {key: value for key, value in want.items() if key != "block"}
            got = describe(self._m, self.block_id(want["block"]))
            self.fields(f"block_states[{want['block']}]", fields, {k: got[k] for k in ("primary", "prev_block")})

    def see_block_priorities(self, expected: Sequence[Mapping[str, Any]], step: Step) -> None:
        for want in expected:
            block = self.block_id(want["block"])
            known = 0 <= block < self.blocks(0)
            got = describe(self._m, block)["priority"] if known else DEFAULT_PRIORITY
            self._a.same(f"block_priorities[{want['block']}]", want["priority"], got)

    def see_queue_integrity(self, expected: bool, step: Step) -> None:
        try:
            check(self._m)
        except AssertionError as error:
            if expected:
                raise MismatchError("queue_integrity", expected, str(error)) from None
        else:
            self._a.same("queue_integrity", expected, True)

    def see_copies(self, expected: Sequence[Mapping[str, Any]], step: Step) -> None:
        self._a.same("copies", list(expected), self._copies())

    def _copies(self) -> list[dict[str, int]]:
        """The step's copies between block ids: whole blocks change places, parts do not."""
        out = []
        rows = self._m.take_copies().reshape(-1, COPY_COLUMNS)
        for kind, w, source, target, tokens, _ in rows.tolist():
            here, there = self._levels(kind)
            a, b = (w, here, source), (w, there, target)
            out.append({"from": self._places[a], "to": self._places[b], "tokens": tokens})
            if tokens == 0:
                self._places[a], self._places[b] = self._places[b], self._places[a]
        return out

    @staticmethod
    def _levels(kind: int) -> tuple[int, int]:
        return (0, 0) if kind == INTRA_COPY else [(0, 1), (1, 0), (1, 2), (2, 0)][kind]


def hit_rate(reused: int, missed: int) -> float:
    """Blocks reused of those looked for."""
    return 0.0 if reused == 0 else reused / (reused + missed)
