"""Reads what to sweep over: `key=32,64,128` or `key=0:100:10` (both ends included), and multiplies the keys out."""

import itertools
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from experiments.complaints import SpecError
from experiments.load import full_name, split, value_of

NUMBER = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
RANGE = re.compile(rf"({NUMBER}):({NUMBER}):({NUMBER})")
MOST_RUNS = 100_000

Axis = tuple[str, list[Any]]


def axis(text: str) -> Axis:
    """The full name of a key and the values it takes, in the order given, each once."""
    key, values = split(text)
    found: list[Any] = []
    for item in _items(values):
        found += [value for value in _values(key, item) if value not in found]
    if not found:
        raise SpecError(f"--grid {text!r}: no values; write {key}=32,64,128 or {key}=0:100:10")
    return full_name(key), found


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
            raise SpecError(f"--grid {key}={item}: a range is start:stop:step, as 0:100:10")
        return [value_of(item)]
    start, stop, step = map(Decimal, match.groups())
    if step == 0 or (stop - start) / step < 0:
        raise SpecError(f"--grid {key}={item}: steps of {step} do not lead from {start} to {stop}")
    count = int((stop - start) / step) + 1
    if count > MOST_RUNS:
        raise SpecError(f"--grid {key}={item}: {count} values; at most {MOST_RUNS}")
    values = [start + step * i for i in range(count)]
    return [int(value) if value == value.to_integral_value() else float(value) for value in values]


def axes(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Every swept key with its values; a key given twice is refused."""
    found: dict[str, list[Any]] = {}
    for key, values in map(axis, texts):
        if key in found:
            raise SpecError(f"--grid {key} is given twice; put all its values in one")
        found[key] = values
    return found


def points(grid: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Every combination, the last key changing fastest."""
    count = 1
    for values in grid.values():
        count *= len(values)
    if count > MOST_RUNS:
        raise SpecError(f"the grid has {count} runs; at most {MOST_RUNS}")
    return [dict(zip(grid, combination, strict=True)) for combination in itertools.product(*grid.values())]
