"""Estimates of each worker's task times: mean, deviation of single tasks, and error of the mean."""

from typing import NamedTuple

import numpy as np

from mpi_ata.arrays import Array, IntArray, State, entry

PRIOR = 2.0  # tasks that the pooled variance counts for: with 1 or 8 results are the same within noise
FIRST_CV = 0.5  # standard deviation over mean before any was seen; soon outweighed by PRIOR
LARGEST_SQUARE = 9.0  # in the pool: one outlier of one worker must not make everyone look noisy
LEAST_CV = 1e-6  # so that constant times have a spread to divide by
LEAST_SECONDS = 1e-12  # below the resolution of any clock, so that a mean is never 0
_COLUMNS = ("N", "T", "SS", "DF", "pool", "finished", "stops", "longest")


class Speeds(NamedTuple):
    """Estimates for some workers: q tasks take q mu, with variance q sd^2 + (q un)^2."""

    mu: Array  # mean time of a task
    sd: Array  # standard deviation of a task
    un: Array  # standard error of the mean

    def of(self, workers: IntArray) -> "Speeds":
        """Return the same for fewer workers."""
        return Speeds(self.mu[workers], self.sd[workers], self.un[workers])

    def shrunk(self) -> "Speeds":
        """Return means shrunk towards a common centre, by how little workers differ (empirical Bayes).

        The logarithms of the means vary because workers differ, and because means of few tasks are not
        exact.  The second part is removed: the less exact a worker's mean, the more it is shrunk.
        """
        if len(self.mu) < 3:  # too few to show how much they differ
            return self
        logs, errors = np.log(self.mu), np.square(self.un / self.mu)
        between = max(float(logs.var(ddof=1) - errors.mean()), 0.0)
        weights = 1.0 / (errors + between + LEAST_CV**2)
        center = float(weights @ logs / weights.sum())
        factor = np.exp((center - logs) * errors * weights)
        un = np.sqrt(errors * between * weights)
        return Speeds(self.mu * factor, self.sd * factor, self.mu * factor * un)

    def capped(self) -> "Speeds":
        """Return the same without deviations beyond an exponential's: accidents that no quota avoids."""
        return Speeds(self.mu, np.minimum(self.sd, self.mu), np.minimum(self.un, self.mu))


class TaskModel:
    """Sums over the tasks of each worker, and the estimates that follow from them."""

    def __init__(self, n: int) -> None:
        self.N = np.zeros(n)  # tasks; a stopped one counts as the part that was done
        self.T = np.zeros(n)  # the seconds they took
        self.SS = np.zeros(n)  # squared deviations from the mean, relative to it
        self.DF = np.zeros(n)  # degrees of freedom: how many deviations
        self.pool = np.zeros(2)  # SS and DF of all workers together
        self.finished = np.zeros(n, np.bool_)  # who ever finished a task
        self.stops = np.zeros(n)  # tasks stopped
        self.longest = np.zeros(n)  # seconds that one had taken by then

    def speeds(self, workers: IntArray) -> Speeds:
        """Return the estimates for workers that were tried."""
        N = self.N[workers]
        mu = np.maximum(self.T[workers] / N, LEAST_SECONDS)
        sd = self.cv(workers) * mu
        return Speeds(mu, sd, sd / np.sqrt(N))

    def cv(self, workers: IntArray) -> Array:
        """Return the coefficients of variation: the worker's own, with the pooled one as a prior."""
        variance = (PRIOR * self._pooled_variance() + self.SS[workers]) / (PRIOR + self.DF[workers])
        return np.maximum(np.sqrt(variance), LEAST_CV)

    def _pooled_variance(self) -> float:
        squares, count = self.pool.tolist()
        return float((PRIOR * FIRST_CV**2 + squares) / (PRIOR + count))

    def learn(self, workers: IntArray, counts: IntArray, seconds: Array) -> None:
        """Add finished tasks: counts[j] of workers[j], with the seconds of all of them in that order."""
        which = np.repeat(np.arange(len(workers)), counts)
        first = self.N[workers] == 0.0
        self.finished[workers] = True
        self.N[workers] = N = self.N[workers] + counts
        self.T[workers] = T = self.T[workers] + np.bincount(which, seconds)
        mu = np.maximum(T / N, LEAST_SECONDS)
        # A squared deviation from a mean that it is part of is too small by 1 - 1/N on average.
        factor = np.where(first, 1.0, 1.0 / np.maximum(1.0 - 1.0 / N, 0.5)) / (mu * mu)
        squares = (seconds - mu[which]) ** 2 * factor[which]
        self.SS[workers] += np.bincount(which, squares)
        self.DF[workers] += counts - first
        self.pool += np.minimum(squares, LARGEST_SQUARE).sum(), len(seconds) - np.count_nonzero(first)

    def learn_stopped(self, workers: IntArray, seconds: Array) -> None:
        """Add tasks that were stopped after some seconds, at most one of each worker."""
        self.stops[workers] += 1.0
        self.longest[workers] = np.maximum(self.longest[workers], seconds)
        known = self.finished[workers]
        self._learn_part(workers[known], seconds[known])
        self._guess(workers[~known])

    def _learn_part(self, workers: IntArray, c: Array) -> None:
        """Count a task as the part of it that was done.

        What was left is mu - c, but at least sd: exact for shifted exponentials, and without noise.
        """
        mu, sd, _ = self.speeds(workers).capped()
        self.T[workers] += c
        self.N[workers] += 1.0 - np.maximum(mu - c, sd) / mu
        # Beyond mu - sd it shows how much tasks deviate, too: what was left has mean and deviation sd.
        longer = c > mu - sd
        deviations = np.minimum((c - mu) / sd, 2.0) + 1.0
        self.SS[workers] += longer * (deviations**2 + 1.0) * (sd / mu) ** 2
        self.DF[workers] += longer

    def _guess(self, workers: IntArray) -> None:
        """Guess that workers that never finished a task take one deviation longer than their longest."""
        cv = min(float(np.sqrt(self._pooled_variance())), 1.0)
        self.N[workers] = self.stops[workers] / (1.0 + cv)
        self.T[workers] = self.stops[workers] * self.longest[workers]

    def begin_again(self, worker: int, tasks: float, seconds: float) -> None:
        """Base a worker's estimates on its latest tasks alone; their deviation is not yet known."""
        self.N[worker], self.T[worker], self.SS[worker], self.DF[worker] = tasks, seconds, 0.0, 0.0

    def inherit(self, tasks: IntArray, seconds: Array, squares: Array, unfinished: Array) -> None:
        """Add the sums of earlier tasks, and the seconds spent on others that were stopped."""
        workers = np.flatnonzero(tasks)
        N, T = tasks[workers].astype(np.float64), np.maximum(seconds[workers], LEAST_SECONDS)
        deviations = np.maximum(squares[workers] * N / T**2 - 1.0, 0.0) * N
        self.finished[workers] = True
        self.SS[workers] += deviations
        self.DF[workers] += N - 1.0
        self.pool += np.minimum(deviations, LARGEST_SQUARE * N).sum(), (N - 1.0).sum()
        # Stopped tasks count as the part that was done without noise, and not at all if they are exponential.
        part = np.maximum(1.0 - self.cv(workers), 0.0) * unfinished[workers] * N / T
        self.N[workers] += N + part
        self.T[workers] += T + unfinished[workers]

    def state(self) -> State:
        """Return all sums."""
        return {name: getattr(self, name).copy() for name in _COLUMNS}

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        vars(self).update({name: entry(state, name, getattr(self, name)) for name in _COLUMNS})
