"""Asynchronous SGD with an allocation: ASGD-ATA of the paper."""

import numpy as np

from mpi_ata.arrays import Array, IntArray, State, restore_saved, saved, total
from mpi_ata.clusters import Back, Cluster, Lost
from mpi_ata.errors import require
from mpi_ata.limits import check_tasks
from mpi_ata.methods.collector import Collector, reassign
from mpi_ata.methods.interface import AllocatorMethod, Round, UpdateMethod, check_anyone, check_everyone
from mpi_ata.updates import Update


class ASGD(AllocatorMethod):
    """Algorithms ASGD-ATA and ASGD: B updates per round, by exactly a_i gradients of worker i, one by one."""

    greedy_instead = "ringmaster"
    point_per_worker = True  # each gradient under way has its own

    def step(self, cluster: Cluster) -> Round:
        """Allocate, then update x by each gradient that arrives; its worker continues from the newest x."""
        x, k = self.x, self.k + 1
        a = self.exact_quotas(cluster)
        left, s, B = a.copy(), 0, total(a)
        born = np.zeros_like(a)  # the update s after which each worker's gradient was begun
        delays = np.zeros(B, np.int64)

        collector = Collector(cluster, self.allocator)
        wait = collector.wait_for_owner if self.owns_data else collector.wait
        cluster.start(np.flatnonzero(a), x, k)
        while s < B:
            arrival = wait()
            i = arrival.worker
            if isinstance(arrival, Lost):
                idle = reassign(cluster, left, i)
                born[idle] = s
                cluster.start(idle, x, k)
                continue
            if isinstance(arrival, Back):  # with work from the next round on
                continue
            x = self.update(x, self.scaled(arrival))
            delays[s] = s - born[i]
            s += 1
            left[i] -= 1
            if left[i] > 0:
                born[i] = s
                cluster.start(np.array([i]), x, k)
        collector.end()

        self.x, self.k = x, k
        return collector.round(k, a, delays)


class Ringmaster(UpdateMethod):
    """Ringmaster ASGD with stops: everyone always works; gradients begun `delay` updates ago are stopped.

    A round is `budget` updates.  Gradients under way at its end are not stopped: they count in the round
    in which they arrive or are stopped.
    """

    point_per_worker = True  # each gradient under way has its own

    def __init__(self, x0: Array, n: int, update: Update, delay: int, budget: int) -> None:
        require(delay >= 1, f"{delay=} must be at least 1: gradients begun this many updates ago are ignored")
        require(budget >= 1, f"{budget=} must be at least 1 update per round")
        check_tasks("budget", budget)
        super().__init__(x0, update)
        self.R, self.B = delay, budget
        self.s = 0  # updates so far
        self.born = np.full(n, -1)  # the update after which each worker's gradient was begun; -1: none was

    def step(self, cluster: Cluster) -> Round:
        """Update x by each gradient that arrives; its worker, and those that are now late, restart at x."""
        k, b = self.k + 1, 0
        delays = np.zeros(self.B, np.int64)
        (check_everyone if self.owns_data else check_anyone)(cluster)
        collector = Collector(cluster)
        wait = collector.wait_for_owner if self.owns_data else collector.wait
        idle = cluster.idle()  # everyone in the first round, and after a break on real ranks
        self._begin(cluster, idle[cluster.available[idle]], k)
        while b < self.B:
            arrival = wait()
            i = arrival.worker
            if isinstance(arrival, Lost):
                self.born[i] = -1
                continue
            if isinstance(arrival, Back):
                self._begin(cluster, np.array([i]), k)
                continue
            self.x = self.update(self.x, self.scaled(arrival))
            delays[b] = self.s - self.born[i]
            self.s += 1
            b += 1
            self.born[i] = self.s
            late = np.flatnonzero((self.born <= self.s - self.R) & cluster.available)
            collector.stop(late)
            self._begin(cluster, np.append(late, i), k)
        collector.end()
        self.k = k
        return collector.round(k, collector.used, delays)

    def _begin(self, cluster: Cluster, workers: IntArray, k: int) -> None:
        """Start one gradient at the newest x on each of these workers."""
        self.born[workers] = self.s
        cluster.start(workers, self.x, k)

    def state(self) -> State:
        """Return the point, the state of the update, and when the gradients under way were begun."""
        return super().state() | saved(self, ("s", "born"))

    def restore(self, state: State) -> None:
        """Resume from an earlier state; another number of workers starts afresh at x."""
        super().restore(state)
        restore_saved(self, state, ("s", "born") if len(state["born"]) == len(self.born) else ("s",))
