"""When things start: gaps of a renewal process with a given rate and burstiness, or the times of a recorded trace.

It does not know what starts (a session, a request). Burstiness is the coefficient of variation of the gaps, cv = standard
deviation / mean: 1 for a Poisson process, more for bursts. Gamma: shape 1 / cv^2. Weibull: the shape k with
cv^2 = G(1 + 2/k) / G(1 + 1/k)^2 - 1, where G is the gamma function.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from kvcache.request import Float64

PROCESSES = ("poisson", "gamma", "weibull", "recorded")


@dataclass
class Clock:
    """Times in order, as many as are asked for; it remembers how far it has come."""

    rng: Generator
    per_s: float
    process: str = "poisson"
    cv: float = 1.0
    recorded_s: Float64 | None = None
    """Times of another trace; when they are used up they start again, one mean gap after the last."""
    now_s: float = 0.0
    used: int = 0

    def next(self, n: int) -> Float64:
        """The next n times; the first of all is 0 s."""
        if self.recorded_s is not None:
            number = np.arange(self.used, self.used + n)
            self.used += n
            size = len(self.recorded_s)
            span_s = float(self.recorded_s[-1]) * (1 + 1 / max(1, size - 1))
            return np.asarray(self.recorded_s[number % size] + number // size * span_s)
        times_s = self.now_s + np.concatenate((
            [0.0],
            np.cumsum(gaps_s(self.rng, n, self.per_s, self.process, self.cv)),
        ))
        self.now_s = float(times_s[-1])
        return np.asarray(times_s[:-1])


def gaps_s(rng: Generator, n: int, per_s: float, process: str, cv: float) -> Float64:
    """n gaps of mean 1 / per_s."""
    if process == "gamma":
        return rng.gamma(cv**-2, cv**2 / per_s, n)
    if process == "weibull":
        shape = weibull_shape(cv)
        return rng.weibull(shape, n) / (per_s * math.gamma(1 + 1 / shape))
    return rng.exponential(1 / per_s, n)


def weibull_shape(cv: float) -> float:
    """The shape whose gaps vary by `cv`, by bisection (cv falls as the shape grows)."""
    low, high = 0.1, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        if weibull_cv(middle) > cv:
            low = middle
        else:
            high = middle
    return low


def weibull_cv(shape: float) -> float:
    """Coefficient of variation of a Weibull distribution."""
    return math.sqrt(max(0.0, math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2 - 1))


def check_process(process: str, cv: float) -> None:
    """Refuse a process nobody knows and a burstiness it cannot have."""
    if process not in PROCESSES:
        raise ValueError(f"arrival is {process!r}; it must be one of {', '.join(PROCESSES)}")
    if process in {"poisson", "recorded"} and cv != 1:
        raise ValueError(f"cv is {cv} and arrival is {process}, whose gaps are as they are; use gamma or weibull")
    if not 0.02 < cv < 100:
        raise ValueError(f"cv is {cv}; it must be above 0.02 and below 100")
