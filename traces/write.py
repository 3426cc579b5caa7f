"""Writes a stream of requests in another tool's format, and says what that format cannot hold.

It does not decide where the bytes go or when a file is whole (`traces.sink` does). `TARGETS` is the table of formats, one line
each; every one of them is read by `traces.read`, and what it holds comes back the same.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvcache.request import Int32, Requests
from traces.chain import chained
from traces.errors import TraceError

HOLDS = ("sessions", "outputs", "labels", "namespaces", "content", "think times")


@dataclass(frozen=True)
class Target:
    """A format: its lines for a piece, what it holds of `HOLDS`, and the block size its readers take for granted."""

    lines: Callable[[Requests, "Names"], Iterator[str]]
    holds: tuple[str, ...]
    labels: tuple[str, ...] = ()
    """The labels it has a place for."""
    block_tokens: int | None = None
    """None: the file says its block size."""
    header: str = ""


class Names:
    """What a writer must remember from piece to piece: where each session's last request was written."""

    def __init__(self) -> None:
        self.written = 0
        self.last: dict[int, int] = {}
        self.turn: dict[int, int] = {}

    def follow(self, session: int) -> tuple[int, int, int]:
        """Number of this request, of the one before it in its session (-1: none), and its turn from 1."""
        number, self.written = self.written, self.written + 1
        if session < 0:
            return number, -1, 1
        before = self.last.get(session, -1)
        self.last[session] = number
        self.turn[session] = self.turn.get(session, 0) + 1
        return number, before, self.turn[session]


def _mooncake(piece: Requests, names: Names) -> Iterator[str]:
    for i, row in enumerate(_core(piece, "hash_ids", 512)):
        output = None if piece.output_units is None else _outputs(piece, i)
        if output:
            whole = int(piece.prompt_tokens[i]) // piece.unit_tokens
            row["all_hash_ids"] = row["hash_ids"][:whole] + output
        if piece.session[i] >= 0:
            row["session_id"] = str(int(piece.session[i]))
        yield _json(row | _labels(piece, i, ("tenant", "type", "model")))


def _aiperf(piece: Requests, names: Names) -> Iterator[str]:
    for i, row in enumerate(_core(piece, "hash_ids", 512)):
        session = {"session_id": str(int(piece.session[i]))} if piece.session[i] >= 0 else {}
        yield _json(session | row)


def _core(piece: Requests, ids: str, usual: int) -> Iterator[dict[str, Any]]:
    block = {} if piece.unit_tokens == usual else {"block_size": piece.unit_tokens}
    for i in range(len(piece)):
        yield {
            "timestamp": _time(float(piece.arrival_s[i]) * 1e3),
            "input_length": int(piece.prompt_tokens[i]),
            "output_length": int(piece.output_tokens[i]),
            ids: piece.prompt_units(i).tolist(),
            **block,
        }


def _bailian(piece: Requests, names: Names) -> Iterator[str]:
    for i in range(len(piece)):
        number, before, turn = names.follow(int(piece.session[i]))
        yield _json({
            "chat_id": number,
            "parent_chat_id": before,
            "timestamp": _time(float(piece.arrival_s[i]), 9),
            "input_length": int(piece.prompt_tokens[i]),
            "output_length": int(piece.output_tokens[i]),
            "type": _labels(piece, i, ("type",)).get("type", "text"),
            "turn": turn,
            "hash_ids": piece.prompt_units(i).tolist(),
        })


def _dynamo(piece: Requests, names: Names) -> Iterator[str]:
    hashes = chained(piece)
    for i in range(len(piece)):
        number, _, _ = names.follow(-1)
        replay = {
            "trace_block_size": piece.unit_tokens,
            "input_length": int(piece.prompt_tokens[i]),
            "input_sequence_hashes": hashes[piece.unit_offset[i] : piece.unit_offset[i + 1]].tolist(),
        }
        request = {
            "request_id": f"r{number}",
            "request_received_ms": _time(float(piece.arrival_s[i]) * 1e3),
            "output_tokens": int(piece.output_tokens[i]),
            **_labels(piece, i, ("model",)),
            "replay": replay,
        }
        agent = {"agent_context": {"session_id": str(int(piece.session[i]))}} if piece.session[i] >= 0 else {}
        event = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request, **agent}
        yield _json({"timestamp": number, "event": event})


def _llmservingsim(piece: Requests, names: Names) -> Iterator[str]:
    for i in range(len(piece)):
        yield _json({
            "input_toks": int(piece.prompt_tokens[i]),
            "output_toks": int(piece.output_tokens[i]),
            "arrival_time_ns": round(float(piece.arrival_s[i]) * 1e9),
            "input_tok_ids": _all_tokens(piece.prompt_units(i), int(piece.prompt_tokens[i])),
            "output_tok_ids": _all_tokens(np.array(_outputs(piece, i), np.int32), int(piece.output_tokens[i])),
        })


def _tokens(piece: Requests, names: Names) -> Iterator[str]:
    for i in range(len(piece)):
        output = _outputs(piece, i)
        answer = {"output_token_ids": output} if output else {"output_length": int(piece.output_tokens[i])}
        session = {"session_id": str(int(piece.session[i]))} if piece.session[i] >= 0 else {}
        yield _json({
            "timestamp": _time(float(piece.arrival_s[i]) * 1e3),
            "input_token_ids": piece.prompt_units(i).tolist(),
            **answer,
            **session,
            **_labels(piece, i, ("tenant", "type", "model")),
        })


def _aibrix(piece: Requests, names: Names) -> Iterator[str]:
    for i in range(len(piece)):
        session = {"session_id": str(int(piece.session[i]))} if piece.session[i] >= 0 else {}
        request = {
            "Prompt Length": int(piece.prompt_tokens[i]),
            "Output Length": int(piece.output_tokens[i]),
            **session,
        }
        yield _json({"timestamp": _time(float(piece.arrival_s[i]) * 1e3), "requests": [request]})


def _vidur(piece: Requests, names: Names) -> Iterator[str]:
    columns = (piece.arrival_s.tolist(), piece.prompt_tokens.tolist(), piece.output_tokens.tolist())
    for arrival_s, prompt, output in zip(*columns, strict=True):
        yield f"{_time(arrival_s, 9)},{prompt},{output}"


TARGETS: dict[str, Target] = {
    "mooncake": Target(_mooncake, ("sessions", "outputs", "labels", "content"), ("tenant", "type", "model")),
    "aiperf": Target(_aiperf, ("sessions", "content")),
    "bailian": Target(_bailian, ("sessions", "content", "labels"), ("type",), block_tokens=16),
    "dynamo": Target(_dynamo, ("sessions", "content", "labels"), ("model",)),
    "llmservingsim": Target(_llmservingsim, ("outputs", "content"), block_tokens=1),
    "tokens": Target(
        _tokens, ("sessions", "outputs", "content", "labels"), ("tenant", "type", "model"), block_tokens=1
    ),
    "aibrix": Target(_aibrix, ()),
    "vidur": Target(_vidur, (), header="arrived_at,num_prefill_tokens,num_decode_tokens"),
}


def lost(piece: Requests, target: Target) -> list[str]:
    """What of this piece the format cannot hold, in words."""
    has = {
        "sessions": bool((piece.session >= 0).any()),
        "outputs": piece.output_units is not None and len(piece.output_units) > 0,
        "namespaces": bool((piece.salt >= 0).any() or (piece.lora >= 0).any()),
        "content": len(piece.units) > 0,
        "think times": not bool(np.isnan(piece.think_s).all()),
    }
    words = {
        "outputs": "content of outputs",
        "namespaces": "salts and LoRA adapters",
        "content": "content of prompts (nothing is shared any more)",
    }
    gone = [words.get(what, what) for what in HOLDS if has.get(what) and what not in target.holds]
    return gone + [f"label {name}" for name in piece.labels if name not in target.labels]


def fitting_block(piece: Requests, target: Target, name: str) -> None:
    """Refuse blocks of a size that the format cannot say."""
    if "content" in target.holds and target.block_tokens not in {None, piece.unit_tokens} and len(piece.units):
        raise TraceError(
            f"{name} has blocks of {target.block_tokens} tokens and this trace has {piece.unit_tokens};"
            f" cut it with --tokens-per-block {target.block_tokens}"
        )


def _labels(piece: Requests, i: int, names: tuple[str, ...]) -> dict[str, str]:
    columns = {name: piece.labels[name] for name in names if name in piece.labels}
    return {name: column.names[column.codes[i]] for name, column in columns.items() if column.codes[i] >= 0}


def _outputs(piece: Requests, i: int) -> list[int]:
    if piece.output_units is None or piece.output_offset is None:
        return []
    return piece.output_units[piece.output_offset[i] : piece.output_offset[i + 1]].tolist()  # type: ignore[no-any-return]


def _all_tokens(ids: Int32, n: int) -> list[int]:
    if len(ids) != n:
        raise TraceError(f"llmservingsim needs every token of prompts and outputs; a request has {len(ids)} of {n}")
    return ids.tolist()  # type: ignore[no-any-return]


def _time(value: float, digits: int = 6) -> float | int:
    """To a nanosecond, which is 6 digits of a millisecond; as a whole number where it is one."""
    rounded = round(value, digits)
    return int(rounded) if rounded == int(rounded) else rounded


def _json(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False)
