"""The convex quadratic of the paper's experiments, with exact minimum and Gaussian noise."""

import math
from collections.abc import Sequence

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.errors import require
from mpi_ata.problems.interface import Task


class Quadratic:
    """f(x) = x'Ax / 2 - b'x with A = tridiag(-1, 2, -1) / 4 and b = -e_1 / 4.

    A stochastic gradient is the gradient plus Gaussian noise with E |g - grad f|^2 = noise^2.
    """

    def __init__(self, dimension: int = 100, noise: float = 0.01) -> None:
        require(dimension >= 1, f"{dimension=} must be at least 1")
        require(noise >= 0, f"{noise=} must be at least 0")
        self.x0: Array = np.zeros(dimension)
        self._deviation = noise / math.sqrt(dimension)  # of each coordinate
        self.minimum = -dimension / (8 * (dimension + 1))  # at x_j = j / (d + 1) - 1

    def gradient(self, x: Array, task: Task) -> Array:
        """Return one stochastic gradient."""
        g = task.rng.standard_normal(len(x))
        g *= self._deviation
        g += self.full_gradient(x)
        return g

    def gradients(self, x: Array, tasks: Sequence[Task]) -> Array:
        """Return the sum of several stochastic gradients at one point."""
        g = tasks[0].rng.standard_normal(len(x))
        for task in tasks[1:]:
            g += task.rng.standard_normal(len(x))
        g *= self._deviation
        g += len(tasks) * self.full_gradient(x)
        return g

    def full_gradient(self, x: Array) -> Array:
        """Return Ax - b, without forming the matrix."""
        y, quarter = 0.5 * x, 0.25 * x
        below, above = y[1:], y[:-1]
        below -= quarter[:-1]
        above -= quarter[1:]
        y[0] += 0.25
        return y

    def loss(self, x: Array) -> float:
        """Return f(x)."""
        return float(0.5 * x @ self.full_gradient(x) + 0.125 * x[0])  # Ax = gradient + b
