"""A custom problem: fit a line to noisy points, one random point per task.

Used by jobs/own_problem.toml; the keys of its [problem] table are the parameters of __init__.
"""

import numpy as np

from mpi_ata import Task
from mpi_ata.arrays import Array


class LineFit:
    """Least squares: x = (slope, intercept)."""

    def __init__(self, points: int = 1000) -> None:
        if not 1 <= points <= 1_000_000:
            raise ValueError(f"{points=} must be from 1 to a million")
        rng = np.random.default_rng(1)
        self.t = rng.uniform(-1, 1, points)
        self.y = 3 * self.t + 2 + 0.1 * rng.standard_normal(points)
        self.x0 = np.zeros(2)  # where the run starts; float32 or float64

    def gradient(self, x: Array, task: Task) -> Array:
        """One task: the gradient at one point, drawn with the task's own random numbers."""
        i = task.rng.integers(len(self.t))
        error = x[0] * self.t[i] + x[1] - self.y[i]
        return np.array([error * self.t[i], error])

    def loss(self, x: Array) -> float:
        """Half the mean squared error over all points; optional, evaluated off the clock."""
        return float(np.mean((x[0] * self.t + x[1] - self.y) ** 2) / 2)
