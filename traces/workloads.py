"""Turns `synthetic:NAME?seed=1&requests=2000`, or a YAML file that says the same, into a generated workload.

It does not generate anything itself. `WORKLOADS` is the table of generators, one line each; the parameters are the fields of
their dataclasses, and `seed`. A mixture is a file only:

    seed: 1                     generator: chat          generator: mix
    generator: chat             seed: 7                  requests: 100000
    tenants: 500                cv: 3                    parts:
                                arrival: gamma             - {generator: chat, weight: 3, tenants: 500}
                                                           - {generator: rag, weight: 1}
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from traces.agents import Agents, generate_agents
from traces.arrivals import Clock
from traces.borrowed import Borrowed, generate_borrowed
from traces.chat import Chat, generate_chat
from traces.errors import TraceError, shown
from traces.mixture import mixed
from traces.rag import Rag, generate_rag
from traces.repeat_scan import RepeatScan, generate_repeat_scan
from traces.servegen import ServeGen, generate_servegen
from traces.stream import Stream, first, in_pieces
from traces.synthetic import MultiTenant, generate_multitenant

PREFIX = "synthetic:"
SUFFIXES = (".yaml", ".yml")
MIX = "mix"

Read = Callable[[str], Stream]
"""Opens another trace, whose times or lengths a generator takes."""


@dataclass(frozen=True)
class Workload:
    """A generator and the parameters it has unless told otherwise."""

    parameters: Any
    generate: Callable[[Any, int, Read], Stream]


def _timed(generate: Callable[[Any, np.random.Generator, Clock], Stream]) -> Callable[[Any, int, Read], Stream]:
    def generated(parameters: Any, seed: int, read: Read) -> Stream:
        content, times = np.random.default_rng(seed).spawn(2)
        return generate(parameters, content, _clock(parameters, times, read))

    return generated


def _clock(parameters: Any, rng: np.random.Generator, read: Read) -> Clock:
    if parameters.arrival != "recorded":
        return Clock(rng, parameters.starts_per_s, parameters.arrival, parameters.cv)
    if not parameters.times_of:
        raise ValueError("arrival is recorded; name the trace whose times to take with times_of")
    times_s = np.concatenate([piece.arrival_s for piece in read(parameters.times_of).pieces])
    return Clock(rng, parameters.starts_per_s, recorded_s=times_s)


def _borrowed(parameters: Borrowed, seed: int, read: Read) -> Stream:
    content, times = np.random.default_rng(seed).spawn(2)
    lengths = [(piece.prompt_tokens, piece.output_tokens) for piece in read(parameters.lengths_of).pieces]
    prompt, output = (np.concatenate(column).astype(np.int64) for column in zip(*lengths, strict=True))
    return generate_borrowed(parameters, content, _clock(parameters, times, read), prompt, output)


WORKLOADS: dict[str, Workload] = {
    "multitenant": Workload(MultiTenant(), lambda p, seed, _: in_pieces(generate_multitenant(p, seed))),
    "repeat_scan": Workload(RepeatScan(), lambda p, seed, _: in_pieces(generate_repeat_scan(p, seed))),
    "chat": Workload(Chat(), _timed(generate_chat)),
    "agents": Workload(Agents(), _timed(generate_agents)),
    "rag": Workload(Rag(), _timed(generate_rag)),
    "lengths": Workload(Borrowed(), _borrowed),
    "servegen": Workload(ServeGen(), lambda p, seed, _: generate_servegen(p, np.random.default_rng(seed))),
}


def generated(trace: str, read: Read) -> Stream:
    """The workload of that name or file; the same gives the same workload. Without a seed it is seed 0."""
    name, _, query = trace.removeprefix(PREFIX).partition("?")
    given = dict(_pairs(trace, query))
    is_file = name.endswith(SUFFIXES)
    made = _from_file(Path(name), given, read) if is_file else _made(trace, name, given, read)
    return replace(made, source=trace, pieces=(replace(piece, source=trace) for piece in made.pieces))


def _made(trace: str, name: str, given: Mapping[str, Any], read: Read) -> Stream:
    """One generator's workload from parameters as text or as YAML values."""
    if name not in WORKLOADS:
        known = ", ".join([*WORKLOADS, f"{MIX} (in a .yaml file)"])
        raise TraceError(f"{trace}: no generator is called {shown(name)}; known: {known}")
    workload = WORKLOADS[name]
    known_fields = {"seed": 0, **{f.name: getattr(workload.parameters, f.name) for f in fields(workload.parameters)}}
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in known_fields:
            raise TraceError(f"{trace}: {name} has no parameter {shown(key)}; known: {', '.join(known_fields)}")
        values[key] = _value(trace, key, value, type(known_fields[key]))
    seed = values.pop("seed", 0)
    if seed < 0:
        raise TraceError(f"{trace}: seed is {seed}; it must be 0 or more")
    try:
        return workload.generate(replace(workload.parameters, **values), seed, read)
    except ValueError as error:
        raise error if isinstance(error, TraceError) else TraceError(f"{trace}: {error}") from None


def _from_file(path: Path, given: Mapping[str, str], read: Read) -> Stream:
    """A file names its generator; what stands after the `?` is changed."""
    import yaml

    try:
        said = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise TraceError(f"{path}: cannot be read as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(said, dict) or not isinstance(said.get("generator"), str):
        raise TraceError(f"{path}: it must be keys and values, with generator: one of {', '.join([*WORKLOADS, MIX])}")
    values = {key: value for key, value in {**said, **given}.items() if key != "generator"}
    if said["generator"] != MIX:
        return _made(str(path), said["generator"], values, read)
    return _mixture(str(path), values, read)


def _mixture(trace: str, values: Mapping[str, Any], read: Read) -> Stream:
    """Parts merged by time. A part without a seed has the mixture's seed + its place; its weight scales its rate."""
    unknown = values.keys() - {"parts", "requests", "seed"}
    if unknown:
        raise TraceError(f"{trace}: {MIX} has no parameter {shown(min(unknown))}; known: seed, requests, parts")
    parts = values.get("parts")
    if not isinstance(parts, list) or not parts or not all(isinstance(p, dict) and "generator" in p for p in parts):
        raise TraceError(f"{trace}: parts must be a list of generators with their parameters")
    seed = _value(trace, "seed", values.get("seed", 0), int)
    requests = _value(trace, "requests", values.get("requests", 10_000), int)
    if requests < 1:
        raise TraceError(f"{trace}: requests is {requests}; it must be at least 1")
    streams = []
    for k, part in enumerate(parts):
        weight = _value(trace, "weight", part.get("weight", 1.0), float)
        own = {"seed": seed + k, "requests": requests, **part}
        own = {key: value for key, value in own.items() if key not in {"generator", "weight"}}
        streams.append(_made(trace, part["generator"], _scaled(trace, part["generator"], own, weight), read))
    names = [f"{k}-{part['generator']}" for k, part in enumerate(parts)]
    return first(mixed(trace, streams, names), requests)


def _scaled(trace: str, name: str, own: dict[str, Any], weight: float) -> dict[str, Any]:
    """Parameters with the rate times `weight`."""
    if name not in WORKLOADS:
        return own
    defaults = WORKLOADS[name].parameters
    known = {f.name: getattr(defaults, f.name) for f in fields(defaults)}
    if "requests" not in known:
        own.pop("requests")
    for rate in ("requests_per_s", "rate_scale"):
        if rate in known:
            return own | {rate: _value(trace, rate, own.get(rate, known[rate]), float) * weight}
    return own


def _pairs(trace: str, query: str) -> list[tuple[str, str]]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise TraceError(f"{trace}: {shown(query)} is not of the form name=value&name=value") from None
    twice = next((key for key, _ in pairs if [k for k, _ in pairs].count(key) > 1), None)
    if twice is not None:
        raise TraceError(f"{trace}: {twice} is given twice; give it once")
    return pairs


def _value(trace: str, key: str, value: Any, kind: type[Any]) -> Any:
    wanted = {int: "a whole number", float: "a number", str: "text"}[kind]
    wrong = TraceError(f"{trace}: {key} is {shown(value)}; it must be {wanted}")
    if isinstance(value, str) and kind is not str:
        try:
            return kind(value.replace("_", ""))
        except ValueError:
            raise wrong from None
    if kind is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
        raise wrong
    return kind(value)
