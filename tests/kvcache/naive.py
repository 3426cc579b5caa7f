"""The oracle: TensorRT-LLM's rules for one full-attention window, one Python object a block, written to be read.

It shares no code with `kvcache`. Slow on purpose: queues are searched, the trie is dicts, expiry is a sort.
"""

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

Key = tuple[object, tuple[int, ...]]  # (namespace, tokens)
Path = tuple[Key, ...]
DEFAULT = 35


class ExhaustedError(Exception):
    """No GPU block is free."""


class Rules(NamedTuple):
    tpb: int
    sizes: tuple[int, ...]  # GPU, host[, disk]
    offload_min: int = 30
    cold_min: int = 0
    partial: bool = True
    copy_on_partial: bool = True
    evict_descendants: bool = False
    detached_first: bool = False
    emptied_front: bool = False
    onboard: bool = True
    reuse: bool = True
    sequential: bool = False


@dataclass(eq=False)
class Node:
    parent: "Node | None" = None
    path: Path = ()
    children: "dict[Key, Node]" = field(default_factory=dict)  # in the order in which they came to exist
    value: "Block | None" = None


@dataclass(eq=False)
class Block:
    id: int
    level: int
    slot: int
    refs: int = 0
    path: Path = ()  # of the content in its memory; stays when it leaves the tree
    node: Node | None = None
    priority: int = DEFAULT
    duration_ms: int | None = None
    expires_us: int | None = None
    queue: tuple[int, int] | None = None  # (level, priority) of the queue it is in


@dataclass(eq=False)
class Claim:
    block: Block
    tokens: int
    partial: bool
    copy: bool = False
    release_source: bool = False


@dataclass(eq=False)
class Seq:
    tokens: list[int]
    space: object
    prompt: int
    position: int = 0
    slots: int = 0
    blocks: list[Block] = field(default_factory=list)
    ranges: tuple[tuple[int, int | None, int, int | None], ...] = ()  # start, end, priority, duration
    decode: tuple[int, int | None] = (DEFAULT, None)

    def usable(self) -> int:
        n = len(self.tokens)
        return (min(n, self.position) if 0 < self.position < self.prompt else n) - 1


class Oracle:
    def __init__(self, rules: Rules) -> None:
        self.rules, self.now_us = rules, 0
        self.blocks: list[Block] = []
        self.queues: defaultdict[tuple[int, int], deque[Block]] = defaultdict(deque)
        for level, size in enumerate(rules.sizes):
            self.blocks += [Block(len(self.blocks) + i, level, i) for i in range(size)]
        for block in self.blocks:
            self.release_block(block)
        self.root = Node()
        self.seqs: dict[int, Seq] = {}
        self.events: list[tuple[object, ...]] = []
        self.removed: list[Path] = []  # waits for the next stored event or the end of the iteration
        self.copies: list[tuple[str, int, int, int, Path]] = []
        self.stats: Counter[str] = Counter()

    # ---- queues --------------------------------------------------------------------------------------------------

    def order(self, level: int) -> list[Block]:
        return [block for p in range(101) for block in self.queues[level, p]]

    def release_block(self, block: Block, *, front: bool = False) -> None:
        if block.queue is not None:
            return
        block.queue = (block.level, block.priority)
        queue = self.queues[block.queue]
        queue.insert(0 if front else len(queue), block)
        if block.duration_ms is not None and block.priority != DEFAULT:
            block.expires_us = self.now_us + 1000 * block.duration_ms

    def claim_block(self, block: Block, priority: int | None = None, duration_ms: int | None = None) -> None:
        if block.queue is not None:
            self.queues[block.queue].remove(block)
            block.queue = None
        if priority is not None:
            block.priority = priority
        block.duration_ms, block.expires_us = duration_ms, None

    def refresh(self, now_us: int) -> None:
        self.now_us = now_us
        due = [b for b in self.blocks if b.expires_us is not None and b.expires_us <= now_us]
        for block in sorted(due, key=lambda b: (b.expires_us, b.id)):
            duration = block.duration_ms
            self.claim_block(block, DEFAULT)
            self.release_block(block)
            block.duration_ms = duration

    def unref(self, block: Block, *, front: bool = False) -> None:
        block.refs -= 1
        if block.refs == 0:
            self.release_block(block, front=front)

    # ---- tree ----------------------------------------------------------------------------------------------------

    def child(self, node: Node, key: Key) -> Node:
        if key not in node.children:
            node.children[key] = Node(node, (*node.path, key))
        return node.children[key]

    def detach(self, block: Block) -> None:
        node, block.node = block.node, None
        if node is None:
            return
        node.value = None
        while node.parent is not None and node.value is None and not node.children:
            del node.parent.children[node.path[-1]]
            node = node.parent

    def in_tree(self, block: Block) -> bool:
        return block.node is not None and (block.node.parent is self.root or block.node.parent.value is not None)

    def below(self, node: Node) -> list[Block]:
        found = []
        for child in node.children.values():
            found += [child.value] * (child.value is not None) + self.below(child)
        return found

    def keys(self, tokens: list[int], usable: int, space: object) -> list[Key]:
        step = self.rules.tpb
        return [(space, tuple(tokens[i : min(i + step, usable)])) for i in range(0, usable, step)]

    def match(self, keys: list[Key]) -> list[Claim]:
        found: list[Claim] = []
        node = self.root
        for key in keys:
            if key in node.children:
                node = node.children[key]
                if node.value is None:
                    break
                found.append(Claim(node.value, len(key[1]), partial=len(key[1]) < self.rules.tpb))
                continue
            best = self.partial_match(node, key)
            if best is not None:
                found.append(best)
            break
        return found

    def partial_match(self, node: Node, key: Key) -> Claim | None:
        best: Claim | None = None
        for (space, tokens), child in reversed(node.children.items()):  # equal lengths: the newest child wins
            common = 0
            while space == key[0] and common < min(len(tokens), len(key[1])) and tokens[common] == key[1][common]:
                common += 1
            block = child.value
            if not self.rules.partial or common == 0 or block is None:
                continue
            allowed = self.rules.copy_on_partial or (block.refs == 0 and not child.children)
            if allowed and (best is None or common > best.tokens):
                best = Claim(block, common, partial=True)
        return best

    # ---- one block -----------------------------------------------------------------------------------------------

    def copy(self, kind: str, source: Block, target: Block, tokens: int = 0) -> None:
        self.copies.append((kind, source.slot, target.slot, tokens, source.path))

    def swap(self, a: Block, b: Block) -> None:
        a.level, b.level, a.slot, b.slot = b.level, a.level, b.slot, a.slot

    def move_down(self, block: Block, target: Block, kind: str) -> None:
        self.copy(kind, block, target)
        self.swap(block, target)
        if self.in_tree(block):
            self.events.append(("level", block.path, block.level - 1, block.level))
        self.claim_block(block)
        self.release_block(block)

    def drop(self, block: Block) -> None:
        if block.node is None:
            return
        if self.in_tree(block):
            self.removed.append(block.path)
        self.stats["dropped"] += 1
        for other in self.below(block.node) if self.rules.evict_descendants else []:
            self.detach(other)
        self.detach(block)

    def get_free(self, priority: int = DEFAULT, duration_ms: int | None = None) -> Block:
        if not self.order(0):
            raise ExhaustedError
        victim = self.order(0)[0]
        self.stats["alloc_total"] += 1
        self.stats["alloc_new"] += not victim.path
        offload = bool(victim.path) and victim.priority >= self.rules.offload_min and self.rules.onboard
        if offload and self.order(1):
            host = self.order(1)[0]
            cold = self.order(2)
            if cold and host.node is not None and host.priority >= self.rules.cold_min:
                self.drop(cold[0])
                self.move_down(host, cold[0], "disk_write")
                self.stats["disk_writes"] += 1
                host = cold[0]
            self.move_down(victim, host, "offload")
            self.stats["offloaded"] += 1
            victim = host
        self.drop(victim)
        self.claim_block(victim, priority, duration_ms)
        return victim

    def onboard(self, block: Block) -> None:
        if block.level == 0 or not self.rules.onboard:
            return
        level, gpu = block.level, self.get_free()
        self.copy("onboard" if level == 1 else "disk_read", block, gpu)
        self.stats["onboarded" if level == 1 else "onboarded_from_disk"] += 1
        self.swap(block, gpu)
        self.events.append(("level", block.path, level, 0))
        if self.rules.emptied_front:
            gpu.priority = 0
        self.release_block(gpu, front=self.rules.emptied_front)

    # ---- sequences -----------------------------------------------------------------------------------------------

    def retention(self, seq: Seq, i: int) -> tuple[int | None, int | None]:
        for start, end, priority, duration_ms in seq.ranges:
            if start <= i * self.rules.tpb and (end is None or i * self.rules.tpb < end):
                return priority, duration_ms
        return None, None

    def add_batch(self, batch: dict[int, Seq]) -> list[int]:
        """Both phases; ExhaustedError: everything taken is given back, what was evicted stays evicted."""
        if self.rules.sequential and len(batch) > 1:
            return self.add_one_by_one(batch)
        seen: dict[Block, Claim | None] = {}  # last partial claimant; None once somebody matched the whole block
        claims: dict[int, list[Claim]] = {}
        for name, seq in batch.items():
            keys = self.keys(seq.tokens, seq.prompt - 1, seq.space)
            claims[name] = self.match(keys) if self.rules.reuse else []
            for i, claim in enumerate(claims[name]):
                self.phase_1(claim, *self.retention(seq, i), seen)
        for at, (name, seq) in enumerate(batch.items()):
            try:
                self.phase_2(seq, claims[name])
            except ExhaustedError:
                self.undo(list(batch.values()), list(claims.values()), at)
                raise
        for name, seq in batch.items():
            seq.position = sum(claim.tokens for claim in claims[name])
            self.seqs[name] = seq
        return [seq.position for seq in batch.values()]

    def add_one_by_one(self, batch: dict[int, Seq]) -> list[int]:
        reused: list[int] = []
        for at, (name, seq) in enumerate(batch.items()):
            try:
                reused += self.add_batch({name: seq})
            except ExhaustedError:
                for earlier in list(batch)[:at]:
                    self.release(earlier, store=False)
                raise
        return reused

    def phase_1(
        self, claim: Claim, priority: int | None, duration_ms: int | None, seen: dict[Block, Claim | None]
    ) -> None:
        block = claim.block
        if priority is not None and priority != block.priority:
            self.events.append(("priority", block.path, block.priority, priority))
        self.stats["hit_tokens", block.level] += claim.tokens
        if claim.partial and block.refs > 0:
            claim.copy = True
            return
        former = seen.get(block)
        if former is not None:  # whoever wanted to take it in place, or to free it after the copy, only copies now
            former.copy, former.release_source = True, False
        if not claim.partial:
            seen[block] = None
        elif block in seen and former is None:
            claim.copy = True
        else:
            inner = bool(block.node.children)
            claim.copy = claim.release_source = inner
            seen[block] = claim
        self.claim_block(block, priority, duration_ms)

    def phase_2(self, seq: Seq, claims: list[Claim]) -> None:
        keys = self.keys(seq.tokens, seq.prompt - 1, seq.space)
        seq.slots = seq.prompt
        for i in range(-(-seq.prompt // self.rules.tpb)):
            path = tuple(keys[: i + 1]) if i < len(keys) else ()
            if i < len(claims):
                block = self.take(claims[i], path)
            else:
                priority, duration_ms = self.retention(seq, i)
                block = self.get_free(DEFAULT if priority is None else priority, duration_ms)
                block.path = path
                self.stats["missed"] += 1
            block.refs += 1
            seq.blocks.append(block)

    def take(self, claim: Claim, path: Path) -> Block:
        block = claim.block
        if claim.copy:
            block = self.get_free(claim.block.priority, claim.block.duration_ms)
            kind = ("intra_copy", "onboard", "disk_read")[claim.block.level]
            self.copy(kind, claim.block, block, claim.tokens)
            self.stats["intra_copies" if kind == "intra_copy" else "partial_from_host"] += 1
            if claim.release_source and claim.block.refs == 0:
                self.release_block(claim.block)
            block.path = path
        elif claim.partial:
            self.detach(block)
        self.onboard(block)
        self.stats["partial_reused" if claim.partial else "full_reused"] += 1
        return block

    def undo(self, seqs: list[Seq], claims: list[list[Claim]], at: int) -> None:
        def unclaim(rest: list[Claim]) -> None:
            for claim in reversed(rest):
                if claim.block.refs == 0:
                    self.release_block(claim.block)

        unclaim(claims[at][len(seqs[at].blocks) :])
        self.give_back(seqs[at])
        for later in claims[at + 1 :]:
            unclaim(later)
        for earlier in seqs[:at]:
            self.give_back(earlier)

    def give_back(self, seq: Seq) -> None:
        for block in reversed(seq.blocks):
            self.unref(block, front=self.rules.detached_first and block.node is None)
        seq.blocks = []

    def add_slot(self, name: int) -> None:
        seq = self.seqs[name]
        if seq.slots % self.rules.tpb == 0:
            block = self.get_free(*seq.decode)
            block.refs += 1
            seq.blocks.append(block)
            self.stats["gen_alloc"] += 1
        seq.slots += 1

    def remove_slot(self, name: int) -> None:
        seq = self.seqs[name]
        seq.slots -= 1
        if seq.slots % self.rules.tpb == 0:
            self.unref(seq.blocks.pop(), front=True)

    def store(self, name: int, usable: int) -> list[Node]:
        seq, new, nodes, node = self.seqs[name], [], [], self.root
        if not self.rules.reuse or usable <= 0:
            return nodes
        for key, block in zip(self.keys(seq.tokens, usable, seq.space), seq.blocks, strict=False):
            node = self.child(node, key)
            nodes.append(node)
            if node.value is None:
                self.detach(block)
                node.value, block.node, block.path = block, node, node.path
                new.append((node.path, block.level, block.priority))
        if new:
            self.flush_removed()
            self.events.append(("stored", new[0][0][:-1], new))
        self.stats["stored"] += len(new)
        return nodes

    def store_context(self, name: int) -> None:
        usable = self.seqs[name].usable()
        self.store(name, usable - usable % self.rules.tpb)

    def store_new_block(self, name: int) -> None:
        n = len(self.seqs[name].tokens) - 1
        if n % self.rules.tpb == 0:
            self.store(name, n)

    def pin(self, name: int) -> list[int]:
        pinned = [node.value for node in self.store(name, self.seqs[name].usable())]
        for block in pinned:
            if block.refs == 0:
                self.claim_block(block, None, block.duration_ms)
            block.refs += 1
        return [block.id for block in pinned]

    def unpin(self, ids: list[int]) -> None:
        for i in ids:
            self.unref(self.blocks[i])

    def release(self, name: int, *, store: bool) -> None:
        if store:
            self.store(name, self.seqs[name].usable())
        self.give_back(self.seqs.pop(name))

    def truncate(self, tokens: list[int], keep: int, space: object) -> None:
        keys, chain, node = self.keys(tokens, len(tokens), space), [], self.root
        for key in keys:
            chain.append((key, node))
            node = node.children.get(key)
            if node is None:
                break
        for key, parent in reversed(chain[keep // self.rules.tpb + 1 :]):
            beginnings = [k for k in reversed(parent.children) if k[0] == key[0] and k[1] == key[1][: len(k[1])]]
            for child in [parent.children[k] for k in beginnings]:
                if child.value is not None and not child.children:
                    self.forget(child.value)

    def forget(self, block: Block) -> None:
        self.drop(block)
        if block.queue is not None:
            self.claim_block(block)
            self.release_block(block, front=True)

    def flush_removed(self) -> None:
        if self.removed:
            self.events.append(("removed", tuple(self.removed)))
            self.removed = []

    def tree(self) -> dict[Path, int]:
        return {block.node.path: block.id for block in self.blocks if block.node is not None}
