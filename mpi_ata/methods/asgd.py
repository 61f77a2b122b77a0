"""Asynchronous SGD with an allocation: ASGD-ATA of the paper."""

import numpy as np

from mpi_ata.clusters import Cluster
from mpi_ata.methods.collect import AllocatorMethod, Tally
from mpi_ata.methods.interface import Round


class ASGD(AllocatorMethod):
    """Algorithms ASGD-ATA and ASGD: B updates a round, by exactly a_i gradients of worker i, one by one."""

    greedy_instead = "ringmaster"

    def step(self, cluster: Cluster) -> Round:
        """Allocate, then update x by each gradient that comes; its worker goes on from the newest x."""
        B, x, k = self.allocator.budget, self.x, self.k + 1
        a = self.exact_quotas(cluster.n)
        left, active = a.copy(), np.flatnonzero(a)
        born = np.zeros_like(a)  # the update s after which each worker's gradient was begun
        delays = np.zeros(B, np.int64)

        tally = Tally(cluster)
        cluster.start(active, x, k)
        for s in range(B):
            arrival = cluster.wait()
            i = arrival.worker
            x = self.update(x, arrival.result)
            self.learn(arrival)
            delays[s] = s - born[i]
            left[i] -= 1
            if left[i] > 0:
                born[i] = s + 1
                cluster.start(np.array([i]), x, k)
        tally.all_in()

        self.x, self.k = x, k
        tally.used += a
        return tally.round(k, a, delays)
