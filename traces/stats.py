"""Measures a workload: how many requests, how long, how much of it could be reused by a cache without limit.

It does not model any engine: a block is a unit of the trace, requests are taken in their order, and a block is hit when
the whole prefix up to it was in the prompt of an earlier request. Generated tokens are not counted as content.
"""

from dataclasses import dataclass

import numpy as np

from kvcache.compiled import compiled
from kvcache.request import Int32, Int64, Requests


@dataclass(frozen=True)
class Quantiles:
    """How a number of tokens is spread over the requests."""

    mean_tokens: float
    p50_tokens: float
    p90_tokens: float
    p99_tokens: float
    max_tokens: int


@dataclass(frozen=True)
class Stats:
    """What a workload asks for."""

    requests: int
    span_s: float
    """From the first arrival to the last."""
    request_rate_rps: float
    """Arrivals a second over the span; nan when all arrive at once."""
    prompt_rate_tokens_per_s: float
    output_rate_tokens_per_s: float
    input_tokens: int
    output_tokens: int
    prompt: Quantiles
    output: Quantiles
    sessions: int
    requests_with_session: int
    unit_tokens: int
    """Tokens of a block in the counts below."""
    total_blocks: int
    """Blocks of all prompts that have an identity."""
    unique_blocks: int
    """Different prefixes among them, which is also the number of blocks that a cache without limit would hold."""
    hit_blocks: int
    hit_tokens: int
    """Tokens of hit blocks, at most the prompt's length for each request."""

    @property
    def hit_token_share(self) -> float:
        """The part of all prompt tokens that a cache without limit would not compute."""
        return self.hit_tokens / self.input_tokens if self.input_tokens else 0.0


def measure(requests: Requests) -> Stats:
    """The statistics of a workload."""
    n = len(requests)
    span_s = float(requests.arrival_s[-1] - requests.arrival_s[0]) if n else 0.0
    input_tokens, output_tokens = (int(t.sum(dtype=np.int64)) for t in (requests.prompt_tokens, requests.output_tokens))
    hit_blocks = hits(requests)
    hit_tokens = np.minimum(hit_blocks * requests.unit_tokens, requests.prompt_tokens)
    total = int(requests.unit_offset[-1] - requests.unit_offset[0])
    named = requests.session[requests.session >= 0]
    return Stats(
        requests=n,
        span_s=span_s,
        request_rate_rps=_rate(n, span_s),
        prompt_rate_tokens_per_s=_rate(input_tokens, span_s),
        output_rate_tokens_per_s=_rate(output_tokens, span_s),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        prompt=_quantiles(requests.prompt_tokens),
        output=_quantiles(requests.output_tokens),
        sessions=len(np.unique(named)),
        requests_with_session=len(named),
        unit_tokens=requests.unit_tokens,
        total_blocks=total,
        unique_blocks=total - int(hit_blocks.sum()),
        hit_blocks=int(hit_blocks.sum()),
        hit_tokens=int(hit_tokens.sum()),
    )


def hits(requests: Requests) -> Int64:
    """For each request, how many blocks from the front of its prompt an earlier request had too."""
    size = 1 << max(4, (2 * (len(requests.units) + 2 * len(requests))).bit_length())
    known = np.full(size, -1, np.int64)
    found = np.zeros(len(requests), np.int64)
    _prefix_hits(requests.unit_offset, requests.units, requests.salt, requests.lora, known, found)
    return found


@compiled
def _prefix_hits(offset: Int64, units: Int32, salt: Int32, lora: Int32, known: Int64, found: Int64) -> None:
    """Walk every prompt through a hash table of prefixes; a prefix is known by its slot in the table.

    A slot holds (slot of the prefix one block shorter) * 2**32 + unit. A namespace (salt, lora) is two more steps from
    the root, which is no slot: one number above the last.
    """
    mask = len(known) - 1
    for i in range(len(offset) - 1):
        prefix = mask + 1
        n_hit = 0
        missed = False
        for j in range(int(offset[i]) - 2, int(offset[i + 1])):
            in_prompt = j >= offset[i]
            unit = int(units[j]) if in_prompt else int(salt[i] if j == offset[i] - 2 else lora[i]) + 1
            key = prefix * 4294967296 + unit
            slot = prefix * 1013904223 + unit * 461845907  # both below 2**62: no overflow
            slot = (slot ^ (slot >> 29)) & mask
            while known[slot] >= 0 and known[slot] != key:
                slot = (slot + 1) & mask
            if known[slot] < 0:
                known[slot] = key
                missed = missed or in_prompt
            elif in_prompt and not missed:
                n_hit += 1
            prefix = slot
        found[i] = n_hit


def _rate(amount: int, span_s: float) -> float:
    return amount / span_s if span_s > 0 else float("nan")


def _quantiles(tokens: Int32) -> Quantiles:
    if not len(tokens):
        return Quantiles(0.0, 0.0, 0.0, 0.0, 0)
    p50, p90, p99 = np.quantile(tokens, (0.5, 0.9, 0.99))
    return Quantiles(float(tokens.mean()), float(p50), float(p90), float(p99), int(tokens.max()))
