"""Several jobs on one set of workers: who waits for each worker, and how a round is divided by that.

Each worker does its orders first come, first served.  A round of B tasks is given to those who will have done
it soonest, given what they have to do before: that wastes nothing, and at most a task per worker and round
separates it from the shortest time in which all jobs can be done.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple, Protocol

import numpy as np

from mpi_ata.allocators.task_model import SpeedEstimates
from mpi_ata.arrays import Array, BoolArray, IntArray
from mpi_ata.clusters.accounts import Ledger
from mpi_ata.clusters.farm import shares
from mpi_ata.turns import TurnThread

MEMORY_TASKS = 256.0  # of each worker that count in its mean: speeds change
LEAST_SECONDS = 1e-9  # of a task, to compare speeds
LEAST_REST = 0.5  # of what an order was expected to take is left of it, however late it is
ITERATIONS = 3  # to tell how slow a worker is from how long a problem's tasks are
FIRST_ITERATIONS = 30  # the same, for a problem that is new
LEAST_AT_ONCE = 4  # jobs
MOST_SPEED = 0.95  # of all workers together, have those that decide how many jobs run at once


class QueuedOrder(NamedTuple):
    """An order at its worker, or in front of it."""

    job: Any  # whoever has ordered it; at most one order of each is in a queue
    expected: float  # seconds
    order: Any = None
    spare: bool = False  # whether it is dropped as soon as its worker is wanted; then it is in no queue


class Queues:
    """The orders of each worker, of which it does the first, and how long they are expected to take."""

    def __init__(self, n: int) -> None:
        self.lines: list[deque[QueuedOrder]] = [deque() for _ in range(n)]
        self._began: Array = np.zeros(n)  # when each worker began its first order
        self._first: Array = np.zeros(n)  # seconds that it was expected to take; 0: there is none
        self._behind: Array = np.zeros(n)  # seconds of all others

    def append(self, worker: int, queued: QueuedOrder, now: float) -> None:
        """Let an order wait for a worker."""
        line = self.lines[worker]
        line.append(queued)
        if len(line) == 1:
            self._began[worker], self._first[worker] = now, queued.expected
        else:
            self._behind[worker] += queued.expected

    def remove(self, worker: int, job: object, now: float) -> bool:
        """Remove the order of a job that is done or withdrawn, and return whether there was one."""
        line = self.lines[worker]
        position = next((i for i, queued in enumerate(line) if queued.job is job), None)
        if position is None:
            return False
        gone = line[position]
        del line[position]
        if position:
            self._behind[worker] -= gone.expected
        else:
            self._began[worker], self._first[worker] = now, line[0].expected if line else 0.0
            self._behind[worker] -= self._first[worker]
        if len(line) < 2:
            self._behind[worker] = 0.0  # not merely nearly
        return True

    def backlog(self, now: float) -> Array:
        """Return the seconds after which each worker is expected to have done all that it was given.

        The longer an order takes than expected, the longer it is expected to take still.
        """
        rest = np.maximum(np.abs(self._began + self._first - now), LEAST_REST * self._first)
        return np.where(self._first > 0, rest + self._behind, 0.0)


class PairSpeeds:
    """Seconds per task of each pair of a worker and a problem, learned by all jobs together."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._sums: dict[Hashable, Array] = {}  # by problem: tasks, seconds and their squares, by worker
        self._means: dict[Hashable, Array] = {}  # by problem: as estimated since something was learned
        self._costs: dict[Hashable, float] = {}  # by problem: how long its tasks are, as last estimated

    def learn(self, problem: Hashable, sums: Array) -> None:
        """Add tasks, seconds and squares of these; older ones are forgotten little by little."""
        self._means.clear()
        known = self._sums.setdefault(problem, np.zeros((3, self._n)))
        known += sums
        known *= np.minimum(MEMORY_TASKS / np.maximum(known[0], 1.0), 1.0)

    def means(self, problem: Hashable) -> Array:
        """Return the seconds per task; what is not known of a pair is guessed from others."""
        if problem not in self._means:
            self._means[problem] = self._estimated(problem)
        return self._means[problem]

    def _estimated(self, problem: Hashable) -> Array:
        tasks, seconds, squares = self._sums.get(problem, np.zeros((3, self._n)))
        tried = np.flatnonzero(tasks)
        if len(self._sums) > 1:
            slowness, costs = self._separated()
            guess = slowness * costs.get(problem, 1.0)
            return np.asarray((seconds + guess) / (tasks + 1.0))
        if not len(tried):
            return np.ones(self._n)
        own = _shrunk(tasks[tried], seconds[tried], squares[tried])
        means = np.full(self._n, own.mean())
        means[tried] = own
        return means

    def _separated(self) -> tuple[Array, dict[Hashable, float]]:
        """Return how slow each worker is, and how long a task of each problem, the product being seconds."""
        known = {problem: sums for problem, sums in self._sums.items() if sums[0].any()}
        first = {problem: float(sums[1].sum() / sums[0].sum()) for problem, sums in known.items()}
        costs, slowness = first | self._costs, np.ones(self._n)
        for _ in range(ITERATIONS if self._costs.keys() == known.keys() else FIRST_ITERATIONS):
            tasks = sum((costs[p] * sums[0] for p, sums in known.items()), np.zeros(self._n))
            seconds = sum((sums[1] for sums in known.values()), np.zeros(self._n))
            tried = tasks > 0
            slowness = np.full(self._n, seconds[tried].sum() / tasks[tried].sum() if tried.any() else 1.0)
            slowness[tried] = np.maximum(seconds[tried] / tasks[tried], LEAST_SECONDS)
            costs = {p: float(sums[1].sum() / (sums[0] @ slowness)) for p, sums in known.items()}
        self._costs = costs
        return slowness, costs


def _shrunk(tasks: Array, seconds: Array, squares: Array) -> Array:
    """Return means shrunk towards each other by how little workers differ."""
    mu = np.maximum(seconds / tasks, LEAST_SECONDS)
    variance = np.maximum(squares / tasks / mu**2 - 1.0, 0.0)
    cv = np.sqrt(max(float(tasks @ variance / tasks.sum()), LEAST_SECONDS))
    return SpeedEstimates(mu, cv * mu, cv * mu / np.sqrt(tasks)).shrunk().mu


class SpareUser(Protocol):
    """A job for which idle workers do spare tasks."""

    missing: int  # results that its round waits for

    def can_spare(self, worker: int) -> bool:
        """Return whether an idle worker can do a spare task for this job."""

    def start_spare(self, worker: int) -> None:
        """Let an idle worker do one more task of the present round."""


class Sharing:
    """What jobs on one set of workers share."""

    def __init__(self, n: int) -> None:
        self.n, self.queues, self.speeds = n, Queues(n), PairSpeeds(n)
        self.spare_users: list[SpareUser] = []

    def start_spares(self, idle: Iterable[int]) -> None:
        """Let each idle worker do a task of the round that waits for most results, whoever is first."""
        waiting = [job for job in self.spare_users if job.missing > 0]
        for worker in idle if waiting else ():
            able = [job for job in waiting if job.can_spare(worker)]
            if able:
                max(able, key=lambda job: job.missing).start_spare(worker)

    def at_once(self, problem: Hashable, budget: int, jobs: int) -> int:
        """Return how many jobs should run at once, of so many: as few as keep the workers busy.

        Then the first ones are done early, and little memory is needed.
        """
        means = np.sort(self.speeds.means(problem))
        speed = np.cumsum(1.0 / means)
        slowest = means[np.searchsorted(speed, MOST_SPEED * speed[-1])]
        wanted = max(LEAST_AT_ONCE, int(np.ceil(4.0 * slowest * speed[-1] / budget)))
        return jobs if jobs < 2 * wanted else wanted


class Share:
    """One job's part in the sharing: the thread that drives it, and what it knows of the workers."""

    def __init__(self, sharing: Sharing, thread: TurnThread, problem: Hashable) -> None:
        self.sharing, self.thread, self.problem = sharing, thread, problem
        self.ready_at: Callable[[], float] = lambda: -np.inf  # when it can go on; asked while it waits
        self._user: SpareUser | None = None  # the job's view, where idle workers do spare tasks for it
        self._learned: Array = np.zeros((3, sharing.n))  # of its accounts

    def use_spares(self, job: SpareUser) -> None:
        """Let idle workers do spare tasks for this job."""
        self._user = job
        self.sharing.spare_users.append(job)

    @property
    def spares(self) -> bool:
        """Whether idle workers do spare tasks for this job."""
        return self._user is not None

    def leave(self) -> None:
        """Use no spare tasks any more: the job is over."""
        if self._user is not None:
            self.sharing.spare_users.remove(self._user)

    def wait(self, ready_at: Callable[[], float]) -> None:
        """Let other jobs run until this one can go on."""
        self.ready_at = ready_at
        self.thread.give_back()
        self.ready_at = lambda: -np.inf

    def learn(self, ledger: Ledger) -> None:
        """Let all jobs know how long this one's tasks have taken."""
        stats = ledger.stats.state()
        sums = np.array([stats["tasks"], stats["seconds"], stats["squares"]], np.float64)
        self.sharing.speeds.learn(self.problem, sums - self._learned)
        self._learned = sums

    def expected(self, workers: IntArray, counts: IntArray | int) -> Array:
        """Return the seconds that orders are expected to take."""
        return np.asarray(self.sharing.speeds.means(self.problem)[workers] * counts)

    def divide(self, a: IntArray, available: BoolArray, now: float) -> IntArray:
        """Return the quotas of a round, those of the job's allocator if all workers are idle."""
        backlog = self.sharing.queues.backlog(now)
        if not backlog[available].any():
            return a
        workers, divided = np.flatnonzero(available), np.zeros_like(a)
        means = self.sharing.speeds.means(self.problem)
        divided[workers] = shares(backlog[workers], means[workers], int(a.sum()))
        return divided
