"""UTA, Uniform Task Allocation."""

import numpy as np

from mpi_ata.allocators.interface import NonAdaptive, checked_budget
from mpi_ata.allocators.recursive import spread
from mpi_ata.arrays import BoolArray, IntArray, State, entry
from mpi_ata.randomness import Purpose, Streams


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
        return {"k": np.array(self.k)}

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        self.k = int(entry(state, "k", self.k))

    def inherit(self, rounds: int, known: State) -> None:
        """Continue drawing where the earlier rounds ended."""
        self.k += rounds
