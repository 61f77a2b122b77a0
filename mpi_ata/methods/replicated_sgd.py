"""Minibatch SGD whose workers keep x and the state of the update themselves."""

from mpi_ata.allocators import Allocator
from mpi_ata.arrays import Array, State
from mpi_ata.clusters import Cluster
from mpi_ata.clusters.exchange.replica import Replica
from mpi_ata.methods.collector import Collector
from mpi_ata.methods.interface import Round
from mpi_ata.methods.sgd import SGD
from mpi_ata.updates import Update


class ReplicatedSGD(SGD):
    """The same steps as SGD, made by all workers of a round, which share the sum of their gradients.

    The manager asks for x where somebody looks at it: to evaluate, to save, after the loss of a worker.
    """

    def __init__(self, x0: Array, allocator: Allocator, update: Update) -> None:
        self.replica = Replica(update.as_shared() if hasattr(update, "as_shared") else update)
        super().__init__(x0, allocator, update)

    @property
    def x(self) -> Array:
        """The point."""
        return self.replica.value()

    @x.setter
    def x(self, x: Array) -> None:
        self.replica.put(x)

    def step(self, cluster: Cluster) -> Round:
        """Allocate, let the workers move x by the mean of B gradients, learn the times."""
        B, k = self.allocator.budget, self.k + 1
        a, tasks = self.quotas(cluster)
        exact = tasks == B
        shared = exact and getattr(cluster, "replicates", False)

        collector = Collector(cluster, self.allocator)
        g = collector.collect(self.replica if shared else self.x, k, a, B, exact)

        if not g.empty:  # the results came to the manager, after a loss, say
            self.x = self.update(self.x, g.mean(B))
        self.k = k
        return collector.round(k, a)

    def state(self) -> State:
        """Return the point, the number of rounds, and the state of the update."""
        self.replica.value()  # with which comes the state of the update
        return super().state()
