"""Reads what to sweep over: `key=32,64,128` or `key=0:100:10` (both ends included), and multiplies the keys out."""

import itertools
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from experiments.complaints import SpecError
from experiments.load import full_name, split, value_of

NUMBER = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
RANGE = re.compile(rf"({NUMBER}):({NUMBER}):({NUMBER})")
MOST_RUNS = 100_000

Grid = dict[str, list[Any]]


def axis_name(key: str) -> str:
    """The full name of a key that may be swept: one of the spec's, or `trace`, `trace.limit`, ..."""
    return key if key.split(".", maxsplit=1)[0] == "trace" else full_name(key)


def values_of(key: str, given: Any) -> list[Any]:
    """The values a key takes, in the order given, each once: of text, as on the command line, or of a list."""
    items = _items(given) if isinstance(given, str) else given if isinstance(given, list | tuple) else [given]
    found: list[Any] = []
    for item in items:
        values = _values(key, item) if isinstance(given, str) or _is_range(item) else [item]
        found += [value for value in values if not _held(value, found)]
    if not found:
        raise SpecError(f"{key}={given if isinstance(given, str) else ''}: no values; write 32,64,128 or 0:100:10")
    return found


def _held(value: Any, found: Sequence[Any]) -> bool:
    """Whether the very value is there; 1 and true are two values."""
    return any(value == other and type(value) is type(other) for other in found)


def _is_range(item: Any) -> bool:
    return isinstance(item, str) and RANGE.fullmatch(item) is not None


def _items(text: str) -> list[str]:
    """The parts between commas, not cutting inside brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _values(key: str, item: str) -> list[Any]:
    match = RANGE.fullmatch(item)
    if match is None:
        if re.fullmatch(rf"{NUMBER}:.*", item):
            raise SpecError(f"{key}={item}: a range is start:stop:step, as 0:100:10")
        return [value_of(item)]
    start, stop, step = map(Decimal, match.groups())
    if step == 0 or (stop - start) / step < 0:
        raise SpecError(f"{key}={item}: steps of {step} do not lead from {start} to {stop}")
    count = int((stop - start) / step) + 1
    if count > MOST_RUNS:
        raise SpecError(f"{key}={item}: {count} values; at most {MOST_RUNS}")
    values = [start + step * i for i in range(count)]
    return [int(value) if value == value.to_integral_value() else float(value) for value in values]


def axes(texts: Sequence[str]) -> Grid:
    """Every swept key with its values, of `key=values` texts; a key given twice is refused."""
    found: Grid = {}
    for key, values in map(split, texts):
        name = axis_name(key)
        if name in found:
            raise SpecError(f"{name} is given twice; put all its values in one")
        found[name] = values_of(key, values)
    return found


def points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination, the last key changing fastest."""
    return [dict(zip(grid, combination, strict=True)) for combination in itertools.product(*grid.values())]
