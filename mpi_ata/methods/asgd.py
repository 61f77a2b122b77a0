"""Asynchronous SGD with an allocation: ASGD-ATA of the paper."""

import numpy as np

from mpi_ata.clusters import Back, Cluster, Lost
from mpi_ata.methods.base import AllocatorMethod
from mpi_ata.methods.collector import Collector
from mpi_ata.methods.interface import Round
from mpi_ata.methods.orders import reassign


class ASGD(AllocatorMethod):
    """Algorithms ASGD-ATA and ASGD: B updates per round, by exactly a_i gradients of worker i, one by one."""

    greedy_instead = "ringmaster"
    point_per_worker = True  # each gradient under way has its own

    def step(self, cluster: Cluster) -> Round:
        """Allocate, then update x by each gradient that arrives; its worker continues from the newest x."""
        B, x, k = self.allocator.budget, self.x, self.k + 1
        a = self.exact_quotas(cluster)
        left, s = a.copy(), 0
        born = np.zeros_like(a)  # the update s after which each worker's gradient was begun
        delays = np.zeros(B, np.int64)

        collector = Collector(cluster, self.allocator)
        cluster.start(np.flatnonzero(a), x, k)
        while s < B:
            arrival = collector.wait()
            i = arrival.worker
            if isinstance(arrival, Lost):
                idle = reassign(cluster, left, i)
                born[idle] = s
                cluster.start(idle, x, k)
                continue
            if isinstance(arrival, Back):  # with work from the next round on
                continue
            x = self.update(x, arrival.result)
            delays[s] = s - born[i]
            s += 1
            left[i] -= 1
            if left[i] > 0:
                born[i] = s
                cluster.start(np.array([i]), x, k)
        collector.end()

        self.x, self.k = x, k
        return collector.round(k, a, delays)
