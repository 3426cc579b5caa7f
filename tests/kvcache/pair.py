"""The manager and the oracle side by side: one operation goes to both, then everything either knows is compared."""

from functools import cache
from typing import Any, NamedTuple

from kvcache.blockhash import block_hash
from kvcache.cache_request import CacheRequest, OutOfBlocksError
from kvcache.content import Namespace
from kvcache.inspection import check, queue_order
from kvcache.manager import KVCacheManager
from kvcache.retention import KvCacheRetentionConfig, TokenRangeRetentionConfig
from kvcache.single_blocks import truncate
from kvcache.tables import (
    ALLOC_NEW,
    ALLOC_TOTAL,
    DROPPED,
    DURATION_MS,
    FULL_REUSED,
    GEN_ALLOC,
    HIT_TOKENS_DISK,
    HIT_TOKENS_GPU,
    HIT_TOKENS_HOST,
    INTRA_COPIES,
    KEY,
    LEVEL,
    MISSED,
    NODE,
    OFFLOADED,
    ONBOARDED,
    ONBOARDED_FROM_DISK,
    PARENT,
    PARTIAL_FROM_HOST,
    PARTIAL_REUSED,
    PRIORITY,
    REFS,
    REUSED,
    ROOT,
    SLOT,
    STORED,
    Pool,
    Settings,
)
from kvcache.tables import DISK_WRITES as DISK_WRITES_STAT
from tests.kvcache.naive import ExhaustedError, Oracle, Path, Rules, Seq

STATS = {
    "alloc_total": ALLOC_TOTAL,
    "alloc_new": ALLOC_NEW,
    "full_reused": FULL_REUSED,
    "partial_reused": PARTIAL_REUSED,
    "missed": MISSED,
    "gen_alloc": GEN_ALLOC,
    "offloaded": OFFLOADED,
    "onboarded": ONBOARDED,
    "onboarded_from_disk": ONBOARDED_FROM_DISK,
    "intra_copies": INTRA_COPIES,
    "partial_from_host": PARTIAL_FROM_HOST,
    "disk_writes": DISK_WRITES_STAT,
    "dropped": DROPPED,
    "stored": STORED,
    ("hit_tokens", 0): HIT_TOKENS_GPU,
    ("hit_tokens", 1): HIT_TOKENS_HOST,
    ("hit_tokens", 2): HIT_TOKENS_DISK,
}
COPY_KINDS = ("offload", "onboard", "disk_write", "disk_read", "intra_copy")


class Ask(NamedTuple):
    """One request as a test describes it."""

    tokens: tuple[int, ...]
    lora: int | None = None
    salt: int | None = None
    ranges: tuple[tuple[int, int | None, int, int | None], ...] = ()
    decode: tuple[int, int | None] = (35, None)

    def request(self, name: int) -> CacheRequest:
        retention = None
        if self.ranges or self.decode != (35, None):
            retention = KvCacheRetentionConfig([TokenRangeRetentionConfig(*r) for r in self.ranges], *self.decode)
        return CacheRequest(
            name, list(self.tokens), lora_id=self.lora, cache_salt=self.salt, retention=retention, max_new_tokens=8
        )

    def seq(self) -> Seq:
        space = (self.lora, self.salt)
        return Seq(list(self.tokens), space, len(self.tokens), ranges=self.ranges, decode=self.decode)


@cache
def path_hash(path: Path) -> int:
    """What events call a block: the hash of its key chained to its parent's."""
    if not path:
        return 0
    (lora, salt), tokens = path[-1]
    return block_hash(tokens, parent=path_hash(path[:-1]), lora_id=lora, cache_salt=salt)


class Pair:
    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.oracle = Oracle(rules)
        settings = Settings(
            tokens_per_block=rules.tpb,
            secondary_offload_min_priority=rules.offload_min,
            cold_tier_offload_min_priority=rules.cold_min,
            enable_block_reuse=rules.reuse,
            enable_partial_reuse=rules.partial,
            copy_on_partial_reuse=rules.copy_on_partial,
            onboard_blocks=rules.onboard,
            evict_descendants=rules.evict_descendants,
            detached_first=rules.detached_first,
            emptied_host_slot_front=rules.emptied_front,
            sequential_claim=rules.sequential,
        )
        self.manager = KVCacheManager([Pool(1 << 20, rules.sizes)], settings, event_buffer_max_size=10_000)
        self.manager.flush_events()
        self.now_ms = 0
        self.pinned: list[list[int]] = []
        self._paths: dict[int, Path] = {ROOT: ()}

    # ---- operations ----------------------------------------------------------------------------------------------

    def add(self, batch: dict[int, Ask]) -> bool:
        """Whether the pool could hold the batch; both sides must agree."""
        requests = [ask.request(name) for name, ask in batch.items()]
        mine = theirs = None
        try:
            theirs = self.oracle.add_batch({name: ask.seq() for name, ask in batch.items()})
        except ExhaustedError:
            theirs = None
        try:
            mine = self.manager.add_sequence_batch(requests)
        except OutOfBlocksError:
            mine = None
        assert mine == theirs
        return mine is not None

    def grow(self, name: int, tokens: list[int]) -> None:
        for token in tokens:
            if self.slots(name, 1):
                self.oracle.seqs[name].tokens.append(token)
                self.manager.append_tokens(name, [token])

    def slots(self, name: int, count: int) -> bool:
        for _ in range(count):
            try:
                self.oracle.add_slot(name)
                fits = True
            except ExhaustedError:
                fits = False
            try:
                self.manager.add_slots(name)
                assert fits
            except OutOfBlocksError:
                assert not fits
            if not fits:
                return False
        return True

    def rewind(self, name: int, count: int) -> None:
        for _ in range(count):
            self.oracle.remove_slot(name)
        self.manager.remove_slots(name, count)

    def position(self, name: int, position: int) -> None:
        self.oracle.seqs[name].position = position
        self.manager.requests[name].position = position

    def store_context(self, name: int) -> None:
        self.oracle.store_context(name)
        self.manager.store_context_blocks(name)

    def store_new_block(self, name: int) -> None:
        self.oracle.store_new_block(name)
        self.manager.store_new_block(name)

    def pin(self, name: int) -> None:
        mine, theirs = self.manager.store_blocks_for_reuse(name, pin=True), self.oracle.pin(name)
        assert mine == theirs
        self.pinned.append(mine)

    def unpin(self, which: int) -> None:
        ids = self.pinned.pop(which)
        self.oracle.unpin(ids)
        self.manager.unpin_blocks(ids)

    def release(self, name: int, *, store: bool = True) -> None:
        self.oracle.release(name, store=store)
        self.manager.release(name, store=store)

    def truncate(self, ask: Ask, keep: int) -> None:
        self.oracle.truncate(list(ask.tokens), keep, (ask.lora, ask.salt))
        truncate(self.manager, list(ask.tokens), keep, Namespace(ask.lora, ask.salt))

    def refresh(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.oracle.refresh(1000 * self.now_ms)
        self.manager.refresh(self.now_ms / 1000)

    # ---- comparison ----------------------------------------------------------------------------------------------

    def compare(self) -> None:
        manager, oracle = self.manager, self.oracle
        check(manager)
        for level in range(len(self.rules.sizes)):
            assert queue_order(manager, 0, level) == [block.id for block in oracle.order(level)]
        rows = manager.state.blocks
        for block in oracle.blocks:
            row = rows[block.id]
            mine = (
                row[LEVEL],
                row[SLOT],
                row[REFS],
                row[PRIORITY],
                row[DURATION_MS],
                manager.state.expiry_us[block.id],
            )
            duration, expiry = (-1 if x is None else x for x in (block.duration_ms, block.expires_us))
            assert mine == (block.level, block.slot, block.refs, block.priority, duration, expiry), block.id
            assert self.path(int(row[KEY])) == block.path, block.id
        assert {
            self.path(int(rows[b.id][NODE])): b.id for b in oracle.blocks if rows[b.id][NODE] != -1
        } == oracle.tree()
        assert list(manager.requests) == list(oracle.seqs)
        for name, seq in oracle.seqs.items():
            assert manager.block_ids(name) == [block.id for block in seq.blocks]
            assert manager.sequence_slots(name) == seq.slots
        self._compare_records()

    def _compare_records(self) -> None:
        copies = [(COPY_KINDS[c[0]], *c[2:5].tolist(), self.path(int(c[5]))) for c in self.manager.take_copies()]
        assert copies == self.oracle.copies
        self.oracle.copies = []
        self.oracle.flush_removed()
        assert [seen_event(event) for event in self.manager.flush_events()] == [
            expected_event(event) for event in self.oracle.events
        ]
        self.oracle.events = []
        mine = self.manager.state.stats[0]
        assert {name: int(mine[column]) for name, column in STATS.items()} == {
            name: self.oracle.stats[name] for name in STATS
        }
        assert mine[REUSED] == mine[FULL_REUSED] + mine[PARTIAL_REUSED]

    def path(self, node: int) -> Path:
        """The oracle's name of a node; () for none."""
        if node == -1:
            return ()
        if node not in self._paths:
            names = self.manager.content.namespace_of(self.manager.state, node)
            tokens = tuple(token for token, _ in self.manager.content.tokens_of(self.manager.state, node))
            above = self.path(int(self.manager.state.nodes[node, PARENT]))
            self._paths[node] = (*above, ((names.lora_id, names.cache_salt), tokens))
        return self._paths[node]


def seen_event(event: dict[str, Any]) -> tuple[object, ...]:
    data = event["data"]
    if data["type"] == "stored":
        blocks = [
            (
                b["block_hash"],
                [t["token_id"] for t in b["tokens"]],
                b["lora_id"],
                b["cache_salt"],
                b["cache_level"],
                b["priority"],
            )
            for b in data["blocks"]
        ]
        return "stored", data["parent_hash"], blocks
    if data["type"] == "removed":
        return "removed", data["block_hashes"]
    kind = "priority" if data["cache_level"] is None else "level"
    diff = data["priority"] or data["cache_level"]
    return kind, data["block_hash"], diff["old_value"], diff["new_value"]


def expected_event(event: tuple[Any, ...]) -> tuple[object, ...]:
    kind, *rest = event
    if kind == "stored":
        parent, blocks = rest
        named = [(path_hash(p), list(p[-1][1]), *p[-1][0], level, priority) for p, level, priority in blocks]
        return kind, path_hash(parent) if parent else None, named
    if kind == "removed":
        return kind, [path_hash(path) for path in rest[0]]
    return kind, path_hash(rest[0]), *rest[1:]
