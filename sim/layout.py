"""Which rank sends what to which, when a prompt's cache goes from one parallel split to another.

It moves and times nothing (`sim.handover`). Models `splitKVCacheDispatch` and `targetIRanks`: a receiving rank asks every
sending rank that holds some of its layers and heads; of ranks that hold the same heads (more ranks than KV heads, or
MLA, where all hold the same) only one sends. Layers are cut over pipeline stages as evenly as can be.

    sender tp=4, 8 heads   rank 0: heads 0 1   rank 1: 2 3   rank 2: 4 5   rank 3: 6 7
    receiver tp=2          rank 0: heads 0 1 2 3 <- ranks 0, 1            rank 1 <- ranks 2, 3
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Split:
    """How one worker is split over GPUs."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "context"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")

    @property
    def gpus(self) -> int:
        """Ranks of the worker."""
        return self.tensor * self.pipeline * self.context


@dataclass(frozen=True)
class Message:
    """What one rank sends to another: a share of the whole cache of each token."""

    sender: int
    receiver: int
    share: float


@dataclass(frozen=True)
class Conversion:
    """All messages of one transfer; shares add up to the receivers' copies of the whole cache."""

    messages: tuple[Message, ...]
    same_layout: bool
    """Both sides are split alike: blocks can be sent as they lie, without gathering."""

    def _by(self, side: str) -> dict[int, list[Message]]:
        ranks: dict[int, list[Message]] = {}
        for message in self.messages:
            ranks.setdefault(getattr(message, side), []).append(message)
        return ranks

    @property
    def by_sender(self) -> dict[int, list[Message]]:
        """Messages of each rank that sends."""
        return self._by("sender")

    @property
    def by_receiver(self) -> dict[int, list[Message]]:
        """Messages for each rank that receives."""
        return self._by("receiver")

    @property
    def peers(self) -> int:
        """The most senders that one receiver hears from."""
        return max(len(messages) for messages in self.by_receiver.values())


def conversion(layers: int, kv_heads: int, sender: Split, receiver: Split, *, mla: bool = False) -> Conversion:
    """Messages from a `sender` worker to a `receiver` worker. `kv_heads` is unused with MLA."""
    heads = 1 if mla else kv_heads
    messages = []
    for rank in range(receiver.gpus):
        _, stage, place = _coordinates(rank, receiver)
        for from_stage in range(sender.pipeline):
            shared_layers = _overlap(
                _part(layers, receiver.pipeline, stage), _part(layers, sender.pipeline, from_stage)
            )
            if shared_layers == 0:
                continue
            for from_place, shared_heads in _sources(heads, sender.tensor, _heads(heads, receiver.tensor, place)):
                for from_context in range(sender.context):
                    share = shared_layers / layers * shared_heads / heads / sender.context / receiver.context
                    from_rank = (from_context * sender.pipeline + from_stage) * sender.tensor + from_place
                    messages.append(Message(from_rank, rank, share))
    return Conversion(tuple(messages), sender == receiver)


def _coordinates(rank: int, split: Split) -> tuple[int, int, int]:
    return rank // (split.tensor * split.pipeline), rank // split.tensor % split.pipeline, rank % split.tensor


def _part(whole: int, parts: int, i: int) -> range:
    """The i-th of `parts` nearly equal parts; the first ones are larger."""
    size, more = divmod(whole, parts)
    start = i * size + min(i, more)
    return range(start, start + size + (i < more))


def _heads(heads: int, ranks: int, place: int) -> range:
    """Heads of one tensor-parallel rank; several ranks share one where there are more ranks than heads."""
    return _part(heads, ranks, place) if ranks <= heads else range(place * heads // ranks, place * heads // ranks + 1)


def _overlap(a: range, b: range) -> int:
    return max(0, min(a.stop, b.stop) - max(a.start, b.start))


def _sources(heads: int, ranks: int, wanted: range) -> list[tuple[int, int]]:
    """(rank, heads it sends) for the heads wanted; of ranks that hold the same ones the first sends."""
    sources: list[tuple[int, int]] = []
    sent: set[int] = set()
    for place in range(ranks):
        held = _heads(heads, ranks, place)
        shared = _overlap(held, wanted)
        if shared and held.start not in sent:
            sent.add(held.start)
            sources.append((place, shared))
    return sources
