"""The in-process cluster: drawn task times on a virtual clock, results computed only when they arrive."""

import math
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import accumulate

import numpy as np

from mpi_ata.arrays import Array, IntArray
from mpi_ata.cluster.interface import Arrival, compute, set_up
from mpi_ata.problems import Problem, Task, task_streams
from mpi_ata.times import DrawnTimes


@dataclass(frozen=True, slots=True)
class _Order:
    x: Array
    round: int
    together: bool


class VirtualCluster:
    """Simulates n workers in one process; the same seed gives the same run, bit for bit."""

    def __init__(self, problem: Problem, times: DrawnTimes, seed: int = 0) -> None:
        n = times.n
        self.n = n
        self.worker_time = np.zeros(n)
        self.undelivered = np.zeros(n, np.int64)
        self.undelivered_time = np.zeros(n)
        self._problem, self._times, self._streams = problem, times, task_streams(seed)
        self._now = 0.0
        self._orders = np.full(n, None, object)  # what each worker holds
        self._began = np.zeros(n)  # when its delivery in the making was begun
        self._due = np.full(n, np.inf)  # when that will arrive
        self._left = np.zeros(n, np.int64)  # tasks it has not delivered
        self._round = np.full(n, -1)  # of its latest order
        self._number = np.zeros(n, np.int64)  # of its next task in that round
        self._events: list[tuple[float, int]] = []  # a heap of (due, worker); a stopped one is out of date
        set_up(problem, None, n)

    def now(self) -> float:
        """The time on the virtual clock."""
        return self._now

    def start(
        self, workers: IntArray, x: Array, round: int, counts: IntArray | int = 1, together: bool = False
    ) -> None:
        """Order tasks at the point x: counts[j] of them from workers[j]."""
        workers = np.asarray(workers)
        if self._left[workers].any():
            raise RuntimeError("a worker holds one order at a time; stop it first")
        if not self._left.any():
            self._events.clear()  # what is left there was stopped
        x = x.view()
        x.flags.writeable = False
        self._orders[workers] = _Order(x, round, together)
        self._number[workers[self._round[workers] != round]] = 0
        self._round[workers] = round
        self._left[workers] = counts
        self._began[workers] = self._now
        self._due[workers] = due = self._now + self._lasting(workers, round, counts if together else 1)
        self._events += zip(due.tolist(), workers.tolist(), strict=True)
        heapify(self._events)

    def _lasting(self, workers: IntArray, round: int, counts: IntArray | int) -> Array:
        """How long the next counts[j] tasks of workers[j] take."""
        first = self._number[workers]
        seconds = np.zeros(len(workers))
        for number in range(first.min(), (first + counts).max()):
            theirs = (first <= number) & (number < first + counts)
            seconds[theirs] += self._times(round, number)[workers[theirs]]
        return seconds

    def wait(self, timeout: float | None = None) -> Arrival:
        """Move the clock to the next arrival, and compute it."""
        events, due = self._events, self._due
        while events and events[0][0] != due[events[0][1]]:  # stopped meanwhile
            heappop(events)
        if not events:
            raise RuntimeError("nothing is running, so there is nothing to wait for")
        if timeout is not None and events[0][0] > self._now + timeout:
            self._now += timeout
            raise TimeoutError(f"nothing arrived within {timeout} seconds")
        self._now, worker = heappop(events)
        return self._deliver(worker)

    def _deliver(self, worker: int) -> Arrival:
        order = self._orders[worker]
        number, left = self._number.item(worker), self._left.item(worker)
        count = left if order.together else 1
        seconds = self._times.of(worker, order.round, number, count)
        self.worker_time[worker] += math.fsum(seconds)
        self._number[worker] = number + count
        self._left[worker] = left - count
        if left > count:
            self._began[worker] = self._now
            self._due[worker] = due = self._now + self._times(order.round, number + count).item(worker)
            heappush(self._events, (due, worker))
        else:
            self._due[worker], self._orders[worker] = np.inf, None
        tasks = [Task(self._streams, order.round, worker, u) for u in range(number, number + count)]
        return Arrival(worker, compute(self._problem, order.x, tasks, at_once=True), seconds)

    def stop(self, workers: IntArray) -> Array:
        """Withdraw what these workers have not delivered; the seconds that each spent on it."""
        workers = np.asarray(workers)
        begun = (self._left[workers] > 0).astype(np.int64)
        spent = begun * (self._now - self._began[workers])
        self.worker_time[workers] += spent
        self.undelivered_time[workers] += spent
        for j, order in enumerate(self._orders[workers]):
            if order is not None and order.together:
                begun[j] = self._begun(int(workers[j]), order.round, spent[j])
        self.undelivered[workers] += begun
        self._number[workers] += begun
        self._left[workers] = 0
        self._due[workers] = np.inf
        self._orders[workers] = None
        return spent

    def _begun(self, worker: int, round: int, spent: float) -> int:
        """How many tasks of an order that is to be delivered together were begun by now."""
        seconds = self._times.of(worker, round, self._number.item(worker), self._left.item(worker))
        return 1 + sum(end <= spent for end in accumulate(seconds[:-1]))

    def close(self) -> None:
        """Stop everyone."""
        self.stop(np.arange(self.n))
