"""Gives recorded lengths a content: prompts and answers as long as those of a trace, with a model of who shares what on top.

For traces of lengths, such as Azure's, whose prompts nothing is known about. The sharing is a guess that the user makes:
requests belong to groups (applications, by Zipf's law), and a request's prompt begins with as much of its group's common
text as the share says, block by block. Lengths are taken in the order of the trace, again from the start when it ends.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvcache.request import Int64
from traces.arrivals import Clock, check_process
from traces.draws import Zipf
from traces.rows import BATCH, Numbers, Rows, stream_of
from traces.stream import Stream
from traces.synthetic import check


@dataclass(frozen=True)
class Borrowed:
    """Lengths of one trace, times of the same or of a process, sharing by groups."""

    lengths_of: str = "mooncake_conversation"
    """A file or a bundled sample: its prompt and output lengths."""
    requests: int = 10_000
    block_tokens: int = 16
    """Tokens of a block, the grain of all content."""
    requests_per_s: float = 10.0
    """Not used where arrival is recorded."""
    arrival: str = "poisson"
    """poisson, gamma, weibull, or recorded (at the times of the trace `times_of`)."""
    cv: float = 1.0
    times_of: str = ""
    groups: int = 50
    """Applications, each with text that all its prompts begin with."""
    group_zipf_exponent: float = 1.0
    """Group of rank r asks in proportion to r ** -exponent."""
    shared_share: float = 0.3
    """Mean share of a prompt that is its group's common text, evenly spread between 0 and twice this (at most all)."""

    def __post_init__(self) -> None:
        check(self, above_0=("requests", "block_tokens", "requests_per_s", "groups"))
        check(self, from_0=("group_zipf_exponent", "shared_share"))
        check_process(self.arrival, self.cv)
        if self.shared_share > 1:
            raise ValueError(f"shared_share is {self.shared_share}; it must be from 0 to 1")

    @property
    def starts_per_s(self) -> float:
        """The rate at which requests arrive."""
        return self.requests_per_s


def generate_borrowed(
    workload: Borrowed, rng: np.random.Generator, clock: Clock, prompt: Int64, output: Int64
) -> Stream:
    """The requests as a stream; `prompt` and `output` are the recorded lengths."""
    names = tuple(f"group-{i}" for i in range(workload.groups))
    batches = _batches(workload, rng, clock, prompt, output)
    return stream_of("synthetic:lengths", batches, workload.requests, workload.block_tokens, names)


def _batches(
    workload: Borrowed, rng: np.random.Generator, clock: Clock, prompt: Int64, output: Int64
) -> Iterator[tuple[Rows, float]]:
    block, n, done = workload.block_tokens, BATCH, 0
    stock = int(prompt.max()) // block
    numbers, popularity = Numbers(workload.groups * stock), Zipf(workload.groups, workload.group_zipf_exponent)
    starts = clock.next(n)
    while True:
        after = clock.next(n)
        at = np.arange(done, done + n) % len(prompt)
        done += n
        group = popularity.draw(rng, n)
        shared = shared_blocks(rng, prompt[at] // block, workload.shared_share)
        whole = (prompt[at] + output[at]) // block
        rows = Rows(
            arrival_s=starts,
            prompt_tokens=prompt[at],
            output_tokens=output[at],
            session=numbers.session_numbers(n),
            think_s=np.full(n, np.nan),
            shared=(group * stock)[:, None],
            shared_blocks=shared[:, None],
            own=numbers.blocks(whole - shared),
            owner=group,
        )
        yield rows, float(after[0])
        starts = after


def shared_blocks(rng: np.random.Generator, whole: Int64, share: float) -> Int64:
    """How many of a prompt's whole blocks are common text."""
    low, high = max(0.0, 2 * share - 1), min(1.0, 2 * share)
    return np.floor(whole * rng.uniform(low, high, len(whole)) + 0.5).astype(np.int64)
