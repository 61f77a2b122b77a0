"""A job that computes nothing, so that what remains is what a round costs; see null.toml."""

import numpy as np

from mpi_ata import ATAEmpirical, Task
from mpi_ata.arrays import Array, BoolArray, IntArray


class Null:
    """A task that returns what was there before it."""

    def __init__(self, size: int) -> None:
        self.x0 = np.ones(size)  # not zeros, whose pages would all be the same one
        self._answer = np.ones(size)

    def gradient(self, x: Array, task: Task) -> Array:
        """Nothing is computed."""
        return self._answer


class OneEach(ATAEmpirical):
    """Decides like ATA-Empirical, then gives one task to each of the first `budget` workers all the same."""

    def __init__(self, n: int, budget: int) -> None:
        super().__init__(n, budget)
        self._quotas = (np.arange(n) < budget).astype(np.int64)

    def allocate(self, available: BoolArray) -> IntArray:
        """Fixed quotas, at the price of a decision."""
        super().allocate(available)
        return self._quotas
