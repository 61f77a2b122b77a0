"""What ATA and its variants share: samples of task times, and quotas from lower bounds on their means."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from mpi_ata.allocators.interface import checked_budget
from mpi_ata.allocators.recursive import recursive_allocation
from mpi_ata.arrays import Array, IntArray, State, entry
from mpi_ata.randomness import Purpose, Streams


class LowerBoundAllocator(ABC):
    """Algorithm ATA of the paper, up to the choice of the lower confidence bound."""

    def __init__(self, n: int, budget: int, seed: int, overhead: bool) -> None:
        self.n, self.budget = n, checked_budget(n, budget)
        self.overhead = overhead  # whether a worker's time includes what its orders spend on the way
        self.k = 0
        self.K = np.zeros(n, np.int64)  # tasks seen of each worker
        self.T = np.zeros(n)  # the seconds they took
        self._streams = Streams(seed, Purpose.ALLOCATION)

    @abstractmethod
    def bounds(self) -> Array:
        """A lower confidence bound on the mean time of each worker, 0 for one that was never tried."""

    def allocate(self) -> IntArray:
        """The quotas of the coming round."""
        self.k += 1
        bounds = self.bounds()
        rng = None if np.count_nonzero(bounds) == self.n else self._streams.at(self.k)  # it costs 3 us
        return recursive_allocation(bounds, self.budget, rng)

    def observe(self, worker: int, seconds: Sequence[float], unfinished: float = 0.0) -> None:
        """Count finished tasks; time on a stopped one is added too, so that T / K stays an honest mean."""
        self.K[worker] += len(seconds)
        self.T[worker] += math.fsum(seconds) + unfinished

    def state(self) -> State:
        """The round counter and the samples."""
        return {"k": np.array(self.k), "K": self.K.copy(), "T": self.T.copy()}

    def restore(self, state: State) -> None:
        """Go on from an earlier state."""
        K, T = entry(state, "K", self.K), entry(state, "T", self.T)
        self.k, self.K, self.T = int(entry(state, "k", self.k)), K, T

    def inherit(self, rounds: int, known: State) -> None:
        """Add the samples of earlier rounds, so that the widths of the bounds continue theirs."""
        self.k += rounds
        self.K += known["tasks"]
        self.T += known["seconds"] + known["unfinished"] + (known["overhead"] if self.overhead else 0.0)

    def means_and_widths(self) -> tuple[Array, Array]:
        """The empirical means, 0 for untried workers, and the width that all bounds of the paper share."""
        all_tried = np.count_nonzero(self.K) == self.n
        K = self.K if all_tried else np.maximum(self.K, 1)
        means = self.T / K
        if not all_tried:
            means[self.K == 0] = 0.0
        widths = math.log(2 * max(self.k, 1) ** 2) / K
        widths += np.sqrt(widths)
        widths *= 2.0
        return means, widths
