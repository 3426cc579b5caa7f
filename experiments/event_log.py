"""KV events of a run, in TensorRT-LLM's JSON shape, as a worker's event manager would publish them.

The loops write rows, `kvcache.events` makes events of them, one flush an iteration. A trace that holds hashes instead of
tokens names its content by run: the token ids in such events are stand-ins that are equal where the content is equal.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from experiments.ready import Ready, part_of, ready, whole, worker_of
from experiments.spec import Spec
from experiments.watch import moments
from kvcache.blockhash import block_hash
from kvcache.events import Event, EventManager
from kvcache.request import Requests
from kvcache.tables import CONTENT, PARENT, ROOT, RUN_ID, RUN_TOKENS, SPACE, T_SIZE, TOKENS, State

BUFFER = 1 << 20
PRIVATE = 1 << 31  # stand-ins of content that only its request knows count down from here


class TraceNaming:
    """Hashes and tokens of the nodes of one worker's tables."""

    def __init__(self, state: State, namespaces: list[tuple[int | None, int | None]]) -> None:
        self._state = state
        self._namespaces = namespaces
        self._hashes = {ROOT: 0}

    def tokens(self, node: int) -> list[int]:
        """Token ids (or stand-ins) of the node's own key."""
        at, n = int(self._state.nodes[node, CONTENT]), int(self._state.nodes[node, TOKENS])
        tokens: list[int] = []
        while len(tokens) < n:
            run = int(self._state.runs[at, RUN_ID])
            tokens += [run if run >= 0 else PRIVATE + run] * int(self._state.runs[at, RUN_TOKENS])
            at += 1
        return tokens

    def node_hash(self, node: int) -> int:
        """TensorRT-LLM's hash, chained through the parents."""
        chain = []
        while node not in self._hashes:
            chain.append(node)
            node = int(self._state.nodes[node, PARENT])
        for missing in reversed(chain):
            salt, lora = self._namespaces[int(self._state.nodes[missing, SPACE])]
            parent = self._hashes[int(self._state.nodes[missing, PARENT])]
            self._hashes[missing] = node_hash = block_hash(
                self.tokens(missing), parent=parent, lora_id=lora, cache_salt=salt
            )
        return node_hash if chain else self._hashes[node]

    def stored_block(self, node: int, level: int, priority: int) -> Event:
        """The fields of one block in a Stored event."""
        salt, lora = self._namespaces[int(self._state.nodes[node, SPACE])]
        return {
            "type": "stored_block",
            "block_hash": self.node_hash(node),
            "tokens": [{"type": "unique_token", "token_id": t, "token_extra_id": 0} for t in self.tokens(node)],
            "cache_level": level,
            "priority": priority,
            "lora_id": lora,
            "cache_salt": salt,
            "mm_keys": [],
        }


def _namespaces(requests: Requests) -> list[tuple[int | None, int | None]]:
    """(salt, LoRA) by the numbers that `kvcache.load.rows_of` gives them."""
    pairs = np.unique(np.stack([requests.salt, requests.lora]), axis=1).T
    return [tuple(None if v < 0 else int(v) for v in pair) for pair in pairs]  # type: ignore[misc]


def worker_events(work: Ready, worker: int, *, timing: bool) -> Iterator[Event]:
    """Every event of one worker, in order; without timing all requests are served by one cache."""
    part = part_of(work, worker_of(work), worker) if timing else whole(work)
    manager: EventManager | None = None
    for at in moments(work, part, timing=timing, events=True):
        if manager is None:
            pools = work.plan.pools
            windows = [pool.window_tokens for pool in pools]
            manager = EventManager(BUFFER, windows, TraceNaming(at.state, _namespaces(part.requests)))
            for w in sorted(range(len(pools)), key=lambda i: windows[i]):
                manager.created(w, [int(n) for n in at.state.tier[w, :, T_SIZE]])
        manager.collect(at.state)
        if not at.after:  # an iteration has ended
            manager.flush()
            yield from manager.latest()
    if manager is not None:
        manager.flush()
        yield from manager.latest()


def write_events(spec: Spec, requests: Requests, path: Path, *, timing: bool) -> int:
    """Write the events of all workers to `path`, a JSON array with one event a line; returns how many.

    With several workers each event also says its `worker_id`. A failed run leaves no file behind.
    """
    work = ready(spec, requests, timing=timing)
    workers = work.spec.workload.workers if timing else 1
    part, count = path.with_name(path.name + ".part"), 0
    try:
        with part.open("w", encoding="utf-8") as out:
            out.write("[")
            for worker in range(workers):
                for event in worker_events(work, worker, timing=timing):
                    line = event if workers == 1 else {"worker_id": worker, **event}
                    out.write(("\n" if count == 0 else ",\n") + json.dumps(line))
                    count += 1
            out.write("\n]\n")
        part.replace(path)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()
    return count
