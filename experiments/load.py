"""Reads a spec: a YAML file (ours or TensorRT-LLM's), then `key=value` settings on top, then the checks of `Spec`.

A setting names its key in full (`kv_cache_config.tokens_per_block=64`, `retention.0.priority=80`) or by its last part
where that is clear (`tokens_per_block=64`). Its value is YAML; 3e6 is a number too.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from experiments.complaints import Path as KeyPath
from experiments.complaints import SpecError, complain, dotted, leaves, near
from experiments.spec import Spec
from experiments.trtllm_options import IGNORED, IGNORED_KV_CACHE, as_spec

SPECS = Path(__file__).parent / "specs"


@dataclass(frozen=True)
class Draft:
    """What a file says, not checked yet: plain data, the line of each key, the file's name."""

    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[KeyPath, int] = field(default_factory=dict)
    source: str = ""


def read(name: str | None) -> Draft:
    """The draft in a file, or in one of the specs that come with kvtier (`default`, `essay_retention`, ...)."""
    if name is None:
        return Draft()
    path = Path(name)
    if not path.exists() and (SPECS / f"{name}.yaml").exists():
        path = SPECS / f"{name}.yaml"
    if not path.is_file():
        raise SpecError(f"{name}: no such spec file; {near(name, (p.stem for p in SPECS.glob('*.yaml')))}")
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text) or {}
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not a text file ({error.reason} at byte {error.start})") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f":{mark.line + 1}" if mark else ""
        raise SpecError(f"{path}{at}: not valid YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(data, dict):
        raise SpecError(f"{path}: a spec is keys and values, and this is {type(data).__name__}")
    lines: dict[KeyPath, int] = {}
    _note_lines(node, (), lines, str(path))
    return Draft(data, lines, str(path))


def _note_lines(node: Any, path: KeyPath, lines: dict[KeyPath, int], source: str) -> None:
    """Fill `lines` with the line each key of `node` stands on; a key given twice is refused."""
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            lines[*path, i] = item.start_mark.line + 1
            _note_lines(item, (*path, i), lines, source)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, key.value)
            line = key.start_mark.line + 1
            if here in lines:
                raise SpecError(f"{source}:{line}: {dotted(here)} is given twice, first in line {lines[here]}")
            lines[here] = line
            _note_lines(value, here, lines, source)


def value_of(text: str) -> Any:
    """A value as YAML reads it, and 3e6 as a number."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise SpecError(f"{text!r} is not a YAML value") from None
    if isinstance(value, str):
        try:
            return float(value) if value.lower().strip("-+").startswith(tuple("0123456789.")) else value
        except ValueError:
            return value
    return value


def split(setting: str) -> tuple[str, str]:
    """`key=value` in two."""
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise SpecError(f"{setting!r}: write it as key=value")
    return key.strip(), text.strip()


@cache
def _leaves() -> dict[str, list[str]]:
    return leaves()


def _depth(name: str) -> int:
    return name.count(".")


def full_name(key: str) -> str:
    """The full dotted name of a key that may be given by its last part alone; of several, the one with the fewest parts."""
    known = _leaves()
    every = {name for names in known.values() for name in names}
    if key in every or key.split(".", maxsplit=1)[0] == "retention":
        return key
    every_such = known.get(key, [])
    names = [name for name in every_such if _depth(name) == min(map(_depth, every_such))]
    if len(names) == 1:
        return names[0]
    if names:
        raise SpecError(f"{key} could be {' or '.join(names)}; write one of them in full")
    last = key.rsplit(".", maxsplit=1)[-1]
    if last in IGNORED_KV_CACHE or key in IGNORED:
        raise SpecError(f"{key} has no effect on this simulation, so it cannot be set")
    raise SpecError(f"unknown key {key}; {near(key, every if '.' in key else known)}")


def changed(data: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of `data` with one key set. Giving a tier's size in tokens takes away its size in blocks, and back."""
    data = copy.deepcopy(data)
    *sections, last = full_name(key).split(".")
    holder: Any = data
    for step in sections:
        if isinstance(holder, list):
            holder = holder[_index(step, holder, key)]
            continue
        if not isinstance(holder.get(step), dict | list):
            holder[step] = {"name": holder[step]} if step == "profile" and step in holder else {}
        holder = holder[step]
    if isinstance(holder, list):
        holder[_index(last, holder, key)] = value
        return data
    if sections == ["capacity"]:
        tier = last.split("_", maxsplit=1)[0]
        holder.pop(f"{tier}_blocks", None)
        holder.pop(f"{tier}_tokens", None)
    holder[last] = value
    return data


def _index(step: str, items: list[Any], key: str) -> int:
    if not step.isdigit() or int(step) >= len(items):
        raise SpecError(f"{key}: the list has the entries 0 to {len(items) - 1}, not {step}")
    return int(step)


def finished(draft: Draft, settings: Sequence[tuple[str, Any]] = ()) -> tuple[Spec, list[str]]:
    """The checked Spec of a draft with settings on top, and notes about what it does not simulate."""
    data, ignored = as_spec(draft.data)
    for key, value in settings:
        data = changed(data, key, value)
    try:
        spec = Spec.model_validate(data)
    except ValidationError as error:
        raise complain(error, draft.source, draft.lines, [full_name(key) for key, _ in settings]) from None
    verb = "have" if len(ignored) > 1 else "has"
    return spec, [f"{', '.join(ignored)} {verb} no effect on this simulation"] if ignored else []


def load(name: str | None, settings: Sequence[str] = ()) -> tuple[Spec, list[str]]:
    """The Spec in a file (None: the defaults) with `key=value` settings on top, and its notes."""
    pairs = [(key, value_of(text)) for key, text in map(split, settings)]
    return finished(read(name), pairs)
