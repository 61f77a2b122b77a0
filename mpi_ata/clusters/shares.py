"""Learned speeds of workers, and how to divide items among them so that all are done as soon as possible."""

import numpy as np

from mpi_ata.arrays import Array, IntArray


class Speeds:
    """Seconds per item of each worker, learned from the items that it has done."""

    def __init__(self, n: int, slowness: Array | None) -> None:
        self.tasks = np.zeros(n, np.int64)
        self.longest = 0.0  # seconds of an item, overhead included
        self._seconds: Array = np.zeros(n)
        self._slowness: Array = np.ones(n) if slowness is None else slowness  # by earlier calls

    def learn(self, worker: int, tasks: int, seconds: float) -> None:
        """Take in how long some items took."""
        self.tasks[worker] += tasks
        self._seconds[worker] += seconds
        self.longest = max(self.longest, seconds / tasks)

    def means(self) -> Array:
        """Return the seconds per item; for a worker that has done none, by its slowness and all others."""
        known = self.tasks > 0
        if not known.any():
            return self._slowness.copy()
        own: Array = np.maximum(self._seconds[known] / self.tasks[known], 1e-9)
        means: Array = self._slowness * float(np.mean(own / self._slowness[known]))
        means[known] = own
        return means

    def slowness(self) -> Array:
        """Return the seconds per item, relative to those of the median worker."""
        means = self.means()
        return means / float(np.median(means))


def shares(ready: Array, means: Array, count: int) -> IntArray:
    """Return how many of `count` items each worker does, so that the last one is done as soon as possible.

    Worker i is ready at ready[i] and takes means[i] seconds per item.
    """
    a = np.maximum((_level(ready, means, count) - ready) / means, 0.0).astype(np.int64)
    ends = ready + (a + 1) * means
    for _ in range(count - int(a.sum())):  # fewer than there are workers
        i = int(ends.argmin())
        a[i] += 1
        ends[i] += means[i]
    return a


def _level(ready: Array, means: Array, count: int) -> float:
    """Return when all would be done if items could be split."""
    order = np.argsort(ready)
    rates = 1.0 / means[order]
    # The first k workers alone would be later, and so would more workers that are not ready by then.
    return float(np.min((count + np.cumsum(ready[order] * rates)) / np.cumsum(rates)))
