"""OFTA, Optimal Fixed Task Allocation: the oracle."""

from numpy.typing import ArrayLike

from mpi_ata.allocators.interface import NonAdaptive, checked_budget
from mpi_ata.allocators.recursive import recursive_allocation
from mpi_ata.arrays import IntArray


class OFTA(NonAdaptive):
    """The quotas that are best for the true mean times, in every round."""

    def __init__(self, n: int, budget: int, means: ArrayLike) -> None:
        self.n, self.budget = n, checked_budget(n, budget)
        self.quota = recursive_allocation(means, budget)
        if len(self.quota) != n:
            raise ValueError(f"means must have one entry for each of the {n} workers, not {len(self.quota)}")

    def allocate(self) -> IntArray:
        """The same quotas as ever."""
        return self.quota
