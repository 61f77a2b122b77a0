"""Ringleader ASGD: asynchronous updates by the gradients of all workers, each of which owns its data."""

import numpy as np

from mpi_ata.arrays import Array, State, entry, restore_saved, saved
from mpi_ata.clusters import Cluster
from mpi_ata.methods.collector import Collector
from mpi_ata.methods.interface import Round, UpdateMethod, check_everyone
from mpi_ata.updates import Update

_SAVED = ("s", "born", "G", "b")


class Ringleader(UpdateMethod):
    """Ringleader ASGD: n updates per round by (1 / n) sum_i G_i / b_i, each worker gets a new point once.

    A. Maranjyan, P. Richtárik: Ringleader ASGD (2025), arXiv 2509.22860.  Phase 1 collects gradients until
    every b_i >= 1.  In phase 2 each worker, the last one of phase 1 first, moves x by its next gradient and
    continues from there; later ones of it are for the next round.  Delays are at most 2n - 2, and nothing is
    wasted.  Until it gets a new point, a worker computes at the one it has, as in the paper's formulas.
    Gradients count as used when they are added to a table.  It remembers two arrays like x for each worker.
    """

    owns_data = True
    point_per_worker = True

    def __init__(self, x0: Array, n: int, update: Update) -> None:
        super().__init__(x0, update)
        self.B = n  # tasks that a round needs at least
        self.s = 0  # updates so far
        self.y = [self.x] * n  # the point of each worker
        self.born = np.zeros(n, np.int64)  # the update after which it got that
        self.G, self.b = np.zeros((n, *self.x.shape), self.x.dtype), np.zeros(n, np.int64)

    def step(self, cluster: Cluster) -> Round:
        """Collect until everyone has a gradient in the table, then update x once by each worker."""
        n, k = cluster.n, self.k + 1
        check_everyone(cluster)
        G, b, born = self.G, self.b, self.born.copy()
        self.G, self.b = np.zeros_like(G), np.zeros_like(b)  # of the next round: G+ and b+
        waiting = np.ones(n, bool)  # for a new point
        delays = list[int]()

        collector = Collector(cluster)
        for i in cluster.idle().tolist():  # everyone in the first round, and after a break on real ranks
            cluster.start(np.array([i]), self.y[i], k)
        while waiting.any():
            i, g, *_ = collector.wait_for_owner()
            G_, b_ = (G, b) if waiting[i] else (self.G, self.b)
            G_[i] += g
            b_[i] += 1
            if waiting[i] and b.all():  # phase 2
                self.x = self.update(self.x, np.tensordot((1 / (n * b)).astype(G.dtype), G, 1))
                delays.append(self.s - born.min())
                self.s += 1
                waiting[i], self.y[i], self.born[i] = False, self.x, self.s
            cluster.start(np.array([i]), self.y[i], k)
        collector.end()

        self.k = k
        return collector.round(k, collector.used, np.array(delays))

    def state(self) -> State:
        """Return the point, the state of the update, the table, and the points of all workers."""
        return super().state() | saved(self, _SAVED) | {"y": np.array(self.y)}

    def restore(self, state: State) -> None:
        """Resume from an earlier state; the caller rejects another number of workers."""
        super().restore(state)
        if len(state["b"]) == len(self.b):
            restore_saved(self, state, _SAVED)
            self.y = list(entry(state, "y", np.array(self.y)))
