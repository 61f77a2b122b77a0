"""Minibatch SGD on homogeneous data: SGD-ATA of the paper, and with greedy allocation Rennala SGD."""

from mpi_ata.arrays import Array
from mpi_ata.clusters import Cluster
from mpi_ata.methods.collector import Collector, Sum
from mpi_ata.methods.interface import AllocatorMethod, Round


class SGD(AllocatorMethod):
    """Algorithms SGD-ATA and SGD-GTA (homogeneous): the mean of B gradients moves x."""

    shares_workers = True

    def step(self, cluster: Cluster) -> Round:
        """Allocate, collect B gradients at x, learn the times, update x."""
        B, x, k = self.allocator.budget, self.x, self.k + 1
        a, exact = self.quotas(cluster)
        g = Sum(a.nonzero()[0] if exact else None)

        collector = Collector(cluster, self.allocator)
        collector.collect(g, self.point(), k, a, B, exact)

        self.x, self.k = self.update(x, self.estimate(g.mean(B))), k
        return collector.round(k, a)

    def point(self) -> Array:
        """Return what tasks are given: x."""
        return self.x

    def estimate(self, mean: Array) -> Array:
        """Return what moves x, given the mean result: that itself."""
        return mean
