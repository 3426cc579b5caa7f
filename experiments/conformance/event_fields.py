"""Events as the format sees them: flat fields, patterns, captured values. Used for both manager versions."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.conformance.values import MismatchError, UnsupportedError, agrees

Fields = dict[str, Any]

FIELDS = {
    *("type", "event_id", "window_size", "num_blocks_per_cache_level", "num_cache_levels", "parent_hash"),
    *("num_blocks", "blocks", "hashes", "hash", "cache_level", "priority", "capture"),
}


def flat(event: Mapping[str, Any]) -> Fields:
    """One event in TensorRT-LLM's JSON shape as the format's fields; fields that do not apply are absent."""
    data = event["data"]
    kind = data["type"]
    fields = {"type": kind, "event_id": event["event_id"], "window_size": event["window_size"]}
    if kind == "created":
        levels = list(data["num_blocks_per_cache_level"])
        fields |= {"num_blocks_per_cache_level": levels, "num_cache_levels": len(levels)}
    elif kind == "stored":
        blocks = [_block(block) for block in data["blocks"]]
        fields |= {"parent_hash": data["parent_hash"], "num_blocks": len(blocks), "blocks": blocks}
    elif kind == "removed":
        fields["hashes"] = list(data["block_hashes"])
    else:
        fields["hash"] = data["block_hash"]
        for name in ("cache_level", "priority"):
            if data[name] is not None:
                fields[name] = {"old": data[name]["old_value"], "new": data[name]["new_value"]}
    return fields


def _block(block: Mapping[str, Any]) -> Fields:
    names = ("tokens", "lora_id", "cache_level", "priority")
    return {"hash": block["block_hash"], "num_tokens": len(block["tokens"]), **{name: block[name] for name in names}}


def check_event(what: str, pattern: Mapping[str, Any], event: Fields, saved: dict[str, Any]) -> None:
    """The event has every field of the pattern; then its captured values are saved."""
    for key, expected in pattern.items():
        if key not in FIELDS:
            raise UnsupportedError(f"event field {key}")
        if key == "capture":
            continue
        got = event.get(key)
        if key == "parent_hash" and expected == "not_null":
            good = got is not None
        elif key == "blocks":
            good = got is not None and all(_block_agrees(got, int(i), block, saved) for i, block in expected.items())
        else:
            good = agrees(expected, got, saved)
        if not good:
            raise MismatchError(f"{what}.{key}", expected, got)
    for name, field in pattern.get("capture", {}).items():
        saved[name] = _field(event, field)


def _block_agrees(blocks: Sequence[Fields], i: int, expected: Fields, saved: dict[str, Any]) -> bool:
    return -len(blocks) <= i < len(blocks) and agrees(expected, _comparable(blocks[i], expected), saved)


def _comparable(block: Fields, expected: Fields) -> Fields:
    """Token ids alone where the case names no extra ids."""
    wanted = expected.get("tokens")
    if isinstance(wanted, list) and all(isinstance(token, int) for token in wanted):
        return {**block, "tokens": [token["token_id"] for token in block["tokens"]]}
    return block


def fits(pattern: Mapping[str, Any], event: Fields, saved: dict[str, Any]) -> bool:
    """Whether the event is one that the pattern means."""
    try:
        check_event("event", pattern, event, saved)
    except MismatchError:
        return False
    return True


def _field(event: Fields, path: str) -> Any:
    """Value of `event_id`, `hash`, `blocks[-1].hash`, ..."""
    value: Any = event
    for name, index in re.findall(r"([a-z_]+)|\[(-?\d+)\]", path):
        value = value[name] if name else value[int(index)]
    return value
