"""The KV cache manager as an engine calls it, one Python call an operation: sequences in, block lists out.

It holds the requests' tokens and the clock's last reading, and calls the compiled loops; it decides nothing that they do
not. Models `KVCacheManager` with one `WindowBlockManager` a window. Beam width 1 only. `kvcache.engine` drives the same
loops without this class, a whole iteration a call.
"""

from collections.abc import Sequence

import numpy as np

from kvcache import schedule, sequences
from kvcache.cache_request import CacheRequest, OutOfBlocksError
from kvcache.content import Content, Namespace
from kvcache.events import Event, EventManager
from kvcache.queues import refresh
from kvcache.retention import RetentionColumns, fill_blocks
from kvcache.tables import (
    ALLOC_NEW,
    ALLOC_TOTAL,
    BATCH,
    C_BLOCKS,
    CLOCK_US,
    COPY_COLUMNS,
    DEFAULT_PRIORITY,
    MISSED,
    N_COPIES,
    REFS,
    REUSED,
    T_FREE,
    T_SIZE,
    W_FIRST,
    Array,
    Pool,
    Settings,
    State,
    make_state,
)


class KVCacheManager:
    """One rank's cache: windows over one prefix index. Times are seconds on whatever clock the caller keeps."""

    def __init__(
        self,
        pools: Sequence[Pool],
        settings: Settings,
        *,
        event_buffer_max_size: int = 0,
        attention_dp_rank: int | None = None,
        connector_matched_tokens: int = 0,
        max_sequence_tokens: int = 0,
    ) -> None:
        self.pools = tuple(pools)
        self.max_sequence_tokens = max_sequence_tokens
        self.settings = settings._replace(record_copies=True, record_events=event_buffer_max_size > 0)
        self.state: State = make_state(self.pools, self.settings)
        self.content = Content()
        self.requests: dict[int, CacheRequest] = {}
        self.connector_matched_tokens = connector_matched_tokens
        self.window_order = window_order(self.pools)
        self._sequences = sequences.make_sequences(len(self.pools), 4, 16)
        self._matches = sequences.make_matches(4, 16)
        self._free_slots = list(range(3, -1, -1))
        self._stats_read = self.state.stats.copy()
        self._snapshot = np.zeros(len(self.pools), np.int64)
        self.events: EventManager | None = None
        if event_buffer_max_size > 0:
            self.events = EventManager(
                event_buffer_max_size, [pool.window_tokens for pool in self.pools], self, attention_dp_rank
            )
            for w in sorted(range(len(self.pools)), key=lambda i: self.pools[i].window_tokens):
                self.events.created(w, [int(n) for n in self.state.tier[w, :, T_SIZE]])

    # ---- names for the outside -------------------------------------------------------------------------------------

    def node_hash(self, node: int) -> int:
        """TensorRT-LLM's hash of a node's key (64 bit, chained)."""
        return self.content.hash_of(self.state, node)

    def stored_block(self, node: int, level: int, priority: int) -> Event:
        """The fields of one block in a Stored event."""
        names = self.content.namespace_of(self.state, node)
        tokens = self.content.tokens_of(self.state, node)
        block: Event = {
            "type": "stored_block",
            "block_hash": self.node_hash(node),
            "tokens": [{"type": "unique_token", "token_id": t, "token_extra_id": e} for t, e in tokens],
            "cache_level": level,
            "priority": priority,
            "lora_id": names.lora_id,
            "cache_salt": names.cache_salt,
            "mm_keys": [
                {"type": "mm_key", "hash": list(e.item_hash), "start_offset": e.start_offset}
                for e in self.content.extras_of(node)
            ],
        }
        return block

    def block_id(self, w: int, block: int) -> int:
        """Id of a block row within its window (0 .. GPU blocks - 1 are born on the GPU, host blocks follow)."""
        return int(block - self.state.window[w, W_FIRST])

    def block_row(self, block_id: int, w: int = 0) -> int:
        """Row of a block id."""
        return int(self.state.window[w, W_FIRST] + block_id)

    # ---- keys -----------------------------------------------------------------------------------------------------

    def _keys(self, request: CacheRequest, usable: int, tokens: Sequence[int] | None = None) -> tuple[Array, int, int]:
        """(keys, number of full ones, short one or -1) of the first `usable` tokens."""
        tpb = self.settings.tokens_per_block
        self.state, nodes = self.content.nodes(
            self.state,
            request.tokens if tokens is None else tokens,
            usable,
            tokens_per_block=tpb,
            namespace=request.namespace,
            extra_ids=request.extra_ids,
            items=request.items,
        )
        full = usable // tpb
        return np.array([*nodes, -1], np.int32), full, nodes[full] if usable % tpb else -1

    def nodes_of(self, request: CacheRequest, usable: int) -> list[int]:
        """Nodes of a request's first `usable` tokens, generated ones included."""
        keys, full, short = self._keys(request, usable)
        return [int(node) for node in keys[:full]] + ([] if short == -1 else [short])

    def find_node(self, tokens: Sequence[int], usable: int, namespace: Namespace = Namespace()) -> list[int]:
        """Nodes of plain tokens cut into blocks."""
        self.state, nodes = self.content.nodes(
            self.state, tokens, usable, tokens_per_block=self.settings.tokens_per_block, namespace=namespace
        )
        return nodes

    # ---- adding ---------------------------------------------------------------------------------------------------

    def add_sequence_batch(self, batch: Sequence[CacheRequest]) -> list[int]:
        """Claim the matches of all, then allocate for each in order; returns the reused tokens of each.

        Raises OutOfBlocksError when the pool cannot hold them: no request of the batch has a sequence then.
        """
        names = [request.request_id for request in batch]
        for at, name in enumerate(names):
            if name in self.requests or name in names[:at]:
                raise ValueError(f"request {name} has a sequence already")
        if self.settings.sequential_claim and len(batch) > 1:
            return self._add_one_by_one(batch)
        self._make_room(batch)
        caps = [sequences.NO_CAP] * len(batch)
        for request in batch:
            request.slot = self._free_slots.pop()
            request.alloc_total = request.alloc_new = request.reused = request.missed = 0
        for at, w in enumerate(self.window_order):
            if not self._add_to_window(w, batch, caps):
                self._abandon(batch, self.window_order[:at])
                raise OutOfBlocksError(
                    f"the GPU pool of {int(self.state.tier[w, 0, T_SIZE])} blocks"
                    f" (window {self.pools[w].window_tokens}) cannot hold"
                    f" requests {[r.request_id for r in batch]}; free_gpu_memory_fraction or max_tokens sets its size"
                )
        for request, cap in zip(batch, caps, strict=True):
            self.requests[request.request_id] = request
            request.prepopulated = cap + self.connector_matched_tokens
            request.position = request.prepopulated
            request.estimated_reusable_tokens = 0
        self.collect()
        return [request.prepopulated for request in batch]

    def _add_one_by_one(self, batch: Sequence[CacheRequest]) -> list[int]:
        """The rule of 2025: each request claims and allocates before the next one looks."""
        reused: list[int] = []
        for at, request in enumerate(batch):
            try:
                reused += self.add_sequence_batch([request])
            except OutOfBlocksError:
                for earlier in batch[:at]:
                    self.release(earlier.request_id, store=False)
                raise
        return reused

    def _make_room(self, batch: Sequence[CacheRequest]) -> None:
        q, tpb = self._sequences, self.settings.tokens_per_block
        longest = max(-(-(r.prompt_tokens + r.max_new_tokens) // tpb) for r in batch) + 2
        if len(self._free_slots) < len(batch) or longest > q.blocks.shape[2]:
            rows = max(q.blocks.shape[1], len(self.requests) + len(batch)) * 2
            self._sequences = _enlarge(q, rows, max(q.blocks.shape[2], 2 * longest))
            self._free_slots = [*range(rows - 1, q.blocks.shape[1] - 1, -1), *self._free_slots]
        if len(batch) > len(self._matches.entry) or longest > self._matches.blocks.shape[1]:
            self._matches = sequences.make_matches(2 * len(batch), 2 * longest)
        # each GPU block handed out tells at most four events, each position at most one change of priority
        rows = 4 * int(self.state.conf[C_BLOCKS]) + len(self.pools) * len(batch) * longest
        if self.events is not None and rows > len(self.state.events):
            self.state = self.state._replace(events=np.empty((2 * rows, self.state.events.shape[1]), np.int32))

    def _add_to_window(self, w: int, batch: Sequence[CacheRequest], caps: list[int]) -> bool:
        """Both phases for one window; lowers each request's cap to what this window reached. False: exhausted, undone."""
        self.state.tally[BATCH] += 1
        keys = []
        for j, request in enumerate(batch):
            keys.append(self._keys(request, request.prompt_tokens - 1))
            self._fill_retention(j, request)
            self._matches.entry[j] = 0
            if self.settings.enable_block_reuse:
                sequences.find_matches(self.state, self._matches, j, w, *keys[j], caps[j])
            sequences.claim_matches(self.state, self._matches, j, w)
        for j, request in enumerate(batch):
            before = self.state.stats[w].copy()
            whole, full, short = self._keys(request, request.prompt_tokens)
            done = sequences.allocate(
                self.state, self._sequences, self._matches, j, w, request.slot, request.prompt_tokens,
                *keys[j], int(whole[full - 1]) if short == -1 else -1,
            )  # fmt: skip
            if not done:
                for later in range(j + 1, len(batch)):
                    sequences.unclaim(self.state, self._matches, later, 0)
                for earlier in batch[:j]:
                    sequences.release_sequence(self.state, self._sequences, w, earlier.slot)
                return False
            caps[j] = int(self._matches.entry[j, sequences.M_TOKENS])
            delta = self.state.stats[w] - before
            request.alloc_total += int(delta[ALLOC_TOTAL])
            request.alloc_new += int(delta[ALLOC_NEW])
            request.reused += int(delta[REUSED])
            request.missed += int(delta[MISSED])
        return True

    def _abandon(self, batch: Sequence[CacheRequest], windows: Sequence[int]) -> None:
        tpb = self.settings.tokens_per_block
        for request in batch:
            self._sequences.length[request.slot] = -(-request.prompt_tokens // tpb)
            for w in windows:
                sequences.release_sequence(self.state, self._sequences, w, request.slot)
            self._free_slots.append(request.slot)
            request.slot = -1
        self.collect()

    def _fill_retention(self, j: int, request: CacheRequest) -> None:
        n = -(-request.prompt_tokens // self.settings.tokens_per_block)
        ranges = RetentionColumns.of([request.retention]).ranges
        m = self._matches
        fill_blocks(ranges, self.settings.tokens_per_block, m.priority[j, :n], m.duration_ms[j, :n])

    # ---- growing and shrinking --------------------------------------------------------------------------------------

    def add_slots(self, request_id: int, count: int = 1) -> None:
        """`addToken` count times: token slots only, whose ids may become known later."""
        request = self._live(request_id)
        priority, duration = DEFAULT_PRIORITY, -1
        if request.retention is not None:
            priority = request.retention.decode_retention_priority
            ms = request.retention.decode_duration_ms
            duration = -1 if ms is None else ms
        for _ in range(count):
            self._add_slot(request, priority, duration)
        self.collect()

    def _add_slot(self, request: CacheRequest, priority: int, duration: int) -> None:
        q, tpb = self._sequences, self.settings.tokens_per_block
        position = int(q.slots[request.slot]) // tpb
        if position + 1 > q.blocks.shape[2]:
            self._sequences = q = _enlarge(q, q.blocks.shape[1], 2 * (position + 1))
        q.slots[request.slot] += 1
        for at, w in enumerate(self.window_order):
            if not sequences.add_slot(self.state, q, w, request.slot, priority, duration):
                for done in self.window_order[:at]:
                    sequences.take_back(self.state, q, done, request.slot, position)
                q.slots[request.slot] -= 1
                raise OutOfBlocksError(
                    f"no GPU block is free for the next token of request {request.request_id}"
                    f" ({int(self.state.tier[w, 0, T_SIZE])} blocks in all)"
                )
        q.length[request.slot] = -(-int(q.slots[request.slot]) // tpb)

    def add_tokens(self, request_id: int, tokens: Sequence[int]) -> None:
        """Generated tokens: ids and slots."""
        for token in tokens:
            self.add_slots(request_id)
            self.append_tokens(request_id, [token])

    def append_tokens(self, request_id: int, tokens: Sequence[int]) -> None:
        """Generated token ids without slots."""
        self._live(request_id).append(tokens)

    def remove_slots(self, request_id: int, count: int) -> None:
        """Rewind the last `count` slots (rejected draft tokens)."""
        request = self._live(request_id)
        for _ in range(count):
            sequences.remove_slot(self.state, self._sequences, len(self.pools), request.slot)

    def _live(self, request_id: int) -> CacheRequest:
        if request_id not in self.requests:
            raise ValueError(f"request {request_id} has no sequence")
        return self.requests[request_id]

    # ---- storing and releasing ----------------------------------------------------------------------------------------

    def store_context_blocks(self, request_id: int) -> None:
        """Put the computed full blocks into the tree, windows from large to small."""
        request = self._live(request_id)
        usable = request.usable()
        self._store(request, usable - usable % self.settings.tokens_per_block)

    def store_new_block(self, request_id: int) -> None:
        """While generating: at a block boundary, store everything up to there."""
        request = self._live(request_id)
        if (len(request.tokens) - 1) % self.settings.tokens_per_block == 0:
            self._store(request, len(request.tokens) - 1)

    def store_blocks_for_reuse(self, request_id: int, *, pin: bool = False) -> list[int]:
        """Store all computed blocks, a short last one too; with `pin` hold the stored positions' blocks (ids returned)."""
        request = self._live(request_id)
        return self._store(request, request.usable(), pin=pin)

    def _store(
        self, request: CacheRequest, usable: int, *, tokens: Sequence[int] | None = None, pin: bool = False
    ) -> list[int]:
        pinned: list[int] = []
        if not self.settings.enable_block_reuse or usable <= 0:
            return pinned
        keys, full, short = self._keys(request, usable, tokens)
        for w in sorted(self.window_order, key=lambda i: -self.pools[i].window_tokens):
            sequences.store(self.state, self._sequences, w, request.slot, keys, full, short)
            if pin:
                pinned = self._pin_stored(w, request, [*keys[:full], short])
        self.collect()
        return pinned

    def _pin_stored(self, w: int, request: CacheRequest, nodes: Sequence[int]) -> list[int]:
        n = int(self._sequences.length[request.slot])
        held = [int(self.state.value[w, node]) for node in nodes[:n] if node >= 0 and self.state.value[w, node] >= 0]
        for block in held:
            sequences.pin(self.state, block)
        return [self.block_id(w, block) for block in held]

    def pin_sequence(self, request_id: int) -> list[int]:
        """One more reference to each block of the sequence (first window)."""
        request = self._live(request_id)
        rows = [b for b in self._row(request, 0) if b >= 0]
        for block in rows:
            sequences.pin(self.state, block)
        return [self.block_id(0, b) for b in rows]

    def unpin_blocks(self, block_ids: Sequence[int]) -> None:
        """`unpinBlocksById`: one reference less each; only the first window's blocks can be pinned."""
        for block_id in block_ids:
            if self.state.blocks[self.block_row(block_id), REFS] < 1:
                raise ValueError(f"block {block_id} has no reference to give back")
            sequences.unpin(self.state, self.block_row(block_id))

    def release(self, request_id: int, *, store: bool = True, stored_tokens: Sequence[int] | None = None) -> None:
        """`removeSequence`: store what is computed (unless told not to), then hand the blocks back, last first."""
        request = self._live(request_id)
        if store and stored_tokens is not None:
            self._store(request, len(stored_tokens) - 1, tokens=stored_tokens)
        elif store:
            self._store(request, request.usable())
        for w in self.window_order:
            sequences.release_sequence(self.state, self._sequences, w, request.slot)
        self._sequences.length[request.slot] = 0
        self._free_slots.append(request.slot)
        request.slot = -1
        del self.requests[request_id]
        self.collect()

    def find_block(self, tokens: Sequence[int], w: int = 0, *, allow_partial: bool = True) -> int | None:
        """Row of the block that ends `tokens` cut in blocks, None if not stored; without `allow_partial` full blocks only."""
        tpb = self.settings.tokens_per_block
        usable = len(tokens) if allow_partial else len(tokens) - len(tokens) % tpb
        node = self.find_node(tokens, usable)[-1]
        block = int(self.state.value[w, node])
        return None if block == -1 else block

    def refresh(self, now_s: float) -> None:
        """Once an iteration: expire priorities."""
        refresh(self.state, round(now_s * 1e6))

    def set_time(self, now_s: float) -> None:
        """The clock that releases read."""
        self.state.tally[CLOCK_US] = round(now_s * 1e6)

    # ---- looking ------------------------------------------------------------------------------------------------------

    def _row(self, request: CacheRequest, w: int) -> list[int]:
        return [int(b) for b in self._sequences.blocks[w, request.slot, : int(self._sequences.length[request.slot])]]

    def block_ids(self, request_id: int, w: int = 0) -> list[int | None]:
        """Ids of a sequence's blocks; a dropped position still shows the id it had, a placeholder None."""
        row = self._row(self._live(request_id), w)
        rows = [-2 - b if b < -1 else b for b in row]
        return [None if b == -1 else self.block_id(w, b) for b in rows]

    def sequence_slots(self, request_id: int) -> int:
        """Token slots of a sequence."""
        return int(self._sequences.slots[self._live(request_id).slot])

    def front_blocks_removed(self, request_id: int, w: int = 0) -> int:
        """Blocks the sliding window has dropped."""
        return int(self._sequences.dropped[w, self._live(request_id).slot])

    def num_free(self, w: int, level: int = 0) -> int:
        """Blocks of a tier that nobody uses."""
        return int(self.state.tier[w, level, T_FREE])

    def analyze_prefix_reuse(self, request: CacheRequest, w: int = 0) -> schedule.PrefixReuse:
        """One walk over the full blocks of all its tokens."""
        keys, full, _ = self._keys(request, len(request.tokens))
        return schedule.PrefixReuse(*schedule.analyze(self.state, w, keys, full))

    def needed_blocks_one_step(self, request: CacheRequest, *, two_steps: bool = False, w: int = 0) -> int:
        """Blocks the request needs for its next step; a chunk after the first needs none.

        Leaves an estimate of reusable tokens behind that counts only the cached blocks somebody uses;
        `remaining_blocks` counts all of them.
        """
        request.estimated_reusable_tokens = 0
        if request.generating:
            step = (request.draft_tokens + 1) * (2 if two_steps else 1)
            slots = int(self._sequences.slots[request.slot])
            left = request.prompt_tokens + request.max_new_tokens - slots
            longest = self.max_sequence_tokens and max(self.max_sequence_tokens, self.pools[w].window_tokens)
            return int(schedule.needed_generation(self.state, slots, step, left, longest))
        if request.slot >= 0:
            return 0
        n, used = request.prompt_tokens, self.analyze_prefix_reuse(request, w).reusable_allocated
        self._estimate(request, used)
        return int(schedule.needed_context(self.state, w, n, request.draft_tokens, used))

    def remaining_blocks(self, request: CacheRequest, w: int = 0) -> int:
        """Blocks the request still needs until its last token; leaves its estimate of reusable tokens behind."""
        allocated, used = 0, 0
        request.estimated_reusable_tokens = 0
        if request.slot >= 0:
            allocated = int(self._sequences.length[request.slot] - self._sequences.dropped[w, request.slot])
        else:
            reuse = self.analyze_prefix_reuse(request, w)
            used = reuse.reusable_allocated
            self._estimate(request, reuse.reusable_all)
        n, more = request.prompt_tokens, request.max_new_tokens
        return int(schedule.remaining_at(self.state, w, n, more, len(request.tokens), allocated, used))

    def _estimate(self, request: CacheRequest, blocks: int) -> None:
        tokens = blocks * self.settings.tokens_per_block
        request.estimated_reusable_tokens = min(tokens, request.prompt_tokens - 1)

    def start_scheduling(self) -> None:
        """Take the scheduling snapshot."""
        schedule.start_scheduling(self.state, self._snapshot)

    def scheduling_remove_sequence(self, request_id: int) -> None:
        """Release a sequence in the snapshot only."""
        for w in self.window_order:
            schedule.scheduling_remove(self.state, self._sequences, self._snapshot, w, self._live(request_id).slot)

    def scheduling_free_blocks(self, w: int = 0) -> int:
        """Free blocks of the snapshot."""
        return int(self._snapshot[w])

    def iteration_stats(self) -> Array:
        """Counters of each window since the last read (int64[window, STATS])."""
        delta = self.state.stats - self._stats_read
        self._stats_read = self.state.stats.copy()
        return np.asarray(delta)

    def take_copies(self) -> Array:
        """Copies noted since the last call: int32[n, 6] rows as in `kvcache.tables`."""
        n = int(self.state.tally[N_COPIES])
        self.state.tally[N_COPIES] = 0
        return np.asarray(self.state.copies[:n].copy()).reshape(-1, COPY_COLUMNS)

    def flush_events(self) -> list[Event]:
        """End the iteration and read all events."""
        if self.events is None:
            return []
        self.collect()
        self.events.flush()
        return self.events.latest()

    def collect(self) -> None:
        """Read what the loops noted of events; forget copies that nobody takes."""
        if self.events is not None:
            self.events.collect(self.state)
        if int(self.state.tally[N_COPIES]) > len(self.state.copies) // 2:
            self.state.tally[N_COPIES] = 0


def window_order(pools: Sequence[Pool]) -> list[int]:
    """Full attention first, then sliding windows ascending."""
    return sorted(range(len(pools)), key=lambda w: (pools[w].sliding, pools[w].window_tokens))


def _enlarge(q: sequences.Sequences, rows: int, positions: int) -> sequences.Sequences:
    new = sequences.make_sequences(q.blocks.shape[0], rows, positions)
    n, p = q.blocks.shape[1], q.blocks.shape[2]
    new.blocks[:, :n, :p] = q.blocks
    new.length[:n] = q.length
    new.slots[:n] = q.slots
    new.dropped[:, :n] = q.dropped
    return new
