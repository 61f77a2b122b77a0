"""Ringmaster ASGD, the greedy asynchronous method."""

import numpy as np

from mpi_ata.arrays import Array, IntArray, State, entry
from mpi_ata.clusters import Cluster
from mpi_ata.methods.collect import Tally, UpdateMethod
from mpi_ata.methods.interface import Round
from mpi_ata.updates import Update


class Ringmaster(UpdateMethod):
    """Ringmaster ASGD with stops: everyone always works; gradients begun `delay` updates ago are given up.

    A round is `budget` updates.  Gradients under way at its end are not stopped: they count in the round
    in which they arrive or are given up.
    """

    def __init__(self, x0: Array, n: int, update: Update, delay: int, budget: int) -> None:
        if delay < 1:
            raise ValueError(f"{delay=} must be at least 1: gradients begun so many updates ago are ignored")
        if budget < 1:
            raise ValueError(f"{budget=} must be at least 1 update a round")
        super().__init__(x0, update)
        self.R, self.B = delay, budget
        self.s = 0  # updates so far
        self.gone = 0  # gradients that were under way on workers which are no longer there
        self.born = np.full(n, -1)  # the update after which each worker's gradient was begun; -1: none was

    def step(self, cluster: Cluster) -> Round:
        """Update x by each gradient that comes; its worker, and whoever is too late now, begins anew at x."""
        k = self.k + 1
        delays = np.zeros(self.B, np.int64)
        tally = Tally(cluster)
        idle = cluster.idle()  # everyone in the first round, and after a break on real ranks
        tally.lost[idle] = self.born[idle] >= 0
        tally.lost[0] += self.gone
        self.gone = 0
        self._begin(cluster, idle, k)
        for b in range(self.B):
            i, gradient, _, _ = cluster.wait()
            self.x = self.update(self.x, gradient)
            delays[b] = self.s - self.born[i]
            self.s += 1
            tally.used[i] += 1
            self.born[i] = self.s
            late = np.flatnonzero(self.born <= self.s - self.R)
            cluster.stop(late)
            self._begin(cluster, np.append(late, i), k)
        tally.all_in()
        self.k = k
        return tally.round(k, tally.used, delays)

    def _begin(self, cluster: Cluster, workers: IntArray, k: int) -> None:
        """Let these workers compute one gradient each at the newest x."""
        self.born[workers] = self.s
        cluster.start(workers, self.x, k)

    def state(self) -> State:
        """The point, the update, and when the gradients under way were begun."""
        return super().state() | {"s": np.array(self.s), "born": self.born.copy()}

    def restore(self, state: State) -> None:
        """Go on from an earlier state."""
        s, born = (
            int(entry(state, "s", self.s)),
            entry(state, "born", np.full_like(self.born, 0, shape=len(state["born"]))),
        )
        super().restore(state)
        others = len(born) != len(self.born)  # what they had under way is lost, and they begin anew
        self.s, self.gone = s, int((born >= 0).sum()) if others else 0
        self.born = np.full_like(self.born, -1) if others else born
