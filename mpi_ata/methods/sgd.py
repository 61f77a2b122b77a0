"""Minibatch SGD on homogeneous data: SGD-ATA of the paper, and with greedy allocation Rennala SGD."""

from mpi_ata.clusters import Cluster
from mpi_ata.methods.collect import AllocatorMethod, Sum, Tally
from mpi_ata.methods.interface import Round


class SGD(AllocatorMethod):
    """Algorithms SGD-ATA and SGD-GTA (homogeneous): the mean of B gradients moves x."""

    def step(self, cluster: Cluster) -> Round:
        """Allocate, collect B gradients at x, learn the times, update x."""
        B, x, k = self.allocator.budget, self.x, self.k + 1
        a, tasks = self.quotas(cluster.n)
        fixed, active = tasks == B, a.nonzero()[0]
        g = Sum(active if fixed else None)

        tally = Tally(cluster)
        cluster.start(active, x, k, a[active], together=fixed)
        b = 0
        while b < B:
            arrival = cluster.wait()
            g.add(arrival.worker, arrival.result)
            self.learn(arrival)
            tally.used[arrival.worker] += len(arrival.seconds)
            b += len(arrival.seconds)
        tally.all_in()

        if not fixed:
            running = active[tally.used[active] < a[active]]
            for i, unfinished in zip(running.tolist(), cluster.stop(running).tolist(), strict=True):
                self.allocator.observe(i, (), unfinished)

        self.x, self.k = self.update(x, g.mean(B)), k
        return tally.round(k, a)
