"""The in-process cluster: drawn task times on a virtual clock, results computed only when they arrive."""

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from heapq import heappop
from typing import Any

import numpy as np

from mpi_ata.arrays import Array, IntArray, State, entry
from mpi_ata.clusters.draws import draws_for
from mpi_ata.clusters.farm import Farming
from mpi_ata.clusters.faults import Fault, FaultScript
from mpi_ata.clusters.health import FaultPolicy, Health
from mpi_ata.clusters.identity import VIRTUAL, WorkerIdentity, drawn_identity
from mpi_ata.clusters.interface import (
    DRAWS_GLOBALLY,
    Arrival,
    Back,
    Lost,
    compute,
    named,
    received,
    set_up,
    surely_finite,
)
from mpi_ata.clusters.ledger import Ledger
from mpi_ata.clusters.simulated import Order, Overhead, SimulatedWorkers
from mpi_ata.clusters.values import template_of
from mpi_ata.clusters.wire import point_wire, results_wire
from mpi_ata.errors import BadResultError, RunError
from mpi_ata.launch.rank_process import note_simulation
from mpi_ata.launch.signals import GraceExpired
from mpi_ata.packing import pack
from mpi_ata.problems import AnyProblem, Task, returns_values, task_streams
from mpi_ata.randomness import global_states
from mpi_ata.times import DrawnTimes

log = logging.getLogger("mpi_ata")
REFRESH = 32  # rounds after which deadlines are known to be about right


class VirtualCluster(Farming):
    """Simulates n workers in one process; the same seed gives the same run, bit for bit.

    `faults` happen to workers at times on the virtual clock; `deaths`, which maps workers to the time at
    which they die, is short for faults of that kind.  `policy` says what is done about them; with neither
    policy nor faults there are no deadlines, since nobody can hang.  `overhead` is a function of the
    round, which returns the seconds that each worker's orders spend on the way: none unless given.
    """

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
        self._workers = SimulatedWorkers(times, self._script, overhead)
        self._problem, self._times, self._streams = problem, times, task_streams(seed)
        self._template, self._computes = template_of(problem), returns_values(problem)
        self._points, self._results = (wire(problem, self._template) for wire in (point_wire, results_wire))
        self._rounds = bool(self._results)  # a plain bool is faster
        self._policy = policy
        self._compute = self._compute_first
        self._watched = policy is not None or bool(faults)  # whether orders have deadlines
        self.draws = draws_for(problem)
        self._begin()
        set_up(problem, None, self.n)

    def _begin(self) -> None:
        """Begin with all workers except those that are dead by now."""
        self.health = Health(self.ledger.stats, self._policy, name=self._name)
        self.available = self.health.available
        self._dead: set[int] = set()
        self._probes: set[int] = set()  # workers on probation whose order is to try them
        self._dropped: dict[int, int] = {}  # tasks begun in orders that end unused when their worker wakes up
        self._reports: deque[Lost | Back] = deque()  # to be returned by wait
        self._patience: Array = np.zeros(self.n)  # seconds per task within which no order is overdue
        self._refresh = 0  # the round in which to learn that again
        self._excused = np.full(self.n, -np.inf)  # until when it does not count that a worker was late
        self._deadlines_at = self._look_at = -math.inf  # when to check deadlines; that or the next fault
        self._script.begin(self._workers.now)
        for fault in self._script.deaths():
            if fault.time < self._workers.now:
                self._lose(fault)

    @cached_property
    def identities(self) -> tuple[WorkerIdentity, ...]:
        """Each worker by its index, and by the law of its times instead of hardware."""
        return tuple(drawn_identity(VIRTUAL, worker, self._times.label) for worker in range(self.n))

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
        if own.left[workers].any():
            raise RuntimeError("a worker holds one order at a time; stop it first")
        if not self.health.everyone and not self.available[workers].all():
            raise RuntimeError(f"workers {workers[~self.available[workers]]} are lost and cannot be started")
        x = pack(x, "x") if self._computes else x
        x.flags.writeable = False  # for the caller too: tasks read it later
        x = self._points.rounded(x).view()  # which no task can make writeable again
        if not own.left.any():
            self._deadlines_at = math.inf
            self._look_at = -math.inf if self._reports else self._script.next
        if round >= self.health.next_trial:
            self._try_again(x, round)
        own.order(workers, Order(x, round, together), counts)
        if self.draws is not None:
            self.draws.take(workers.tolist(), own.left[workers].tolist())
        if self._watched:
            self._watch(workers, round, counts if together else 1)

    def _watch(self, workers: IntArray, round: int, counts: IntArray | int) -> None:
        """Plan when to check the deadlines of these workers, whose next arrivals have counts[j] tasks."""
        own = self._workers
        if round >= self._refresh:
            self._patience, self._refresh = self.health.deadlines.patience(), round + min(round, REFRESH)
        patience = self._patience[workers]
        shortest = np.minimum.reduce(patience * counts)
        self._deadlines_at = min(self._deadlines_at, own.now + shortest)
        self._look_at = min(self._look_at, self._deadlines_at)

    def _try_again(self, x: Array, round: int) -> None:
        """Give one task to each worker on probation whose time has come."""
        for worker in self.health.due(round):
            if not self._workers.left[worker] and self._workers.free[worker] <= self._workers.now:
                self._probes.add(worker)
                self.health.tried(worker, round)
                self._workers.order(np.array([worker]), Order(x, round, together=False), 1)
            else:
                self.health.unanswered(worker, round)

    def wait(self, timeout: float | None = None) -> Arrival | Lost | Back:
        """Advance the clock to the next arrival and compute it, or to the next loss or return."""
        own, due = self._workers, self._workers.due
        until = math.inf if timeout is None else own.now + timeout
        while True:
            if self.grace_expired():
                raise GraceExpired
            events = own.events
            while events and events[0][0] != due[events[0][1]]:  # stopped in the meantime
                heappop(events)
            arrival = events[0][0] if events else math.inf
            if (arrival > self._look_at or not events) and self._interrupted(arrival, until):
                if self._reports:
                    return self._reports.popleft()
                continue
            if arrival > until:
                own.now = until
                raise TimeoutError(f"nothing arrived within {timeout} seconds")
            own.now, worker = heappop(events)
            if (found := self._deliver(worker)) is not None:
                return found

    def _interrupted(self, arrival: float, until: float) -> bool:
        """Let the first thing happen that comes before the next arrival, if anything does."""
        if self._reports:
            return True
        if not self._workers.left.any():
            raise RuntimeError("nothing is running, so there is nothing to wait for")
        fault, late, worker = self._script.next, math.inf, -1
        if min(arrival, until, fault) > self._deadlines_at:
            late, worker = self._first_overdue(min(arrival, until, fault))
        self._look_at = min(fault, self._deadlines_at)
        if (first := min(fault, late)) < arrival and first <= until:
            self._workers.now = max(self._workers.now, first)
            self._look_at = -math.inf
            if fault <= late:
                self._strike()
            else:
                self._suspend(worker)
            if self._reports or not arrival == until == self._script.next == math.inf:
                return True
        if arrival == until == math.inf:
            raise RunError("none of the workers that have tasks will ever answer; resume on other workers")
        return False

    def _first_overdue(self, before: float) -> tuple[float, int]:
        """Return when the first order becomes overdue, and whose; and plan the next check of deadlines."""
        own = self._workers
        running = np.flatnonzero((own.left > 0) & self.available)
        if not running.size:
            self._deadlines_at = math.inf
            return math.inf, -1
        began: Array = np.maximum(own.began, self._excused)[running]
        together = [order.together for order in own.orders[running]]
        counts = np.where(together, own.left[running], 1)
        self._deadlines_at = float(np.minimum.reduce(began + counts * self._patience[running]))
        if self._deadlines_at >= before:  # the workers that made a check necessary are done by now
            return math.inf, -1
        late: Array = began + self.health.deadlines.of(running, counts)
        first = int(late.argmin())
        # Deadlines depend on what is known, so they are computed again after twice the time.
        self._deadlines_at = min(late.item(first), 2 * before - float(began.min()))
        self._patience = self.health.deadlines.patience()
        return late.item(first), running.item(first)

    def _suspend(self, worker: int) -> None:
        """Withdraw an overdue order; a worker that hangs notices this when it wakes up."""
        own = self._workers
        begun, spent = own.begun(worker), own.now - own.began.item(worker)
        lost = self.health.overdue(worker, begun, spent, own.round.item(worker))
        if lost is None:
            self._excused[worker] = own.now  # as late again, it is overdue again
            return
        self._reports.append(lost)
        if self._script.hangs(worker, own.now):
            self._dropped[worker] = begun
            own.delay(worker, self._script.asleep_until.item(worker))
        else:
            self.stop(np.array([worker]))

    def _strike(self) -> None:
        """Let the next fault of the script happen."""
        fault, cost = self._script.strike(self._workers.due)
        if fault.kind == "die":
            self._reports.extend(self._lose(fault))
        elif cost and (due := self._workers.due.item(fault.worker)) < math.inf:
            self._workers.delay(fault.worker, due + cost)

    def _lose(self, fault: Fault) -> list[Lost]:
        """Let a worker vanish with the tasks that it has begun, unless it is dead already."""
        worker = fault.worker
        if worker in self._dead:
            return []
        self._dead.add(worker)
        tasks = self._workers.begun(worker)
        self.ledger.lose(worker, tasks)
        self._drop(np.array([worker]))
        return [self.health.died(worker, tasks, f"it vanished at {fault.time:g} s on the virtual clock")]

    def _deliver(self, worker: int) -> Arrival | Lost | Back | None:
        """Compute what is due; None if there is nothing to report."""
        own = self._workers
        if worker in self._dropped:
            self._waste(worker, self._dropped[worker])
            return None
        order, number = own.orders[worker], own.number.item(worker)
        count = own.left.item(worker) if order.together else 1
        seconds = [own.seconds.item(worker)]
        if count > 1 or self._scripted:
            seconds = own.task_seconds(worker, count)
        tasks = [Task(self._streams, order.round, worker, u) for u in range(number, number + count)]
        if self.draws is not None:
            for task, index in zip(tasks, self.draws.of(worker), strict=False):
                task.index = index
        try:
            result: Any = np.array(self._compute(order.x, tasks))
            if self._rounds:
                self._results.round(result)
            if self._scripted:
                self._script.check_task(worker, order.round)
                result, seconds = self._script.garbled(worker, result, seconds)
            if self._scripted or self._computes or not surely_finite(result):
                where = f"{self._name(worker)} in round {order.round}"
                result = received(worker, result, seconds, order.x, where, math.inf)
        except RunError as error:
            return self._reject(worker, count, error)
        if worker in self._probes:
            self._waste(worker, 1)
            return self.health.answered(worker, seconds[0])
        overhead = own.overhead_of(worker, seconds)
        self.ledger.deliver(worker, seconds, math.fsum(seconds), overhead)
        if self.draws is not None:
            self.draws.deliver(worker, count)
        own.proceed(worker, count)
        return Arrival(worker, result, seconds, overhead)

    def _compute_first(self, x: Array, tasks: Sequence[Task]) -> Array:
        """Compute the first tasks, and warn if they draw random numbers that will not repeat."""
        self._compute = partial(compute, self._problem, at_once=True)
        before = global_states()
        result = self._compute(x, tasks)
        if global_states() != before:
            log.warning(DRAWS_GLOBALLY)
        return result

    def _reject(self, worker: int, count: int, error: RunError) -> Lost | None:
        """Report a task that failed, or whose result cannot be used."""
        probe, round = worker in self._probes, self._workers.round.item(worker)
        self._waste(worker, count)
        report = self.health.bad_result if isinstance(error, BadResultError) else self.health.failed
        return report(worker, 0 if probe else count, error, round)

    def _waste(self, worker: int, tasks: int) -> None:
        """End an order, and book tasks of it that nobody will use."""
        own = self._workers
        self.ledger.stop(worker, tasks, own.now - own.began.item(worker))
        own.number[worker] += tasks
        self._drop(np.array([worker]))

    def stop(self, workers: IntArray) -> Array:
        """Stop what these workers have not delivered and return the seconds that each spent on it."""
        workers, own = np.asarray(workers), self._workers
        if not workers.size:
            return np.zeros(0)
        begun = ((own.left[workers] > 0) & (own.began[workers] <= own.now)).astype(np.int64)
        spent: Array = begun * (own.now - own.began[workers])
        for j, order in enumerate(own.orders[workers]):
            if order is not None and order.together:
                begun[j] = own.begun(int(workers[j]))
        rest = 0.0 if self._times.stoppable else own.finish(workers, begun)
        self.ledger.stop(workers, begun, spent + rest)
        own.number[workers] += begun
        self._drop(workers)
        return spent

    def _drop(self, workers: IntArray) -> None:
        """Drop the orders of these workers."""
        self._workers.drop(workers)
        if self.draws is not None:
            for worker in workers.tolist():
                self.draws.give_back(worker)
        if self._probes or self._dropped:
            for worker in workers.tolist():
                self._probes.discard(worker)
                self._dropped.pop(worker, None)

    def overruns(self) -> dict[int, float]:
        """Return the seconds that workers spent on stopped tasks, after the stop, since the last call."""
        return self._workers.overruns()

    def idle(self) -> IntArray:
        """Return the workers that hold no order."""
        return np.flatnonzero(self._workers.left == 0)

    def state(self) -> State:
        """Return clock, accounts and all orders in flight; a point shared by several orders is saved once."""
        state = self.ledger.state() | self._workers.state(self._template)
        if self._probes or self._dropped:
            state["unwanted"] = np.isin(np.arange(self.n), [*self._probes, *self._dropped])
        return state if self.draws is None else state | self.draws.state()

    def restore(self, state: State, workers: State | None = None) -> None:
        """Resume from an earlier state, bit for bit as if there had been no break.

        Everyone is available again but the dead; orders of workers that were not are lost.
        """
        nobody = np.zeros(self.n, np.bool_)
        unwanted = np.flatnonzero(entry({"unwanted": nobody} | state, "unwanted", nobody))
        self._workers.restore(state, self._template)
        self.ledger.restore(state, workers)
        self._begin()
        if self.draws is not None:
            self.draws.restore(state, idle=False)
        self.ledger.lose(unwanted, np.array([self._workers.begun(i) for i in unwanted.tolist()], np.int64))
        self._drop(unwanted)

    def take_over(self, workers: State, rows: list[tuple[int, int]]) -> None:
        """Start from what is saved of other workers: `rows` pairs a worker here with its row there."""
        self.ledger.take_over(workers, rows)

    def close(self) -> None:
        """Stop everyone."""
        self.stop(np.arange(self.n))
