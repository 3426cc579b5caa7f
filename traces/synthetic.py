"""Generates a token-level chat service of many tenants: shared system prompts, branching headers, growing chats.

Everything follows from the parameters and the random generator handed in. It does not imitate a particular service:
each distribution below is a plain one with the shape that published traces have in common (few heavy tenants, long
tails). It does not spend time either: an answer's pace is assumed, to place the next turn.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.random import Generator

from kvcache.request import Int32, Int64, Labels, Requests
from traces.fields import INT32_MAX

Rng = Generator | int


@dataclass(frozen=True)
class MultiTenant:
    """A service of many tenants. A prompt is system prompt, header of examples, conversation so far, new question."""

    requests: int = 2_000
    """How many requests to make: the first that arrive."""
    tenants: int = 40
    """Customers, each with its own system prompt and its own header variants."""
    tenant_zipf_exponent: float = 1.0
    """Tenant of rank r starts sessions in proportion to r ** -exponent (Zipf): few tenants make most of the traffic."""
    requests_per_s: float = 10.0
    """Sessions start as a Poisson process (independent users) at this rate / mean turns. The rate of requests rises
    towards it while the first sessions run, and stays below it where `prompt_max_tokens` ends sessions early."""
    system_prompt_min_tokens: int = 180
    system_prompt_max_tokens: int = 2_900
    """System prompts are log-uniform between the two: most are short, some are long, none is rounded to a block."""
    header_variants: int = 3
    """Headers a tenant uses (versions of its few-shot examples). They agree up to a random token, then branch, so that
    branches fall inside blocks. A session picks one evenly."""
    header_min_tokens: int = 60
    header_max_tokens: int = 900
    """Length of a header, uniform between the two."""
    turns_mean: float = 4.0
    """Turns of a session, geometric (each turn may be the last with the same chance)."""
    question_median_tokens: float = 220.0
    question_sigma: float = 1.0
    """New tokens of the user in a turn, lognormal: mostly a sentence, at times a pasted document."""
    answer_median_tokens: float = 180.0
    answer_sigma: float = 0.8
    """Generated tokens, lognormal, from 1 to `prompt_max_tokens`."""
    prompt_max_tokens: int = 8_192
    """A session ends before its prompt would grow longer than this."""
    think_mean_s: float = 20.0
    """From an answer's end to the next question, exponential."""
    answer_s_per_token: float = 0.02
    """Assumed pace of an answer; it only places the next turn after the answer."""
    vocabulary: int = 128_000
    """Token ids are drawn evenly from 0 to this: only equality matters to a cache."""
    salt: str = "none"
    """Whose cache_salt a request carries: none, tenant (customers share nothing), session (conversations share nothing)."""

    def __post_init__(self) -> None:
        if self.salt not in {"none", "tenant", "session"}:
            raise ValueError(f"salt is {self.salt!r}; it must be none, tenant or session")
        check(self, above_0=("requests", "tenants", "requests_per_s", "header_variants", "system_prompt_min_tokens"))
        check(self, above_0=("header_min_tokens", "question_median_tokens", "answer_median_tokens", "vocabulary"))
        check(self, from_0=("tenant_zipf_exponent", "question_sigma", "answer_sigma", "think_mean_s"))
        check(self, from_0=("answer_s_per_token", "turns_mean"))
        check_vocabulary(self.vocabulary)
        if not self.turns_mean >= 1:
            raise ValueError(f"turns_mean is {self.turns_mean}; it must be at least 1")
        for low, high in (("system_prompt_min_tokens", "system_prompt_max_tokens"),
                          ("header_min_tokens", "header_max_tokens")):  # fmt: skip
            if getattr(self, low) > getattr(self, high):
                raise ValueError(f"{low} is {getattr(self, low)}, above {high} = {getattr(self, high)}")
        longest = self.system_prompt_max_tokens + self.header_max_tokens
        if longest >= self.prompt_max_tokens:
            raise ValueError(f"prompt_max_tokens is {self.prompt_max_tokens}; it must be above {longest}, the longest "
                             f"system prompt and header together")  # fmt: skip


@dataclass(frozen=True)
class _Session:
    """One conversation. Turn k's prompt is tokens[:prompt_end[k]], its answer tokens[prompt_end[k]:answer_end[k]]."""

    tenant: int
    tokens: Int32
    arrival_s: list[float]
    prompt_end: list[int]
    answer_end: list[int]


def generate_multitenant(workload: MultiTenant, rng: Rng) -> Requests:
    """The first `workload.requests` requests of the service, from a seed or a generator."""
    rng = np.random.default_rng(rng)
    starts = _tenant_starts(workload, rng)
    sessions: list[_Session] = []
    expected_s: list[float] = []  # arrivals that lie ahead, a heap
    n_arrived = 0
    for tenant, start_s in _session_starts(workload, rng):
        while expected_s and expected_s[0] <= start_s:
            heappop(expected_s)
            n_arrived += 1
        if n_arrived >= workload.requests:
            break
        sessions.append(_session(workload, rng, tenant, start_s, starts[tenant]))
        for arrival_s in sessions[-1].arrival_s:
            heappush(expected_s, arrival_s)
    return _as_requests(workload, sessions)


def _tenant_starts(workload: MultiTenant, rng: Generator) -> list[list[Int32]]:
    """For each tenant, the possible beginnings of its prompts: system prompt and one of the headers."""
    low, high = np.log(workload.system_prompt_min_tokens), np.log(workload.system_prompt_max_tokens)
    tenants = []
    for _ in range(workload.tenants):
        system = _tokens(workload, rng, round(float(np.exp(rng.uniform(low, high)))))
        trunk = _tokens(workload, rng, workload.header_max_tokens)
        headers = []
        for _ in range(workload.header_variants):
            length = int(rng.integers(workload.header_min_tokens, workload.header_max_tokens, endpoint=True))
            agreed = int(rng.integers(0, length))
            headers.append(np.concatenate((system, trunk[:agreed], _tokens(workload, rng, length - agreed))))
        tenants.append(headers)
    return tenants


def _session_starts(workload: MultiTenant, rng: Generator) -> Iterator[tuple[int, float]]:
    """Who starts a conversation, and when: a Poisson process over Zipf-distributed tenants."""
    popularity = np.arange(1, workload.tenants + 1, dtype=np.float64) ** -workload.tenant_zipf_exponent
    cumulative = np.cumsum(popularity / popularity.sum())
    gap_s = workload.turns_mean / workload.requests_per_s
    now_s = 0.0
    while True:
        yield min(int(np.searchsorted(cumulative, rng.random())), workload.tenants - 1), now_s
        now_s += float(rng.exponential(gap_s))


def _session(workload: MultiTenant, rng: Generator, tenant: int, start_s: float, starts: list[Int32]) -> _Session:
    """A conversation: every turn's prompt is the one before, its answer, and a new question."""
    pieces = [starts[int(rng.integers(len(starts)))]]
    length, now_s = len(pieces[0]), start_s
    arrival_s, prompt_end, answer_end = [], [], []
    for turn in range(int(rng.geometric(1 / workload.turns_mean))):
        question = _lognormal(rng, workload.question_median_tokens, workload.question_sigma, workload.prompt_max_tokens)
        answer = _lognormal(rng, workload.answer_median_tokens, workload.answer_sigma, workload.prompt_max_tokens)
        if turn == 0:
            question = min(question, workload.prompt_max_tokens - length)
        if length + question > workload.prompt_max_tokens:
            break
        pieces.append(_tokens(workload, rng, question + answer))
        arrival_s.append(now_s)
        prompt_end.append(length + question)
        length += question + answer
        answer_end.append(length)
        now_s += answer * workload.answer_s_per_token + float(rng.exponential(workload.think_mean_s))
    return _Session(tenant, np.concatenate(pieces), arrival_s, prompt_end, answer_end)


def _as_requests(workload: MultiTenant, sessions: list[_Session]) -> Requests:
    """All turns in order of arrival, as columns."""
    turns = [(s.arrival_s[k], number, k) for number, s in enumerate(sessions) for k in range(len(s.arrival_s))]
    turns = sorted(turns)[: workload.requests]
    owners = [sessions[number] for _, number, _ in turns]
    prompt = [s.tokens[: s.prompt_end[k]] for s, (_, _, k) in zip(owners, turns, strict=True)]
    answer = [s.tokens[s.prompt_end[k] : s.answer_end[k]] for s, (_, _, k) in zip(owners, turns, strict=True)]
    prompt_tokens, answer_tokens = (np.array([len(t) for t in column], np.int32) for column in (prompt, answer))
    session = np.array([number for _, number, _ in turns], np.int32)
    tenant = np.array([s.tenant for s in owners], np.int32)
    return Requests(
        source="synthetic:multitenant",
        unit_tokens=1,
        arrival_s=np.array([arrival_s for arrival_s, _, _ in turns], np.float64),
        prompt_tokens=prompt_tokens,
        output_tokens=answer_tokens,
        unit_offset=offsets(prompt_tokens),
        units=np.concatenate(prompt),
        output_offset=offsets(answer_tokens),
        output_units=np.concatenate(answer),
        session=session,
        salt={"none": np.full(len(turns), -1, np.int32), "tenant": tenant, "session": session}[workload.salt],
        labels={"tenant": Labels(tenant, tuple(f"tenant-{i}" for i in range(workload.tenants)))},
    )


def check(parameters: Any, *, above_0: Sequence[str] = (), from_0: Sequence[str] = ()) -> None:
    """Refuse parameters that no workload can have, by name."""
    for name in (*above_0, *from_0):
        value = getattr(parameters, name)
        least = "above 0" if name in above_0 else "0 or more"
        if not math.isfinite(value) or value < 0 or (name in above_0 and value == 0):
            comma = " " if name in above_0 else ", "
            raise ValueError(f"{name} is {value}; it must be a finite number{comma}{least}")


def check_vocabulary(vocabulary: int) -> None:
    """Refuse more token ids than a column can hold."""
    if vocabulary > INT32_MAX:
        raise ValueError(f"vocabulary is {vocabulary}; it must be at most {INT32_MAX}")


def offsets(lengths: Int32) -> Int64:
    """Where each row of these lengths begins, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int64)


def _tokens(workload: MultiTenant, rng: Generator, n: int) -> Int32:
    return rng.integers(workload.vocabulary, size=n, dtype=np.int32)


def _lognormal(rng: Generator, median: float, sigma: float, most: int) -> int:
    """A whole number from 1 to `most`."""
    logarithm = min(math.log(median) + sigma * float(rng.standard_normal()), math.log(most))
    return max(1, round(math.exp(logarithm)))
