"""A job that computes nothing, which leaves the overhead of a round; see null.toml."""

import numpy as np

from mpi_ata import ATAEmpirical, Task
from mpi_ata.arrays import Array, BoolArray, IntArray


class Null:
    """A problem whose tasks return an array made beforehand."""

    def __init__(self, size: int) -> None:
        self.x0 = np.ones(size)  # not zeros, whose pages the kernel would all map to the same one
        self._answer = np.ones(size)

    def gradient(self, x: Array, task: Task) -> Array:
        """Return the same array for every task."""
        return self._answer


class OneEach(ATAEmpirical):
    """Decides like ATA-Empirical, but then gives one task to each of the first `budget` workers."""

    def __init__(self, n: int, budget: int) -> None:
        super().__init__(n, budget)
        self._quotas = (np.arange(n) < budget).astype(np.int64)

    def allocate(self, available: BoolArray) -> IntArray:
        """Return fixed quotas, at the cost of a decision."""
        super().allocate(available)
        return self._quotas
