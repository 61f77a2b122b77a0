"""MindFlayer SGD: minibatch SGD whose tasks have time limits."""

import math

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.arrays import Array, IntArray, State, restore_saved, saved
from mpi_ata.clusters import Arrival, Back, Cluster
from mpi_ata.errors import require
from mpi_ata.methods.collector import Collector, Sum, reassign
from mpi_ata.methods.interface import AllocatorMethod, Round
from mpi_ata.updates import Update


class MindFlayer(AllocatorMethod):
    """The mean of B gradients moves x; a task that takes too long is stopped, and another one is started.

    A. Maranjyan, O. Shaikh Omar, P. Richtárik: MindFlayer SGD: Efficient Parallel SGD in the Presence of
    Heterogeneous and Random Worker Compute Times (2024), arXiv 2410.04285.  There a worker has a fixed number
    of trials per round, and the number of results is random.  Here it has as many trials as its quota of
    results needs, so that each round uses B results, as with other methods.  There the law of the task times
    is known, and limits and trials are computed from it.  Here an allocator decides the quotas, and the limit
    of a worker is `limit` times the mean time that it has needed per result, stopped tasks included.
    """

    def __init__(self, x0: Array, n: int, allocator: Allocator, update: Update, limit: float = 2.0) -> None:
        require(limit > 1, f"{limit=} must be above 1: times the mean time of a result, a task may take")
        super().__init__(x0, allocator, update)
        self.limit = limit
        self.K = np.zeros(n, np.int64)  # results of each worker
        self.T = np.zeros(n)  # seconds it spent on them and on stopped tasks

    def step(self, cluster: Cluster) -> Round:
        """Allocate, collect B gradients at x, stop tasks at their limits, learn the times, update x."""
        B, k = self.allocator.budget, self.k + 1
        a, _ = self.quotas(cluster)
        left, g, b = a.copy(), Sum(), 0
        began = np.full(cluster.n, np.inf)  # when each worker's task was begun; infinite where it has none

        def begin(workers: IntArray) -> None:
            began[workers] = cluster.now()
            cluster.start(workers, self.x, k)

        collector = Collector(cluster, self.allocator)
        begin(np.flatnonzero(a))
        while b < B:
            ends = began + self.limits()
            try:
                found = collector.wait(max(float(ends.min()) - cluster.now(), 0.0))
            except TimeoutError:
                late = np.flatnonzero(ends <= max(ends.min(), cluster.now()))
                self.T[late] += collector.stop(late)  # so limits that are too short grow
                begin(late)
                continue
            if isinstance(found, Back):  # from a trial before this round, in which it may have a task
                continue
            i = found.worker
            began[i] = np.inf
            if isinstance(found, Arrival):
                g.add(i, found.result)
                self.K[i] += 1
                self.T[i] += math.fsum(found.seconds) + found.overhead  # which the limit covers too
                b, left[i] = b + 1, left[i] - 1
                if left[i] and b < B:
                    begin(np.array([i]))
            else:
                begin(reassign(cluster, left, i))
        collector.end()
        collector.stop(np.flatnonzero(began < np.inf))

        self.x, self.k = self.update(self.x, g.mean(B)), k
        return collector.round(k, a)

    def limits(self) -> Array:
        """Return how many seconds a task of each worker may take; any number before its first result."""
        known = (self.K > 0) & (self.T > 0)
        limits = np.full(len(self.K), np.inf)
        np.divide(self.limit * self.T, self.K, out=limits, where=known)
        return limits

    def state(self) -> State:
        """Return the point, the state of the update, and what the limits follow from."""
        return super().state() | saved(self, ("K", "T"))

    def restore(self, state: State) -> None:
        """Resume from an earlier state; another number of workers starts without limits."""
        super().restore(state)
        if len(state["K"]) == len(self.K):
            restore_saved(self, state, ("K", "T"))
