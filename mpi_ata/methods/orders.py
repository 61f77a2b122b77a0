"""The orders of a round that do not all start at once: batches first, and tasks of lost workers anew."""

from heapq import heapify, heapreplace
from typing import Any

import numpy as np

from mpi_ata.arrays import IntArray, total
from mpi_ata.clusters import Cluster

NOBODY = np.zeros(0, np.int64)
LEAST_BATCH = 3  # tasks: the order that follows a batch costs about as much as a message saved


class Orders:
    """The orders of a round with batches, or after a loss; some wait until their worker has ended another.

    A batch comes back as a whole.  Its results are reserved among the B of the round: when all others are in,
    what is not part of a batch is stopped.  So all batches are used, and there are never more than B results.
    """

    def __init__(self, cluster: Cluster, x: Any, k: int, a: IntArray, together: bool) -> None:
        self._cluster, self._x, self._k, self._together = cluster, x, k, together
        self.ordered = a.copy()  # tasks that each worker was ordered to do; of a lost one, those that it did
        self.waiting: dict[int, int] = {}  # tasks of the next order, by worker
        self.batches: dict[int, int] = {}  # tasks of the batches that are not in, by worker
        self._reserved = 0  # the sum of those

    def start_batches(self, sure: IntArray, B: int) -> bool:
        """Start all orders, those of many sure tasks with a batch of these; False if there are none."""
        first = np.where(sure >= LEAST_BATCH, np.minimum(sure, self.ordered), 0)
        self._reserved = total(first)
        if not 0 < self._reserved <= B:
            return False
        batched, rest = np.flatnonzero(first), self.ordered - first
        others = np.flatnonzero((first == 0) & (rest > 0))
        self.batches = dict(zip(batched.tolist(), first[batched].tolist(), strict=True))
        self.waiting = {i: rest.item(i) for i in batched.tolist() if rest[i]}
        self.ordered = np.where(first > 0, first, self.ordered)
        self._cluster.start(batched, self._x, self._k, first[batched], together=True)
        self._cluster.start(others, self._x, self._k, rest[others])
        return True

    def proceed(self, worker: int, used: IntArray, needed: int) -> IntArray:
        """Start the next order of a worker that has delivered, and return whose orders are needed no more."""
        self._reserved -= self.batches.pop(worker, 0)
        if needed > self._reserved:
            self.start_next(worker, used)
            return NOBODY
        surplus = np.flatnonzero(used < self.ordered)
        surplus = surplus[[i not in self.batches for i in surplus.tolist()]]
        self.ordered[surplus] = used[surplus]
        self.waiting.clear()
        return surplus

    def reissue(self, worker: int, used: IntArray, needed: int) -> None:
        """Give the tasks that a lost worker leaves missing to those who will finish them soonest."""
        self.ordered[worker] = used[worker]
        self.waiting.pop(worker, None)
        self._reserved -= self.batches.pop(worker, 0)
        left = self.ordered - used
        for i, count in self.waiting.items():
            left[i] += count
        more = soonest(self._cluster, left, needed - total(left))
        for i in np.flatnonzero(more).tolist():
            self.waiting[i] = self.waiting.get(i, 0) + more.item(i)
            self.start_next(i, used)

    def start_next(self, worker: int, used: IntArray) -> None:
        """Start a worker's next order, if it has one and its previous one is done."""
        if worker in self.waiting and used[worker] == self.ordered[worker]:
            count = self.waiting.pop(worker)
            self.ordered[worker] += count
            self._cluster.start(np.array([worker]), self._x, self._k, count, self._together)


def reassign(cluster: Cluster, left: IntArray, worker: int) -> IntArray:
    """Move a lost worker's tasks in `left` to others and return those that had none before."""
    missing, left[worker] = left.item(worker), 0
    more = soonest(cluster, left, missing)
    idle = np.flatnonzero((left == 0) & (more > 0))
    left += more
    return idle


def soonest(cluster: Cluster, left: IntArray, count: int) -> IntArray:
    """Return how to divide `count` tasks among available workers so that they are done soonest.

    Worker i first does the left[i] tasks that it has; its mean task time so far counts, or that of all
    workers where it has delivered none.
    """
    means = cluster.ledger.stats.pooled_means()
    workers = np.flatnonzero(cluster.available)
    ends = list(zip((means * (left + 1))[workers].tolist(), workers.tolist(), strict=True))
    heapify(ends)
    more = np.zeros_like(left)
    for _ in range(count):
        end, i = ends[0]
        more[i] += 1
        heapreplace(ends, (end + means.item(i), i))
    return more
