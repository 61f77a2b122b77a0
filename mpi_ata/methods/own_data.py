"""SGD where each worker owns its data: for unequal data, not for unequal nodes."""

import numpy as np

from mpi_ata.arrays import Array, IntArray
from mpi_ata.clusters import Cluster
from mpi_ata.errors import require
from mpi_ata.limits import check_tasks
from mpi_ata.methods.collector import Collector, Sum
from mpi_ata.methods.interface import AllocatorMethod, Round, UpdateMethod, check_everyone
from mpi_ata.updates import Update


class HeterogeneousDataSGD(AllocatorMethod):
    """Algorithm SGD-ATA (heterogeneous): everyone computes a_i + 1 gradients; the mean of means moves x."""

    owns_data = True  # each worker, by its index
    shares_workers = True

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


ENDLESS = 2**62  # tasks of an order that only a stop ends
ROUNDING = 1e-9  # in the mean of counts: it must not cost one more task


class Malenia(UpdateMethod):
    """Algorithm SGD-GTA (heterogeneous): everyone works until the harmonic mean of the counts is S / n."""

    owns_data = True  # each worker, by its index
    point_per_worker = True  # the sum of its gradients

    def __init__(self, x0: Array, update: Update, S: float) -> None:
        require(S > 0, f"{S=} must be above 0; up to the number of workers, each does at least one task")
        check_tasks("S", S)
        super().__init__(x0, update)
        self.S = S

    def step(self, cluster: Cluster) -> Round:
        """Collect gradients at x from everyone until there are enough, stop the rest, update x."""
        n, x, k = cluster.n, self.x, self.k + 1
        check_everyone(cluster)
        everyone = np.arange(n)
        s, g = np.zeros(n, np.int64), dict[int, Array]()

        collector = Collector(cluster)
        cluster.start(everyone, x, k, ENDLESS)
        while harmonic_mean(s) < self.S / n * (1 - ROUNDING):
            j, g_j, seconds, _ = collector.wait_for_owner()
            g[j] = g[j] + g_j if j in g else g_j
            s[j] += len(seconds)
        collector.end()
        collector.stop(everyone)

        total = np.zeros_like(x)
        for i, s_i in enumerate(s.tolist()):
            g[i] /= s_i
            total += g.pop(i)
        total /= n
        self.x, self.k = self.update(x, total), k
        return collector.round(k, s)


def harmonic_mean(s: IntArray) -> float:
    """Return the inverse of the mean of 1 / s_i, 0 where an s_i is 0."""
    return float(len(s) / (1 / s).sum()) if s.all() else 0.0
