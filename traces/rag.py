"""Generates questions to documents: a prompt is the system prompt, some documents of a library, then the question.

Documents are asked for by Zipf's law. They and the system prompt are whole blocks long, so a document is the same blocks
wherever it stands; a prefix cache finds it again only behind the same documents.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from traces.arrivals import Clock, check_process
from traces.draws import Zipf, lognormal
from traces.rows import BATCH, Numbers, Rows, stream_of
from traces.stream import Stream, offsets
from traces.synthetic import check


@dataclass(frozen=True)
class Rag:
    """A library, one system prompt, questions without memory."""

    requests: int = 10_000
    block_tokens: int = 16
    """Tokens of a block, the grain of all content."""
    requests_per_s: float = 10.0
    arrival: str = "poisson"
    """How requests arrive: poisson, gamma, weibull, or recorded (at the times of the trace `times_of`)."""
    cv: float = 1.0
    times_of: str = ""
    documents: int = 10_000
    document_zipf_exponent: float = 0.9
    """Document of rank r is asked for in proportion to r ** -exponent."""
    document_median_tokens: float = 1_200.0
    document_sigma: float = 0.7
    document_max_tokens: int = 16_384
    per_request: int = 3
    """Documents in a prompt, drawn each by itself, the most popular first: that is the order in which prefixes are shared
    most."""
    system_prompt_tokens: int = 512
    question_median_tokens: float = 60.0
    question_sigma: float = 0.8
    answer_median_tokens: float = 250.0
    answer_sigma: float = 0.7

    def __post_init__(self) -> None:
        check(self, above_0=("requests", "block_tokens", "requests_per_s", "documents", "document_median_tokens"))
        check(self, above_0=("document_max_tokens", "per_request", "question_median_tokens", "answer_median_tokens"))
        check(self, from_0=("document_zipf_exponent", "document_sigma", "question_sigma", "answer_sigma"))
        check(self, from_0=("system_prompt_tokens",))
        check_process(self.arrival, self.cv)

    @property
    def starts_per_s(self) -> float:
        """The rate at which requests arrive."""
        return self.requests_per_s


def generate_rag(workload: Rag, rng: np.random.Generator, clock: Clock) -> Stream:
    """The questions as a stream."""
    batches = _batches(workload, rng, clock)
    return stream_of("synthetic:rag", batches, workload.requests, workload.block_tokens, ("library",))


def _batches(workload: Rag, rng: np.random.Generator, clock: Clock) -> Iterator[tuple[Rows, float]]:
    block, n, most = workload.block_tokens, BATCH, workload.document_max_tokens
    size = lognormal(rng, workload.documents, workload.document_median_tokens, workload.document_sigma, most)
    blocks = np.concatenate(([-(-workload.system_prompt_tokens // block)], -(-size // block)))
    first_block, numbers = offsets(blocks), Numbers(int(blocks.sum()))
    popularity = Zipf(workload.documents, workload.document_zipf_exponent)
    starts = clock.next(n)
    while True:
        after = clock.next(n)
        ranks = popularity.draw(rng, n * workload.per_request).reshape(n, workload.per_request)
        runs = np.column_stack((np.zeros(n, np.int64), 1 + np.sort(ranks, axis=1)))
        question = lognormal(rng, n, workload.question_median_tokens, workload.question_sigma, most)
        answer = lognormal(rng, n, workload.answer_median_tokens, workload.answer_sigma, most)
        rows = Rows(
            arrival_s=starts,
            prompt_tokens=blocks[runs].sum(axis=1) * block + question,
            output_tokens=answer,
            session=numbers.session_numbers(n),
            think_s=np.full(n, np.nan),
            shared=first_block[runs],
            shared_blocks=blocks[runs],
            own=numbers.blocks((question + answer) // block),
            owner=np.zeros(n, np.int64),
        )
        yield rows, float(after[0])
        starts = after
