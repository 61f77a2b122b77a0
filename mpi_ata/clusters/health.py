"""Rules for workers that die, hang, crawl, fail or return garbage; every cluster follows them."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mpi_ata.arrays import Array, IntArray
from mpi_ata.clusters.accounts import TaskTimeStats
from mpi_ata.clusters.interface import Back, Lost
from mpi_ata.errors import BadResultError, RunError

HANDFUL = 2.0  # tasks that say little about a worker's mean, since some may be very short
FEW = 20.0  # tasks of a worker, below which its allowance is more than doubled
SHAPED = 200.0  # tasks that show how heavy the tail of a worker's own times is; before, the pool's counts
SETTLED = 1000.0  # tasks after which the longest one so far is hardly ever exceeded by far
SUMS = ("tasks", "seconds", "squares")
USUAL = 3.0  # times the allowance of a task: a worker that is as fast as before takes at most this long


class _LearnedTimes(NamedTuple):
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

    def _learned(self) -> _LearnedTimes:
        tasks, seconds, squares = self._sums()
        columns, slower = self._stats.state(), np.ones(self._stats.n)
        for worker, (ratio, _) in self._forgotten.items():
            slower[worker] = ratio
        some = np.maximum(tasks, 1.0)
        mean = seconds / some
        cautious = mean + mean.max() / (1.0 + (some / HANDFUL) ** 2)
        spread = np.sqrt(np.maximum(squares / some - mean**2, 0.0))
        overhead = columns["overhead"] / np.maximum(columns["arrivals"], 1)
        return _LearnedTimes(
            tasks, mean, cautious, spread, slower * self._tails(columns["times"], tasks), overhead
        )

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


log = logging.getLogger("mpi_ata")

CHOICES = ("stop", "reissue")
PROBES = 3  # slow answers in a row that show how fast a worker is now
ALIKE = 3.0  # largest factor between these and their median


@dataclass(frozen=True)
class FaultPolicy:
    """What to do about workers that misbehave."""

    deadline: float = 10.0  # times what an order should take; 0: wait forever
    on_task_error: str = "stop"  # or "reissue"
    on_bad_result: str = "stop"  # or "reissue"
    max_failures: int = 3  # after which a worker is excluded
    owned: bool = False  # whether each worker owns its data, so that no other can do its tasks

    def __post_init__(self) -> None:
        if not (self.deadline == 0 or self.deadline >= 1):
            raise ValueError(f"deadline={self.deadline} must be at least 1, or 0 to wait forever")
        for name, choice in (("on_task_error", self.on_task_error), ("on_bad_result", self.on_bad_result)):
            if choice not in CHOICES:
                raise ValueError(f"{name}={choice!r} must be 'stop' or 'reissue'")
        if self.max_failures < 1:
            raise ValueError(f"max_failures={self.max_failures} must be at least 1")

    @property
    def reissues(self) -> bool:
        """Return whether tasks that fail are given to other workers."""
        return "reissue" in (self.on_task_error, self.on_bad_result)


@dataclass
class _Probation:
    """The stay of one worker outside the pool."""

    until: int  # the round in which it is tried again
    round: int  # in which it was tried, or in which it left
    pause: int = 1  # rounds between two trials
    slow: list[float] = field(default_factory=list)  # answers in a row that took too long
    reported: bool = False


class Health:
    """Keeps track of which workers can be given work, are on probation, or are gone for good.

    A cluster reports what it notices, and passes on the Lost or Back that it gets in return.  From round
    `next_trial` on, it gives one task to each idle worker in `due(round)`, calls `tried`, and reports the
    outcome with `answered`, `failed` or `died`.  For workers that are not idle, it calls `unanswered`.
    """

    def __init__(
        self,
        stats: TaskTimeStats,
        policy: FaultPolicy | None = None,
        floor: float = 0.0,
        name: Callable[[int], str] = lambda worker: f"worker {worker}",
    ) -> None:
        self.policy = policy or FaultPolicy()
        self.deadlines = Deadlines(stats, self.policy.deadline, floor)
        self.available = np.ones(stats.n, np.bool_)
        self.everyone = True  # whether all are available
        self.failures = np.zeros(stats.n, np.int64)
        self.next_trial = math.inf  # the first round in which a worker is to be tried again
        self._name = name
        self._probation: dict[int, _Probation] = {}
        self._warned: set[int] = set()  # overdue workers that the run waits for anyway

    def deadline(self, worker: int, count: int) -> float:
        """Return the seconds after which an order of `count` tasks is overdue."""
        return float(self.deadlines.of(np.array([worker]), count)[0])

    def overdue(self, worker: int, tasks: int, seconds: float, round: int) -> Lost | None:
        """Suspend a worker whose order has taken too long; return None if the run waits for it anyway."""
        late = f"no result after {seconds:.3g} s, the deadline of its order"
        if self.policy.owned or self._is_last(worker):
            if worker not in self._warned:
                self._warned.add(worker)
                why = "no other worker has its data" if self.policy.owned else "no other worker is left"
                log.warning("%s: %s; %s, so the run waits for it", self._name(worker), late, why)
            return None
        self._suspend(worker, round)
        return Lost(worker, tasks, f"{late}; others do its tasks", "overdue")

    def failed(self, worker: int, tasks: int, error: RunError, round: int) -> Lost | None:
        """Suspend or exclude a worker whose task raised an error, or returned what cannot be used.

        The error is raised again where that ends the run.
        """
        kind, policy = "failed", self.policy.on_task_error
        if isinstance(error, BadResultError):
            kind, policy = "bad-result", self.policy.on_bad_result
        if policy == "stop" or self.policy.owned or self._is_last(worker):
            raise error
        self.failures[worker] += 1
        what = _cause(error)
        if (failures := self.failures[worker]) >= self.policy.max_failures:
            self._remove(worker)
            why = f"excluded from the run after {failures} failure(s): {what}"
            return Lost(worker, tasks, why, "excluded")
        if worker in self._probation:
            self._probation[worker].slow.clear()
            return self._postpone(worker, round, kind, f"failed on probation: {what}")
        self._suspend(worker, round)
        return Lost(worker, tasks, f"{what}; others do its tasks", kind)

    def died(self, worker: int, tasks: int, why: str) -> Lost:
        """Remove a worker that is gone for good."""
        self._remove(worker)
        return Lost(worker, tasks, why)

    def due(self, round: int) -> list[int]:
        """Return the workers that are to be tried again in this round, if they are idle."""
        return [worker for worker, stay in self._probation.items() if stay.until <= round]

    def tried(self, worker: int, round: int) -> None:
        """Note that a worker on probation was given one task."""
        stay = self._probation[worker]
        stay.round, stay.until = round, round + 2 * stay.pause
        self._plan_trials()

    def unanswered(self, worker: int, round: int) -> None:
        """Note that a worker cannot be tried, since it has not answered yet."""
        self._double_pause(worker, round)

    def answered(self, worker: int, seconds: float) -> Back | Lost | None:
        """Note how long a worker's trial task took; return a report if it is back, or still slow."""
        stay, usual = self._probation[worker], self.deadlines.usual(worker)
        if seconds <= usual:
            return self._readmit(worker, [seconds], f"a task took {seconds:.3g} s, as before")
        stay.slow = [*stay.slow, seconds][-PROBES:]
        if len(stay.slow) == PROBES and _alike(stay.slow):
            ratio = self.deadlines.relearn(worker, stay.slow)
            return self._readmit(worker, stay.slow, f"{ratio:.3g} × slower than before")
        slow = f"on probation, a task took {seconds:.3g} s, more than {usual:.3g} s"
        return self._postpone(worker, stay.round, "overdue", slow)

    def _is_last(self, worker: int) -> bool:
        return bool(self.available[worker]) and np.count_nonzero(self.available) == 1

    def _suspend(self, worker: int, round: int) -> None:
        self._probation[worker] = _Probation(round + 1, round)
        self.available[worker] = self.everyone = False
        self._plan_trials()

    def _postpone(self, worker: int, round: int, kind: str, why: str) -> Lost | None:
        """Double the pause until the next trial, and report that once."""
        stay = self._double_pause(worker, round)
        if stay.reported:
            return None
        stay.reported = True
        return Lost(worker, 0, why, kind)

    def _double_pause(self, worker: int, round: int) -> _Probation:
        stay = self._probation[worker]
        stay.pause *= 2
        stay.until = round + stay.pause
        self._plan_trials()
        return stay

    def _readmit(self, worker: int, seconds: list[float], why: str) -> Back:
        del self._probation[worker]
        self.available[worker] = True
        self.everyone = bool(self.available.all())
        self._plan_trials()
        return Back(worker, seconds, why)

    def _remove(self, worker: int) -> None:
        self._probation.pop(worker, None)
        self.available[worker] = self.everyone = False
        self._plan_trials()

    def _plan_trials(self) -> None:
        self.next_trial = min((stay.until for stay in self._probation.values()), default=math.inf)


def _cause(error: RunError) -> str:
    """Return the message of an error in one line, of a traceback only the end."""
    first, *rest = str(error).splitlines() or [""]
    return f"{first} {rest[-1].strip()}" if rest else first


def _alike(seconds: list[float]) -> bool:
    """Return whether all lie within a factor of their median."""
    median = sorted(seconds)[len(seconds) // 2]
    return min(seconds) * ALIKE >= median >= max(seconds) / ALIKE
