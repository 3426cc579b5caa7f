"""Finds an eviction policy by its name: one of `kvcache.policies`, or a class in a file of the user's own.

A user's class has one function, `score(now_s, uses, depth, priority, floor)`, without self: the block with the lowest score
goes first. It is compiled behind the same signature as our own scores, so it runs in simulation and on hardware alike.
Whatever is wrong with the file is said in one line with the file and the line.
"""

import inspect
import math
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

from numba.core.errors import NumbaError

from experiments.complaints import SpecError, near
from kvcache.eviction import SCORE
from kvcache.policies import POLICIES, PRIORITY, Policy, pointer
from kvcache.shelf import Rule, ScoreFunction

ARGUMENTS = ("now_s", "uses", "depth", "priority", "floor")
TRIALS = ((0.0, 1, 0, 35, 0.0), (3600.0, 50, 120_000, 100, 40.0), (1.5, 2, 512, 0, 0.25))
"""Arguments that every score must have a finite answer to."""


def eviction_of(name: str) -> Policy | None:
    """The policy of that name; None for TensorRT-LLM's own. Anything wrong is a SpecError."""
    if name == PRIORITY:
        return None
    if name in POLICIES:
        return POLICIES[name]
    path, separator, class_name = name.rpartition(":")
    if not separator or not path.endswith(".py"):
        raise SpecError(
            f"policy: unknown policy {name}; {near(name, (PRIORITY, *POLICIES))}; your own is FILE.py:CLASS"
        )
    return _own(path, class_name, Path(path).stat().st_mtime_ns if Path(path).is_file() else 0)


@cache
def _own(path: str, class_name: str, changed_ns: int) -> Policy:
    """The policy of a user's file as it was at `changed_ns`: read and compiled once."""
    score = _score_in(path, class_name)
    _try(path, class_name, score)
    rule = Rule(SCORE, renews=True, counts=True, leaves_only=True, first_share=0.0, ghost_share=0.0, past=0)
    return Policy(rule, score, f"{class_name} of {path}")


def _score_in(path: str, class_name: str) -> ScoreFunction:
    names: dict[str, Any] = {"__name__": Path(path).stem}
    try:
        exec(_code(path), names)  # the user's own file, named on the command line
    except Exception as error:
        raise SpecError(f"{path}:{_line(error, path)}: {type(error).__name__}: {error}") from None
    found = names.get(class_name)
    if not inspect.isclass(found):
        classes = [name for name, value in names.items() if inspect.isclass(value)]
        raise SpecError(f"{path}: no class {class_name}; it has {', '.join(classes) or 'none'}")
    score = inspect.getattr_static(found, "score", None)
    score = getattr(score, "__func__", score)
    at = f"{path}:{inspect.unwrap(score).__code__.co_firstlineno if inspect.isfunction(score) else 1}"
    if not inspect.isfunction(score):
        raise SpecError(f"{at}: {class_name} has no function score({', '.join(ARGUMENTS)})")
    if tuple(inspect.signature(score).parameters) != ARGUMENTS:
        given = ", ".join(inspect.signature(score).parameters)
        raise SpecError(f"{at}: {class_name}.score takes ({given}); it must take ({', '.join(ARGUMENTS)})")
    return score


def _code(path: str) -> CodeType:
    try:
        return compile(Path(path).read_text(encoding="utf-8"), path, "exec")
    except SyntaxError as error:
        raise SpecError(f"{path}:{error.lineno}: {error.msg}") from None


def _try(path: str, class_name: str, score: ScoreFunction) -> None:
    """Call it as Python and as machine code; both must give finite numbers."""
    for trial in TRIALS:
        try:
            value = score(*trial)
        except Exception as error:
            raise SpecError(
                f"{path}:{_line(error, path)}: {class_name}.score: {type(error).__name__}: {error}"
            ) from None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            shown = ", ".join(f"{name}={v}" for name, v in zip(ARGUMENTS, trial, strict=True))
            raise SpecError(
                f"{path}:{score.__code__.co_firstlineno}: {class_name}.score({shown}) is {value!r}; it must be a finite number"
            )
    try:
        pointer(score)
    except NumbaError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        at = next((line.split("line ")[1].split(":")[0] for line in lines if f'"{path}", line ' in line), None)
        reason = next((line for line in lines if not line.startswith(("Failed", "During", "File", "^"))), lines[0])
        raise SpecError(
            f"{path}:{at or score.__code__.co_firstlineno}: {class_name}.score cannot be compiled: {reason.strip()}"
        ) from None


def _line(error: BaseException, path: str) -> int:
    """The line of the user's file where an error came up."""
    line, trace = 1, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
