"""Generates agents: loops of model call and tool call on a context that grows, some of which start sub-agents and wait.

A task is a session of steps. A step's prompt is system prompt and tool descriptions of its kind of agent, then everything
the task has seen so far. Between two steps a tool works. A step may start a sub-agent: a session of its own under another
system prompt, whose first call comes when the step has ended; the next step waits until it is done, and is given its report.

    task        step 1 --tool--> step 2 ----------------------(report)--> step 3
    sub-agent                        step 1 --tool--> step 2 --^
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvcache.request import Float64, Int64
from traces.arrivals import Clock, check_process
from traces.draws import Zipf, log_uniform, lognormal
from traces.rows import BATCH, Numbers, Rows, joined_rows, stream_of, turn_sums, unnumbered
from traces.stream import Stream, offsets
from traces.synthetic import check


@dataclass(frozen=True)
class Agents:
    """Kinds of agents, each with one system prompt for tasks and one for sub-agents."""

    requests: int = 10_000
    block_tokens: int = 16
    """Tokens of a block, the grain of all content."""
    requests_per_s: float = 5.0
    """Tasks start at this rate / mean requests of a task with its sub-agents."""
    arrival: str = "poisson"
    """How tasks start: poisson, gamma, weibull, or recorded (at the times of the trace `times_of`)."""
    cv: float = 1.0
    times_of: str = ""
    kinds: int = 20
    kind_zipf_exponent: float = 1.0
    """Kind of rank r starts tasks in proportion to r ** -exponent."""
    system_prompt_min_tokens: int = 3_000
    system_prompt_max_tokens: int = 20_000
    """System prompt with tool descriptions, log-uniform."""
    steps_mean: float = 12.0
    """Model calls of a task, geometric."""
    tool_result_median_tokens: float = 300.0
    tool_result_sigma: float = 1.4
    """Tokens a tool gives back: mostly few, at times a file."""
    answer_median_tokens: float = 120.0
    answer_sigma: float = 0.9
    tool_median_s: float = 2.0
    tool_sigma: float = 1.2
    """How long a tool works, lognormal."""
    sub_agent_share: float = 0.05
    """Share of steps that start a sub-agent."""
    sub_steps_mean: float = 5.0
    prompt_max_tokens: int = 131_072
    """A task ends before its prompt would grow longer than this."""
    answer_s_per_token: float = 0.02
    """Assumed pace of an answer; it only places what comes after it."""

    def __post_init__(self) -> None:
        check(self, above_0=("requests", "block_tokens", "requests_per_s", "kinds", "system_prompt_min_tokens"))
        check(self, above_0=("tool_result_median_tokens", "answer_median_tokens", "tool_median_s"))
        check(self, from_0=("kind_zipf_exponent", "tool_result_sigma", "answer_sigma", "tool_sigma"))
        check(self, from_0=("answer_s_per_token", "sub_agent_share"))
        check_process(self.arrival, self.cv)
        for name in ("steps_mean", "sub_steps_mean"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.sub_agent_share > 1:
            raise ValueError(f"sub_agent_share is {self.sub_agent_share}; it must be from 0 to 1")
        if not self.system_prompt_min_tokens <= self.system_prompt_max_tokens < self.prompt_max_tokens:
            raise ValueError(
                f"system_prompt_min_tokens, system_prompt_max_tokens and prompt_max_tokens are"
                f" {self.system_prompt_min_tokens}, {self.system_prompt_max_tokens} and {self.prompt_max_tokens};"
                " each must be below the next"
            )

    @property
    def starts_per_s(self) -> float:
        """The rate at which tasks start."""
        return self.requests_per_s / (self.steps_mean * (1 + self.sub_agent_share * self.sub_steps_mean))


def generate_agents(workload: Agents, rng: np.random.Generator, clock: Clock) -> Stream:
    """The agents as a stream. `clock` says when tasks start."""
    system = log_uniform(rng, 2 * workload.kinds, workload.system_prompt_min_tokens, workload.system_prompt_max_tokens)
    names = tuple(f"{what}-{i}" for what in ("agent", "sub-agent") for i in range(workload.kinds))
    return stream_of(
        "synthetic:agents", _batches(workload, rng, clock, system), workload.requests, workload.block_tokens, names
    )


def _batches(workload: Agents, rng: np.random.Generator, clock: Clock, system: Int64) -> Iterator[tuple[Rows, float]]:
    whole = system // workload.block_tokens
    first_block, numbers = offsets(whole), Numbers(int(whole.sum()))
    popularity = Zipf(workload.kinds, workload.kind_zipf_exponent)
    n = max(1, round(BATCH / workload.steps_mean))
    starts = clock.next(n)
    while True:
        after = clock.next(n)
        kind = popularity.draw(rng, n)
        tasks, parents = _loops(workload, rng, workload.steps_mean, system[kind])
        chosen = np.flatnonzero(rng.random(len(parents)) < workload.sub_agent_share)
        sub_kind = kind[parents[chosen]] + workload.kinds
        subs, sub_of = _loops(workload, rng, workload.sub_steps_mean, system[sub_kind])
        took_s = np.zeros(len(parents))
        took_s[chosen] = np.bincount(sub_of, subs.arrival_s, len(chosen))
        first = _first_rows(parents, n)
        ended_s = turn_sums(tasks.arrival_s + took_s, first) + tasks.output_tokens * workload.answer_s_per_token
        arrival_s = starts[parents] + turn_sums(tasks.arrival_s + took_s, first)
        sub_first = _first_rows(sub_of, len(chosen))
        sub_arrival_s = (starts[parents] + ended_s)[chosen][sub_of] + turn_sums(subs.arrival_s, sub_first)
        yield (
            joined_rows(
                _numbered(tasks, arrival_s, parents, kind, whole, first_block, numbers),
                _numbered(subs, sub_arrival_s, sub_of, sub_kind, whole, first_block, numbers),
            ),
            float(after[0]),
        )
        starts = after


def _first_rows(owner: Int64, n: int) -> Int64:
    return offsets(np.bincount(owner, minlength=n))[:-1][np.bincount(owner, minlength=n) > 0]


def _loops(workload: Agents, rng: np.random.Generator, steps_mean: float, system: Int64) -> tuple[Rows, Int64]:
    """The steps of one loop for each of `system`, and which loop each belongs to. `arrival_s` is how long a step takes
    with its tool, for now."""
    steps = rng.geometric(1 / steps_mean, len(system))
    loop, first = np.repeat(np.arange(len(system)), steps), offsets(steps)[:-1]
    n, most = len(loop), workload.prompt_max_tokens
    seen = lognormal(rng, n, workload.tool_result_median_tokens, workload.tool_result_sigma, most)
    seen[first] = np.minimum(seen[first], most - system)
    answer = lognormal(rng, n, workload.answer_median_tokens, workload.answer_sigma, most)
    tool_s = np.exp(np.log(workload.tool_median_s) + workload.tool_sigma * rng.standard_normal(n))
    prompt = system[loop] + turn_sums(seen + answer, first) + seen
    think_s = np.roll(tool_s, 1)
    think_s[first] = np.nan
    kept = np.flatnonzero(prompt <= most)
    takes_s: Float64 = answer * workload.answer_s_per_token + tool_s
    return unnumbered(takes_s[kept], prompt[kept], answer[kept], loop[kept], think_s[kept]), loop[kept]


def _numbered(
    rows: Rows, arrival_s: Float64, loop: Int64, kind: Int64, whole: Int64, first_block: Int64, numbers: Numbers
) -> Rows:
    """The rows with their times, sessions and content."""
    sessions = numbers.session_numbers(len(kind))
    longest = np.zeros(len(kind), np.int64)
    np.maximum.at(longest, loop, rows.prompt_tokens + rows.output_tokens)
    own = numbers.blocks(np.maximum(0, longest - whole[kind]))
    owner = kind[loop]
    return rows._replace(
        arrival_s=arrival_s,
        session=sessions[loop],
        own=own[loop],
        owner=owner,
        shared=first_block[owner, None],
        shared_blocks=whole[owner, None],
    )
