"""One published measurement beside ours. It computes nothing: the modules beside it do."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "off", "shape"]


@dataclass(frozen=True)
class Figure:
    """`tolerance` is relative; None: the row has a free parameter, so only its shape is compared.

    `fixes` names the parameter of a preset that was read from this very figure: such a row shows that the model can
    hold the measurement, not that it foretells it. `at_most` marks a published bound instead of a value.
    """

    row: str
    what: str
    unit: str
    published: float
    ours: float
    tolerance: float | None
    fixes: str = ""
    at_most: bool = False

    @property
    def deviation(self) -> float:
        """Ours over the published value, less one."""
        return self.ours / self.published - 1.0

    @property
    def verdict(self) -> Verdict:
        """Whether the deviation is within the tolerance."""
        if self.tolerance is None:
            return "shape"
        miss = max(0.0, self.deviation) if self.at_most else abs(self.deviation)
        return "ok" if miss <= self.tolerance else "off"


@dataclass(frozen=True)
class Group:
    """The figures of one row of published measurements: where they come from, and what to know when reading them."""

    row: str
    title: str
    source: str
    figures: tuple[Figure, ...]
    note: str = ""
