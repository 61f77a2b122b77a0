"""What happens to simulated workers besides their tasks: faults, overdue orders, and trials."""

import math
from collections import deque

import numpy as np

from mpi_ata.arrays import Array, IntArray
from mpi_ata.clusters.faults import Fault, FaultScript
from mpi_ata.clusters.health import Health
from mpi_ata.clusters.interface import Back, Lost
from mpi_ata.clusters.simulated import Order, SimulatedWorkers
from mpi_ata.clusters.simulated_deadlines import DeadlineChecks
from mpi_ata.clusters.simulated_endings import Endings
from mpi_ata.errors import BadResultError, RunError


class Disruptions:
    """Applies the faults of a script and the rules of `health` on the virtual clock."""

    def __init__(
        self, workers: SimulatedWorkers, script: FaultScript, health: Health, endings: Endings
    ) -> None:
        self._workers, self._script, self._health, self._endings = workers, script, health, endings
        self._checks = DeadlineChecks(workers, health)
        self._dead: set[int] = set()
        self.reports: deque[Lost | Back] = deque()  # to be returned by wait
        self.next = -math.inf  # when to look next: at a fault, or for a check of deadlines
        script.begin(workers.now)
        for fault in script.deaths():
            if fault.time < workers.now:
                self._lose(fault)

    def clear(self) -> None:
        """Forget the deadlines of orders that have ended: there are no others."""
        self._checks.clear()
        self.next = -math.inf if self.reports else self._script.next

    def plan_check(self, workers: IntArray, round: int, counts: IntArray | int) -> None:
        """Plan when to check the orders of these workers, whose next arrivals have counts[j] tasks."""
        self._checks.plan(workers, round, counts)
        self.next = min(self.next, self._checks.due)

    def try_again(self, x: Array, round: int) -> None:
        """Give one task to each worker on probation whose time has come."""
        for worker in self._health.due(round):
            if not self._workers.left[worker] and self._workers.free[worker] <= self._workers.now:
                self._endings.probes.add(worker)
                self._health.tried(worker, round)
                self._workers.order(np.array([worker]), Order(x, round, together=False), 1)
            else:
                self._health.unanswered(worker, round)

    def come_first(self, arrival: float, until: float) -> bool:
        """Apply the first fault or deadline before the next arrival; return whether there was one."""
        if self.reports:
            return True
        if not self._workers.left.any():
            raise RuntimeError("nothing is running, so there is nothing to wait for")
        fault, late, worker = self._script.next, math.inf, -1
        if min(arrival, until, fault) > self._checks.due:
            late, worker = self._checks.first_overdue(min(arrival, until, fault))
        self.next = min(fault, self._checks.due)
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

    def _suspend(self, worker: int) -> None:
        """Withdraw an overdue order; a worker that hangs notices this when it wakes up."""
        own = self._workers
        begun, spent = own.begun(worker), own.now - own.began.item(worker)
        lost = self._health.overdue(worker, begun, spent, own.round.item(worker))
        if lost is None:
            self._checks.excuse(worker)
            return
        self.reports.append(lost)
        if self._script.hangs(worker, own.now):
            self._endings.dropped[worker] = begun
            own.delay(worker, self._script.asleep_until.item(worker))
        else:
            self._endings.stop(np.array([worker]))

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
        tasks = self._endings.lose(np.array([worker])).item()
        return [self._health.died(worker, tasks, f"it vanished at {fault.time:g} s on the virtual clock")]

    def reject(self, worker: int, count: int, error: RunError) -> Lost | None:
        """Report a task that failed, or whose result cannot be used."""
        probe, round = worker in self._endings.probes, self._workers.round.item(worker)
        self._endings.waste(worker, count)
        report = self._health.bad_result if isinstance(error, BadResultError) else self._health.failed
        return report(worker, 0 if probe else count, error, round)
