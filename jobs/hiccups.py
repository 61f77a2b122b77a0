"""The task times of jobs/hiccups.toml: one fast worker, some of whose tasks take twenty times as long."""

import numpy as np
from numpy.random import Generator

from mpi_ata.arrays import Array

OFTEN, LONGER = 0.2, 20.0  # a fifth of the tasks of worker 0 take 20 instead of 1
STEADY, NOISE = 15.0, 0.01  # all others take 15, give or take a per cent


class Hiccups:
    """A worker that takes 1 or 20, 4.8 on average, beside steady ones that take 15."""

    def __init__(self, n: int) -> None:
        self.n, self.means = n, np.full(n, STEADY)
        self.means[0] = 1.0 + OFTEN * (LONGER - 1.0)

    def draw(self, rng: Generator) -> Array:
        """Draw one time for each worker."""
        times = STEADY * (1.0 + NOISE * rng.standard_normal(self.n))
        times[0] = LONGER if rng.random() < OFTEN else 1.0
        return times
