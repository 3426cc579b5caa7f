"""Reads a file that says all of a sweep: the spec of its runs, which trace, what to vary.

    trace: mooncake_conversation      # or {name: ..., limit: 1000, trace_block_size: ..., ...}
    timing: true                      # false: decisions only
    sweep: {...}                      # see `experiments.design`
    kv_cache_config: ...              # the rest is a spec, as for `kvtier replay --spec`

A relative trace path starts at the file's directory when there is such a file there. It runs nothing.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from experiments.complaints import SpecError, near
from experiments.design import Design, design_of
from experiments.load import SPECS, Draft, read
from experiments.trace import Trace
from traces.options import ReadOptions
from traces.workloads import PREFIX

OWN = ("trace", "timing", "sweep")
OPTIONS = tuple(field.name for field in fields(ReadOptions))
SUFFIXES = {".yaml", ".yml"}


@dataclass(frozen=True)
class Study:
    """The draft of every run's spec, the trace, what to vary, and whether time is spent."""

    draft: Draft
    trace: Trace
    design: Design
    timing: bool


def is_study(name: str) -> bool:
    """Whether the name of a trace is that of a sweep file: YAML, or one of those that come with kvtier."""
    return not name.startswith(PREFIX) and (Path(name).suffix in SUFFIXES or (SPECS / f"{name}.yaml").exists())


def study(name: str) -> Study:
    """The study in a file; what is wrong with it is a SpecError with its line."""
    return study_of(read(name))


def study_of(draft: Draft) -> Study:
    """The same from what a file says."""
    own = {key: draft.data[key] for key in OWN if key in draft.data}
    if "sweep" not in own:
        raise SpecError(f"{draft.source}: no sweep section in it; a plain spec goes with --spec, after a trace")
    rest = {key: value for key, value in draft.data.items() if key not in OWN}
    timing = own.get("timing", True)
    if not isinstance(timing, bool):
        raise SpecError(f"{_at(draft, 'timing')}timing is {timing!r}; it must be true or false")
    return Study(replace(draft, data=rest), _trace(draft, own.get("trace")), design_of(draft), timing)


def _at(draft: Draft, *path: str) -> str:
    return f"{draft.source}:{draft.lines[path]}: " if path in draft.lines else f"{draft.source}: "


def _trace(draft: Draft, given: Any) -> Trace:
    section = {"name": given} if isinstance(given, str) else given
    if not isinstance(section, dict) or not isinstance(section.get("name"), str):
        raise SpecError(f"{_at(draft, 'trace')}give `trace: NAME`, or `trace: {{name: NAME, limit: N, ...}}`")
    beside = Path(draft.source).parent / section["name"]
    trace = Trace(str(beside) if beside.is_file() else section["name"])
    for key, value in section.items():
        if key != "name":
            trace = _changed(draft, trace, key, value)
    return trace


def _changed(draft: Draft, trace: Trace, key: str, value: Any) -> Trace:
    try:
        return with_setting(trace, f"trace.{key}", value)
    except ValueError as error:
        raise SpecError(f"{_at(draft, 'trace', key)}{error}") from None


def with_setting(trace: Trace, key: str, value: Any) -> Trace:
    """The trace with one of its own keys set: trace, trace.limit, an option of reading, a generator's parameter."""
    name = key.partition(".")[2]
    if key in {"trace", "trace.name"}:
        return replace(trace, name=str(value))
    if name == "limit":
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SpecError(f"{key} is {value!r}; it must be a whole number of requests, 1 or more")
        return replace(trace, limit=value)
    if name == "format":
        return replace(trace, format=value)
    if name in OPTIONS:
        return replace(trace, options=replace(trace.options, **{name: value}))
    if trace.name.startswith(PREFIX):
        return replace(trace, name=_with_parameter(trace.name, name, value))
    raise SpecError(f"unknown key {key}; {near(name, ('name', 'limit', 'format', *OPTIONS))}")


def _with_parameter(name: str, parameter: str, value: Any) -> str:
    """A generator's name with one of its parameters set."""
    generator, _, query = name.partition("?")
    others = [pair for pair in query.split("&") if pair and pair.split("=", maxsplit=1)[0] != parameter]
    return f"{generator}?{'&'.join([*others, f'{parameter}={value}'])}"
