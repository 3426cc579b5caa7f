"""Cuts text into tokens: with a `tokenizer.json` the user names, or so many UTF-8 bytes at a time.

It does not know chat templates: a message is one mark for its role and the tokens of its text, cut message by message,
so that a longer conversation begins with the tokens of a shorter one. Counts are therefore near those of a server's
template, not equal to them.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from traces.errors import SKIP, Place, TraceError, shown
from traces.options import ReadOptions
from traces.order import FileOrder

BYTES_PER_TOKEN = 4  # OpenAI's rule of thumb for English text: four characters a token
FIRST_MARK = 1 << 24  # above every token id of a tokeniser
TEXT = "text", "input_text", "output_text"
NOT_TEXT = "image_url", "input_image", "image", "input_audio", "audio_url", "video_url", "file", "input_file"


class Texts:
    """Text -> ids. Equal text, cut from its start, has equal ids."""

    def __init__(self, options: ReadOptions) -> None:
        self._known: dict[object, int] = {}
        self._bytes = options.bytes_per_token or BYTES_PER_TOKEN
        self._tokenizer = None if options.tokenizer is None else _tokenizer(options.tokenizer)
        self.is_guess = self._tokenizer is None and options.bytes_per_token is None

    def ids(self, text: str) -> list[int]:
        """The tokens of a text."""
        if self._tokenizer is not None:
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        raw = text.encode("utf-8", "surrogatepass")
        pieces = (raw[i : i + self._bytes] for i in range(0, len(raw), self._bytes))
        return [self._known.setdefault(piece, len(self._known)) for piece in pieces]

    def mark(self, what: str) -> int:
        """One token that stands for something that is no text: a role, an image."""
        return FIRST_MARK + self._known.setdefault(("mark", what), len(self._known))

    def message(self, message: Any, place: Place) -> list[int]:
        """The tokens of a chat message."""
        if not isinstance(message, dict):
            raise place.error(f"a message must be a JSON object, this is {shown(message)}; {SKIP}")
        role = message.get("role", "user")
        called = message.get("tool_calls")
        content = self.content(message.get("content"), place)
        calls = self.ids(json.dumps(called, sort_keys=True)) if called else []
        return [self.mark(f"role {role}"), *content, *calls]

    def content(self, content: Any, place: Place) -> list[int]:
        """The tokens of a message's content: text, nothing, or parts."""
        if content is None:
            return []
        if isinstance(content, str):
            return self.ids(content)
        if isinstance(content, list):
            return [token for part in content for token in self._part(part, place)]
        raise place.error(f"content is {shown(content)}; it must be text, null or a list of parts; {SKIP}")

    def _part(self, part: Any, place: Place) -> list[int]:
        if isinstance(part, str):
            return self.ids(part)
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in TEXT and isinstance(part.get("text"), str):
            return self.ids(part["text"])
        if kind in NOT_TEXT:
            return [self.mark(hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest())]
        raise place.error(f"a part of the content is {shown(part)}; known are text and {', '.join(NOT_TEXT)}; {SKIP}")


def say_how_cut(trace: FileOrder, texts: Texts) -> FileOrder:
    """Note the ratio where it was not the user who chose it."""
    if texts.is_guess:
        trace.collector.repaired(
            f"text is cut at {BYTES_PER_TOKEN} bytes a token, so lengths are estimates; --tokenizer FILE or "
            f"--bytes-per-token N overrides"
        )
    return trace


def guessed_unit(first: Any) -> str:
    """The unit of a time since 1970, by its size: until the year 5138 seconds have less than 12 digits."""
    size = abs(first) if isinstance(first, int | float) and not isinstance(first, bool) else 0
    return next((unit for unit, least in (("ns", 1e17), ("us", 1e14), ("ms", 1e11)) if size >= least), "s")


def first_of(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Any:
    """The first value under one of these names."""
    return next((row[name] for row in rows for name in names if row.get(name) is not None), None)


def _tokenizer(path: str) -> Any:
    if not Path(path).is_file():
        raise TraceError(f"--tokenizer {path}: no such file; name a tokenizer.json")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise TraceError("--tokenizer needs the package tokenizers: pip install 'kvtier[text]'") from None
    try:
        return Tokenizer.from_file(path)
    except Exception as error:
        raise TraceError(f"--tokenizer {path}: {' '.join(str(error).split())}") from None
