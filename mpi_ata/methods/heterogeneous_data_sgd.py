"""SGD where each worker owns its data: about unequal data, not about unequal nodes."""

import numpy as np

from mpi_ata.clusters import Cluster
from mpi_ata.methods.collect import AllocatorMethod, Sum, Tally
from mpi_ata.methods.interface import Round


class HeterogeneousDataSGD(AllocatorMethod):
    """Algorithm SGD-ATA (heterogeneous): everyone computes a_i + 1 gradients; the mean of means moves x."""

    owns_data = True  # each worker, by its index

    greedy_instead = "malenia"

    def step(self, cluster: Cluster) -> Round:
        """Allocate, collect everyone's gradients at x, learn all their times, update x."""
        n, x, k = cluster.n, self.x, self.k + 1
        a = self.exact_quotas(n) + 1
        everyone = np.arange(n)
        g = Sum(everyone)

        tally = Tally(cluster)
        cluster.start(everyone, x, k, a, together=True)
        for _ in everyone:
            arrival = cluster.wait()
            i, g_i = arrival.worker, arrival.result
            g_i /= a.item(i)
            g.add(i, g_i)
            self.learn(arrival)
            tally.used[i] += len(arrival.seconds)
        tally.all_in()

        self.x, self.k = self.update(x, g.mean(n)), k
        return tally.round(k, a)
