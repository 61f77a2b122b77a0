"""A job that computes nothing, which leaves the overhead of a round; see null.toml."""

import time

import numpy as np

from mpi_ata import ATAEmpirical, Task
from mpi_ata.arrays import Array, BoolArray, IntArray


class Null:
    """A problem whose tasks return an array made beforehand, after a sleep if that is wanted."""

    def __init__(self, size: int, sleep: float = 0.0) -> None:
        self._sleep = sleep
        self.x0 = np.ones(size)  # not zeros, whose pages the kernel would all map to the same one
        self._answer = np.ones(size)

    def gradient(self, x: Array, task: Task) -> Array:
        """Return the same array for every task."""
        if self._sleep:
            time.sleep(self._sleep)
        return self._answer


class OneEach(ATAEmpirical):
    """Decides like ATA-Empirical, but then gives one task to each of the first `budget` workers."""

    def __init__(self, n: int, budget: int) -> None:
        super().__init__(n, budget)
        self._quotas = (np.arange(n) < budget).astype(np.int64)
        self.cpu_seconds = 0.0  # spent on decisions

    def allocate(self, available: BoolArray) -> IntArray:
        """Return fixed quotas, at the cost of a decision."""
        began = time.thread_time()
        super().allocate(available)
        self.cpu_seconds += time.thread_time() - began
        return self._quotas
