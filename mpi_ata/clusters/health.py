"""Rules for workers that die, hang, crawl, fail or return garbage; every cluster follows them."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from mpi_ata.clusters.deadlines import Deadlines
from mpi_ata.clusters.interface import Back, Lost
from mpi_ata.clusters.stats import TaskTimeStats
from mpi_ata.errors import RunError

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
        for name in ("on_task_error", "on_bad_result"):
            if getattr(self, name) not in CHOICES:
                raise ValueError(f"{name}={getattr(self, name)!r} must be 'stop' or 'reissue'")
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
        late = f"no result after {seconds:.3g} s, {self.policy.deadline:g} times what its order should take"
        if self.policy.owned or self._is_last(worker):
            if worker not in self._warned:
                self._warned.add(worker)
                why = "no other worker has its data" if self.policy.owned else "no other worker is left"
                log.warning("%s: %s; %s, so the run waits for it", self._name(worker), late, why)
            return None
        self._suspend(worker, round)
        return Lost(worker, tasks, f"{late}; others do its tasks", "overdue")

    def failed(self, worker: int, tasks: int, error: RunError, round: int) -> Lost | None:
        """Suspend or exclude a worker whose task raised an error, unless that ends the run."""
        return self._fail(worker, tasks, error, round, "failed", self.policy.on_task_error)

    def bad_result(self, worker: int, tasks: int, error: RunError, round: int) -> Lost | None:
        """Suspend or exclude a worker whose result cannot be used, unless that ends the run."""
        return self._fail(worker, tasks, error, round, "bad-result", self.policy.on_bad_result)

    def _fail(
        self, worker: int, tasks: int, error: RunError, round: int, kind: str, policy: str
    ) -> Lost | None:
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
            return self._readmit(worker, stay.slow, f"{ratio:.3g} times as slow as before")
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
