"""Estimates of each worker's task times: mean, deviation of single tasks, and error of the mean."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mpi_ata.allocators.change_detection import ChangeDetector, Since, SpeedChange
from mpi_ata.arrays import Array, IntArray, State, entry, restore_saved, saved

PRIOR = 2.0  # tasks that the pooled variance counts for: with 1 or 8 results are the same within noise
FIRST_CV = 0.5  # standard deviation over mean before any was seen; soon outweighed by PRIOR
LARGEST_SQUARE = 9.0  # in the pool: one outlier of one worker must not make everyone look noisy
# Times all others of its worker together that a task counts at most: a stall among the first tasks must not
# hide how fast the worker is.  Soon nothing is cut any more, since the others add up.
LARGEST_TASK = 4.0
STEADY = 0.2  # pooled variance below which that holds: elsewhere long tasks are nothing unusual
LEAST_CV = 1e-6  # so that constant times have a spread to divide by
LEAST_SECONDS = 1e-12  # below the resolution of any clock, so that a mean is never 0
_COLUMNS = ("N", "T", "SS", "DF", "pool", "finished", "stops", "longest")


class SpeedEstimates(NamedTuple):
    """Estimates for some workers: q tasks take q mu, with variance q sd^2 + (q un)^2."""

    mu: Array  # mean time of a task
    sd: Array  # standard deviation of a task
    un: Array  # standard error of the mean

    def of(self, workers: IntArray) -> "SpeedEstimates":
        """Return the same for fewer workers."""
        return SpeedEstimates(self.mu[workers], self.sd[workers], self.un[workers])

    def shrunk(self) -> "SpeedEstimates":
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
        return SpeedEstimates(self.mu * factor, self.sd * factor, self.mu * factor * un)

    def capped(self) -> "SpeedEstimates":
        """Return the same without deviations beyond an exponential's: accidents that no quota avoids."""
        return SpeedEstimates(self.mu, np.minimum(self.sd, self.mu), np.minimum(self.un, self.mu))


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

    def speeds(self, workers: IntArray) -> SpeedEstimates:
        """Return the estimates for workers that were tried."""
        N = self.N[workers]
        mu = np.maximum(self.T[workers] / N, LEAST_SECONDS)
        sd = self.cv(workers) * mu
        return SpeedEstimates(mu, sd, sd / np.sqrt(N))

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
        if self._pooled_variance() < STEADY:
            seconds = self._without_stalls(workers, which, seconds)
        self.N[workers] = N = self.N[workers] + counts
        self.T[workers] = T = self.T[workers] + np.bincount(which, seconds)
        mu = np.maximum(T / N, LEAST_SECONDS)
        # A squared deviation from a mean that it is part of is too small by 1 - 1/N on average.
        factor = np.where(first, 1.0, 1.0 / np.maximum(1.0 - 1.0 / N, 0.5)) / (mu * mu)
        squares = (seconds - mu[which]) ** 2 * factor[which]
        self.SS[workers] += np.bincount(which, squares)
        self.DF[workers] += counts - first
        self.pool += np.minimum(squares, LARGEST_SQUARE).sum(), len(seconds) - np.count_nonzero(first)

    def _without_stalls(self, workers: IntArray, which: IntArray, seconds: Array) -> Array:
        """Return the seconds of new tasks, and cut that of the only one before, where one is far too long."""
        new, once = np.bincount(which, seconds), self.N[workers] == 1.0
        others = (self.T[workers] + new)[which] - seconds
        self.T[workers[once]] = np.minimum(self.T[workers[once]], LARGEST_TASK * new[once])
        return np.where(others > 0.0, np.minimum(seconds, LARGEST_TASK * others), seconds)

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


NEVER = np.iinfo(np.int64).max
PATIENCE = 8  # rounds until a slow worker is first tried: about as many as it took to notice


class Suspects:
    """When to try each suspect; the cost of trying in vain grows only with the logarithm of the rounds."""

    def __init__(self, n: int) -> None:
        self._next = np.full(n, NEVER)  # the round in which to try each worker
        self._pause = np.zeros(n, np.int64)  # rounds until then, when that was decided
        self.first = NEVER  # the first of those rounds

    def add(self, worker: int, k: int, pause: int = PATIENCE) -> None:
        """Try a worker after a pause, which doubles with each trial."""
        self._pause[worker], self._next[worker] = pause, k + pause
        self.first = min(self.first, k + pause)

    def among(self, workers: IntArray) -> IntArray:
        """Return the positions of suspects among some workers."""
        return np.flatnonzero(self._next[workers] < NEVER) if self.first < NEVER else workers[:0]

    def take(self, k: int) -> IntArray:
        """Return the workers to try in round k, and double the pause until the next trial of each."""
        if k < self.first:
            return np.zeros(0, np.int64)
        workers = np.flatnonzero(self._next <= k)
        self._pause[workers] *= 2
        self._next[workers] = k + self._pause[workers]
        self.first = int(self._next.min())
        return workers

    def state(self) -> State:
        """Return when to try each worker."""
        return {"suspects.next": self._next.copy(), "suspects.pause": self._pause.copy()}

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        later, pause = entry(state, "suspects.next", self._next), entry(state, "suspects.pause", self._pause)
        self._next, self._pause, self.first = later, pause, int(later.min())


log = logging.getLogger("mpi_ata")

COSTLY = 0.5  # of what stopped tasks had left: from here on a stop is nearer to a whole task than to none
FEW_STOPS = 4  # by so many, a single slow one does not decide
_SAVED = ("heard", "rounds", "overrun", "rest", "stoppable")


class Knowledge:
    """Gathers the observations of a round and learns from all of them at once, which is faster."""

    def __init__(self, n: int, overhead: bool) -> None:
        self.overhead = overhead  # whether the overhead of orders counts as time of their tasks
        self.model = TaskModel(n)
        self.heard = np.zeros(n, np.int64)  # the last round in which each worker did something
        self.rounds = np.zeros(n)  # in which each worker did something
        self.overrun = np.zeros(n)  # seconds that each spent on stopped tasks after the stop
        self.rest = np.zeros(())  # seconds that all of these tasks were expected to have left
        self.stoppable = np.array(True)  # whether stopped tasks end before they are done
        self.speed_changes: list[SpeedChange] = []  # noticed since they were last cleared
        self.suspects = Suspects(n)
        self._detector = ChangeDetector(n)
        self._finished: dict[int, list[float]] = {}  # seconds of each task, by worker
        self._stopped: list[tuple[int, float]] = []

    def observe(
        self, k: int, worker: int, seconds: Sequence[float], stopped: Sequence[float], overhead: float
    ) -> None:
        """Note what a worker did in round k."""
        if len(stopped):
            self._stopped.append((worker, sum(stopped)))
        if not len(seconds):
            return
        if self.overhead and overhead:
            seconds = [x + overhead / len(seconds) for x in seconds]
        self._finished.setdefault(worker, []).extend(seconds)
        if (since := self._detector.observe(worker, seconds)) is not None:
            self.learn(k)
            self._forget(k, worker, since)

    def _forget(self, k: int, worker: int, since: Since) -> None:
        """Forget what a worker did before its speed changed."""
        before = self.model.T.item(worker) / self.model.N.item(worker)
        self.model.begin_again(worker, since.tasks, since.seconds)
        factor = since.seconds / since.tasks / before
        self.speed_changes.append(SpeedChange(worker, factor))
        if factor > 1.0:
            self.suspects.add(worker, k)

    def learn(self, k: int) -> None:
        """Learn from what was observed in round k."""
        if self._finished:
            self._learn_finished(k)
        if self._stopped:
            self._learn_stopped(k)
        self._finished, self._stopped = {}, []
        if self.stoppable and self.overrun.sum() > COSTLY * self.rest and self.model.stops.sum() >= FEW_STOPS:
            self.stoppable = np.array(False)
            log.warning(
                "ata-auto: stopped tasks run to their end, or nearly so: spares do not pay; "
                'continuing as with spares = "none"'
            )

    def _learn_finished(self, k: int) -> None:
        workers = np.array(list(self._finished), np.int64)
        counts = np.array([len(seconds) for seconds in self._finished.values()])
        seconds = np.array([x for each in self._finished.values() for x in each], np.float64)
        recovered = self._recovered(np.repeat(workers, counts), seconds)
        self.model.learn(workers, counts, seconds)
        self._note_round(k, workers)
        for worker, x in recovered:
            self.model.begin_again(worker, 1.0, x)
            self.suspects.add(worker, k, pause=1)

    def _learn_stopped(self, k: int) -> None:
        begun = {worker: seconds for worker, seconds in self._stopped if seconds > 0.0}
        workers, seconds = np.array(list(begun), np.int64), np.array(list(begun.values()), np.float64)
        self.model.learn_stopped(workers, seconds)
        self._note_round(k, workers)
        mu, sd, _ = self.model.speeds(workers)
        self.rest += np.maximum(mu - seconds, sd).sum()

    def _note_round(self, k: int, workers: IntArray) -> None:
        """Note that these workers did something in round k."""
        self.rounds[workers] += self.heard[workers] != k
        self.heard[workers] = k

    def _recovered(self, workers: IntArray, seconds: Array) -> list[tuple[int, float]]:
        """Return suspects with a task that took less than their slow mean by a deviation, and its seconds.

        Waiting for more such tasks would take long, since suspects are rarely tried; a mistake costs little.
        """
        found = self.suspects.among(workers)
        if not len(found):
            return []
        mu, sd, _ = self.model.speeds(workers[found])
        fast = found[seconds[found] < mu - sd]
        return list(zip(workers[fast].tolist(), seconds[fast].tolist(), strict=True))

    def delays(self, workers: IntArray) -> Array:
        """Return how long workers are still busy with a stopped task when a round begins, on average."""
        return np.asarray(np.maximum(self.overrun[workers], 0.0) / np.maximum(self.rounds[workers], 1.0))

    def state(self) -> State:
        """Return all that was learned."""
        sums = saved(self, _SAVED) | saved(self.model, _COLUMNS)
        return sums | self._detector.state() | self.suspects.state()

    def restore(self, state: State) -> None:
        """Resume from an earlier state."""
        restore_saved(self, state, _SAVED)
        restore_saved(self.model, state, _COLUMNS)
        self._detector.restore(state)
        self.suspects.restore(state)

    def inherit(self, known: State) -> None:
        """Add the samples of earlier rounds."""
        seconds = known["seconds"] + (known["overhead"] if self.overhead else 0.0)
        self.model.inherit(known["tasks"], seconds, known["squares"], known["unfinished"])
        self._detector.inherit(known, self.overhead)
