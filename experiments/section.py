"""What every part of a configuration is made of: a section that refuses keys it does not know, and numbers with limits.

It knows no section by name (`experiments.spec` and `experiments.cluster_spec` have them).
"""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, Field


def _whole(value: Any) -> Any:
    """Let 3e6 and 3000000.0 stand for 3000000, but not true for 1 nor 1.5 for 1."""
    try:
        number = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError, OverflowError):
        number = float("nan")
    if not number.is_integer():
        raise ValueError("must be a whole number")
    return int(value) if isinstance(value, int) else int(number)


def _not_a_switch(value: Any) -> Any:
    """Refuse true, which would pass for 1 byte."""
    if isinstance(value, bool):
        raise ValueError("must be bytes, as 1000000 or 40GiB")  # ruff: ignore[type-check-without-type-error]
    return value


Count = Annotated[int, Field(ge=1), BeforeValidator(_whole)]
CountOrZero = Annotated[int, Field(ge=0), BeforeValidator(_whole)]
Priority = Annotated[int, Field(ge=0, le=100), BeforeValidator(_whole)]
Bytes = Annotated[ByteSize, Field(ge=0), BeforeValidator(_not_a_switch)]


class Section(BaseModel):
    """One part of the configuration: cannot be changed once made, and refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())
