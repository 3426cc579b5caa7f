"""Generates the hardest case for recency: N prompts asked again and again, in a circle or shuffled each round.

It does not imitate users: in a circle, plain LRU hits nothing as soon as the prompts do not all fit.
"""

from dataclasses import dataclass

import numpy as np

from kvcache.request import Requests
from traces.synthetic import Rng, check, check_vocabulary, offsets

ORDERS = ("cyclic", "shuffled")


@dataclass(frozen=True)
class RepeatScan:
    """N prompts of one length, all asked in each of R rounds."""

    prompts: int = 100
    """Different prompts; they share no token position with each other."""
    rounds: int = 5
    """How often each prompt is asked."""
    prompt_tokens: int = 4_096
    output_tokens: int = 128
    requests_per_s: float = 2.0
    """Requests arrive evenly spaced: the point is the order, not the load."""
    order: str = "cyclic"
    """`cyclic`: the same order in every round; `shuffled`: a new random order in every round."""
    vocabulary: int = 128_000
    """Token ids are drawn evenly from 0 to this."""

    def __post_init__(self) -> None:
        check(self, above_0=("prompts", "rounds", "prompt_tokens", "requests_per_s", "vocabulary"))
        check(self, from_0=("output_tokens",))
        check_vocabulary(self.vocabulary)
        if self.order not in ORDERS:
            raise ValueError(f"order is {self.order!r}; it must be one of {', '.join(ORDERS)}")


def generate_repeat_scan(workload: RepeatScan, rng: Rng) -> Requests:
    """The rounds, end to end, from a seed or a generator."""
    rng = np.random.default_rng(rng)
    tokens = rng.integers(workload.vocabulary, size=(workload.prompts, workload.prompt_tokens), dtype=np.int32)
    rounds = np.tile(np.arange(workload.prompts), (workload.rounds, 1))
    if workload.order == "shuffled":
        rounds = rng.permuted(rounds, axis=1)
    n = rounds.size
    prompt_tokens = np.full(n, workload.prompt_tokens, np.int32)
    return Requests(
        source="synthetic:repeat_scan",
        unit_tokens=1,
        arrival_s=np.arange(n) / workload.requests_per_s,
        prompt_tokens=prompt_tokens,
        output_tokens=np.full(n, workload.output_tokens, np.int32),
        unit_offset=offsets(prompt_tokens),
        units=tokens[rounds.ravel()].ravel(),
    )
