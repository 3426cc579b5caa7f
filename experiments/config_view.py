"""Shows a whole spec as it is in force: every key, its value, what it means, and where TensorRT-LLM replaces a null.

The output is YAML that `--spec` reads back.
"""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from experiments.spec import Spec

WIDTH = 58
"""Columns before the comment."""


def lines(spec: Spec) -> Iterator[str]:
    """One line a key; a key that is not at its default begins its comment with `set:`."""
    yield from _section(spec, Spec(), spec.shown(), "")


def _section(section: BaseModel, default: BaseModel, shown: dict[str, Any], indent: str) -> Iterator[str]:
    for name, info in type(section).model_fields.items():
        value, usual = getattr(section, name), getattr(default, name, None)
        if isinstance(value, BaseModel) and isinstance(usual, BaseModel):
            yield f"{indent}{name}:"
            yield from _section(value, usual, shown[name], indent + "  ")
            continue
        mark = "" if value == usual else "set: "
        yield _line(f"{indent}{name}: {json.dumps(shown[name])}", f"{mark}{info.description or ''}")


def _line(left: str, comment: str) -> str:
    return f"{left:<{WIDTH}} # {comment}" if comment else left
