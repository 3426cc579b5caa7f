"""Decides which settings a sweep tries: grids, keys that change together, samples of a space, repeats over seeds.

    sweep:
      grid:                             # every combination; lists, or ranges with both ends: start:stop:step
        tokens_per_block: [32, 64, 128]
        secondary_offload_min_priority: 0:100:10
      zip:                              # keys of one entry change together, entries are multiplied
        - {gpu_tokens: [1e5, 2e5], host_tokens: [1e6, 2e6]}
      sample:                           # points of a space, multiplied with the rest
        count: 50
        over: {rate_scale: {low: 0.5, high: 2}, host_tokens: {low: 1e5, high: 1e7, log: true, whole: true}}
      repeats: 5                        # seeds 0 to 4: the router's draws, and a generated trace's

A key is any key of the spec, in full or by its last part, or one of the trace: trace, trace.limit, trace.PARAMETER.
It makes no specs and runs nothing (`experiments.jobs`, `experiments.sweep`).
"""

import itertools
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, field_validator, model_validator

from experiments.complaints import SpecError, complain
from experiments.grid import MOST_RUNS, Grid, axis_name, points, values_of
from experiments.load import Draft
from experiments.section import Count, CountOrZero, Section

Point = dict[str, Any]
SEED = "workload.seed"
TRACE = "trace"
Keys = dict[str, Any]


class Between(Section):
    """The values of a sampled key: a stretch of numbers."""

    low: float = Field(description="smallest value")
    high: float = Field(description="largest value")
    log: bool = Field(default=False, description="as many values between 1 and 10 as between 10 and 100")
    whole: bool = Field(default=False, description="whole numbers only")

    @model_validator(mode="after")
    def _ordered(self) -> "Between":
        if self.low >= self.high or (self.log and self.low <= 0):
            raise ValueError("low must be below high, and above 0 where log is true")
        return self

    def at(self, share: float) -> float | int:
        """The value at a share of the way from low to high, 0 to 1."""
        value = self.low * (self.high / self.low) ** share if self.log else self.low + (self.high - self.low) * share
        return round(value) if self.whole else value


class Sample(Section):
    """Points drawn from a space."""

    count: Count = Field(description="points")
    over: dict[str, Between | tuple[Any, ...]] = Field(description="keys, each with {low, high} or a list of values")
    method: Literal["latin-hypercube", "random"] = Field(
        default="latin-hypercube", description="latin-hypercube: each key's values spread evenly; random: independent"
    )
    seed: CountOrZero = Field(default=0, description="seed of the draw")

    @field_validator("over")
    @classmethod
    def _named(cls, value: Keys) -> Keys:
        if not value or any(isinstance(values, tuple) and not values for values in value.values()):
            raise ValueError("name at least one key, and at least one value for each")
        return {axis_name(key): values for key, values in value.items()}

    def points(self) -> list[Point]:
        """The drawn points; the same seed draws the same ones."""
        rng = np.random.default_rng(self.seed)
        shares = rng.random((self.count, len(self.over)))
        if self.method == "latin-hypercube":
            shares = (shares + _permutations(rng, shares.shape)) / self.count
        return [
            {key: self._value(key, float(share)) for key, share in zip(self.over, row, strict=True)} for row in shares
        ]

    def _value(self, key: str, share: float) -> Any:
        values = self.over[key]
        return values.at(share) if isinstance(values, Between) else values[int(share * len(values))]


def _permutations(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """A permutation of the rows in each column."""
    return rng.permuted(np.tile(np.arange(shape[0])[:, None], (1, shape[1])), axis=0)


class Design(Section):
    """The `sweep` section of a file."""

    grid: Grid = Field(default={}, description="keys and their values, all combinations")
    zip: tuple[Grid, ...] = Field(default=(), description="keys that change together")
    sample: Sample | None = Field(default=None, description="points of a space")
    repeats: Count = Field(default=1, description="runs of each setting, with seeds 0, 1, ...")

    @field_validator("grid", mode="before")
    @classmethod
    def _read_grid(cls, value: Any) -> Any:
        return _axes(value)

    @field_validator("zip", mode="before")
    @classmethod
    def _read_zip(cls, value: Any) -> Any:
        return [_axes(entry) for entry in value] if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _once_each(self) -> "Design":
        keys = [*self.grid, *(key for entry in self.zip for key in entry), *(self.sample.over if self.sample else ())]
        keys += [SEED] if self.repeats > 1 else []
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice} is varied twice; put all its values in one place")
        for entry in self.zip:
            if len({len(values) for values in entry.values()}) > 1:
                raise ValueError(f"zip: {', '.join(entry)} change together and need equally many values")
        if self.runs > MOST_RUNS:
            raise ValueError(f"the sweep has {self.runs} runs; at most {MOST_RUNS}")
        return self

    @property
    def runs(self) -> int:
        """How many runs it wants."""
        zipped = [len(next(iter(entry.values()))) for entry in self.zip if entry]
        sampled = self.sample.count if self.sample else 1
        return prod([*map(len, self.grid.values()), *zipped, sampled, self.repeats])

    def points(self) -> Iterator[Point]:
        """The settings of every run; of grid keys the last changes fastest, then come zipped and sampled ones, then seeds."""
        together = [_columns(entry) for entry in self.zip]
        sampled = self.sample.points() if self.sample else [{}]
        seeds: list[Point] = [{SEED: seed} for seed in range(self.repeats)] if self.repeats > 1 else [{}]
        for parts in itertools.product(points(self.grid), *together, sampled, seeds):
            yield {key: value for part in parts for key, value in part.items()}

    def with_grid(self, grid: Grid) -> "Design":
        """The same with further keys multiplied in; a key of the grid takes the new values."""
        return Design.model_validate({**dict(self), "grid": {**self.grid, **grid}})


def _axes(value: Any) -> Any:
    """Full names and lists of values, of `key: [values]` or `key: text` as on the command line."""
    if not isinstance(value, Mapping):
        return value
    return {axis_name(str(key)): values_of(str(key), values) for key, values in value.items()}


def _columns(entry: Grid) -> list[Point]:
    return [dict(zip(entry, row, strict=True)) for row in zip(*entry.values(), strict=True)]


def design_of(draft: Draft) -> Design:
    """The checked `sweep` section of a file."""
    try:
        return Design.model_validate(draft.data.get("sweep") or {})
    except ValidationError as error:
        lines = {path[1:]: line for path, line in draft.lines.items() if path[0] == "sweep"}
        raise complain(error, draft.source, lines, (), Design, "sweep") from None
    except SpecError as error:
        raise SpecError(f"{draft.source}: {error}") from None
