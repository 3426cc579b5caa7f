"""Runs conformance cases against the policy objects and says which ones hold. A case is a JSON file.

It decides nothing and models nothing: each level has an adapter (`experiments.conformance`) that calls the real
objects. A case that asks for what we do not have is reported as unsupported, with the name of what is missing.
"""

import json
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from experiments.conformance.adapter import Adapter, Step
from experiments.conformance.events import EventsAdapter
from experiments.conformance.function import FunctionAdapter
from experiments.conformance.manager import ManagerAdapter
from experiments.conformance.policy import PolicyAdapter
from experiments.conformance.retention import RetentionAdapter
from experiments.conformance.scheduler import SchedulerAdapter
from experiments.conformance.tree import TreeAdapter
from experiments.conformance.values import CaseError, MismatchError, UnsupportedError
from experiments.console import say, write_json
from kvcache.cache_request import OutOfBlocksError

LEVELS: dict[str, type[Adapter]] = {
    "manager": ManagerAdapter,
    "block_manager": ManagerAdapter,
    "policy": PolicyAdapter,
    "tree": TreeAdapter,
    "retention": RetentionAdapter,
    "events": EventsAdapter,
    "scheduler": SchedulerAdapter,
    "function": FunctionAdapter,
}
KEYS = {"name", "source", "repo", "level", "covers", "config", "doubt", "note", "derived", "steps"}
REFUSALS = (ValueError, OutOfBlocksError)  # what our objects raise when they refuse; anything else is a fault of ours

ACCEPTED_DOUBTS: dict[str, str] = {}
"""Cases with a doubt that may fail, with the reason why the doubt is right. None so far."""


@dataclass(frozen=True)
class Result:
    """How one case ended. `step` counts from 0; `doubt` is the case's own, where it failed."""

    name: str
    level: str
    status: Literal["pass", "fail", "unsupported", "accepted"]
    step: int | None = None
    op: str | None = None
    what: str | None = None
    expected: Any = None
    got: Any = None
    reason: str | None = None
    doubt: str | None = None

    def line(self) -> str:
        """One line for people."""
        if self.status == "pass":
            return f"pass         {self.name}"
        if self.status == "unsupported":
            return f"unsupported  {self.name}: {self.reason}"
        word = (
            "FAIL (doubt)"
            if self.doubt and self.status == "fail"
            else {"accepted": "accepted"}.get(self.status, "FAIL")
        )
        at = "" if self.step is None else f" step {self.step} {self.op}:"
        found = f" {self.what}: expected {_short(self.expected)}, got {_short(self.got)}"
        why = f" [{self.reason or self.doubt}]" if self.reason or self.doubt else ""
        return f"{word:<12} {self.name}{at}{found}{why}"


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 300 else f"{text[:297]}..."


def read_cases(paths: Iterable[Path]) -> list[tuple[str, Mapping[str, Any]]]:
    """(name, case) of every file, directories searched through; an unreadable one is refused."""
    cases = []
    for path in paths:
        files = sorted(path.rglob("*.json")) if path.is_dir() else [path]
        if not files:
            raise ValueError(f"{path}: no .json file in it")
        cases += [(f"{file.parent.name}/{file.stem}", _read(file)) for file in files]
    return cases


def _read(path: Path) -> Mapping[str, Any]:
    try:
        case = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    fault = _fault(case)
    if fault:
        raise ValueError(f"{path}: not a case: {fault}")
    return dict(case)


def _fault(case: Any) -> str | None:
    if not isinstance(case, dict):
        return f"{type(case).__name__} instead of an object"
    missing = [key for key in ("level", "config", "steps") if key not in case]
    if missing:
        return f"no {missing[0]!r}"
    steps = case["steps"]
    if not isinstance(steps, list) or any(not isinstance(step, dict) or "op" not in step for step in steps):
        return "steps must be a list of objects with an 'op'"
    return None


def run_case(name: str, case: Mapping[str, Any]) -> Result:
    """Run one case to its end or its first difference."""
    level = case["level"]
    try:
        adapter = _adapter(case)
    except UnsupportedError as error:
        return Result(name, level, "unsupported", reason=str(error))
    for i, step in enumerate(case["steps"]):
        ended = _run_step(name, level, adapter, i, step)
        if ended is not None:
            return _with_doubt(ended, case, step)
    return Result(name, level, "pass")


def _adapter(case: Mapping[str, Any]) -> Adapter:
    unknown = set(case) - KEYS
    if unknown:
        raise UnsupportedError(f"key {', '.join(sorted(unknown))}")
    if case["level"] not in LEVELS:
        raise UnsupportedError(f"level {case['level']}")
    adapter = LEVELS[case["level"]](case["config"])
    adapter.check_names(case["steps"])
    return adapter


def _run_step(name: str, level: str, adapter: Adapter, i: int, step: Step) -> Result | None:
    op = step["op"]
    try:
        _do(adapter, step)
    except UnsupportedError as error:
        return Result(name, level, "unsupported", i, op, reason=str(error))
    except MismatchError as error:
        return Result(name, level, "fail", i, op, error.what, error.expected, error.got)
    except CaseError as error:
        return Result(name, level, "fail", i, op, "the case", "a case of the format", str(error))
    except Exception as error:  # a fault of ours is a result too, never the end of the run
        at = traceback.extract_tb(error.__traceback__)[-1]
        got = f"{type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno})"
        return Result(name, level, "fail", i, op, "the step", "no crash", got)
    return None


def _do(adapter: Adapter, step: Step) -> None:
    must_fail = step.get("expect", {}).get("error") is True
    adapter.before()
    try:
        adapter.run(step)
    except CaseError:
        raise
    except REFUSALS as error:
        if not must_fail:
            raise MismatchError("error", False, f"{type(error).__name__}: {error}") from None
    else:
        if must_fail:
            raise MismatchError("error", True, "no error")
    adapter.look(step)


def _with_doubt(result: Result, case: Mapping[str, Any], step: Step) -> Result:
    doubt = step.get("doubt", case.get("doubt"))
    if result.status != "fail" or doubt is None:
        return result
    fields = {**asdict(result), "doubt": doubt}
    if result.name in ACCEPTED_DOUBTS:
        fields |= {"status": "accepted", "reason": ACCEPTED_DOUBTS[result.name]}
    return Result(**fields)


def conform(paths: Sequence[Path], level: str | None = None) -> list[Result]:
    """Results of all cases, or of one level's."""
    if level is not None and level not in LEVELS:
        raise ValueError(f"--level is {level!r}; known levels: {', '.join(LEVELS)}")
    cases = read_cases(paths)
    results = [run_case(name, case) for name, case in cases if level in {None, case["level"]}]
    if not results:
        raise ValueError(f"no case of level {level} among {len(cases)}")
    return results


def summary(results: Sequence[Result]) -> list[str]:
    """A line a level, and one for all."""
    words = ("pass", "fail", "unsupported", "accepted")
    levels = [level for level in LEVELS if any(r.level == level for r in results)]
    levels += sorted({r.level for r in results} - set(LEVELS))
    rows = [(level, [r for r in results if r.level == level]) for level in levels]
    lines = []
    for label, mine in [*rows, ("all", list(results))]:
        counts = {word: sum(r.status == word for r in mine) for word in words}
        shown = [f"{n} {word}" for word, n in counts.items() if n or word in {"pass", "fail"}]
        lines.append(f"{label:<14} {', '.join(shown)}")
    return lines


def failures(results: Sequence[Result]) -> int:
    """Cases that failed, doubtful ones included."""
    return sum(result.status == "fail" for result in results)


def show(results: Sequence[Result], target: str | None) -> None:
    """A line a case and a summary; or JSON, for `-` nothing but JSON."""
    if target is not None:
        write_json(_as_json(results), target)
    if target != "-":
        for line in [*(result.line() for result in results), "", *summary(results)]:
            say(line)


def _as_json(results: Sequence[Result]) -> dict[str, Any]:
    return {
        "cases": [{key: value for key, value in asdict(r).items() if value is not None} for r in results],
        "failures": failures(results),
        "unsupported": sum(result.status == "unsupported" for result in results),
    }
