"""Plain distributions that the generators draw from, as whole arrays. Each is one line of a generator's description."""

import numpy as np
from numpy.random import Generator

from kvcache.request import Float64, Int64


def lognormal(rng: Generator, n: int, median: float, sigma: float, most: int) -> Int64:
    """Whole numbers from 1 to `most`."""
    drawn: Float64 = np.exp(np.minimum(np.log(median) + sigma * rng.standard_normal(n), np.log(most)))
    return np.maximum(1, np.rint(drawn)).astype(np.int64)


def log_uniform(rng: Generator, n: int, low: int, high: int) -> Int64:
    """Whole numbers from `low` to `high`, as many below their geometric middle as above it."""
    return np.rint(np.exp(rng.uniform(np.log(low), np.log(high), n))).astype(np.int64)


class Zipf:
    """Ranks 0 to n - 1; rank r is drawn in proportion to (r + 1) ** -exponent."""

    def __init__(self, n: int, exponent: float) -> None:
        self._share: Float64 = np.cumsum(np.arange(1, n + 1, dtype=np.float64) ** -exponent)
        self._share /= self._share[-1]

    def draw(self, rng: Generator, n: int) -> Int64:
        """n ranks."""
        return np.minimum(np.searchsorted(self._share, rng.random(n)), len(self._share) - 1).astype(np.int64)
