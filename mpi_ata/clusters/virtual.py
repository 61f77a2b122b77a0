"""The in-process cluster: drawn task times on a virtual clock, results computed only when they arrive."""

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from heapq import heapify, heappop, heappush
from itertools import accumulate
from typing import Any

import numpy as np

from mpi_ata.arrays import Array, IntArray, State, entry, restore_saved, saved
from mpi_ata.clusters.accounts import Ledger
from mpi_ata.clusters.bfloat16 import point_wire, results_wire
from mpi_ata.clusters.computations import (
    DRAWS_GLOBALLY,
    compute,
    received,
    set_up,
    surely_finite,
    template_of,
)
from mpi_ata.clusters.farm import Farming
from mpi_ata.clusters.faults import Fault, FaultScript
from mpi_ata.clusters.health import FaultPolicy, Health
from mpi_ata.clusters.identity import VIRTUAL, WorkerIdentity, drawn_identity
from mpi_ata.clusters.interface import Arrival, Back, Lost, named
from mpi_ata.clusters.sample_indices import SampleIndices, sample_indices_for
from mpi_ata.clusters.sharing import QueuedOrder, Share, Sharing
from mpi_ata.errors import RunError
from mpi_ata.launch.environment import note_simulation
from mpi_ata.launch.signals import GraceExpired
from mpi_ata.packing import pack
from mpi_ata.problems import AnyProblem, ProblemAbilities, Task, returns_values, task_streams
from mpi_ata.randomness import global_states
from mpi_ata.times import DrawnTimes

REFRESH = 32  # rounds after which deadlines are known to be about right
_SAVED = ("now", "began", "due", "seconds", "left", "round", "number")
_UNSTOPPABLE = ("free", "noted")  # saved too where tasks cannot be stopped

log = logging.getLogger("mpi_ata")


@dataclass(frozen=True, slots=True)
class SimulatedOrder:
    """What a simulated worker was ordered to do."""

    x: Array
    round: int
    together: bool
    summed: bool = False  # whether only the sum of all results is needed
    spare: bool = False  # whether it is dropped as soon as its worker is wanted


# Returns the seconds that orders spend on the way: workers[j] does counts[j] tasks in seconds[j].
Overhead = Callable[[SimulatedOrder, IntArray, IntArray, Array], Array]


class SimulatedWorkers:
    """The orders of n simulated workers, and a queue of their deliveries on the virtual clock.

    How an order ends is booked in `ledger`, and what it leaves of the shared `indices` is given back.
    """

    def __init__(
        self,
        times: DrawnTimes,
        script: FaultScript,
        ledger: Ledger,
        indices: SampleIndices | None,
        overhead: Overhead | None = None,
    ) -> None:
        n = times.n
        self.now = 0.0
        self.orders = np.full(n, None, object)  # what each worker holds
        self.began = np.zeros(n)  # when it began what it will deliver next
        self.due = np.full(n, np.inf)  # when that will arrive
        self.ends = np.full(n, np.inf)  # when its whole order will be done, where jobs share the workers
        self.seconds = np.zeros(n)  # how long it takes without faults
        self.left = np.zeros(n, np.int64)  # tasks it has not delivered
        self.round = np.full(n, -1)  # of its latest order
        self.number = np.zeros(n, np.int64)  # of its next task in that round
        self.free = np.zeros(n)  # when it is done with a stopped task, which it cannot leave
        self.noted = np.zeros(n)  # until when the time on that task is in overruns()
        self.events: list[tuple[float, int]] = []  # a heap of (due, worker); a stopped one is out of date
        self._saved = _SAVED if times.stoppable else (*_SAVED, *_UNSTOPPABLE)
        self._n, self._times, self._script, self._scripted = n, times, script, bool(script)
        self._ledger, self._indices, self._overhead = ledger, indices, overhead
        self.shared: SharedTime | None = None  # with other jobs
        self.probes: set[int] = set()  # workers on probation that have a single task as a trial
        self.dropped: dict[int, int] = {}  # tasks begun in orders that end unused when their worker wakes up

    def order(self, workers: IntArray, order: SimulatedOrder, counts: IntArray | int) -> None:
        """Let workers begin an order now: counts[j] tasks of workers[j]."""
        round, together = order.round, order.together
        if not self.left.any():
            self.events.clear()  # what remains there was stopped
        self.orders[workers] = order
        self.number[workers[self.round[workers] != round]] = 0
        self.round[workers] = round
        self.left[workers] = counts
        if self.shared is None:
            began = np.maximum(self.free[workers], self.now)
        else:
            began = self.shared.begin(self, workers)
        self.began[workers] = began
        self.seconds[workers] = seconds = self._duration(workers, round, counts if together else 1)
        due = began + seconds
        if self._overhead is not None:
            due += self._overhead(order, workers, self.left[workers], seconds)
        if self._scripted:
            self._script.begin_tasks(workers)
            due += self._script.delays(workers, seconds, began)
        self.due[workers] = due
        self._expect(due.tolist(), workers.tolist())
        if self.shared is not None:
            rest = 0.0 if together else self._duration(workers, round, counts) - seconds
            self.ends[workers] = due + rest
            self.shared.enqueue(self, workers, order)

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
            if self.shared is not None:
                self.shared.finish(self, worker)
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

    def stop(self, workers: IntArray) -> Array:
        """Stop what these workers have not delivered and return the seconds that each spent on it."""
        workers = np.asarray(workers)
        if not workers.size:
            return np.zeros(0)
        begun = ((self.left[workers] > 0) & (self.began[workers] <= self.now)).astype(np.int64)
        spent: Array = begun * (self.now - self.began[workers])
        for j, order in enumerate(self.orders[workers]):
            if order is not None and order.together:
                begun[j] = self.begun(int(workers[j]))
        rest = 0.0 if self._times.stoppable else self._finish(workers, begun)
        self._end(workers, begun, spent + rest)
        return spent

    def waste(self, worker: int, tasks: int) -> None:
        """End an order, and book its tasks that will not be used."""
        self._end(np.array([worker]), np.array([tasks]), self.now - self.began.item(worker))

    def _end(self, workers: IntArray, begun: IntArray, seconds: Array | float) -> None:
        self._ledger.stop(workers, begun, seconds)
        self.number[workers] += begun
        self._drop(workers)

    def lose(self, workers: IntArray) -> IntArray:
        """Drop orders with the tasks that their workers have begun; return the lost tasks of each."""
        tasks = np.array([self.begun(worker) for worker in workers.tolist()], np.int64)
        self._ledger.lose(workers, tasks)
        self._drop(workers)
        return tasks

    def _drop(self, workers: IntArray) -> None:
        self.left[workers] = 0
        self.due[workers] = np.inf
        self.orders[workers] = None
        if self._indices is not None:
            for worker in workers.tolist():
                self._indices.give_back(worker)
        if self.probes or self.dropped:
            for worker in workers.tolist():
                self.probes.discard(worker)
                self.dropped.pop(worker, None)
        if self.shared is not None:
            for worker in workers.tolist():
                self.shared.withdraw(self, worker)

    def _finish(self, workers: IntArray, begun: IntArray) -> Array:
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

    def state(self, template: Array) -> State:
        """Return clock and orders in flight; a point shared by several orders is saved once."""
        running = np.flatnonzero(self.left)
        orders = list(self.orders[running])
        points = {order.x.ctypes.data: order.x for order in orders}
        addresses = list(points)
        point, together = np.full(self._n, -1), np.zeros(self._n, np.bool_)
        point[running] = [addresses.index(order.x.ctypes.data) for order in orders]
        together[running] = [order.together for order in orders]
        state = saved(self, self._saved) | {"together": together, "point": point}
        state["points"] = _stacked(list(points.values()), template)
        if unwanted := [*self.probes, *self.dropped]:  # orders whose results will not be used
            state["unwanted"] = np.isin(np.arange(self._n), unwanted)
        return state

    def restore(self, state: State, template: Array) -> IntArray:
        """Resume from an earlier state, and return the workers whose orders will not be used."""
        nobody = np.zeros(self._n, np.bool_)
        point, together = entry(state, "point", self.round), entry(state, "together", nobody)
        unwanted = entry({"unwanted": nobody} | state, "unwanted", nobody)
        shape = template.shape if template.size else state["points"].shape[1:]
        points = entry(state, "points", np.empty((point.max() + 1, *shape), template.dtype))
        points.flags.writeable = False
        restore_saved(self, state, self._saved)
        self.orders, self.events = np.full(self._n, None, object), []
        self.probes, self.dropped = set(), {}
        running = np.flatnonzero(self.left).tolist()
        for i in running:
            self.orders[i] = SimulatedOrder(points[point[i]], self.round.item(i), together.item(i))
        self._expect(self.due[running].tolist(), running)
        return np.flatnonzero(unwanted)


class SharedTime:
    """The virtual clock of several jobs, and when the workers that they share are done with each order."""

    def __init__(self, sharing: Sharing) -> None:
        self.now = 0.0
        self._sharing, self._queues = sharing, sharing.queues
        self._spares: dict[int, SimulatedWorkers] = {}  # by worker: for whose round it does a spare task
        self._shares: dict[SimulatedWorkers, tuple[Share, float]] = {}  # with when its own clock began
        self._ends = np.zeros(sharing.n)  # when each worker has done all that it was given
        self._done: list[
            tuple[float, int, int, SimulatedWorkers]
        ] = []  # a heap: orders, by when they are done
        self._count = 0  # of orders, so that no two are equal

    def join(self, own: SimulatedWorkers, share: Share) -> None:
        """Let a job take part, from its present time on, unless it does already."""
        self._shares.setdefault(own, (share, self.now - own.now))

    def _follow(self, own: SimulatedWorkers) -> float:
        """Let a job's own clock follow this one, and return when it began."""
        began = self._shares[own][1]
        own.now = max(own.now, self.now - began)
        return began

    def begin(self, own: SimulatedWorkers, workers: IntArray) -> Array:
        """Return when workers can begin an order of a job, on its own clock."""
        began = self._follow(own)
        return np.maximum(self._ends[workers] - began, own.now)

    def enqueue(self, own: SimulatedWorkers, workers: IntArray, order: SimulatedOrder) -> None:
        """Queue an order of a job whose times are known."""
        if order.spare:
            self._spares.update(dict.fromkeys(workers.tolist(), own))
            return
        share, began = self._shares[own]
        self._ends[workers] = ends = own.ends[workers] + began
        expected = share.expected(workers, own.left[workers]).tolist()
        for worker, end, seconds in zip(workers.tolist(), ends.tolist(), expected, strict=True):
            self._queues.append(worker, QueuedOrder(own, seconds), self.now)
            self._expect_end(own, worker, end)

    def _expect_end(self, own: SimulatedWorkers, worker: int, end: float) -> None:
        self._count += 1
        heappush(self._done, (end, self._count, worker, own))

    def advance(self, now: float) -> None:
        """Let time pass: orders that are done leave their queues, though their jobs may look later."""
        self.now = max(self.now, now)
        while self._done and self._done[0][0] <= self.now:
            end, _, worker, own = heappop(self._done)
            if own.ends.item(worker) + self._shares[own][1] == end:
                self._queues.remove(worker, own, end)

    def next_end(self) -> float:
        """Return when the next order is done, and its worker may be idle."""
        return self._done[0][0] if self._done else math.inf

    def finish(self, own: SimulatedWorkers, worker: int) -> None:
        """Take note that a job has the last result of its order, if that is still in the queue."""
        if self._spares.get(worker) is own:
            del self._spares[worker]
        self._queues.remove(worker, own, self.now)

    def withdraw(self, own: SimulatedWorkers, worker: int) -> None:
        """Let a worker proceed with its next order, earlier than planned."""
        if self._spares.get(worker) is own:
            del self._spares[worker]
            self._ends[worker] = max(self._ends.item(worker), own.free.item(worker) + self._shares[own][1])
            return
        if own not in self._shares or not self._queues.remove(worker, own, self.now):
            return
        end = max(self.now, own.free.item(worker) + self._shares[own][1])
        for queued in self._queues.lines[worker]:
            other = queued.job
            began = self._shares[other][1]
            if (earlier := other.began.item(worker) + began - end) > 0:
                other.began[worker] = end - began
                other.ends[worker] -= earlier
                other.delay(worker, other.due.item(worker) - earlier)
                self._expect_end(other, worker, other.ends.item(worker) + began)
            end = max(end, other.ends.item(worker) + began)
        self._ends[worker] = end

    def start_spares(self) -> None:
        """Let idle workers do spare tasks."""
        busy = [bool(line) or i in self._spares for i, line in enumerate(self._queues.lines)]
        self._sharing.start_spares(np.flatnonzero(~np.array(busy) & (self._ends <= self.now)).tolist())

    def drop_spares(self, workers: IntArray) -> None:
        """Stop the spare tasks of these workers."""
        for worker in workers.tolist() if self._spares else ():
            if (own := self._spares.get(worker)) is not None:
                self._follow(own)
                own.stop(np.array([worker]))

    def spares_of(self, own: SimulatedWorkers) -> IntArray:
        """Return the workers that do spare tasks for a job."""
        return np.array([worker for worker, whose in self._spares.items() if whose is own], np.int64)

    def ready_at(self, own: SimulatedWorkers, all_wanted: bool) -> float:
        """Return when the next order of a job is done, or with `all_wanted` the last one."""
        due = own.due[own.left > 0]
        return float(due.max() if all_wanted else due.min()) + self._shares[own][1] if len(due) else self.now


def _stacked(points: list[Array], template: Array) -> Array:
    """Return points like the template as one array; packed ones, of unequal lengths, are padded."""
    if template.size:
        return np.array(points, template.dtype).reshape(-1, *template.shape)
    stacked = np.zeros((len(points), max(map(len, points), default=0)), template.dtype)
    for row, point in zip(stacked, points, strict=True):
        row[: len(point)] = point
    return stacked


class SimulatedResults:
    """Computes the results of tasks, rounded as they travel, and garbled where a script of faults says so."""

    def __init__(
        self,
        problem: AnyProblem,
        seed: int,
        indices: SampleIndices | None,
        script: FaultScript,
        name: Callable[[int], str],
    ) -> None:
        self._problem, self._streams, self._indices = problem, task_streams(seed), indices
        self._wire = results_wire(problem, template_of(problem))
        self._script, self._name = script, name
        # Plain bools are faster.
        self._rounds, self._scripted = bool(self._wire), bool(script)
        self._checks = self._scripted or returns_values(problem)
        self._compute: Callable[[Array, Sequence[Task]], Any] = self._compute_first

    def of(
        self, worker: int, order: SimulatedOrder, numbers: range, seconds: list[float]
    ) -> tuple[Any, list[float]]:
        """Return the result of the tasks with these numbers, and the seconds that are reported for them."""
        tasks = [Task(self._streams, order.round, worker, number) for number in numbers]
        if self._indices is not None:
            for task, index in zip(tasks, self._indices.of(worker), strict=False):
                task.index = index
        result: Any = np.array(self._compute(order.x, tasks))
        if self._rounds:
            self._wire.round(result)
        if self._scripted:
            self._script.check_task(worker, order.round)
            result, seconds = self._script.garbled(worker, result, seconds)
        if self._checks or not surely_finite(result):
            where = f"{self._name(worker)} in round {order.round}"
            result = received(worker, result, seconds, order.x, where, math.inf)
        return result, seconds

    def _compute_first(self, x: Array, tasks: Sequence[Task]) -> Any:
        """Compute the first tasks, and warn if they draw random numbers that will not repeat."""
        self._compute = partial(compute, ProblemAbilities.of(self._problem), at_once=True)
        before = global_states()
        result = self._compute(x, tasks)
        if global_states() != before:
            log.warning(DRAWS_GLOBALLY)
        return result


class Disruptions:
    """Applies the faults of a script, and the deadlines and trials of `health`, on the virtual clock."""

    def __init__(self, workers: SimulatedWorkers, script: FaultScript, health: Health) -> None:
        self._workers, self._script, self._health, n = workers, script, health, len(workers.left)
        self.reports: deque[Lost | Back] = deque()  # to be returned by wait
        self.next = -math.inf  # when to look next: at a fault, or for a check of deadlines
        self._check = -math.inf  # when to check deadlines
        self._patience: Array = np.zeros(n)  # seconds per task within which no order is overdue
        self._refresh = 0  # the round in which to compute that again
        self._excused = np.full(n, -np.inf)  # the time from which a worker's lateness counts again
        self._dead: set[int] = set()
        script.begin(workers.now)
        for fault in script.deaths():
            if fault.time < workers.now:
                self._lose(fault)

    def clear(self) -> None:
        """Forget the deadlines of orders that have ended: there are no others."""
        self._check = math.inf
        self.next = -math.inf if self.reports else self._script.next

    def plan_check(self, workers: IntArray, round: int, counts: IntArray | int) -> None:
        """Plan when to check the orders of these workers, whose next arrivals have counts[j] tasks."""
        if round >= self._refresh:
            self._patience, self._refresh = self._health.deadlines.patience(), round + min(round, REFRESH)
        shortest = np.minimum.reduce(self._patience[workers] * counts)
        self._check = min(self._check, self._workers.now + shortest)
        self.next = min(self.next, self._check)

    def try_again(self, x: Array, round: int) -> None:
        """Give one task to each worker on probation whose time has come."""
        own = self._workers
        for worker in self._health.due(round):
            if not own.left[worker] and own.free[worker] <= own.now:
                own.probes.add(worker)
                self._health.tried(worker, round)
                own.order(np.array([worker]), SimulatedOrder(x, round, together=False), 1)
            else:
                self._health.unanswered(worker, round)

    def come_first(self, arrival: float, until: float) -> bool:
        """Apply the first fault or deadline before the next arrival; return whether there was one."""
        if self.reports:
            return True
        if not self._workers.left.any():
            raise RuntimeError("nothing is running, so there is nothing to wait for")
        fault, late, worker = self._script.next, math.inf, -1
        if min(arrival, until, fault) > self._check:
            late, worker = self._first_overdue(min(arrival, until, fault))
        self.next = min(fault, self._check)
        if (first := min(fault, late)) < arrival and first <= until:
            self._workers.now = max(self._workers.now, first)
            self.next = -math.inf
            if fault <= late:
                self._strike()
            else:
                self._suspend(worker)
            if self.reports or not arrival == until == self._script.next == math.inf:
                return True
        if arrival == until == math.inf:
            raise RunError("none of the workers that have tasks will ever answer; resume on other workers")
        return False

    def _first_overdue(self, before: float) -> tuple[float, int]:
        """Return when the first order becomes overdue, and whose; and plan the next check."""
        own = self._workers
        running = np.flatnonzero((own.left > 0) & self._health.available)
        if not running.size:
            self._check = math.inf
            return math.inf, -1
        began: Array = np.maximum(own.began, self._excused)[running]
        together = [order.together for order in own.orders[running]]
        counts = np.where(together, own.left[running], 1)
        self._check = float(np.minimum.reduce(began + counts * self._patience[running]))
        if self._check >= before:  # the workers for which this check was planned are done by now
            return math.inf, -1
        late: Array = began + self._health.deadlines.of(running, counts)
        first = int(late.argmin())
        # Deadlines depend on the times seen so far, so they are computed again after twice the time.
        self._check = min(late.item(first), 2 * before - float(began.min()))
        self._patience = self._health.deadlines.patience()
        return late.item(first), running.item(first)

    def _suspend(self, worker: int) -> None:
        """Withdraw an overdue order; a worker that hangs notices this when it wakes up."""
        own = self._workers
        begun, spent = own.begun(worker), own.now - own.began.item(worker)
        lost = self._health.overdue(worker, begun, spent, own.round.item(worker))
        if lost is None:
            self._excused[worker] = own.now
            return
        self.reports.append(lost)
        if self._script.hangs(worker, own.now):
            own.dropped[worker] = begun
            own.delay(worker, self._script.asleep_until.item(worker))
        else:
            own.stop(np.array([worker]))

    def _strike(self) -> None:
        """Let the next fault of the script happen."""
        fault, cost = self._script.strike(self._workers.due)
        if fault.kind == "die":
            self.reports.extend(self._lose(fault))
        elif cost and (due := self._workers.due.item(fault.worker)) < math.inf:
            self._workers.delay(fault.worker, due + cost)

    def _lose(self, fault: Fault) -> list[Lost]:
        """Remove a worker with the tasks that it has begun, unless it is dead already."""
        worker = fault.worker
        if worker in self._dead:
            return []
        self._dead.add(worker)
        tasks = self._workers.lose(np.array([worker])).item()
        return [self._health.died(worker, tasks, f"it vanished at {fault.time:g} s on the virtual clock")]

    def reject(self, worker: int, count: int, error: RunError) -> Lost | None:
        """Report a task that failed, or whose result cannot be used."""
        probe, round = worker in self._workers.probes, self._workers.round.item(worker)
        self._workers.waste(worker, count)
        return self._health.failed(worker, 0 if probe else count, error, round)


class VirtualCluster(Farming):
    """Simulates n workers in one process; the same seed gives the same run, bit for bit.

    `faults` happen to workers at times on the virtual clock; `deaths`, which maps workers to the time at
    which they die, is short for faults of that kind.  `policy` says what is done about them; with neither
    policy nor faults there are no deadlines, since nobody can hang.  `overhead` says how many seconds orders
    spend on the way, for example `Traffic` on a network; none if it is not given.
    """

    simulated = True

    def __init__(
        self,
        problem: AnyProblem,
        times: DrawnTimes,
        seed: int = 0,
        deaths: Mapping[int, float] | None = None,
        faults: Sequence[Fault] = (),
        policy: FaultPolicy | None = None,
        overhead: Overhead | None = None,
    ) -> None:
        note_simulation()
        self.n = times.n
        self.ledger = Ledger(self.n)
        self.grace_expired: Callable[[], bool] = lambda: False  # whether to give up waiting
        dying = [Fault(time, worker, "die") for worker, time in (deaths or {}).items()]
        self._script = FaultScript(self.n, [*faults, *dying])
        self._scripted = bool(self._script)  # a plain bool is faster
        self.draws = sample_indices_for(problem)
        self._workers = SimulatedWorkers(times, self._script, self.ledger, self.draws, overhead)
        self._problem, self._times, self._policy = problem, times, policy
        self._template, self._computes = template_of(problem), returns_values(problem)
        self._points = point_wire(problem, self._template)
        self._watched = policy is not None or bool(faults)  # whether orders have deadlines
        self._results = SimulatedResults(problem, seed, self.draws, self._script, self._name)
        self._begin()
        set_up(problem, None, self.n)

    def _begin(self) -> None:
        """Begin with all workers except those that are dead by now."""
        self.health = Health(self.ledger.stats, self._policy, name=self._name)
        self.available = self.health.available
        self._disruptions = Disruptions(self._workers, self._script, self.health)

    @cached_property
    def identities(self) -> tuple[WorkerIdentity, ...]:
        """Each worker by its index, and by the law of its times instead of hardware."""
        law = drawn_identity(VIRTUAL, 0, self._times.label)
        return tuple(law._replace(local_index=worker) for worker in range(self.n))

    def _name(self, worker: int) -> str:
        return named(worker, drawn_identity(VIRTUAL, worker, self._times.label))

    def now(self) -> float:
        """Return the time on the virtual clock."""
        return self._workers.now

    def start(
        self,
        workers: IntArray,
        x: Any,
        round: int,
        counts: IntArray | int = 1,
        together: bool = False,
        summed: bool = False,
    ) -> None:
        """Order tasks at the point x: counts[j] of them from workers[j]."""
        workers, own = np.asarray(workers), self._workers
        if not workers.size:
            return
        if own.shared is not None:
            own.shared.drop_spares(workers)
        if own.left[workers].any():
            raise RuntimeError("a worker holds one order at a time; stop it first")
        if not self.health.everyone and not self.available[workers].all():
            raise RuntimeError(f"workers {workers[~self.available[workers]]} are lost and cannot be started")
        x = pack(x, "x") if self._computes else x
        x.flags.writeable = False  # for the caller too: tasks read it later
        x = self._points.rounded(x).view()  # which no task can make writeable again
        if not own.left.any():
            self._disruptions.clear()
        if round >= self.health.next_trial:
            self._disruptions.try_again(x, round)
        own.order(workers, SimulatedOrder(x, round, together, summed), counts)
        if self.draws is not None:
            self.draws.take(workers.tolist(), own.left[workers].tolist())
        if self._watched:
            self._disruptions.plan_check(workers, round, counts if together else 1)

    def wait(self, timeout: float | None = None) -> Arrival | Lost | Back:
        """Advance the clock to the next arrival and compute it, or to the next loss or return."""
        return self._first(timeout)

    def _first(self, timeout: float | None = None) -> Arrival | Lost | Back:
        if self.grace_expired():
            raise GraceExpired
        until = math.inf if timeout is None else self._workers.now + timeout
        while (found := self._next(until)) is None:
            pass
        return found

    def wait_some(self, tasks: int) -> list[Arrival | Lost | Back]:
        """Return what comes next, up to this many tasks; nothing is computed after a loss or a return."""
        some = [first := self._first()]
        latest: Arrival | Lost | Back | None = first
        while isinstance(latest, Arrival) and (tasks := tasks - len(latest.seconds)) > 0:
            while (latest := self._next(math.inf)) is None:
                pass
            some.append(latest)
        return some

    def _next(self, until: float) -> Arrival | Lost | Back | None:
        """Advance the clock to what comes next; None if that is nothing to report."""
        own, disruptions = self._workers, self._disruptions
        events, due = own.events, own.due
        while events and events[0][0] != due[events[0][1]]:  # stopped in the meantime
            heappop(events)
        arrival = events[0][0] if events else math.inf
        if (arrival > disruptions.next or not events) and disruptions.come_first(arrival, until):
            return disruptions.reports.popleft() if disruptions.reports else None
        if arrival > until:
            waited, own.now = until - own.now, until
            raise TimeoutError(f"nothing arrived within {waited:g} seconds")
        own.now, worker = heappop(events)
        return self._deliver(worker)

    def _deliver(self, worker: int) -> Arrival | Lost | Back | None:
        """Compute what is due; None if there is nothing to report."""
        own = self._workers
        if worker in own.dropped:
            own.waste(worker, own.dropped[worker])
            return None
        order, number = own.orders[worker], own.number.item(worker)
        count = own.left.item(worker) if order.together else 1
        seconds = [own.seconds.item(worker)]
        if count > 1 or self._scripted:
            seconds = own.task_seconds(worker, count)
        try:
            result, seconds = self._results.of(worker, order, range(number, number + count), seconds)
        except RunError as error:
            return self._disruptions.reject(worker, count, error)
        if worker in own.probes:
            own.waste(worker, 1)
            return self.health.answered(worker, seconds[0])
        overhead = own.overhead_of(worker, seconds)
        self.ledger.deliver(worker, seconds, math.fsum(seconds), overhead)
        if self.draws is not None:
            self.draws.deliver(worker, count)
        own.proceed(worker, count)
        return Arrival(worker, result, seconds, overhead)

    def stop(self, workers: IntArray) -> Array:
        """Stop what these workers have not delivered and return the seconds that each spent on it."""
        return self._workers.stop(workers)

    def overruns(self) -> dict[int, float]:
        """Return the seconds that workers spent on stopped tasks, after the stop, since the last call."""
        return self._workers.overruns()

    def idle(self) -> IntArray:
        """Return the workers that hold no order."""
        return np.flatnonzero(self._workers.left == 0)

    def state(self) -> State:
        """Return clock, accounts and all orders in flight; a point shared by several orders is saved once."""
        state = self.ledger.state() | self._workers.state(self._template)
        return state if self.draws is None else state | self.draws.state()

    def restore(self, state: State, workers: State | None = None) -> None:
        """Resume from an earlier state, bit for bit as if there had been no break.

        Everyone is available again but the dead; orders of workers that were not are lost.
        """
        unwanted = self._workers.restore(state, self._template)
        self.ledger.restore(state, workers)
        self._begin()
        if self.draws is not None:
            self.draws.restore(state, idle=False)
        self._workers.lose(unwanted)

    def take_over(self, workers: State, rows: list[tuple[int, int]]) -> None:
        """Start from what is saved of other workers: `rows` pairs a worker here with its row there."""
        self.ledger.take_over(workers, rows)

    def close(self) -> None:
        """Stop everyone."""
        self.stop(np.arange(self.n))


class SharedVirtualCluster(VirtualCluster):
    """The view of one of several jobs that share simulated workers, after share() was called."""

    missing = 0

    def share(self, time: SharedTime, share: Share) -> "SharedVirtualCluster":
        """Share the workers with other jobs, on one clock."""
        self._time, self._share = time, share
        self._workers.shared = time
        return self

    def divide(self, a: IntArray) -> IntArray:
        """Return the quotas of a round, given what other jobs have ordered."""
        self._time.join(self._workers, self._share)
        self._share.learn(self.ledger)
        return self._share.divide(a, self.available, self._time.now)

    def wait(self, timeout: float | None = None) -> Arrival | Lost | Back:
        """Let other jobs run until this one has its next arrival, and return it."""
        self._share.wait(partial(self._time.ready_at, self._workers, all_wanted=False))
        return super().wait(timeout)

    def wait_some(self, tasks: int) -> list[Arrival | Lost | Back]:
        """Let other jobs run until this one has all that it waits for, or with spares the next of it."""
        own, spares = self._workers, self._share.spares
        all_wanted, self.missing = not spares and tasks == own.left.sum(), tasks
        self._share.wait(partial(self._time.ready_at, own, all_wanted=all_wanted))
        self.missing = 0
        return [self._first()] if spares else super().wait_some(tasks)

    def can_spare(self, worker: int) -> bool:
        """Return whether an idle worker can do a spare task for this job."""
        return bool(self.available[worker])

    def start_spare(self, worker: int) -> None:
        """Let an idle worker do one more task of the present round."""
        own, workers = self._workers, np.array([worker])
        order: SimulatedOrder = next(order for order in own.orders if order is not None)
        own.order(workers, replace(order, spare=True), 1)
        if self.draws is not None:
            self.draws.take([worker], [1])

    def stop(self, workers: IntArray) -> Array:
        """Stop what these workers have not delivered, and all spare tasks: the round is over."""
        self._time.drop_spares(self._time.spares_of(self._workers))
        return super().stop(workers)
