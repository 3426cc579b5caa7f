"""Says in one line what is wrong with a configuration: which key, which value, what is allowed, where it stands.

pydantic finds the faults; here they get TensorRT-LLM's dotted names, the nearest known keys and the line of the file.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from experiments.section import Section
from experiments.spec import Spec
from experiments.trtllm_options import TOP_LEVEL

Path = tuple[str | int, ...]

TEXTS = {
    "greater_than_equal": "it must be at least {ge}",
    "greater_than": "it must be above {gt}",
    "less_than_equal": "it must be at most {le}",
    "literal_error": "it must be {expected}",
    "bool_parsing": "it must be true or false",
    "bool_type": "it must be true or false",
    "float_parsing": "it must be a number",
    "float_type": "it must be a number",
    "finite_number": "it must be a finite number",
    "string_type": "it must be text",
    "tuple_type": "it must be a list",
    "byte_size": "it must be 0 bytes or more, as 1000000 or 40GiB",
    "byte_size_unit": "it must be 0 bytes or more, as 1000000 or 40GiB",
    "model_type": "it must be a section of keys and values",
    "dict_type": "it must be keys and values",
}


class SpecError(ValueError):
    """A configuration that cannot be meant."""


def near(name: str, known: Iterable[str]) -> str:
    """The sentence that names the known words closest to a wrong one, or all of them when none is close."""
    words = sorted(set(known))
    close = difflib.get_close_matches(name, words, n=3, cutoff=0.5)
    return f"did you mean {', '.join(close)}?" if close else f"known: {', '.join(words)}"


def section_at(path: Path, root: type[BaseModel] = Spec) -> type[BaseModel]:
    """The section below `root` that holds the key named last in `path`."""
    section = root
    for step in path[:-1]:
        field = section.model_fields.get(str(step))
        section = _section_in(field.annotation) or section if field else section
    return section


def _section_in(annotation: Any) -> type[Section] | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next(filter(None, map(_section_in, get_args(annotation))), None)


def leaves(section: type[BaseModel] = Spec, prefix: str = "") -> dict[str, list[str]]:
    """Every last name of a key, with the full dotted names that end in it (the retention list is left out)."""
    found: dict[str, list[str]] = {}
    for name, field in section.model_fields.items():
        inner = _section_in(field.annotation)
        found.setdefault(name, []).append(prefix + name)
        if inner and name != "retention":
            for leaf, full in leaves(inner, f"{prefix}{name}.").items():
                found.setdefault(leaf, []).extend(full)
    return found


def dotted(path: Path) -> str:
    """retention, 0, priority → retention[0].priority."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def complain(
    error: ValidationError,
    source: str,
    lines: Mapping[Path, int],
    settings: Iterable[str] = (),
    root: type[BaseModel] = Spec,
    place: str = "",
) -> SpecError:
    """The first fault of `error` as one line, unknown keys first.

    `lines` tells where each key stands in the file `source`; keys in `settings` do not come from the file. `root` is what
    was checked, if not a whole spec, and `place` the key it stands under.
    """
    faults = sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    paths = [tuple(fault["loc"]) for fault in faults]
    line = next((lines[paths[0][:n]] for n in range(len(paths[0]), 0, -1) if paths[0][:n] in lines), None)
    where = f"{source}:{line}: " if line and ".".join(map(str, paths[0])) not in settings else ""
    more = len(set(paths)) - 1
    text = _sentence(dict(faults[0]), paths[0], root)
    return SpecError(f"{where}{f'{place}.' if place else ''}{text}{f' (and {more} more)' if more else ''}")


def _plain(limits: dict[str, Any]) -> dict[str, Any]:
    return {name: f"{value:g}" if isinstance(value, float) else value for name, value in limits.items()}


def _sentence(fault: dict[str, Any], path: Path, root: type[BaseModel]) -> str:
    name, value = dotted(path), fault["input"]
    if fault["type"] == "extra_forbidden":
        known = {*section_at(path, root).model_fields, *(TOP_LEVEL if root is Spec and len(path) == 1 else ())}
        return f"unknown key {name}; {near(str(path[-1]), known)}"
    if fault["type"] == "missing":
        return f"{name} is missing"
    if not path:
        return str(fault["ctx"]["error"] if fault["type"] == "value_error" else fault["msg"])
    if isinstance(value, dict | list) and fault["type"] == "value_error":
        return f"{name}: {fault['ctx']['error']}"
    if fault["type"] == "value_error":
        return f"{name} is {value!r}; it {fault['ctx']['error']}"
    text = TEXTS.get(fault["type"], fault["msg"]).format_map(_plain(fault.get("ctx", {})))
    field = section_at(path, root).model_fields.get(str(path[-1])) if path else None
    meaning = f" ({field.description})" if field and field.description and fault["type"] != "literal_error" else ""
    return f"{name} is {value!r}; {text}{meaning}"
