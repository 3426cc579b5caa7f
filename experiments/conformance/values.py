"""The values of a case file: token lists, number matchers, saved values; and the three ways a check can end.

It knows no policy object. `agrees` is the only comparison there is.
"""

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

MATCHERS: dict[str, Callable[[Any, Any], Any]] = {
    "ge": operator.ge,
    "gt": operator.gt,
    "le": operator.le,
    "lt": operator.lt,
    "ne": operator.ne,
    "not_in": lambda got, values: got not in values,
}


class MismatchError(Exception):
    """An expectation did not hold."""

    def __init__(self, what: str, expected: Any, got: Any) -> None:
        super().__init__(f"{what}: expected {expected!r}, got {got!r}")
        self.what, self.expected, self.got = what, expected, got


class UnsupportedError(Exception):
    """The case asks for something that the objects under test do not have."""


class CaseError(ValueError):
    """The file is not a case of the format."""


def tokens(value: Any) -> list[int]:
    """A token list in any of its forms."""
    if isinstance(value, list) and all(isinstance(t, int) for t in value):
        return list(value)
    if isinstance(value, dict) and len(value) == 1:
        form, rest = next(iter(value.items()))
        if form == "range":
            return list(range(rest[0], rest[1]))
        if form == "repeat":
            return [rest[0]] * rest[1]
        if form == "concat":
            return [token for part in rest for token in tokens(part)]
    raise CaseError(f"not a token list: {value!r}")


def is_by_window(value: Any) -> bool:
    """An object whose keys are window sizes."""
    return isinstance(value, dict) and bool(value) and all(key.isdigit() for key in value)


def agrees(expected: Any, got: Any, saved: Mapping[str, Any]) -> bool:
    """Whether `got` is what is expected; objects name only the fields that are checked."""
    if isinstance(expected, dict):
        if "ref" in expected:
            return bool(got == resolved(expected, saved))
        if expected and set(expected) <= set(MATCHERS):
            return _matches(expected, got)
        return isinstance(got, Mapping) and all(
            key in got and agrees(value, got[key], saved) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(got, list)
            and len(got) == len(expected)
            and all(agrees(e, g, saved) for e, g in zip(expected, got, strict=True))
        )
    if isinstance(expected, float) and isinstance(got, int | float):
        return math.isclose(expected, got, rel_tol=1e-6, abs_tol=1e-9)
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    return bool(expected == got)


def resolved(ref: Mapping[str, Any], saved: Mapping[str, Any]) -> Any:
    """The value saved under a reference."""
    extra = set(ref) - {"ref", "plus"}
    if extra:
        raise UnsupportedError(f"reference with {', '.join(sorted(extra))}")
    if ref["ref"] not in saved:
        raise CaseError(f"nothing was saved under {ref['ref']!r}")
    return saved[ref["ref"]] + ref["plus"] if "plus" in ref else saved[ref["ref"]]


def _matches(limits: Mapping[str, Any], got: Any) -> bool:
    if not isinstance(got, int | float) or isinstance(got, bool):
        return False
    return all(bool(MATCHERS[name](got, limit)) for name, limit in limits.items())
