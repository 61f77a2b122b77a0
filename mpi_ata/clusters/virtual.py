"""The in-process cluster: drawn task times on a virtual clock, results computed only when they arrive."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import accumulate

import numpy as np

from mpi_ata.arrays import Array, IntArray, State, entry
from mpi_ata.clusters.identity import VIRTUAL, WorkerIdentity, drawn_identity
from mpi_ata.clusters.interface import Arrival, Lost, compute, set_up
from mpi_ata.clusters.ledger import Ledger
from mpi_ata.launch.signals import GraceExpired
from mpi_ata.problems import Problem, Task, task_streams
from mpi_ata.times import DrawnTimes

_SAVED = ("_began", "_due", "_seconds", "_left", "_round", "_number")  # arrays with one entry per worker


@dataclass(frozen=True, slots=True)
class _Order:
    x: Array
    round: int
    together: bool


class VirtualCluster:
    """Simulates n workers in one process; the same seed gives the same run, bit for bit.

    `deaths` maps workers to the time on the virtual clock at which they vanish.
    """

    def __init__(
        self, problem: Problem, times: DrawnTimes, seed: int = 0, deaths: Mapping[int, float] | None = None
    ) -> None:
        n = times.n
        self.n = n
        self.ledger = Ledger(n)
        self.overdue: Callable[[], bool] = lambda: False  # whether to give up waiting for the end of a round
        self._problem, self._times, self._streams = problem, times, task_streams(seed)
        self._now = 0.0
        self._orders = np.full(n, None, object)  # what each worker holds
        self._began = np.zeros(n)  # when it began what it will deliver next
        self._due = np.full(n, np.inf)  # when that will arrive
        self._seconds = np.zeros(n)  # how long it takes
        self._left = np.zeros(n, np.int64)  # tasks it has not delivered
        self._round = np.full(n, -1)  # of its latest order
        self._number = np.zeros(n, np.int64)  # of its next task in that round
        self._events: list[tuple[float, int]] = []  # a heap of (due, worker); a stopped one is out of date
        self._all_deaths = dict(deaths or {})
        self._expect_deaths()
        set_up(problem, None, n)

    def _expect_deaths(self) -> None:
        """Queue the deaths to come; whose time has passed is dead, unless the loss was not yet reported."""
        deaths = self._all_deaths.items()
        self._deaths = [(time, i) for i, time in deaths if time >= self._now or self._left[i]]
        heapify(self._deaths)
        self.available = np.ones(self.n, np.bool_)
        self.available[list(self._all_deaths)] = False
        self.available[[worker for _, worker in self._deaths]] = True
        self._all_available = len(self._deaths) == len(self._all_deaths)

    @cached_property
    def identities(self) -> tuple[WorkerIdentity, ...]:
        """Each worker by its index, and by the law of its times instead of hardware."""
        return tuple(drawn_identity(VIRTUAL, worker, self._times.label) for worker in range(self.n))

    def now(self) -> float:
        """Return the time on the virtual clock."""
        return self._now

    def start(
        self, workers: IntArray, x: Array, round: int, counts: IntArray | int = 1, together: bool = False
    ) -> None:
        """Order tasks at the point x: counts[j] of them from workers[j]."""
        workers = np.asarray(workers)
        if not workers.size:
            return
        if self._left[workers].any():
            raise RuntimeError("a worker holds one order at a time; stop it first")
        if not self._all_available and not self.available[workers].all():
            raise RuntimeError(f"workers {workers[~self.available[workers]]} are lost and cannot be started")
        if not self._left.any():
            self._events.clear()  # what remains there was stopped
        x.flags.writeable = False  # for the caller too: tasks read it later
        x = x.view()  # which no task can make writeable again
        self._orders[workers] = _Order(x, round, together)
        self._number[workers[self._round[workers] != round]] = 0
        self._round[workers] = round
        self._left[workers] = counts
        self._began[workers] = self._now
        self._seconds[workers] = seconds = self._duration(workers, round, counts if together else 1)
        self._due[workers] = due = self._now + seconds
        self._expect(due.tolist(), workers.tolist())

    def _expect(self, due: list[float], workers: list[int]) -> None:
        """Queue deliveries; a queue that is mostly out of date is rebuilt."""
        if len(self._events) > 4 * self.n:
            busy = np.flatnonzero(self._left)
            due, workers, self._events = self._due[busy].tolist(), busy.tolist(), []
        if 8 * len(workers) < len(self._events):
            for event in zip(due, workers, strict=True):
                heappush(self._events, event)
        else:
            self._events += zip(due, workers, strict=True)
            heapify(self._events)

    def _duration(self, workers: IntArray, round: int, counts: IntArray | int) -> Array:
        """Return how long the next counts[j] tasks of workers[j] take."""
        first = self._number[workers]
        seconds = np.zeros(len(workers))
        for number in range(first.min(), (first + counts).max()):
            theirs = (first <= number) & (number < first + counts)
            seconds[theirs] += self._times(round, number)[workers[theirs]]
        return seconds

    def wait(self, timeout: float | None = None) -> Arrival | Lost:
        """Advance the clock to the next arrival and compute it, or to the next loss."""
        if self.overdue():
            raise GraceExpired
        events, due = self._events, self._due
        while events and events[0][0] != due[events[0][1]]:  # stopped in the meantime
            heappop(events)
        if not events:
            raise RuntimeError("nothing is running, so there is nothing to wait for")
        dying = self._deaths and self._deaths[0][0] < events[0][0]
        if timeout is not None and (self._deaths if dying else events)[0][0] > self._now + timeout:
            self._now += timeout
            raise TimeoutError(f"nothing arrived within {timeout} seconds")
        if dying:
            return self._lose(*heappop(self._deaths))
        self._now, worker = heappop(events)
        return self._deliver(worker)

    def _lose(self, time: float, worker: int) -> Lost:
        """Let a worker vanish with the tasks that it has begun."""
        self._now = max(self._now, time)
        tasks = self._begun(worker)
        self.ledger.lose(worker, tasks)
        self._drop(worker)
        self.available[worker] = self._all_available = False
        return Lost(worker, tasks, f"it vanished at {time:g} s on the virtual clock")

    def _deliver(self, worker: int) -> Arrival:
        order = self._orders[worker]
        number, left = self._number.item(worker), self._left.item(worker)
        count = left if order.together else 1
        seconds = [self._seconds.item(worker)]
        if count > 1:
            seconds = self._times.of(worker, order.round, number, count)
        self.ledger.deliver(worker, seconds, math.fsum(seconds))
        self._number[worker] = number + count
        self._left[worker] = left - count
        if left > count:
            self._began[worker] = self._now
            self._seconds[worker] = self._times(order.round, number + count).item(worker)
            self._due[worker] = due = self._now + self._seconds.item(worker)
            heappush(self._events, (due, worker))
        else:
            self._due[worker], self._orders[worker] = np.inf, None
        tasks = [Task(self._streams, order.round, worker, u) for u in range(number, number + count)]
        return Arrival(worker, np.array(compute(self._problem, order.x, tasks, at_once=True)), seconds)

    def stop(self, workers: IntArray) -> Array:
        """Stop what these workers have not delivered and return the seconds that each spent on it."""
        workers = np.asarray(workers)
        if not workers.size:
            return np.zeros(0)
        begun = (self._left[workers] > 0).astype(np.int64)
        spent = begun * (self._now - self._began[workers])
        for j, order in enumerate(self._orders[workers]):
            if order is not None and order.together:
                begun[j] = self._begun(int(workers[j]))
        self.ledger.stop(workers, begun, spent)
        self._number[workers] += begun
        self._drop(workers)
        return spent

    def _drop(self, workers: IntArray | int) -> None:
        """Leave workers without an order."""
        self._left[workers] = 0
        self._due[workers] = np.inf
        self._orders[workers] = None

    def _begun(self, worker: int) -> int:
        """Return how many undelivered tasks of its order a worker has begun by now."""
        order, left = self._orders[worker], self._left.item(worker)
        if order is None or not order.together:
            return min(left, 1)
        spent = self._now - self._began.item(worker)
        seconds = self._times.of(worker, order.round, self._number.item(worker), left)
        return 1 + sum(end <= spent for end in accumulate(seconds[:-1]))

    def idle(self) -> IntArray:
        """Return the workers that hold no order."""
        return np.flatnonzero(self._left == 0)

    def state(self) -> State:
        """Return clock, accounts and all orders in flight; a point shared by several orders is saved once."""
        x0, running = self._problem.x0, np.flatnonzero(self._left)
        orders = list(self._orders[running])
        points = {order.x.ctypes.data: order.x for order in orders}
        addresses = list(points)
        point, together = np.full(self.n, -1), np.zeros(self.n, np.bool_)
        point[running] = [addresses.index(order.x.ctypes.data) for order in orders]
        together[running] = [order.together for order in orders]
        return {
            "now": np.array(self._now),
            **self.ledger.state(),
            **{name.lstrip("_"): getattr(self, name).copy() for name in _SAVED},
            "together": together,
            "point": point,
            "points": np.array(list(points.values()), x0.dtype).reshape(-1, *x0.shape),
        }

    def restore(self, state: State, workers: State | None = None) -> None:
        """Resume from an earlier state, bit for bit as if there had been no break."""
        saved = {name: entry(state, name.lstrip("_"), getattr(self, name)) for name in _SAVED}
        now, point = entry(state, "now", self._now), entry(state, "point", self._round)
        together = entry(state, "together", np.zeros(self.n, np.bool_))
        x0 = self._problem.x0
        points = entry(state, "points", np.broadcast_to(x0, (point.max() + 1, *x0.shape)))
        points.flags.writeable = False
        self.ledger.restore(state, workers)
        vars(self).update(saved, _now=now.item(), _orders=np.full(self.n, None, object))
        running = np.flatnonzero(self._left).tolist()
        for i in running:
            self._orders[i] = _Order(points[point[i]], self._round.item(i), together.item(i))
        self._events = []
        self._expect(self._due[running].tolist(), running)
        self._expect_deaths()

    def take_over(self, workers: State, rows: list[tuple[int, int]]) -> None:
        """Start from what is saved of other workers: `rows` pairs a worker here with its row there."""
        self.ledger.take_over(workers, rows)

    def close(self) -> None:
        """Stop everyone."""
        self.stop(np.arange(self.n))
