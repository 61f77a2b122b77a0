"""OFTA, Optimal Fixed Task Allocation: the oracle."""

import numpy as np
from numpy.typing import ArrayLike

from mpi_ata.allocators.interface import NonAdaptive, checked_budget
from mpi_ata.allocators.recursive import recursive_allocation
from mpi_ata.arrays import BoolArray, IntArray


class OFTA(NonAdaptive):
    """The optimal quotas for the true mean times, in every round."""

    def __init__(self, n: int, budget: int, means: ArrayLike) -> None:
        self.n, self.budget = n, checked_budget(n, budget)
        self.means = np.array(means, np.float64)
        self.quota = recursive_allocation(self.means, budget)
        if len(self.quota) != n:
            raise ValueError(f"means must have one entry for each of the {n} workers, not {len(self.quota)}")

    def allocate(self, available: BoolArray) -> IntArray:
        """Return the same quotas in every round, unless workers are not available."""
        if np.count_nonzero(available) == self.n:
            return self.quota
        return recursive_allocation(np.where(available, self.means, np.inf), self.budget)
