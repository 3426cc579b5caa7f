"""Turns a name such as `synthetic:multitenant?seed=1&requests=2000` into a generated workload.

It does not generate anything itself. `WORKLOADS` is the table of generators, one line each; the parameters are the
fields of their dataclasses, and `seed`.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import parse_qsl

from kvcache.request import Requests
from traces.errors import TraceError, shown
from traces.repeat_scan import RepeatScan, generate_repeat_scan
from traces.synthetic import MultiTenant, generate_multitenant

PREFIX = "synthetic:"


@dataclass(frozen=True)
class Workload:
    """A generator and the parameters it has unless told otherwise."""

    parameters: Any
    generate: Callable[[Any, int], Requests]


WORKLOADS: dict[str, Workload] = {
    "multitenant": Workload(MultiTenant(), generate_multitenant),
    "repeat_scan": Workload(RepeatScan(), generate_repeat_scan),
}


def generated(trace: str) -> Requests:
    """The workload of that name; the same name gives the same workload. Without a seed it is seed 0."""
    name, _, query = trace.removeprefix(PREFIX).partition("?")
    if name not in WORKLOADS:
        raise TraceError(f"{trace}: no generator is called {shown(name)}; known: {', '.join(WORKLOADS)}")
    workload = WORKLOADS[name]
    known = {"seed": 0, **{f.name: getattr(workload.parameters, f.name) for f in fields(workload.parameters)}}
    given: dict[str, Any] = {}
    for key, text in _pairs(trace, query):
        if key not in known:
            raise TraceError(f"{trace}: {name} has no parameter {shown(key)}; known: {', '.join(known)}")
        if key in given:
            raise TraceError(f"{trace}: {key} is given twice; give it once")
        given[key] = _value(trace, key, text, type(known[key]))
    seed = given.pop("seed", 0)
    if seed < 0:
        raise TraceError(f"{trace}: seed is {seed}; it must be 0 or more")
    try:
        parameters = replace(workload.parameters, **given)
    except ValueError as error:
        raise TraceError(f"{trace}: {error}") from None
    return replace(workload.generate(parameters, seed), source=trace)


def _pairs(trace: str, query: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise TraceError(f"{trace}: {shown(query)} is not of the form name=value&name=value") from None


def _value(trace: str, key: str, text: str, kind: type[Any]) -> Any:
    try:
        return kind(text.replace("_", "") if kind is not str else text)
    except ValueError:
        words = {int: "a whole number", float: "a number"}[kind]
        raise TraceError(f"{trace}: {key} is {shown(text)}; it must be {words}") from None
