"""Allocators that do not learn: greedy (GTA), uniform (UTA), and with known means (OFTA)."""

import numpy as np
from numpy.typing import ArrayLike

from mpi_ata.allocators.interface import NonAdaptive, checked_budget
from mpi_ata.allocators.recursive import recursive_allocation, spread
from mpi_ata.arrays import BoolArray, IntArray, State, restore_saved, saved
from mpi_ata.errors import require
from mpi_ata.randomness import Purpose, Streams


class GTA(NonAdaptive):
    """Everybody's quota is the whole budget; the round takes the first `budget` tasks and stops the rest."""

    def __init__(self, n: int, budget: int) -> None:
        self.n, self.budget = n, checked_budget(n, budget)
        self.quota = np.full(n, budget)

    def allocate(self, available: BoolArray) -> IntArray:
        """Return the whole budget for everyone who is available."""
        return self.quota if np.count_nonzero(available) == self.n else self.quota * available


class UTA(NonAdaptive):
    """The budget in equal shares; who gets the remainder is drawn in each round."""

    def __init__(self, n: int, budget: int, seed: int = 0) -> None:
        self.n, self.budget = n, checked_budget(n, budget)
        self.k = 0
        self._streams = Streams(seed, Purpose.ALLOCATION)

    def allocate(self, available: BoolArray) -> IntArray:
        """Return the quotas of the next round."""
        self.k += 1
        return spread(np.flatnonzero(available), self.n, self.budget, self._streams.at(self.k))

    def state(self) -> State:
        """Return the round counter, which decides what is drawn next."""
        return saved(self, ("k",))

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        restore_saved(self, state, ("k",))

    def inherit(self, rounds: int, known: State) -> None:
        """Continue drawing where the earlier rounds ended."""
        self.k += rounds


class OFTA(NonAdaptive):
    """The optimal quotas for the true mean times, in every round."""

    def __init__(self, n: int, budget: int, means: ArrayLike) -> None:
        self.n, self.budget = n, checked_budget(n, budget)
        self.means = np.array(means, np.float64)
        self.quota = recursive_allocation(self.means, budget)
        count = len(self.quota)
        require(count == n, f"means must have one entry for each of the {n} workers, not {count}")

    def allocate(self, available: BoolArray) -> IntArray:
        """Return the same quotas in every round, unless workers are not available."""
        if np.count_nonzero(available) == self.n:
            return self.quota
        return recursive_allocation(np.where(available, self.means, np.inf), self.budget)
