"""GTA, Greedy Task Allocation: everyone works until the budget is met (Rennala SGD)."""

import numpy as np

from mpi_ata.allocators.interface import NonAdaptive, checked_budget
from mpi_ata.arrays import BoolArray, IntArray


class GTA(NonAdaptive):
    """Everybody's quota is the whole budget; the round takes the first `budget` tasks and stops the rest."""

    def __init__(self, n: int, budget: int) -> None:
        self.n, self.budget = n, checked_budget(n, budget)
        self.quota = np.full(n, budget)

    def allocate(self, available: BoolArray) -> IntArray:
        """Return the whole budget for everyone who is available."""
        return self.quota if np.count_nonzero(available) == self.n else self.quota * available
