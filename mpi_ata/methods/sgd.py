"""Minibatch SGD on homogeneous data: SGD-ATA of the paper, and with greedy allocation Rennala SGD."""

import numpy as np

from mpi_ata.allocators import Allocator
from mpi_ata.arrays import Array, IntArray
from mpi_ata.cluster import Cluster
from mpi_ata.errors import RunError
from mpi_ata.methods.interface import Round, Updating
from mpi_ata.methods.updates import Update


class SGD(Updating):
    """Algorithms SGD-ATA and SGD-GTA (homogeneous): the mean of B gradients moves x."""

    def __init__(self, x0: Array, allocator: Allocator, update: Update) -> None:
        super().__init__(x0, update)
        self.allocator = allocator
        self._count_overhead = bool(getattr(allocator, "overhead", False))

    def step(self, cluster: Cluster) -> Round:
        """Allocate, collect B gradients at x, learn the times, update x."""
        B, x, k = self.allocator.budget, self.x, self.k + 1
        a = np.asarray(self.allocator.allocate())
        fixed = _checked_sum(a, B, cluster.n) == B
        active = np.flatnonzero(a)
        used = np.zeros(cluster.n, np.int64)
        g = Sum(x, active if fixed else None)
        wasted, waste = -cluster.undelivered, -cluster.undelivered_time.sum()

        began = cluster.now()
        cluster.start(active, x, k, a[active], together=fixed)
        b = 0
        while b < B:
            i, gradient, seconds, overhead = cluster.wait()
            g.add(i, gradient)
            self.allocator.observe(i, seconds, overhead if self._count_overhead else 0.0)
            used[i] += len(seconds)
            b += len(seconds)
        duration = cluster.now() - began

        running = active[used[active] < a[active]]
        for i, unfinished in zip(running.tolist(), cluster.stop(running).tolist(), strict=True):
            self.allocator.observe(i, (), unfinished)

        g.total /= B
        self.x = self.update(x, g.total)
        self.k = k
        wasted += cluster.undelivered
        waste += cluster.undelivered_time.sum()
        return Round(k, a, used, wasted, np.zeros_like(used), float(waste), duration)


def _checked_sum(a: IntArray, B: int, n: int) -> int:
    """How many tasks the quotas allow, where they make sense."""
    if a.shape != (n,) or a.dtype.kind not in "iu" or a.min() < 0 or (total := int(a.sum())) < B:
        raise RunError(f"the allocator gave {a}; it must give {n} counts whose sum is at least {B}")
    return total


class Sum:
    """Adds results in the order of `workers`, each as soon as those before it are in; or as they come.

    A sum of floats depends on the order.  A fixed one makes the same run give the same x, wherever
    the tasks ran and whoever was first.
    """

    def __init__(self, x: Array, workers: IntArray | None = None) -> None:
        self.total = np.zeros_like(x)
        self._order = None if workers is None else iter(workers.tolist())
        self._next = None if self._order is None else next(self._order)
        self._early: dict[int, Array] = {}

    def add(self, worker: int, result: Array) -> None:
        """Take in one worker's result."""
        if self._order is None:
            self.total += result
            return
        self._early[worker] = result
        while self._next in self._early:
            self.total += self._early.pop(self._next)
            self._next = next(self._order, None)
