"""The in-process cluster: drawn task times on a virtual clock, results computed only when they arrive."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from heapq import heappop
from typing import Any

import numpy as np

from mpi_ata.arrays import Array, IntArray, State
from mpi_ata.clusters.accounts import Ledger
from mpi_ata.clusters.bfloat16 import point_wire
from mpi_ata.clusters.computations import set_up, template_of
from mpi_ata.clusters.farm import Farming
from mpi_ata.clusters.faults import Fault, FaultScript
from mpi_ata.clusters.health import FaultPolicy, Health
from mpi_ata.clusters.identity import VIRTUAL, WorkerIdentity, drawn_identity
from mpi_ata.clusters.interface import Arrival, Back, Lost, named
from mpi_ata.clusters.sample_indices import sample_indices_for
from mpi_ata.clusters.simulated import (
    Disruptions,
    Overhead,
    SimulatedOrder,
    SimulatedResults,
    SimulatedWorkers,
)
from mpi_ata.errors import RunError
from mpi_ata.launch.environment import note_simulation
from mpi_ata.launch.signals import GraceExpired
from mpi_ata.packing import pack
from mpi_ata.problems import AnyProblem, returns_values
from mpi_ata.times import DrawnTimes


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
        if self.grace_expired():
            raise GraceExpired
        until = math.inf if timeout is None else self._workers.now + timeout
        while (found := self._next(until)) is None:
            pass
        return found

    def wait_some(self, tasks: int) -> list[Arrival | Lost | Back]:
        """Return what comes next, up to this many tasks; nothing is computed after a loss or a return."""
        some = [first := self.wait()]
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
