"""Gives priorities to requests that carry none: retention rules and a trace in, one range table out.

A prompt is cut in two, `system prompt | turns`, and generated tokens are the third part:

    tokens      0 ........ s ............ prompt_tokens ........
    part        system     turns          decode
    s           the longest boundary of the system_prompt rules that apply to this request

Of two rules for the same token the first in the list wins. Tokens no rule speaks of get no range: their blocks keep
what they have (TensorRT-LLM: 35 when new).

Counting sessions is an oracle view: a prefix counts as shared when enough sessions contain it anywhere in the trace,
also later. That stands for what an operator knows: which system prompts are deployed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from experiments.complaints import SpecError, near
from experiments.spec import RetentionRule
from kvcache.compiled import compiled
from kvcache.curve import prefix_blocks
from kvcache.request import Int32, Int64, Labels, Requests
from kvcache.retention import RetentionColumns

DEFAULT_PRIORITY = 35
FOR_EVER = -1

Bool = NDArray[np.bool_]


@compiled
def _count_sessions(order: Int64, owner: Int64, unit_offset: Int64, prefix: Int32, sessions: Int32) -> None:
    """In how many sessions each prefix occurs. `order` goes session by session, so only the last owner is compared."""
    last = np.full(len(sessions), -1, np.int64)
    for i in order:
        for node in prefix[unit_offset[i] : unit_offset[i + 1]]:
            if last[node] != owner[i]:
                last[node] = owner[i]
                sessions[node] += 1


@compiled
def _shared_units(unit_offset: Int64, prefix: Int32, sessions: Int32, min_sessions: int, shared: Int64) -> None:
    """How many leading units of each request belong to at least `min_sessions` sessions."""
    for i in range(len(unit_offset) - 1):
        k = unit_offset[i]
        while k < unit_offset[i + 1] and sessions[prefix[k]] >= min_sessions:
            k += 1
        shared[i] = k - unit_offset[i]


@dataclass
class _Shared:
    """The prefixes of a trace, counted when the first rule asks."""

    requests: Requests
    prefix: Int32 | None = None
    sessions: Int32 = field(default_factory=lambda: np.empty(0, np.int32))

    def tokens(self, min_sessions: int) -> Int64:
        """The length of the shared first part of each prompt, in tokens (whole units)."""
        requests = self.requests
        if self.prefix is None:
            self.prefix, self.sessions = self._count()
        shared = np.zeros(len(requests), np.int64)
        _shared_units(requests.unit_offset, self.prefix, self.sessions, min_sessions, shared)
        return np.minimum(shared * requests.unit_tokens, requests.prompt_tokens)

    def _count(self) -> tuple[Int32, Int32]:
        """The prefix that ends with each unit of the trace, and in how many sessions each prefix occurs."""
        session = self.requests.session.astype(np.int64)
        alone = session.max(initial=-1) + 1 + np.arange(len(session))
        owner = np.where(session >= 0, session, alone)
        prefix, parents = prefix_blocks(self.requests)
        sessions = np.zeros(len(parents), np.int32)
        _count_sessions(np.argsort(owner, kind="stable"), owner, self.requests.unit_offset, prefix, sessions)
        return prefix, sessions


def check_labels(rules: tuple[RetentionRule, ...], labels: Mapping[str, Labels]) -> None:
    """Refuse rules about labels, or about values of them, that no request of the trace has."""
    for number, rule in enumerate(rules):
        for label, values in rule.where.items():
            if label not in labels:
                known = near(label, labels) if labels else "it has none"
                raise SpecError(f"retention[{number}].where.{label}: the trace has no such label; {known}")
            names = labels[label].names
            for value in values:
                if value not in names:
                    raise SpecError(
                        f"retention[{number}].where.{label}: no request has {value!r}; {near(value, names)}"
                    )


def _applies(rule: RetentionRule, requests: Requests) -> Bool:
    """Which requests a rule is about: those that have one of the wanted values in each label."""
    wanted = np.ones(len(requests), np.bool_)
    for label, values in rule.where.items():
        column = requests.labels.get(label, Labels(np.full(len(requests), -1, np.int32), ()))
        wanted &= np.isin(column.codes, [column.names.index(value) for value in values if value in column.names])
    return wanted


def counts_sessions(rules: tuple[RetentionRule, ...]) -> bool:
    """Whether a rule counts sessions over the whole trace."""
    return any(rule.system_prompt is not None and rule.system_prompt.first_tokens is None for rule in rules)


def columns(requests: Requests, rules: tuple[RetentionRule, ...]) -> RetentionColumns:
    """The token ranges and decode priorities that `rules` give to each request of a whole trace, or of a piece of one."""
    n = len(requests)
    applies = [_applies(rule, requests) for rule in rules]
    shared = _Shared(requests)
    ends = [_system_tokens(rule, shared) for rule in rules]
    system = np.zeros(n, np.int64)
    for applied, end in zip(applies, ends, strict=True):
        system = np.where(applied, np.maximum(system, end), system)
    table = _Table(requests.prompt_tokens.astype(np.int64), system)
    for rule, applied, end in zip(rules, applies, ends, strict=True):
        table.add(rule, applied, end)
    return table.finished()


def _system_tokens(rule: RetentionRule, shared: _Shared) -> Int64:
    """Where the system prompt of each request ends by this rule; 0 for a rule about something else."""
    prompt = shared.requests.prompt_tokens.astype(np.int64)
    if rule.system_prompt is None:
        return np.zeros_like(prompt)
    if rule.system_prompt.first_tokens is not None:
        return np.minimum(rule.system_prompt.first_tokens, prompt)
    return shared.tokens(rule.system_prompt.min_sessions or 1)


class _Table:
    """Collects ranges rule by rule. A rule fills what is still open, so the first one wins.

    `filled` is how much of the system part has its range (always a prefix of it), `turns_open` whether the turns wait.
    """

    def __init__(self, prompt: Int64, system: Int64) -> None:
        n = len(prompt)
        self.prompt, self.system = prompt, system
        self.filled = np.zeros(n, np.int64)
        self.turns_open = system < prompt
        self.decode_open = np.ones(n, np.bool_)
        self.decode_priority = np.full(n, DEFAULT_PRIORITY, np.int32)
        self.decode_duration_ms = np.full(n, FOR_EVER, np.int32)
        self.rows: list[Int64] = [np.empty((0, 5), np.int64)]

    def add(self, rule: RetentionRule, applied: Bool, system_end: Int64) -> None:
        """Let one rule speak."""
        whole = not (rule.system_prompt or rule.turns or rule.decode)
        duration_ms = FOR_EVER if rule.duration_s is None else max(1, round(rule.duration_s * 1000))
        if rule.system_prompt or whole:
            end = self.system if whole else system_end
            self._ranges(applied & (end > self.filled), self.filled, end, rule.priority, duration_ms)
            self.filled = np.where(applied, np.maximum(self.filled, end), self.filled)
        if rule.turns or whole:
            self._ranges(applied & self.turns_open, self.system, self.prompt, rule.priority, duration_ms)
            self.turns_open &= ~applied
        if rule.decode or whole:
            now = applied & self.decode_open
            self.decode_priority[now], self.decode_duration_ms[now] = rule.priority, duration_ms
            self.decode_open &= ~applied

    def _ranges(self, where: Bool, start: Int64, end: Int64, priority: int, duration_ms: int) -> None:
        request = np.flatnonzero(where)
        same = np.ones_like(request)
        self.rows.append(np.stack([request, start[where], end[where], same * priority, same * duration_ms], axis=1))

    def finished(self) -> RetentionColumns:
        """The collected ranges, request by request, in token order."""
        rows = np.concatenate(self.rows)
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
        offset = np.zeros(len(self.prompt) + 1, np.int64)
        np.cumsum(np.bincount(rows[:, 0], minlength=len(self.prompt)), out=offset[1:])
        ranges = np.ascontiguousarray(rows[:, 1:], np.int32)
        return RetentionColumns(offset, ranges, self.decode_priority, self.decode_duration_ms)
