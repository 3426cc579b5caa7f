"""What every adapter shares: ops and expectations are methods `op_NAME` and `see_NAME` of its parts.

A name or an argument that no part has makes the case unsupported, by name; nothing passes unchecked.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from experiments.conformance.values import MismatchError, UnsupportedError, agrees

Step = Mapping[str, Any]

NOT_ARGUMENTS = {"op", "expect", "doubt", "note"}


class Adapter:
    """One object under test and the values that the case saved. Subclasses hold what the ops work on."""

    config_keys: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, config: Mapping[str, Any]) -> None:
        unknown = set(config) - self.config_keys
        if unknown:
            raise UnsupportedError(f"config key {', '.join(sorted(unknown))}")
        self.config = dict(config)
        self.saved: dict[str, Any] = {}
        self.parts: list[object] = [self]

    def method(self, name: str) -> Callable[..., None] | None:
        """The method of that name of the first part that has it."""
        return next((getattr(part, name) for part in self.parts if hasattr(part, name)), None)

    def check_names(self, steps: list[Step]) -> None:
        """Refuse a case that uses an op or an expectation we do not have, before any step runs."""
        for step in steps:
            operation = self._operation(step)
            try:
                inspect.signature(operation).bind(**_arguments(step))
            except TypeError as error:
                raise UnsupportedError(f"op {step['op']}: {error}") from None
            self._check_expectations(step.get("expect", {}))

    def _check_expectations(self, expect: Mapping[str, Any]) -> None:
        for key in expect:
            if key != "error" and self.method(f"see_{key}") is None:
                raise UnsupportedError(f"expectation {key}")

    def _operation(self, step: Step) -> Callable[..., None]:
        operation = self.method(f"op_{step['op']}")
        if operation is None:
            raise UnsupportedError(f"op {step['op']}")
        return operation

    def before(self) -> None:
        """Called before each step, to start its counts."""

    def run(self, step: Step) -> None:
        """Do a step."""
        self._operation(step)(**_arguments(step))

    def look(self, step: Step) -> None:
        """Check what the step expects; the first difference is raised."""
        for key, expected in step.get("expect", {}).items():
            if key != "error":
                self.see(key, expected, step)

    def see(self, key: str, expected: Any, step: Step) -> None:
        """Check one expectation."""
        looking = self.method(f"see_{key}")
        if looking is None:
            raise UnsupportedError(f"expectation {key}")
        looking(expected, step)

    def same(self, what: str, expected: Any, got: Any) -> None:
        """`got` must be as expected."""
        if not agrees(expected, got, self.saved):
            raise MismatchError(what, expected, got)

    def op_check(self) -> None:
        """Nothing; only look."""


def _arguments(step: Step) -> dict[str, Any]:
    return {key: value for key, value in step.items() if key not in NOT_ARGUMENTS}
