"""Generates a chat service of many tenants in blocks: system prompts, growing conversations, think times. Any number of them.

It is `multitenant` made for long traces: content is numbered in blocks, not tokens, so that two prompts part at a block's
edge and requests are made 32,768 at a time, in memory that does not grow.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvcache.request import Int64
from traces.arrivals import Clock, check_process
from traces.draws import Zipf, log_uniform, lognormal
from traces.rows import BATCH, Numbers, Rows, stream_of, turn_sums, unnumbered
from traces.stream import Stream, offsets
from traces.synthetic import check


@dataclass(frozen=True)
class Chat:
    """Tenants with a system prompt each; a session is a conversation under one of them."""

    requests: int = 10_000
    """How many requests to make: the first that arrive."""
    block_tokens: int = 16
    """Tokens of a block, the grain of all content."""
    requests_per_s: float = 10.0
    """Sessions start at this rate / mean turns."""
    arrival: str = "poisson"
    """How sessions start: poisson, gamma, weibull, or recorded (at the times of the trace `times_of`)."""
    cv: float = 1.0
    """Burstiness of gamma and weibull: standard deviation of gaps / their mean."""
    times_of: str = ""
    tenants: int = 100
    tenant_zipf_exponent: float = 1.0
    """Tenant of rank r starts sessions in proportion to r ** -exponent."""
    system_prompt_min_tokens: int = 200
    system_prompt_max_tokens: int = 4_000
    """System prompts are log-uniform between the two."""
    turns_mean: float = 4.0
    """Turns of a session, geometric."""
    question_median_tokens: float = 220.0
    question_sigma: float = 1.0
    answer_median_tokens: float = 180.0
    answer_sigma: float = 0.8
    """New tokens of the user in a turn, and generated ones: lognormal."""
    prompt_max_tokens: int = 32_768
    """A session ends before its prompt would grow longer than this."""
    think_mean_s: float = 20.0
    """From an answer's end to the next question, exponential."""
    answer_s_per_token: float = 0.02
    """Assumed pace of an answer; it only places the next turn after the answer."""

    def __post_init__(self) -> None:
        check(self, above_0=("requests", "block_tokens", "requests_per_s", "tenants", "system_prompt_min_tokens"))
        check(self, above_0=("question_median_tokens", "answer_median_tokens"))
        check(self, from_0=("tenant_zipf_exponent", "question_sigma", "answer_sigma", "think_mean_s"))
        check(self, from_0=("answer_s_per_token", "turns_mean"))
        check_process(self.arrival, self.cv)
        if self.turns_mean < 1:
            raise ValueError(f"turns_mean is {self.turns_mean}; it must be at least 1")
        if not self.system_prompt_min_tokens <= self.system_prompt_max_tokens < self.prompt_max_tokens:
            raise ValueError(
                f"system_prompt_min_tokens, system_prompt_max_tokens and prompt_max_tokens are"
                f" {self.system_prompt_min_tokens}, {self.system_prompt_max_tokens} and {self.prompt_max_tokens};"
                " each must be below the next"
            )

    @property
    def starts_per_s(self) -> float:
        """The rate at which sessions start."""
        return self.requests_per_s / self.turns_mean


def generate_chat(workload: Chat, rng: np.random.Generator, clock: Clock) -> Stream:
    """The service as a stream. `clock` says when sessions start."""
    system = log_uniform(rng, workload.tenants, workload.system_prompt_min_tokens, workload.system_prompt_max_tokens)
    names = tuple(f"tenant-{i}" for i in range(workload.tenants))
    batches = _batches(workload, rng, clock, system)
    return stream_of("synthetic:chat", batches, workload.requests, workload.block_tokens, names)


def _batches(workload: Chat, rng: np.random.Generator, clock: Clock, system: Int64) -> Iterator[tuple[Rows, float]]:
    whole = system // workload.block_tokens
    first_block, numbers = offsets(whole), Numbers(int(whole.sum()))
    popularity = Zipf(workload.tenants, workload.tenant_zipf_exponent)
    n = max(1, round(BATCH / workload.turns_mean))
    starts = clock.next(n)
    while True:
        after = clock.next(n)
        tenant = popularity.draw(rng, n)
        rows = _turns(workload, rng, starts, system[tenant])
        owner, session = tenant[rows.session], numbers.session_numbers(n)[rows.session]
        longest = np.zeros(n, np.int64)
        np.maximum.at(longest, rows.session, rows.prompt_tokens + rows.output_tokens)
        own = numbers.blocks(np.maximum(0, longest // workload.block_tokens - whole[tenant]))[rows.session]
        yield (
            rows._replace(
                session=session, owner=owner, own=own, shared=first_block[owner, None], shared_blocks=whole[owner, None]
            ),
            float(after[0]),
        )
        starts = after


def _turns(workload: Chat, rng: np.random.Generator, starts: np.ndarray, system: Int64) -> Rows:
    """Every turn of these sessions; the session's number counts within the batch, content is not numbered yet."""
    most = workload.prompt_max_tokens
    turns = rng.geometric(1 / workload.turns_mean, len(starts))
    first = offsets(turns)[:-1]
    session = np.repeat(np.arange(len(starts)), turns)
    total = len(session)
    question = lognormal(rng, total, workload.question_median_tokens, workload.question_sigma, most)
    question[first] = np.minimum(question[first], most - system)
    answer = lognormal(rng, total, workload.answer_median_tokens, workload.answer_sigma, most)
    think_s = rng.exponential(1.0, total) * workload.think_mean_s
    prompt = system[session] + turn_sums(question + answer, first) + question
    arrival_s = starts[session] + turn_sums(answer * workload.answer_s_per_token + think_s, first)
    before = np.roll(think_s, 1)
    before[first] = np.nan
    kept = np.flatnonzero(prompt <= most)
    return unnumbered(arrival_s[kept], prompt[kept], answer[kept], session[kept], before[kept])
