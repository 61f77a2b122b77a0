"""A task need not be a gradient: it can return any array, here from a trial of an evolution strategy.

Used by jobs/evolution.toml.  The loss is the share of points on the wrong side of a plane: it is piecewise
constant, so its gradient is 0 wherever it exists.  A task tries a random change and its opposite, and returns
the change, weighted by how much better the opposite did; loop, allocators and methods stay the same.
"""

import numpy as np

from mpi_ata import Task
from mpi_ata.arrays import Array


class WrongSide:
    """Separates two clouds of points by a plane: x = (its normal, its offset)."""

    def __init__(self, dimension: int = 10, points: int = 2000, spread: float = 0.3) -> None:
        if not (1 <= dimension <= 1000 and 1 <= points <= 1_000_000 and spread > 0):
            raise ValueError(f"{dimension=}, {points=} or {spread=} is out of range")
        rng = np.random.default_rng(1)
        self.label = np.where(rng.random(points) < 0.5, -1.0, 1.0)
        self.t = rng.standard_normal((points, dimension)) + 1.5 / np.sqrt(dimension) * self.label[:, None]
        self.x0 = rng.standard_normal(dimension + 1)
        self.spread = spread  # size of a trial step

    def gradient(self, x: Array, task: Task) -> Array:
        """One task: a random change, weighted by its effect on the loss."""
        change = task.rng.standard_normal(len(x))
        better = self.loss(x + self.spread * change) - self.loss(x - self.spread * change)
        return change * better / (2 * self.spread)

    def loss(self, x: Array) -> float:
        """The share of points on the wrong side."""
        return float(np.mean((self.t @ x[:-1] + x[-1]) * self.label <= 0))
