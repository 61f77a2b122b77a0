"""The problem of jobs/demo.toml: logistic regression on made-up data, computed by unequal workers.

A slow worker repeats the computation, as if its processor were that many times as slow.  Nothing in a task
looks at task.stopped(): like most real code, it runs to its end.
"""

from collections.abc import Sequence

import numpy as np

from mpi_ata import Task
from mpi_ata.arrays import Array, IntArray

FEATURES = 50


class UnequalWorkers:
    """Logistic regression; a task is the gradient over a batch, computed repeats[i] times by worker i."""

    def __init__(self, repeats: Sequence[int], samples: int = 20_000, batch_size: int = 7_000) -> None:
        if not repeats or not all(isinstance(r, int) and r >= 1 for r in repeats):
            raise ValueError(f"{repeats=} must be a list of whole numbers from 1 on, one for each worker")
        if min(samples, batch_size) < 1:
            raise ValueError(f"{samples=} and {batch_size=} must be at least 1")
        self.repeats, self.batch_size, rng = repeats, batch_size, np.random.default_rng(1)
        self.A = rng.standard_normal((samples, FEATURES))
        scores = self.A @ rng.standard_normal(FEATURES) + rng.standard_normal(samples)
        self.y = np.where(scores > 0, 1.0, -1.0)
        self.x0 = np.zeros(FEATURES)

    def setup(self, worker: int | None, n: int) -> None:
        """Reject more workers than the list of repeats has entries."""
        if n > len(self.repeats):
            raise ValueError(f"repeats={self.repeats} must have an entry for each of the {n} workers")

    def gradient(self, x: Array, task: Task) -> Array:
        """Return the gradient over one random batch, computed as often as this worker is slow."""
        batch = task.rng.integers(len(self.y), size=self.batch_size)
        for _ in range(self.repeats[task.worker]):
            g = self._gradient(x, batch)
        return g

    def _gradient(self, x: Array, batch: IntArray) -> Array:
        A, y = self.A[batch], self.y[batch]
        weights = -y / (1.0 + np.exp(y * (A * x).sum(axis=1)))
        return np.asarray((A * weights[:, None]).mean(axis=0))

    def loss(self, x: Array) -> float:
        """Return the mean logistic loss of all samples."""
        return float(np.logaddexp(0.0, -self.y * (self.A @ x)).mean())
