"""Which simulated orders are overdue, checked as rarely as possible: most never are."""

import math

import numpy as np

from mpi_ata.arrays import Array, IntArray
from mpi_ata.clusters.health import Health
from mpi_ata.clusters.simulated import SimulatedWorkers

REFRESH = 32  # rounds after which deadlines are known to be about right


class DeadlineChecks:
    """Plans when to check the deadlines of orders, and does so."""

    def __init__(self, workers: SimulatedWorkers, health: Health) -> None:
        self._workers, self._health, n = workers, health, len(workers.left)
        self.due = -math.inf  # when to check
        self._patience: Array = np.zeros(n)  # seconds per task within which no order is overdue
        self._refresh = 0  # the round in which to compute that again
        self._excused = np.full(n, -np.inf)  # the time from which a worker's lateness counts again

    def clear(self) -> None:
        """Plan no check: there are no orders."""
        self.due = math.inf

    def plan(self, workers: IntArray, round: int, counts: IntArray | int) -> None:
        """Plan when to check the orders of these workers, whose next arrivals have counts[j] tasks."""
        if round >= self._refresh:
            self._patience, self._refresh = self._health.deadlines.patience(), round + min(round, REFRESH)
        patience = self._patience[workers]
        shortest = np.minimum.reduce(patience * counts)
        self.due = min(self.due, self._workers.now + shortest)

    def first_overdue(self, before: float) -> tuple[float, int]:
        """Return when the first order becomes overdue, and whose; and plan the next check."""
        own = self._workers
        running = np.flatnonzero((own.left > 0) & self._health.available)
        if not running.size:
            self.due = math.inf
            return math.inf, -1
        began: Array = np.maximum(own.began, self._excused)[running]
        together = [order.together for order in own.orders[running]]
        counts = np.where(together, own.left[running], 1)
        self.due = float(np.minimum.reduce(began + counts * self._patience[running]))
        if self.due >= before:  # the workers for which this check was planned are done by now
            return math.inf, -1
        late: Array = began + self._health.deadlines.of(running, counts)
        first = int(late.argmin())
        # Deadlines depend on the times seen so far, so they are computed again after twice the time.
        self.due = min(late.item(first), 2 * before - float(began.min()))
        self._patience = self._health.deadlines.patience()
        return late.item(first), running.item(first)

    def excuse(self, worker: int) -> None:
        """Count the lateness of a worker from now on only."""
        self._excused[worker] = self._workers.now
