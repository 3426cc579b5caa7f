"""The manager does what the oracle does, whatever comes in whatever order: compared after every operation."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.kvcache.long_run import drive
from tests.kvcache.naive import Rules
from tests.kvcache.pair import Ask, Pair

PRIORITIES = st.sampled_from((0, 10, 29, 30, 35, 50, 100))
DURATIONS = st.sampled_from((None, 0, 50, 200))
TOKENS = st.integers(0, 2)

RULES = st.builds(
    Rules,
    tpb=st.integers(2, 4),
    sizes=st.tuples(st.integers(3, 12), st.integers(0, 6))
    | st.tuples(st.integers(3, 12), st.integers(0, 6), st.integers(0, 5)),
    offload_min=st.sampled_from((0, 30, 35, 36, 101)),
    cold_min=st.sampled_from((0, 35, 50)),
    partial=st.booleans(),
    copy_on_partial=st.booleans(),
    evict_descendants=st.booleans(),
    detached_first=st.booleans(),
    emptied_front=st.booleans(),
    sequential=st.booleans(),
)


@st.composite
def asks(draw: st.DrawFn, tpb: int) -> Ask:
    """A prompt over three tokens: a repeated word (so that prefixes are shared) and a free tail."""
    length = draw(st.integers(1, 4 * tpb) | st.integers(1, 4).map(lambda blocks: blocks * tpb))
    word = draw(st.sampled_from(((0,), (0, 1), (0, 1, 2))))
    tail = draw(st.lists(TOKENS, max_size=3))
    tokens = ((word * length)[: max(1, length - len(tail))] + tuple(tail))[:length]
    ranges, start = [], draw(st.integers(0, tpb))
    for priority, duration in draw(st.lists(st.tuples(PRIORITIES, DURATIONS), max_size=2)):
        end = start + draw(st.integers(1, 2 * tpb))
        ranges.append((start, end, priority, duration))
        start = end
    return Ask(
        tokens,
        lora=draw(st.sampled_from((None, None, None, 7))),
        salt=draw(st.sampled_from((None, None, None, 1))),
        ranges=tuple(ranges),
        decode=draw(st.sampled_from(((35, None), (20, 100), (60, None)))),
    )


class ManagerAgainstOracle(RuleBasedStateMachine):
    @initialize(rules=RULES)
    def start(self, rules: Rules) -> None:
        self.pair = Pair(rules)
        self.next_name = 0

    def some(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.pair.oracle.seqs)), label="sequence")

    def has_sequences(self) -> bool:
        return bool(self.pair.oracle.seqs)

    @rule(data=st.data(), size=st.integers(1, 3), twins=st.booleans())
    def add(self, data: st.DataObject, size: int, twins: bool) -> None:
        first = data.draw(asks(self.pair.rules.tpb), label="request")
        others = [first if twins else data.draw(asks(self.pair.rules.tpb), label="request") for _ in range(size - 1)]
        self.pair.add({self.next_name + i: ask for i, ask in enumerate((first, *others))})
        self.next_name += size

    @precondition(has_sequences)
    @rule(data=st.data(), tokens=st.lists(TOKENS, min_size=1, max_size=5))
    def grow(self, data: st.DataObject, tokens: list[int]) -> None:
        self.pair.grow(self.some(data), tokens)

    @precondition(has_sequences)
    @rule(data=st.data(), done=st.integers(0, 16))
    def store_after_chunk(self, data: st.DataObject, done: int) -> None:
        name = self.some(data)
        seq = self.pair.oracle.seqs[name]
        self.pair.position(name, min(seq.prompt, max(seq.position, done)))
        self.pair.store_context(name)

    @precondition(has_sequences)
    @rule(data=st.data())
    def store_new_block(self, data: st.DataObject) -> None:
        self.pair.store_new_block(self.some(data))

    @precondition(has_sequences)
    @rule(data=st.data(), taken=st.integers(1, 5), kept=st.integers(0, 5))
    def draft(self, data: st.DataObject, taken: int, kept: int) -> None:
        name = self.some(data)
        before = self.pair.oracle.seqs[name].slots
        self.pair.slots(name, taken)
        self.pair.rewind(name, max(0, self.pair.oracle.seqs[name].slots - before - kept))

    @precondition(has_sequences)
    @rule(data=st.data(), store=st.booleans())
    def release(self, data: st.DataObject, store: bool) -> None:
        self.pair.release(self.some(data), store=store)

    @precondition(has_sequences)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        self.pair.pin(self.some(data))

    @precondition(lambda self: self.pair.pinned)
    @rule()
    def unpin(self) -> None:
        self.pair.unpin(0)

    @rule(data=st.data(), keep=st.integers(0, 8))
    def truncate(self, data: st.DataObject, keep: int) -> None:
        self.pair.truncate(data.draw(asks(self.pair.rules.tpb)), keep)

    @rule(passed_ms=st.sampled_from((0, 50, 100)))
    def refresh(self, passed_ms: int) -> None:
        self.pair.refresh(passed_ms)

    @invariant()
    def nothing_differs(self) -> None:
        self.pair.compare()


TestManagerAgainstOracle = ManagerAgainstOracle.TestCase
TestManagerAgainstOracle.settings = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def test_ten_thousand_random_operations_reach_every_rule_and_differ_nowhere() -> None:
    counts = drive(20260701, 10_000)
    reached = ["offloaded", "onboarded", "onboarded_from_disk", "disk_writes", "intra_copies", "partial_from_host"]
    for name in [*reached, "alloc_new", "refused batches", "pin", "unpin", "truncate", "draft", "chunk"]:
        assert counts[name] > 0, name
