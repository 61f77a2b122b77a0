"""What is known of each worker's task times: a mean, how much single tasks deviate, how sure the mean is."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpi_ata.arrays import Array, IntArray, State, entry

PRIOR = 2.0  # tasks that the pooled variance counts for: with 1 or 8 results are the same within noise
FIRST_CV = 0.5  # standard deviation over mean before any was seen; soon outweighed by PRIOR
LARGEST_SQUARE = 9.0  # in the pool: one outlier of one worker must not make everyone look noisy
LEAST_CV = 1e-6  # so that constant times have a spread to divide by
_COLUMNS = ("N", "T", "SS", "DF")


class Speeds(NamedTuple):
    """Estimates for some workers: q tasks take q mu, with variance q sd^2 + (q un)^2."""

    mu: Array  # mean time of a task
    sd: Array  # standard deviation of a task
    un: Array  # standard error of the mean

    def of(self, workers: IntArray) -> "Speeds":
        """Return the same for fewer workers."""
        return Speeds(self.mu[workers], self.sd[workers], self.un[workers])


class TaskModel:
    """Sums over the tasks of each worker, and the estimates that follow from them."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.N = np.zeros(n)  # tasks; a stopped one counts as the part that was done
        self.T = np.zeros(n)  # the seconds they took
        self.SS = np.zeros(n)  # squared deviations from the mean, relative to it
        self.DF = np.zeros(n)  # degrees of freedom: how many deviations
        self.pool = np.zeros(2)  # SS and DF of all workers together

    @property
    def pooled_variance(self) -> float:
        """The squared coefficient of variation of a worker about which nothing is known."""
        squares, count = self.pool.tolist()
        return float((PRIOR * FIRST_CV**2 + squares) / (PRIOR + count))

    def cv(self, workers: IntArray) -> Array:
        """Return the coefficients of variation: the worker's own, with the pooled one as a prior."""
        variance = (PRIOR * self.pooled_variance + self.SS[workers]) / (PRIOR + self.DF[workers])
        return np.maximum(np.sqrt(variance), LEAST_CV)

    def speeds(self, workers: IntArray) -> Speeds:
        """Return the estimates for workers that were tried."""
        N = self.N[workers]
        mu = self.T[workers] / N
        sd = self.cv(workers) * mu
        return Speeds(mu, sd, sd / np.sqrt(N))

    def learn(self, workers: IntArray, seconds: Array) -> None:
        """Add finished tasks, one entry for each."""
        who, which, counts = np.unique(workers, return_inverse=True, return_counts=True)
        first = self.N[who] == 0.0
        self.N[who] += counts
        self.T[who] += np.bincount(which, seconds, len(who))
        N, mu = self.N[who], self.T[who] / self.N[who]
        # A deviation from a mean that it is part of is too small by 1 - 1/N on average.
        factor = np.where(first, 1.0, N / np.maximum(N - 1.0, 0.5)) / np.maximum(mu * mu, 1e-300)
        squares = (seconds - mu[which]) ** 2 * factor[which]
        self.SS[who] += np.bincount(which, squares, len(who))
        self.DF[who] += counts - first
        self.pool += np.minimum(squares, LARGEST_SQUARE).sum(), len(seconds) - np.count_nonzero(first)

    def inherit(self, tasks: IntArray, seconds: Array, squares: Array) -> None:
        """Add the sums of earlier tasks."""
        workers = np.flatnonzero(tasks)
        N, T = tasks[workers].astype(np.float64), seconds[workers]
        deviations = np.maximum(squares[workers] / N / (T / N) ** 2 - 1.0, 0.0) * N
        self.N[workers] += N
        self.T[workers] += T
        self.SS[workers] += deviations
        self.DF[workers] += N - 1.0
        self.pool += np.minimum(deviations, LARGEST_SQUARE * N).sum(), (N - 1.0).sum()

    def state(self) -> State:
        """Return all sums."""
        return {name: getattr(self, name).copy() for name in (*_COLUMNS, "pool")}

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        vars(self).update({name: entry(state, name, getattr(self, name)) for name in (*_COLUMNS, "pool")})


def flat(observed: Sequence[tuple[int, Sequence[float]]]) -> tuple[IntArray, Array]:
    """Return observations of several tasks each as one entry per task: workers and seconds."""
    workers = np.repeat([worker for worker, _ in observed], [len(seconds) for _, seconds in observed])
    return workers.astype(np.int64), np.array([x for _, seconds in observed for x in seconds], np.float64)
