"""Takes JSON values one by one out of text that comes in chunks: the items of one array, or values one after the other.

Memory follows the longest value, not the text. It does not know what a value means.
"""

import json
from collections.abc import Iterator
from typing import Any

REACH = 32  # so near the end of what was read, a fault or the end of a number may only mean that more is needed
UNTERMINATED = "Unterminated string"


class NotJsonError(ValueError):
    """The text is no JSON from here on."""


def unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, in which no field may stand twice with different values."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        for name, value in pairs:
            if fields[name] != value:
                raise NotJsonError(f"the field {name} stands there twice with different values")
    return fields


DECODER = json.JSONDecoder(object_pairs_hook=unambiguous)


def items(chunks: Iterator[str], longest: int) -> Iterator[Any]:
    """The values; a `NotJsonError` where the text stops being JSON, or where one is longer than `longest` characters."""
    text = _Text(chunks, longest)
    is_array = text.next() == "["
    text.at += is_array
    may_end = True
    while (character := text.next()) and not (is_array and character == "]" and may_end):
        yield text.value()
        if is_array:
            may_end = text.next() != ","
            text.at += not may_end
            if may_end and text.next() != "]":
                raise NotJsonError("there is no comma or closing bracket after this item")
    if is_array and not character:
        raise NotJsonError("the array does not end")
    text.at += is_array
    if text.next():
        raise NotJsonError("there is more text after the array")


class _Text:
    def __init__(self, chunks: Iterator[str], longest: int) -> None:
        self.chunks, self.longest, self.read, self.at = chunks, longest, "", 0

    def grow(self, n: int) -> bool:
        """Read at least n more characters; False if there are none."""
        parts = [self.read[self.at :]]
        while n > 0 and (chunk := next(self.chunks, "")):
            parts.append(chunk)
            n -= len(chunk)
        self.read, self.at = "".join(parts), 0
        return len(parts) > 1

    def next(self) -> str:
        """The next character that is no space; nothing at the end."""
        while True:
            while self.at < len(self.read) and self.read[self.at] in " \t\r\n":
                self.at += 1
            if self.at < len(self.read):
                return self.read[self.at]
            if not self.grow(1):
                return ""

    def value(self) -> Any:
        """The value that begins here."""
        while True:
            try:
                value, end = DECODER.raw_decode(self.read, self.at)
            except RecursionError:
                raise NotJsonError("JSON nested too deeply") from None
            except json.JSONDecodeError as error:
                cut = error.pos >= len(self.read) - REACH or error.msg.startswith(UNTERMINATED)
                held = len(self.read) - self.at
                if cut and held > self.longest:
                    raise NotJsonError(f"a value of more than {self.longest >> 20} Mi characters") from None
                if not (cut and self.grow(max(held, 1))):
                    raise NotJsonError(f"not JSON ({error.msg})") from None
            except NotJsonError:
                raise
            except ValueError:
                raise NotJsonError("a number of more than 4,300 digits") from None
            else:
                start, known = self.at, len(self.read)
                if known - end >= REACH or not self.grow(REACH):
                    self.at += end - start
                    return value
