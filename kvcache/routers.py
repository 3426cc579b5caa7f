"""Routers: which worker takes a request, from what the router knows of the workers at that moment.

They move nothing, look into no cache and draw no random number but from the generator they are given. What they see is a
`View`: the workers' loads as last reported, and, for routers that ask for it, how much of the prompt each worker is thought
to hold, learned from KV events (`kvcache.prefix_index`). A new router is one class and one line in `ROUTERS`.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from kvcache.request import Float64, Int64

WAITING, ACTIVE, BLOCKS, QUEUED_TOKENS = range(4)
"""Columns of `View.loads`: requests waiting, requests running, GPU blocks in use, prompt tokens of the waiting."""


class Asked(NamedTuple):
    """The request to route. `names`: its full prompt blocks as events call them, as far as others can know them."""

    prompt_tokens: int
    prompt_blocks: int
    session: int
    names: Int64


class View(NamedTuple):
    """What a router knows. `workers`: the numbers of those that take requests; rows of the arrays follow that list."""

    now_s: float
    tokens_per_block: int
    workers: Int64
    loads: Float64  # float64[worker, 4]
    held: Int64  # leading prompt blocks each one is thought to hold; 0 for routers that do not ask
    on_gpu: Int64  # of these in GPU memory
    sizes: Int64  # GPU blocks of each


class Weights(NamedTuple):
    """What the routers can be told."""

    overlap_weight: float = 1.0
    host_credit: float = 1.0
    temperature: float = 0.0
    ttl_s: float = 120.0
    seen_tokens: int = 256 * 16
    remembered_tokens: int = 31_250 * 16


class Router(Protocol):
    """One replica of a router. `reads_events`: its view is to hold what KV events say; `reads_prompt`: block names."""

    reads_events: bool
    reads_prompt: bool

    def choose(self, asked: Asked, view: View) -> int:
        """Place of the chosen worker in `view.workers`."""


Make = Callable[[Weights, np.random.Generator], Router]


def _least(cost: Float64, rng: np.random.Generator) -> int:
    """Place of the least cost; of several one at random."""
    best = np.flatnonzero(cost == cost.min())
    return int(best[0] if len(best) == 1 else rng.choice(best))


class RandomRouter:
    """Any worker."""

    reads_events = reads_prompt = False

    def __init__(self, _weights: Weights, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, _asked: Asked, view: View) -> int:
        """One of them, each with the same chance."""
        return int(self._rng.integers(len(view.workers)))


class RoundRobin:
    """Each worker in turn."""

    reads_events = reads_prompt = False

    def __init__(self, _weights: Weights, _rng: np.random.Generator) -> None:
        self._turn = -1

    def choose(self, _asked: Asked, view: View) -> int:
        """The one after the last."""
        self._turn = (self._turn + 1) % len(view.workers)
        return self._turn


class SessionRouter:
    """All requests of a session to one worker; those without a session in turn."""

    reads_events = reads_prompt = False

    def __init__(self, weights: Weights, rng: np.random.Generator) -> None:
        self._others = RoundRobin(weights, rng)

    def choose(self, asked: Asked, view: View) -> int:
        """By the session's number."""
        turn = self._others.choose(asked, view)
        return asked.session % len(view.workers) if asked.session >= 0 else turn


class LeastLoaded:
    """The worker with the fewest requests, of several the one with the fewest blocks in use."""

    reads_events = reads_prompt = False

    def __init__(self, _weights: Weights, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, _asked: Asked, view: View) -> int:
        """By what the workers report."""
        requests = view.loads[:, WAITING] + view.loads[:, ACTIVE]
        blocks = view.loads[:, BLOCKS]
        return _least(requests + blocks / (blocks.max(initial=0.0) + 1.0), self._rng)


def _cost(asked: Asked, view: View, overlap: Float64, weight: float) -> Float64:
    """Blocks to compute first, this request's and the waiting ones', and blocks in use: Dynamo's KV router's sum."""
    prefill = asked.prompt_blocks - overlap + view.loads[:, QUEUED_TOKENS] / view.tokens_per_block
    return np.asarray(weight * prefill + view.loads[:, BLOCKS], np.float64)


class KvAware:
    """Cheapest worker by `overlap_weight` x blocks to compute + blocks in use; the overlap is what KV events tell.

    A block in host memory counts for `host_credit` of one on the GPU. With a `temperature` above 0 the choice is
    random: by softmax over the costs, scaled to 0..1 and divided by the temperature.
    """

    reads_events = reads_prompt = True

    def __init__(self, weights: Weights, rng: np.random.Generator) -> None:
        self._weights = weights
        self._rng = rng

    def choose(self, asked: Asked, view: View) -> int:
        """By overlap and load."""
        overlap = view.on_gpu + self._weights.host_credit * (view.held - view.on_gpu)
        cost = _cost(asked, view, overlap, self._weights.overlap_weight)
        span = float(np.ptp(cost))
        if self._weights.temperature <= 0.0 or span <= 0.0:
            return _least(cost, self._rng)
        chance = np.exp(-(cost - cost.min()) / span / self._weights.temperature)
        return int(self._rng.choice(len(cost), p=chance / chance.sum()))


class Approximate:
    """As `KvAware`, but without events: a worker is thought to hold what this router sent there in the last `ttl_s`."""

    reads_events, reads_prompt = False, True

    def __init__(self, weights: Weights, rng: np.random.Generator) -> None:
        self._weights = weights
        self._rng = rng
        self._sent: dict[int, dict[int, float]] = {}  # block -> worker -> when last sent there
        self._swept_s = 0.0

    def choose(self, asked: Asked, view: View) -> int:
        """By supposed overlap and load."""
        self._sweep(view.now_s)
        oldest_s = view.now_s - self._weights.ttl_s
        cost = _cost(asked, view, self._overlap(asked, view, oldest_s), self._weights.overlap_weight)
        place = _least(cost, self._rng)
        for name in asked.names.tolist():
            self._sent.setdefault(name, {})[int(view.workers[place])] = view.now_s
        return place

    def _overlap(self, asked: Asked, view: View, oldest_s: float) -> Float64:
        overlap = np.zeros(len(view.workers))
        alive = list(enumerate(view.workers.tolist()))
        for name in asked.names.tolist():
            sent = self._sent.get(name, {})
            alive = [(place, worker) for place, worker in alive if sent.get(worker, -np.inf) >= oldest_s]
            if not alive:
                break
            for place, _ in alive:
                overlap[place] += 1
        return overlap

    def _sweep(self, now_s: float) -> None:
        """Once in a while drop what is too old, so that memory follows the traffic of one `ttl_s`."""
        if now_s - self._swept_s < self._weights.ttl_s:
            return
        self._swept_s, oldest_s = now_s, now_s - self._weights.ttl_s
        fresh = {name: {w: t for w, t in sent.items() if t >= oldest_s} for name, sent in self._sent.items()}
        self._sent = {name: sent for name, sent in fresh.items() if sent}


def _room(view: View) -> Float64:
    """0 to 2: idle share of the pool, and shortness of the queue from the longest (0) to the shortest (1)."""
    waiting = view.loads[:, WAITING]
    span = float(np.ptp(waiting))
    queue = (waiting.max() - waiting) / span if span else np.ones(len(waiting))
    return np.asarray(1.0 - view.loads[:, BLOCKS] / view.sizes + queue, np.float64)


class ScoredLoad:
    """llm-d's picker by load alone: the best idle share of the pool + shortness of the queue."""

    reads_events = reads_prompt = False

    def __init__(self, _weights: Weights, rng: np.random.Generator) -> None:
        self._rng = rng

    def choose(self, _asked: Asked, view: View) -> int:
        """By what the workers report."""
        return _least(-_room(view), self._rng)


class Scored:
    """llm-d's picker with KV events: `overlap_weight` x prefix + what `ScoredLoad` adds up.

    The prefix counts 0 to 1 from the least to the most that is held by a worker which holds anything: where two hold some,
    the one with less is worth as little as those with none.
    """

    reads_events = reads_prompt = True

    def __init__(self, weights: Weights, rng: np.random.Generator) -> None:
        self._weight = weights.overlap_weight
        self._rng = rng

    def choose(self, _asked: Asked, view: View) -> int:
        """By prefix and load."""
        some = view.held[view.held > 0]
        prefix = (view.held > 0).astype(np.float64)
        if len(some) and np.ptp(some):
            prefix = np.maximum(0.0, (view.held - some.min()) / np.ptp(some))
        return _least(-(self._weight * prefix + _room(view)), self._rng)


class ScoredApproximate:
    """llm-d's picker without events: what it sent to a worker before, as far as it looks and remembers.

    It looks at the first `seen_tokens` of a prompt and remembers `remembered_tokens` for each worker, the latest used: by
    default, as there, 256 and 31,250 blocks of 16 tokens.
    """

    reads_events, reads_prompt = False, True

    def __init__(self, weights: Weights, rng: np.random.Generator) -> None:
        self._weight = weights.overlap_weight
        self._seen_tokens, self._remembered_tokens = weights.seen_tokens, weights.remembered_tokens
        self._rng = rng
        self._sent: dict[int, OrderedDict[int, None]] = {}  # worker -> blocks, latest last

    def choose(self, asked: Asked, view: View) -> int:
        """By supposed share of the prompt and load."""
        names = asked.names[: self._seen_tokens // view.tokens_per_block].tolist()
        prefix = np.array([self._share(worker, names) for worker in view.workers.tolist()])
        place = _least(-(self._weight * prefix + _room(view)), self._rng)
        sent = self._sent.setdefault(int(view.workers[place]), OrderedDict())
        for name in names:
            sent[name] = None
            sent.move_to_end(name)
        while len(sent) > self._remembered_tokens // view.tokens_per_block:
            sent.popitem(last=False)
        return place

    def _share(self, worker: int, names: list[int]) -> float:
        """Leading blocks that were sent to the worker, of those looked at."""
        sent = self._sent.get(worker, OrderedDict())
        known = next((i for i, name in enumerate(names) if name not in sent), len(names))
        return known / len(names) if names else 0.0


ROUTERS: dict[str, Make] = {
    "round_robin": RoundRobin,
    "random": RandomRouter,
    "session": SessionRouter,
    "least_loaded": LeastLoaded,
    "approximate": Approximate,
    "kv": KvAware,
    "scored_load": ScoredLoad,
    "scored_approximate": ScoredApproximate,
    "scored": Scored,
}
"""By name; the first is the default."""


def make_router(name: str, weights: Weights, rng: np.random.Generator) -> Router:
    """A router by its name; an unknown one lists the known."""
    if name not in ROUTERS:
        raise ValueError(f"router is {name!r}; known routers: {', '.join(ROUTERS)}")
    return ROUTERS[name](weights, rng)
