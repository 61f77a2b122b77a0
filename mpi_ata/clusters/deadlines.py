"""How long an order may take until its worker is overdue, learned from the task times of the whole pool."""

import math
from typing import NamedTuple

import numpy as np

from mpi_ata.arrays import Array, IntArray
from mpi_ata.clusters.stats import TaskTimeStats

HANDFUL = 2.0  # tasks that say little about a worker's mean, since some may be very short
FEW = 20.0  # tasks of a worker, below which its allowance is more than doubled
SHAPED = 200.0  # tasks that show how heavy the tail of a worker's own times is; before, the pool's counts
SETTLED = 1000.0  # tasks after which the longest one so far is hardly ever exceeded by far
SUMS = ("tasks", "seconds", "squares")
USUAL = 3.0  # times the allowance of a task: a worker that is as fast as before takes at most this long


class _Known(NamedTuple):
    """What is known of each worker's tasks."""

    tasks: Array
    mean: Array  # seconds; 0 where nothing is known
    cautious: Array  # the mean, closer to that of the slowest worker where it is not known well
    spread: Array  # standard deviation
    tail: Array  # seconds that a single task may take beyond these
    overhead: Array  # of an order

    def allowance(self, workers: IntArray, counts: IntArray | int) -> Array:
        """Return the seconds that an order of counts[j] tasks may reasonably take; NaN where unknown."""
        tasks = self.tasks[workers]
        usual = counts * self.cautious[workers] + np.sqrt(counts) * self.spread[workers] + self.tail[workers]
        with np.errstate(divide="ignore", invalid="ignore"):
            return usual * (1.0 + FEW / tasks) + self.overhead[workers]


class Deadlines:
    """Deadlines of orders: `factor` times mean, spread and tail of what the worker's own times show.

    With few tasks known the allowance grows by 1 + 20 / tasks, and the slowest worker and the heaviest tail
    in the pool count too.
    """

    def __init__(self, stats: TaskTimeStats, factor: float, floor: float = 0.0) -> None:
        self.factor = factor or math.inf
        self._floor = floor  # seconds: no deadline is shorter
        self._stats = stats
        # Of workers that became slower: how many times, and what to subtract from their sums.
        self._forgotten: dict[int, tuple[float, Array]] = {}

    def of(self, workers: IntArray, counts: IntArray | int) -> Array:
        """Return the seconds after which orders of counts[j] tasks are overdue; inf if no task is known."""
        known = self._learned()
        everyone = np.flatnonzero(known.tasks)
        if not len(everyone) or self.factor == math.inf:
            return np.full(len(workers), np.inf)
        slowest = self.factor * known.allowance(everyone, 1).max()
        allowed = known.allowance(workers, counts)
        allowed = np.where(known.tasks[workers] > 0, allowed, counts * slowest)
        deadlines: Array = np.maximum(self.factor * allowed, self._floor)
        return deadlines

    def patience(self) -> Array:
        """Return for each worker a time per task within which no order is overdue, fast to compute."""
        if self.factor == math.inf:
            return np.full(self._stats.n, np.inf)
        tasks, seconds, _ = self._sums()
        mean = seconds / np.maximum(tasks, 1.0)
        patience = self.factor * np.where(tasks > 0, mean, self.factor * mean.max())
        shortest: Array = np.maximum(patience, self._floor)
        return shortest

    def usual(self, worker: int) -> float:
        """Return the seconds that one task takes at most on a worker as fast as before; inf if unknown."""
        known = self._learned()
        if not known.tasks[worker]:
            return math.inf
        return float(min(USUAL, self.factor) * known.allowance(np.array([worker]), 1)[0])

    def relearn(self, worker: int, seconds: list[float]) -> float:
        """Forget all of a worker's times except these, and return how many times as slow it has become."""
        known, columns, new = self._learned(), self._stats.state(), np.array(seconds)
        past = np.array([columns[name].item(worker) for name in SUMS])
        ratio = float(new.mean() / known.mean[worker])
        before = self._forgotten[worker][0] if worker in self._forgotten else 1.0
        self._forgotten[worker] = before * ratio, past - [len(new), new.sum(), (new**2).sum()]
        return ratio

    def _sums(self) -> Array:
        """Return the tasks of each worker, their seconds and their squares, without what was forgotten."""
        columns = self._stats.state()
        sums = np.array([columns[name] for name in SUMS], np.float64)
        for worker, (_, past) in self._forgotten.items():
            sums[:, worker] -= past
        return sums

    def _learned(self) -> _Known:
        tasks, seconds, squares = self._sums()
        columns, slower = self._stats.state(), np.ones(self._stats.n)
        for worker, (ratio, _) in self._forgotten.items():
            slower[worker] = ratio
        some = np.maximum(tasks, 1.0)
        mean = seconds / some
        cautious = mean + mean.max() / (1.0 + (some / HANDFUL) ** 2)
        spread = np.sqrt(np.maximum(squares / some - mean**2, 0.0))
        overhead = columns["overhead"] / np.maximum(columns["arrivals"], 1)
        return _Known(tasks, mean, cautious, spread, slower * self._tails(columns["times"], tasks), overhead)

    def _tails(self, times: Array, tasks: Array) -> Array:
        """Return how far beyond mean and spread a single task may go, where times are heavy-tailed.

        The longest of m exponential times lies about log(m) spreads above their median.  What is beyond
        that shows a heavier tail, of which the next record may be as far away again on a log scale: with a
        lognormal law the record grows without end, but the more tasks are known, the rarer are records.
        A single accident must not hide a worker that hangs: no tail is longer than `factor` records, and one
        that a single task shows, in a pool of well-known workers, is as long as that task.
        """
        some = np.maximum(tasks, 1.0)
        low, median, high = _quartiles(times)
        light = median + (high - low) * (1.0 + np.log(some))
        unit = np.where(median > 0, median, 1.0)
        longest, second = self._stats.largest, self._stats.second
        once, twice = (np.maximum(each - light, 0.0) / unit for each in (longest, second))
        record = longest / unit
        unshaped = 1.0 / (1.0 + (some / SHAPED) ** 2)  # how much the others' tails count
        shown = np.maximum(twice, once.max() * unshaped)
        record = np.maximum(record, record.max() * unshaped)
        tail: Array = median * shown * (1.0 + shown * SETTLED / (SETTLED + some))
        tail = np.maximum(tail, np.where(once > 0.0, longest, 0.0))
        return tail if self.factor == math.inf else np.minimum(tail, self.factor * median * record)


def _quartiles(times: Array) -> tuple[Array, Array, Array]:
    """Return the quartiles of each row; entries that are NaN do not count, and a row without others is 0."""
    rows, ordered = np.arange(len(times)), np.sort(times, axis=1)
    last = np.maximum(np.count_nonzero(~np.isnan(times), axis=1) - 1, 0)
    low, median, high = (np.nan_to_num(ordered[rows, last * k // 4]) for k in (1, 2, 3))
    return low, median, high
