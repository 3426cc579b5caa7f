"""Proposes the next settings to try, from the figures of those tried: Optuna's TPE sampler over a sweep's grid and stretches.

The first points are a Latin hypercube, the rest TPE's. A point is proposed once. Each proposal is drawn with a seed of its
own, so that a search which was stopped and is told its points again goes on. It runs nothing (`experiments.tune`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.complaints import SpecError
from experiments.design import Between, Design, Point

ATTEMPTS = 30
"""Proposals of the sampler before a point is drawn by lot: on a small grid it keeps naming its favourites."""
START = 10
"""Points of the Latin hypercube, at most a third of the budget."""


@dataclass(frozen=True)
class Axis:
    """One thing that varies: some keys that change together through `choices`, or one key over a stretch of numbers."""

    name: str
    choices: Sequence[Point] = ()
    stretch: Between | None = None
    ordered: bool = False

    @property
    def keys(self) -> list[str]:
        """What it sets."""
        return [self.name] if self.stretch else list(self.choices[0])

    def distribution(self) -> Any:
        """The same in Optuna's terms; choices are their numbers."""
        from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

        if self.stretch is None:
            last = len(self.choices) - 1
            return IntDistribution(0, last) if self.ordered else CategoricalDistribution(range(last + 1))
        low, high, log = self.stretch.low, self.stretch.high, self.stretch.log
        return (
            IntDistribution(int(low), int(high), log=log)
            if self.stretch.whole
            else FloatDistribution(low, high, log=log)
        )

    def at(self, share: float) -> Any:
        """The parameter at a share of the axis, 0 to 1."""
        return self.stretch.at(share) if self.stretch else int(share * len(self.choices))

    def holds(self, parameter: Any) -> bool:
        """Whether a parameter lies on the axis."""
        return bool(
            self.stretch.low <= parameter <= self.stretch.high if self.stretch else parameter < len(self.choices)
        )

    def settings(self, parameter: Any) -> Point:
        """What a parameter sets."""
        return {self.name: parameter} if self.stretch else self.choices[parameter]


def axes_of(design: Design) -> list[Axis]:
    """The space of a sweep section. Numbers are searched in their order, other values as names."""
    if design.repeats > 1:
        raise SpecError("repeats do not go with a search: it would take noise for a better setting; fix workload.seed")
    axes = [_listed(key, values) for key, values in design.grid.items()]
    for entry in design.zip:
        rows = [dict(zip(entry, row, strict=True)) for row in zip(*entry.values(), strict=True)]
        axes.append(Axis(" ".join(entry), rows))
    for key, values in (design.sample.over if design.sample else {}).items():
        axes.append(Axis(key, stretch=values) if isinstance(values, Between) else _listed(key, values))
    if not any(axis.stretch or len(axis.choices) > 1 for axis in axes):
        raise SpecError("nothing varies; name keys and values in the sweep section or with --grid")
    return axes


def _listed(key: str, values: Sequence[Any]) -> Axis:
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return Axis(key, [{key: value} for value in (sorted(values) if numbers else values)], ordered=numbers)


class Search:
    """What was tried, and what to try next."""

    def __init__(self, axes: Sequence[Axis], signs: Sequence[int], budget: int, seed: int) -> None:
        """`signs`: 1 for a figure to be minimised, -1 for one to be maximised."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.axes = {axis.name: axis for axis in axes}
        self._distributions = {axis.name: axis.distribution() for axis in axes}
        self._study = optuna.create_study(directions=["minimize" if sign > 0 else "maximize" for sign in signs])
        self._seed, self._waiting = seed, {}  # type: ignore[var-annotated]
        self._proposed: set[str] = set()
        self._first = _hypercube(axes, min(START, max(1, budget // 3)), np.random.default_rng(seed))

    def next(self) -> Point | None:
        """Parameters of a point not proposed before; None when there is none left (of a grid), or none is found."""
        import optuna

        for attempt in range(ATTEMPTS):
            chosen = self._first.pop(0) if self._first else None
            seed = (self._seed * 1_000_003 + len(self._proposed)) * ATTEMPTS + attempt
            self._study.sampler = optuna.samplers.TPESampler(
                n_startup_trials=0, multivariate=True, seed=seed % 2**32, constant_liar=True
            )
            if chosen is not None:
                self._study.enqueue_trial(chosen)
            trial = self._study.ask(self._distributions)
            if self._new(trial.params):
                self._waiting[_name(trial.params)] = trial
                return dict(trial.params)
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return self._by_lot()

    def _by_lot(self) -> Point | None:
        rng = np.random.default_rng([self._seed, len(self._proposed)])
        for _ in range(100 * ATTEMPTS):
            params = {axis.name: axis.at(float(rng.random())) for axis in self.axes.values()}
            if self._new(params):
                self._study.enqueue_trial(params)
                self._waiting[_name(params)] = self._study.ask(self._distributions)
                return params
        return None

    def _new(self, params: Point) -> bool:
        new = _name(params) not in self._proposed
        self._proposed.add(_name(params))
        return new

    def tell(self, params: Point, figures: Sequence[float] | None, violations: Mapping[str, float]) -> None:
        """The figures of a point, None for a run that failed; `violations` above 0 are limits that it breaks, by how much."""
        import optuna

        failed = optuna.trial.TrialState.FAIL
        trial = self._waiting.pop(_name(params), None)
        self._proposed.add(_name(params))
        self._first = [point for point in self._first if _name(point) != _name(params)]
        if trial is None:
            state = failed if figures is None else optuna.trial.TrialState.COMPLETE
            about: dict[str, Any] = {"params": params, "distributions": self._distributions, "values": figures}
            done = optuna.trial.create_trial(state=state, constraints=dict(violations), **about)
            self._study.add_trial(done)
        elif figures is None:
            self._study.tell(trial, state=failed)
        else:
            for name, value in violations.items():
                trial.set_constraint(name, value)
            self._study.tell(trial, list(figures))

    def first(self) -> Point:
        """The point that a search from nothing starts with."""
        return self._first[0]

    def knows(self, params: Point) -> bool:
        """Whether a point of an earlier search lies in this one's space."""
        return params.keys() == self.axes.keys() and all(axis.holds(params[name]) for name, axis in self.axes.items())

    def settings(self, params: Point) -> Point:
        """What a point sets."""
        return {key: value for name, axis in self.axes.items() for key, value in axis.settings(params[name]).items()}


def _name(params: Point) -> str:
    return json.dumps(params, sort_keys=True)


def _hypercube(axes: Sequence[Axis], count: int, rng: np.random.Generator) -> list[Point]:
    """Points that put one value into each of `count` slices of every axis."""
    rows = rng.permuted(np.tile(np.arange(count)[:, None], (1, len(axes))), axis=0)
    shares = (rows + rng.random(rows.shape)) / count
    return [{axis.name: axis.at(float(share)) for axis, share in zip(axes, row, strict=True)} for row in shares]
