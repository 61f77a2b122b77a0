"""Laws of task times: how long a task takes on each worker, where that is drawn instead of measured."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.random import Generator

from mpi_ata.arrays import Array
from mpi_ata.errors import require


class Law(Protocol):
    """The distribution of a task's time on each of n workers, in the law's own unit."""

    n: int

    @property
    def means(self) -> Array:
        """The true mean of each worker, which the oracle knows."""

    def draw(self, rng: Generator) -> Array:
        """Draw one time for each worker."""


def check_law(n: int, scale: float | Sequence[float]) -> None:
    """Reject laws of no workers, and times that are not above 0."""
    require(n >= 1, f"{n=} must be at least 1")
    require(bool(np.all(np.asarray(scale) > 0)), f"{scale=} must be above 0")


class _Spread:
    """The base of laws whose mean grows with the worker's index: n and a positive scale."""

    def __init__(self, n: int, scale: float) -> None:
        check_law(n, scale)
        self.n = n
        self.scale = scale
        self.index = np.arange(1.0, n + 1)  # the paper's i


class _ShiftedExponential(_Spread):
    """shift_i + Exp(shift_i)."""

    shifts: Array

    @property
    def means(self) -> Array:
        """Twice the shifts."""
        return 2.0 * self.shifts

    def draw(self, rng: Generator) -> Array:
        """Draw one time for each worker."""
        times = rng.standard_exponential(self.n)
        times += 1.0
        times *= self.shifts
        return times


class Sqrt(_ShiftedExponential):
    """scale sqrt(i) + Exp(scale sqrt(i)): the paper's main experiment."""

    def __init__(self, n: int, scale: float = 29.0) -> None:
        super().__init__(n, scale)
        self.shifts = scale * np.sqrt(self.index)


class Linear(_ShiftedExponential):
    """scale i + Exp(scale i): speeds that differ more."""

    def __init__(self, n: int, scale: float = 29.0) -> None:
        super().__init__(n, scale)
        self.shifts = scale * self.index


class Exponential(_Spread):
    """Exp(scale i): the paper's experiment on regret."""

    def __init__(self, n: int, scale: float = 2.0) -> None:
        super().__init__(n, scale)
        self.means = scale * self.index

    def draw(self, rng: Generator) -> Array:
        """Draw one time for each worker."""
        return rng.standard_exponential(self.n) * self.means


class Mix(_Spread):
    """Groups of five workers, one of each kind: m plus exponential, uniform, half-normal, lognormal, gamma.

    All kinds have the mean m = scale (5 g + 1) in group g = 0, 1, ..., so that the mean time is 2 m.
    """

    def __init__(self, n: int, scale: float = 29.0) -> None:
        super().__init__(n, scale)
        require(scale >= 1, f"{scale=} must be at least 1, since log(scale) is a variance of the lognormal")
        self.shifts = scale * (5.0 * (np.arange(n) // 5) + 1.0)
        self.means = 2.0 * self.shifts

    def draw(self, rng: Generator) -> Array:
        """Draw one time for each worker."""
        m, times = self.shifts, self.shifts.copy()
        exponential, uniform, half_normal, lognormal, gamma = (slice(kind, None, 5) for kind in range(5))
        times[exponential] += rng.exponential(m[exponential])
        times[uniform] += rng.uniform(m[uniform] / 2, 3 * m[uniform] / 2)
        times[half_normal] += np.abs(rng.normal(0, m[half_normal] * np.sqrt(np.pi / 2)))
        times[lognormal] += rng.lognormal(np.log(m[lognormal]) / 2, np.sqrt(np.log(m[lognormal])))
        times[gamma] += rng.gamma(m[gamma] ** 2, 1 / m[gamma])
        return times


class Constant:
    """No randomness: `scale` for every worker, or a list with one time per worker."""

    def __init__(self, n: int, scale: float | Sequence[float] = 1.0) -> None:
        check_law(n, scale)
        rule = f"{scale=} must be one number or a list of {n}, one for each worker"
        require(np.shape(scale) in ((), (n,)), rule)
        self.n = n
        self.means = np.broadcast_to(np.asarray(scale, np.float64), n)

    def draw(self, rng: Generator) -> Array:
        """Draw one time for each worker."""
        return self.means
