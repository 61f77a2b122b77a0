"""Unequal data, not unequal nodes: each worker owns a stretch of a curve, and together they fit a line to it.

Used by jobs/heterogeneous_data.toml and jobs/malenia.toml.  Only worker i has the points of its stretch, so
workers that do more tasks must not get more weight: the line would follow the stretches of the fast workers.
"""

import numpy as np

from mpi_ata import Task
from mpi_ata.arrays import Array


class Stretches:
    """Least squares for x = (slope, intercept) on y = exp(t); f is the mean of the workers' own losses."""

    def __init__(self, points: int = 200) -> None:
        if not 1 <= points <= 1_000_000:
            raise ValueError(f"{points=} must be from 1 to a million")
        self.points = points  # of each worker
        self.x0 = np.zeros(2)

    def setup(self, worker: int | None, n: int) -> None:
        """Load the data of one worker, or all data on the manager and in a simulation (worker is None)."""
        mine = range(n) if worker is None else [worker]
        self.t = {i: (i + np.random.default_rng(i).uniform(0, 1, self.points)) * 2 / n - 1 for i in mine}
        if worker is None:
            t = np.concatenate([self.t[i] for i in range(n)])
            self.all = np.column_stack([t, np.ones_like(t)]), np.exp(t)
            self.minimum = self.loss(np.linalg.lstsq(*self.all, rcond=None)[0])

    def gradient(self, x: Array, task: Task) -> Array:
        """One task: the gradient at one of the points of task.worker."""
        t = task.rng.choice(self.t[task.worker])
        error = x[0] * t + x[1] - np.exp(t)
        return np.array([error * t, error])

    def loss(self, x: Array) -> float:
        """Half the mean squared error over the points of all workers."""
        inputs, outputs = self.all
        return float(np.mean((inputs @ x - outputs) ** 2) / 2)
