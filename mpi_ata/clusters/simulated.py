"""Simulated workers: what each of them holds, and when it will be done."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappush
from itertools import accumulate

import numpy as np

from mpi_ata.arrays import Array, IntArray, State, entry
from mpi_ata.clusters.faults import FaultScript
from mpi_ata.times import DrawnTimes

_SAVED = ("began", "due", "seconds", "left", "round", "number")  # arrays with one entry per worker
_UNSTOPPABLE = ("free", "noted")  # saved too where tasks cannot be stopped
Overhead = Callable[[int], Array]  # seconds that an order of each worker spends on the way, in a round


@dataclass(frozen=True, slots=True)
class Order:
    """What a simulated worker was ordered to do."""

    x: Array
    round: int
    together: bool


class SimulatedWorkers:
    """The orders of n simulated workers, and a queue of their deliveries on the virtual clock."""

    def __init__(self, times: DrawnTimes, script: FaultScript, overhead: Overhead | None = None) -> None:
        n = times.n
        self.now = 0.0
        self.orders = np.full(n, None, object)  # what each worker holds
        self.began = np.zeros(n)  # when it began what it will deliver next
        self.due = np.full(n, np.inf)  # when that will arrive
        self.seconds = np.zeros(n)  # how long it takes without faults
        self.left = np.zeros(n, np.int64)  # tasks it has not delivered
        self.round = np.full(n, -1)  # of its latest order
        self.number = np.zeros(n, np.int64)  # of its next task in that round
        self.free = np.zeros(n)  # when it is done with a stopped task, which it cannot leave
        self.noted = np.zeros(n)  # until when the time on that task is in overruns()
        self.events: list[tuple[float, int]] = []  # a heap of (due, worker); a stopped one is out of date
        self._saved = _SAVED if times.stoppable else (*_SAVED, *_UNSTOPPABLE)
        self._n, self._times, self._script, self._scripted = n, times, script, bool(script)
        self._overhead = overhead

    def order(self, workers: IntArray, order: Order, counts: IntArray | int) -> None:
        """Let workers begin an order now: counts[j] tasks of workers[j]."""
        round, together = order.round, order.together
        if not self.left.any():
            self.events.clear()  # what remains there was stopped
        self.orders[workers] = order
        self.number[workers[self.round[workers] != round]] = 0
        self.round[workers] = round
        self.left[workers] = counts
        self.began[workers] = began = np.maximum(self.free[workers], self.now)
        self.seconds[workers] = seconds = self._duration(workers, round, counts if together else 1)
        due = began + seconds
        if self._overhead is not None:
            due += self._overhead(round)[workers]
        if self._scripted:
            self._script.begin_tasks(workers)
            due += self._script.delays(workers, seconds, began)
        self.due[workers] = due
        self._expect(due.tolist(), workers.tolist())

    def _expect(self, due: list[float], workers: list[int]) -> None:
        """Queue deliveries; a queue that is mostly out of date is rebuilt."""
        if len(self.events) > 4 * self._n:
            busy = np.flatnonzero(self.left)
            due, workers, self.events = self.due[busy].tolist(), busy.tolist(), []
        if 8 * len(workers) < len(self.events):
            for event in zip(due, workers, strict=True):
                heappush(self.events, event)
        else:
            self.events += zip(due, workers, strict=True)
            heapify(self.events)

    def _duration(self, workers: IntArray, round: int, counts: IntArray | int) -> Array:
        """Return how long the next counts[j] tasks of workers[j] take."""
        first = self.number[workers]
        seconds = np.zeros(len(workers))
        for number in range(first.min(), (first + counts).max()):
            theirs = (first <= number) & (number < first + counts)
            seconds[theirs] += self._times(round, number)[workers[theirs]]
        return seconds

    def task_seconds(self, worker: int, count: int) -> list[float]:
        """Return how long each of the `count` tasks took that are delivered now."""
        seconds = [self.seconds.item(worker)]
        if count > 1:
            seconds = self._times.of(worker, self.round.item(worker), self.number.item(worker), count)
        if self._scripted:
            slowness = (self.now - self.began.item(worker)) / self.seconds.item(worker)
            if abs(slowness - 1.0) > 1e-9:  # not merely rounded
                seconds = [second * slowness for second in seconds]
        return seconds

    def overhead_of(self, worker: int, seconds: list[float]) -> float:
        """Return how much of the time for what a worker delivers now was not spent on its tasks."""
        if self._overhead is None:
            return 0.0
        return max(self.now - self.began.item(worker) - math.fsum(seconds), 0.0)

    def proceed(self, worker: int, count: int) -> None:
        """Let a worker that delivers `count` tasks now begin what is left of its order."""
        left, number = self.left.item(worker) - count, self.number.item(worker) + count
        self.number[worker] = number
        self.left[worker] = left
        if not left:
            self.due[worker], self.orders[worker] = np.inf, None
            return
        self.began[worker] = self.now
        self.seconds[worker] = seconds = self._times(self.round.item(worker), number).item(worker)
        due = self.now + seconds
        if self._scripted:
            self._script.begin_tasks(np.array([worker]))
            due += self._script.delays(np.array([worker]), np.array([seconds]), np.array([self.now])).item()
        self.delay(worker, due)

    def delay(self, worker: int, due: float) -> None:
        """Let a worker be done at this time."""
        self.due[worker] = due
        heappush(self.events, (due, worker))

    def begun(self, worker: int) -> int:
        """Return how many undelivered tasks of its order a worker has begun by now."""
        order, left = self.orders[worker], self.left.item(worker)
        began = self.began.item(worker)
        spent = self._script.progress(worker, began, self.now) if self._scripted else self.now - began
        if order is None or spent < 0:
            return 0
        if not order.together:
            return min(left, 1)
        seconds = self._times.of(worker, order.round, self.number.item(worker), left)
        return 1 + sum(end <= spent for end in accumulate(seconds[:-1]))

    def finish(self, workers: IntArray, begun: IntArray) -> Array:
        """Let workers end the task that they are at, and return how long that takes them.

        begun[j] is the number of undelivered tasks that workers[j] has begun.
        """
        rest = np.zeros(len(workers))
        for j in np.flatnonzero(begun).tolist():
            worker, count = workers.item(j), begun.item(j)
            unbegun = self.left.item(worker) - count if self.orders[worker].together else 0
            first = self.number.item(worker) + count
            end = self.due.item(worker) - sum(self._times.of(worker, self.round.item(worker), first, unbegun))
            if self.now < end < np.inf:  # one that hangs for good has no end
                rest[j] = end - self.now
                self.free[worker], self.noted[worker] = end, self.now
        return rest

    def overruns(self) -> dict[int, float]:
        """Return the seconds that workers spent on stopped tasks since the last call."""
        late = np.flatnonzero(self.noted < self.free)
        until = np.minimum(self.free[late], self.now)
        seconds = until - self.noted[late]
        self.noted[late] = until
        return dict(zip(late.tolist(), seconds.tolist(), strict=True))

    def drop(self, workers: IntArray | int) -> None:
        """Drop the orders of these workers."""
        self.left[workers] = 0
        self.due[workers] = np.inf
        self.orders[workers] = None

    def state(self, template: Array) -> State:
        """Return all orders in flight; a point shared by several orders is saved once."""
        running = np.flatnonzero(self.left)
        orders = list(self.orders[running])
        points = {order.x.ctypes.data: order.x for order in orders}
        addresses = list(points)
        point, together = np.full(self._n, -1), np.zeros(self._n, np.bool_)
        point[running] = [addresses.index(order.x.ctypes.data) for order in orders]
        together[running] = [order.together for order in orders]
        return {
            "now": np.array(self.now),
            **{name: getattr(self, name).copy() for name in self._saved},
            "together": together,
            "point": point,
            "points": _stacked(list(points.values()), template),
        }

    def restore(self, state: State, template: Array) -> None:
        """Resume from an earlier state, bit for bit as if there had been no break."""
        saved = {name: entry(state, name, getattr(self, name)) for name in self._saved}
        now, point = entry(state, "now", self.now), entry(state, "point", self.round)
        together = entry(state, "together", np.zeros(self._n, np.bool_))
        shape = template.shape if template.size else state["points"].shape[1:]
        points = entry(state, "points", np.empty((point.max() + 1, *shape), template.dtype))
        points.flags.writeable = False
        vars(self).update(saved, now=now.item(), orders=np.full(self._n, None, object), events=[])
        running = np.flatnonzero(self.left).tolist()
        for i in running:
            self.orders[i] = Order(points[point[i]], self.round.item(i), together.item(i))
        self._expect(self.due[running].tolist(), running)


def _stacked(points: list[Array], template: Array) -> Array:
    """Return points like the template as one array; packed ones, of unequal lengths, are padded."""
    if template.size:
        return np.array(points, template.dtype).reshape(-1, *template.shape)
    stacked = np.zeros((len(points), max(map(len, points), default=0)), template.dtype)
    for row, point in zip(stacked, points, strict=True):
        row[: len(point)] = point
    return stacked
