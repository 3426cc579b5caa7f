"""Takes typed values out of one JSON row, and says exactly which field is wrong. It does not know any format."""

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from traces.errors import SKIP, Place, TraceError, shown

INT32_MAX = 2**31 - 1
LARGEST = 2.0**63
NUMBER = re.compile(r"[+-]?(\d{1,19}(\.\d{0,30})?|\.\d{1,30})([eE][+-]?\d{1,3})?", re.ASCII)
DATE = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\s*(Z|[+-]\d\d:?\d\d)?", re.ASCII)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
SURROGATE = re.compile(r"[\ud800-\udfff]")


def fields_of(value: Any, place: Place) -> Mapping[str, Any]:
    """The row as a mapping of fields."""
    if not isinstance(value, dict):
        raise not_a_row(value, place)
    return value


def not_a_row(value: Any, place: Place) -> TraceError:
    """The error for a line that is JSON but no request."""
    return place.error(f"a row must be a JSON object, this is {shown(value)}; {SKIP}")


def pick(row: Mapping[str, Any], names: Sequence[str], place: Place) -> Any:
    """The value that stands under one of these names (they mean the same), or None; two values must not differ."""
    present = [name for name in names if row.get(name) is not None]
    if not present:
        return None
    first = present[0]
    for other in present[1:]:
        if row[other] != row[first]:
            raise place.error(
                f"{first} is {shown(row[first])} and {other} is {shown(row[other])}; they mean the same and must agree"
            )
    return row[first]


def number(row: Mapping[str, Any], names: Sequence[str], place: Place) -> int | float | None:
    """A number that is not negative, or None where the row has none."""
    value = pick(row, names, place)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
        raise place.error(f"{names[0]} is {shown(value)}; it must be a number from 0 to 2**63; {SKIP}")
    return value


class Clock(Protocol):
    """What decides how a trace's times are read: its ticks, and that all are dates or none."""

    ticks_per_s: int

    def state_time_is_date(self, is_date: bool, place: Place) -> None: ...


def moment(row: Mapping[str, Any], names: Sequence[str], place: Place, clock: Clock) -> int | float | None:
    """A time in ticks: a number, a number as text, or a date with or without a zone (then UTC)."""
    value = pick(row, names, place)
    is_date = isinstance(value, str) and as_number(value) is value
    if value is not None:
        clock.state_time_is_date(is_date, place)
    if not is_date:
        return number({names[0]: as_number(value)}, names, place)
    ticks, rest = divmod(nanoseconds(value, place) * clock.ticks_per_s, 10**9)
    return ticks if rest == 0 else ticks + rest / 10**9


def as_number(value: Any) -> Any:
    """The number that a text spells; anything else as it is."""
    if isinstance(value, str) and NUMBER.fullmatch(value.strip()):
        return int(value) if value.strip().isdecimal() else float(value)
    return value


def nanoseconds(text: str, place: Place) -> int:
    """A date as whole nanoseconds since 1970; a date without a zone is UTC."""
    match = DATE.fullmatch(text.strip())
    if match is None:
        raise _not_a_date(text, place)
    day, clock, fraction, zone = match.groups()
    try:
        moment_ = datetime.datetime.fromisoformat(f"{day}T{clock}{zone or 'Z'}")
    except ValueError:
        raise _not_a_date(text, place) from None
    since = moment_ - EPOCH
    return (since.days * 86_400 + since.seconds) * 10**9 + int((fraction or "").ljust(9, "0"))


def _not_a_date(text: str, place: Place) -> TraceError:
    return place.error(f"{shown(text)} is not a date such as 2023-11-16 18:17:03.9799600; {SKIP}")


def tokens(row: Mapping[str, Any], names: Sequence[str], place: Place, *, at_least: int) -> int | None:
    """A whole number of tokens, or None where the row has none."""
    value = number(row, names, place)
    if value is None:
        return None
    if value != int(value) or not at_least <= value <= INT32_MAX:
        raise place.error(
            f"{names[0]} is {shown(value)}; it must be a whole number from {at_least} to {INT32_MAX}; {SKIP}"
        )
    return int(value)


def prompt_tokens(row: Mapping[str, Any], names: Sequence[str], place: Place, default: int | None = None) -> int:
    """The prompt's length, which every request must have, or the default the user gave."""
    value = tokens(row, names, place, at_least=1)
    if value is None and default is None:
        raise place.error(f"{names[0]} is missing; every request needs its prompt length in tokens; {SKIP}")
    return default if value is None and default is not None else int(value or 0)


def output_tokens(row: Mapping[str, Any], names: Sequence[str], place: Place, default: int | None) -> int:
    """The output's length, or the default the user gave for requests without one."""
    value = tokens(row, names, place, at_least=0)
    if value is not None:
        return value
    if default is None:
        state = "null" if any(name in row for name in names) else "missing"
        raise place.error(f"{names[0]} is {state}; give a length for such requests with --default-output N, or {SKIP}")
    return default


def inner(row: Mapping[str, Any], name: str, place: Place) -> Mapping[str, Any]:
    """A JSON object inside the row; empty where the row has none."""
    value = row.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise place.error(f"{name} is {shown(value)}; it must be a JSON object; {SKIP}")
    return value


def sequence(row: Mapping[str, Any], name: str, place: Place) -> list[Any] | None:
    """A list, or None where the row has none."""
    value = row.get(name)
    if value is None or isinstance(value, list):
        return value
    raise place.error(f"{name} is {shown(value)}; it must be a list; {SKIP}")


def label(row: Mapping[str, Any], names: Sequence[str], place: Place) -> str | None:
    """A name (text or number), or None where the row has none."""
    value = pick(row, names, place)
    if value is None or (isinstance(value, str) and not SURROGATE.search(value)):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise place.error(f"{names[0]} is {shown(value)}; it must be a number or well-formed text; {SKIP}")
    return str(value)
