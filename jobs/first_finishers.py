"""The problem and the task times of jobs/first_finishers.toml: samples that take longer are different.

A task reads one sequence.  Its time is the length of the sequence times the slowness of the worker, and its
result depends on the length too: x is to become the mean length, 1.  Both are drawn from the same stream.
"""

import numpy as np
from numpy.random import Generator

from mpi_ata import DrawnTimes, Task
from mpi_ata.arrays import Array

SPREAD = 0.5  # standard deviation of the logarithm of a length
SLOWEST = 2.0


class Lengths:
    """Sequences of lognormal length with mean 1, one drawn by each worker."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.means = np.ones(n)

    def draw(self, rng: Generator) -> Array:
        """Draw a length for each worker."""
        return np.asarray(np.exp(rng.normal(-(SPREAD**2) / 2, SPREAD, self.n)))


class ReadingTimes(Lengths):
    """How long workers take to read their sequences: the last one takes twice as long as the first."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.means = np.linspace(1.0, SLOWEST, n)

    def draw(self, rng: Generator) -> Array:
        """Draw the time of one sequence for each worker."""
        return self.means * super().draw(rng)


class MeanLength:
    """Half the mean squared distance of x from the lengths of all sequences: least at their mean."""

    minimum = 0.0

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.x0 = seed, np.ones(1)

    def setup(self, worker: int | None, n: int) -> None:
        """Draw lengths as [times] does, from the same seed."""
        self.lengths = DrawnTimes(Lengths(n), self.seed)

    def gradient(self, x: Array, task: Task) -> Array:
        """Return the gradient of one sequence."""
        return np.asarray(x - self.lengths(task.round, task.number)[task.worker])

    def loss(self, x: Array) -> float:
        """Return half the squared error of x."""
        return float((x[0] - 1.0) ** 2 / 2)
