"""ATA and ATA-Empirical (Algorithm 1 of the paper): quotas from lower confidence bounds on mean times."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from mpi_ata.allocators.change_detection import ChangeDetector, SpeedChange
from mpi_ata.allocators.interface import checked_budget
from mpi_ata.allocators.recursive import recursive_allocation
from mpi_ata.arrays import Array, BoolArray, IntArray, State, restore_saved, saved
from mpi_ata.errors import require
from mpi_ata.randomness import Purpose, Streams


class LowerBoundAllocator(ABC):
    """Algorithm ATA of the paper, up to the choice of the lower confidence bound."""

    def __init__(self, n: int, budget: int, seed: int, overhead: bool, forget: bool) -> None:
        self.n, self.budget = n, checked_budget(n, budget)
        self.overhead = overhead  # whether the overhead of orders counts as time of their tasks
        self.k = 0
        self.K = np.zeros(n, np.int64)  # tasks observed of each worker
        self.T = np.zeros(n)  # the seconds they took
        self.speed_changes: list[SpeedChange] = []  # noticed since the last decision
        self.detector = ChangeDetector(n) if forget else None
        self._streams = Streams(seed, Purpose.ALLOCATION)

    @abstractmethod
    def bounds(self) -> Array:
        """Return a lower confidence bound on the mean time of each worker, 0 for one that was never tried."""

    def allocate(self, available: BoolArray) -> IntArray:
        """Return the quotas of the next round."""
        self.k += 1
        if self.speed_changes:
            self.speed_changes = []
        bounds = self.bounds()
        if np.count_nonzero(available) != self.n:
            bounds = np.where(available, bounds, np.inf)
        rng = None if np.count_nonzero(bounds) == self.n else self._streams.at(self.k)  # it costs 3 us
        return self.divide(bounds, rng)

    def divide(self, bounds: Array, rng: Generator | None) -> IntArray:
        """Return the quotas for these bounds; `rng` is given where some of them are 0."""
        return recursive_allocation(bounds, self.budget, rng)

    def observe(
        self, worker: int, seconds: Sequence[float], stopped: Sequence[float] = (), overhead: float = 0.0
    ) -> None:
        """Count finished tasks; time on stopped ones is added too, so that T / K is not too low."""
        spent = math.fsum(seconds)
        if stopped:
            spent += math.fsum(stopped)
        if self.overhead:
            spent += overhead
        self.K[worker] += len(seconds)
        self.T[worker] += spent
        if self.detector is not None and seconds:
            self._watch(self.detector, worker, seconds, overhead)

    def _watch(
        self, detector: ChangeDetector, worker: int, seconds: Sequence[float], overhead: float
    ) -> None:
        """Forget what was observed of a worker before its speed changed, so that it is explored again.

        Overhead counts as in the samples, in equal parts for the tasks of an order.  Stopped tasks say
        nothing here: when one is stopped depends on the other workers.
        """
        if self.overhead:
            share = overhead / len(seconds)
            seconds = [x + share for x in seconds]
        since = detector.observe(worker, seconds)
        if since is not None:
            before = (self.T.item(worker) - since.seconds) / (self.K.item(worker) - since.tasks)
            self.K[worker], self.T[worker] = since
            self.speed_changes.append(SpeedChange(worker, since.seconds / since.tasks / before))

    def state(self) -> State:
        """Return the round counter, the samples, and what the change detector knows."""
        samples = saved(self, ("k", "K", "T"))
        return samples if self.detector is None else samples | self.detector.state()

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        restore_saved(self, state, ("k", "K", "T"))
        if self.detector is not None:
            self.detector.restore(state)

    def inherit(self, rounds: int, known: State) -> None:
        """Add the samples of earlier rounds, so that the widths of the bounds continue theirs."""
        self.k += rounds
        self.K += known["tasks"]
        self.T += known["seconds"] + known["unfinished"] + (known["overhead"] if self.overhead else 0.0)
        if self.detector is not None:
            self.detector.inherit(known, self.overhead)

    def means_and_widths(self) -> tuple[Array, Array]:
        """Return the empirical means, 0 for untried workers, and the width in all bounds of the paper."""
        all_tried = np.count_nonzero(self.K) == self.n
        K = self.K if all_tried else np.maximum(self.K, 1)
        means = self.T / K
        if not all_tried:
            means[self.K == 0] = 0.0
        widths = math.log(2 * max(self.k, 1) ** 2) / K
        widths += np.sqrt(widths)
        widths *= 2.0
        return means, widths


class ATA(LowerBoundAllocator):
    """Algorithm ATA of the paper: one bound `alpha` on the Orlicz norms of all workers' times."""

    def __init__(
        self, n: int, budget: int, alpha: float, seed: int = 0, overhead: bool = False, forget: bool = False
    ) -> None:
        require(alpha > 0, f"{alpha=} must be above 0, in the unit of the task times")
        super().__init__(n, budget, seed, overhead, forget)
        self.alpha = alpha

    def bounds(self) -> Array:
        """Return the mean minus alpha widths, at least 0: s_i of the paper."""
        means, widths = self.means_and_widths()
        return np.maximum(means - self.alpha * widths, 0.0)  # (eq. 7)


class ATAEmpirical(LowerBoundAllocator):
    """ATA-Empirical of the paper: `eta` bounds the ratio of Orlicz norm to mean, which has no unit."""

    def __init__(
        self,
        n: int,
        budget: int,
        eta: float = 1.0,
        seed: int = 0,
        overhead: bool = False,
        forget: bool = False,
    ) -> None:
        of_laws = "it is 0.77 for the paper's shifted exponentials, 1.53 for exponential times"
        require(eta > 0, f"{eta=} must be above 0; {of_laws}")
        super().__init__(n, budget, seed, overhead, forget)
        self.eta = eta

    def bounds(self) -> Array:
        """Return the mean less eta widths of its own size, or 0: s-hat_i of the paper."""
        means, widths = self.means_and_widths()
        means *= np.maximum(1.0 - self.eta * widths, 0.0)  # (eq. 8)
        return means
