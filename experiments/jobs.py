"""The runs that a sweep wants, each with a key: equal keys, equal results.

A key is a hash of all that determines a row: the spec as checked, the bytes of every file that it names, the trace's
content, with or without time, and the code of kvtier. Names do not count: a trace may be moved.
Versions of Python, numpy and numba do not count either; `about.json` has them.

Thresholds are compared with priorities and used for nothing else. So all thresholds between two neighbouring priorities
of a workload give the same run: it is made once, under the higher of the two. Runs are told apart by key alone, so a
setting given twice, or once as a default and once in words, is also run once.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from experiments.design import SEED, TRACE, Design, Point
from experiments.load import Draft, finished
from experiments.retention import DEFAULT_PRIORITY, columns
from experiments.spec import RetentionRule, Spec
from experiments.study import with_setting
from experiments.trace import Trace
from experiments.version import code_sha256
from kvcache.request import Labels, Requests
from traces.workloads import PREFIX


@dataclass(frozen=True)
class Job:
    """One run: its number in the plan, its key, the settings that make it differ, its spec and trace."""

    number: int
    key: str
    settings: Point
    spec: Spec
    trace: Trace


@dataclass(frozen=True)
class Task:
    """What a sweep is about: a draft with settings on top, the trace, what varies."""

    draft: Draft
    settings: Sequence[tuple[str, Any]]
    trace: Trace
    design: Design = field(default_factory=Design)
    timing: bool = True

    def jobs(self) -> list[Job]:
        """Every wanted run, checked; the first impossible one is an error."""
        return [self.job(number, point) for number, point in enumerate(self.design.points())]

    def job(self, number: int, point: Point) -> Job:
        """The run of one point."""
        trace, own = self.trace, []
        for key, value in point.items():
            if key.split(".", maxsplit=1)[0] == TRACE:
                trace = with_setting(trace, key, value)
            else:
                own.append((key, value))
        if self.design.repeats > 1 and trace.name.startswith(PREFIX):
            trace = with_setting(trace, "trace.seed", point[SEED])
        spec, _ = finished(self.draft, [*self.settings, *own])
        return Job(number, key_of(spec, trace, timing=self.timing), point, spec, trace)


def key_of(spec: Spec, trace: Trace, *, timing: bool) -> str:
    """The key of a run, 32 hexadecimal digits."""
    shown = spec.shown()
    threshold = spec.kv_cache_config.offload_min_priority
    shown["kv_cache_config"]["secondary_offload_min_priority"] = _same_as(
        threshold, _priorities(trace, json.dumps(shown["retention"]))
    )
    content = [shown, sorted(_files(shown)), content_of(trace), timing, code_sha256()]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _same_as(threshold: int, priorities: tuple[int, ...]) -> int:
    """The highest threshold that divides the priorities in the same way."""
    return next((priority for priority in priorities if priority >= threshold), 100)


@lru_cache(maxsize=64)
def _priorities(trace: Trace, rules: str) -> tuple[int, ...]:
    """Every priority that a block of this workload can have, ascending. 0 and 35 are TensorRT-LLM's own."""
    retention = columns(trace.requests(), TypeAdapter(tuple[RetentionRule, ...]).validate_json(rules))
    given = np.concatenate([retention.ranges[:, 2], retention.decode_priority])
    return tuple(sorted({0, DEFAULT_PRIORITY, *np.unique(given).tolist()}))


def _files(value: Any) -> Iterator[tuple[str, str]]:
    """Every file that a spec names, with the SHA-256 of its content."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _files(item)
    elif isinstance(value, str) and Path(value).is_file():
        yield value, hashlib.sha256(Path(value).read_bytes()).hexdigest()


@lru_cache(maxsize=64)
def content_of(trace: Trace) -> str:
    """A hash of all that a trace says, whatever its file is called."""
    digest = hashlib.sha256()
    requests = trace.requests()
    for column in fields(Requests):
        if column.name not in {"source", "notes"}:
            _add(digest, column.name, getattr(requests, column.name))
    return digest.hexdigest()


def _add(digest: Any, name: str, value: Any) -> None:
    digest.update(f"\0{name}\0".encode())
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).data)
    elif isinstance(value, Labels):
        _add(digest, "codes", value.codes)
        _add(digest, "names", value.names)
    elif hasattr(value, "items"):
        for key in sorted(value):
            _add(digest, key, value[key])
    else:
        digest.update(repr(value).encode())
