"""Learns retention from a trace: which rules would have paid in its first half, and what they are worth in its second.

Rules are tried one at a time on the first half, one request after the other in the whole cache manager, and the best is
kept, until none adds enough. Tried are: the first tokens of each prompt kept longer, generated tokens or whole requests given
up earlier, for all requests or for those with one value of a label (tenant, type, ...). Nothing of the second half is
looked at before the rules stand; then the whole trace is replayed with and without them, and what the first half finds (a
run never looks ahead, so that is known) is taken off.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments import console
from experiments.load import load
from experiments.progress import progress
from experiments.run import run
from experiments.spec import RetentionRule, Spec, SystemPrompt
from experiments.trace import Trace
from kvcache.request import Requests

KEEP, GIVE_UP = 80, 15
LEAST_GAIN = 0.001  # of the prompt tokens of the first half: less is not worth a rule
MOST_RULES, MOST_VALUES = 4, 12
DEPTHS_BLOCKS = (1, 2, 4, 8, 16, 64)

Rules = tuple[RetentionRule, ...]


@dataclass(frozen=True)
class Learned:
    """Rules, and shares of prompt tokens found with and without them in each half."""

    rules: Rules
    first_without: float
    first_with: float
    second_without: float
    second_with: float
    tried: int


def learn(trace: Trace, spec: str | None, settings: Sequence[str]) -> tuple[Learned, list[str]]:
    """The rules for this configuration (its own retention is left out), and what there is to note."""
    base, notes = load(spec, settings)
    base = base.model_copy(update={"retention": (), "policy": "priority"})
    requests = trace.requests()
    half = len(requests) // 2
    if half < 1:
        raise ValueError(f"{trace.name}: {len(requests)} requests; learning needs at least 2")
    first = requests.head(half)
    rules: Rules = ()
    start = best = _found(base, first, rules)
    tried, enough = 0, LEAST_GAIN * float(first.prompt_tokens.sum(dtype=np.int64))
    with progress("rules tried") as report:
        while len(rules) < MOST_RULES:
            options = [rule for rule in _candidates(base, first) if rule not in rules]
            gains = []
            for at, rule in enumerate(options):
                gains.append(_found(base, first, (*rules, rule)) - best)
                report(at + 1, len(options))
            tried += len(options)
            at = int(np.argmax(gains))
            if gains[at] < enough:
                break
            rules, best = (*rules, options[at]), best + gains[at]
    tokens = [float(part.sum(dtype=np.int64)) for part in np.split(requests.prompt_tokens, [half])]
    without, with_rules = _found(base, requests, ()) - start, _found(base, requests, rules) - best
    halves = (start / tokens[0], best / tokens[0], without / tokens[1], with_rules / tokens[1])
    learned = Learned(rules, *halves, tried)
    return learned, [*notes, *requests.notes]


def _found(spec: Spec, requests: Requests, rules: Rules) -> int:
    """Prompt tokens found."""
    return int(run(spec.model_copy(update={"retention": rules}), requests, timing=False)["hit_tokens"])


def _candidates(spec: Spec, requests: Requests) -> Iterator[RetentionRule]:
    """One rule each, for all requests and for each value of each label that has few."""
    tpb = spec.kv_cache_config.tokens_per_block
    scopes: list[dict[str, tuple[str, ...]]] = [{}]
    for label, column in requests.labels.items():
        seen = np.unique(column.codes[column.codes >= 0])
        if 1 < len(seen) <= MOST_VALUES:
            scopes += [{label: (column.names[code],)} for code in seen]
    for where in scopes:
        for blocks in DEPTHS_BLOCKS:
            start = SystemPrompt(first_tokens=blocks * tpb)
            yield RetentionRule(system_prompt=start, where=where, priority=KEEP)
        yield RetentionRule(decode=True, where=where, priority=GIVE_UP)
        if where:
            yield RetentionRule(where=where, priority=KEEP)
            yield RetentionRule(where=where, priority=GIVE_UP)


def show(learned: Learned, notes: list[str], json: str | None) -> None:
    """The rules as TensorRT-LLM takes them and as a spec does, and what they are worth."""
    console.note(notes)
    if json is not None:
        console.write_json(as_json(learned), json)
    if json != "-":
        for line in lines(learned):
            console.say(line)
    if json not in {None, "-"}:
        console.say(str(json))


def as_json(learned: Learned) -> dict[str, Any]:
    """Everything, rules in the form of a spec's `retention`."""
    plain = {**vars(learned), "rules": [_plain(rule) for rule in learned.rules]}
    return {**plain, "second_gain": learned.second_with - learned.second_without}


def _plain(rule: RetentionRule) -> dict[str, Any]:
    return rule.model_dump(mode="json", exclude_defaults=True)


def lines(learned: Learned) -> Iterator[str]:
    """What `kvtier learn-retention` prints."""
    yield f"{learned.tried} rules tried on the first half; {len(learned.rules)} kept"
    for where, rules in _by_scope(learned.rules).items():
        yield ""
        yield f"# {where}"
        yield from _config(rules)
    if learned.rules:
        yield ""
        yield "as a spec:"
        yield "retention:"
        yield from (f"  - {_yaml(_plain(rule))}" for rule in learned.rules)
    yield ""
    yield (
        f"first half:  {100 * learned.first_without:.2f} % of prompt tokens found without,"
        f" {100 * learned.first_with:.2f} % with"
    )
    gain = learned.second_with - learned.second_without
    yield (
        f"second half: {100 * learned.second_without:.2f} % without (plain LRU), {100 * learned.second_with:.2f} % with:"
        f" {100 * gain:+.2f} points"
    )


def _by_scope(rules: Rules) -> dict[str, list[RetentionRule]]:
    """Rules that together make one request's configuration, by whom they are for."""
    found: dict[str, list[RetentionRule]] = {}
    for rule in rules:
        where = " and ".join(f"{label} = {' or '.join(values)}" for label, values in rule.where.items())
        found.setdefault(f"requests with {where}" if where else "all requests", []).append(rule)
    return found


def _config(rules: list[RetentionRule]) -> Iterator[str]:
    """TensorRT-LLM's Python object for one group of requests."""
    whole = [rule for rule in rules if not (rule.system_prompt or rule.turns or rule.decode)]
    decode = next((rule.priority for rule in (*rules, *whole) if rule.decode or rule in whole), None)
    ends = sorted((rule.system_prompt.first_tokens or 0, rule.priority) for rule in rules if rule.system_prompt)
    start = 0
    yield "KvCacheRetentionConfig(token_range_retention_configs=["
    for end, priority in ends:
        if end > start:
            yield f"    KvCacheRetentionConfig.TokenRangeRetentionConfig({start}, {end}, {priority}),"
            start = end
    if whole:
        yield f"    KvCacheRetentionConfig.TokenRangeRetentionConfig({start}, None, {whole[0].priority}),"
    yield "])" if decode is None else f"], decode_retention_priority={decode})"


def _yaml(value: Any) -> str:
    """A rule on one line of YAML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_yaml(inner) for inner in value) + "]"
    return "true" if value is True else str(value)
