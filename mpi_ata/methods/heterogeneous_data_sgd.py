"""SGD where each worker owns its data: for unequal data, not for unequal nodes."""

import numpy as np

from mpi_ata.clusters import Cluster
from mpi_ata.methods.base import AllocatorMethod, check_everyone
from mpi_ata.methods.collector import Collector, Sum
from mpi_ata.methods.interface import Round


class HeterogeneousDataSGD(AllocatorMethod):
    """Algorithm SGD-ATA (heterogeneous): everyone computes a_i + 1 gradients; the mean of means moves x."""

    owns_data = True  # each worker, by its index

    greedy_instead = "malenia"

    def step(self, cluster: Cluster) -> Round:
        """Allocate, collect everyone's gradients at x, learn all their times, update x."""
        n, x, k = cluster.n, self.x, self.k + 1
        check_everyone(cluster)
        a = self.exact_quotas(cluster) + 1
        everyone = np.arange(n)
        g = Sum(everyone)

        collector = Collector(cluster, self.allocator)
        cluster.start(everyone, x, k, a, together=True)
        for _ in everyone:
            i, g_i, *_ = collector.wait_for_owner()
            g_i /= a.item(i)
            g.add(i, g_i)
        collector.end()

        self.x, self.k = self.update(x, g.mean(n)), k
        return collector.round(k, a)
