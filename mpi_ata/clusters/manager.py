"""The manager's side of the MPI cluster; worker.py is its mirror."""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import repeat
from typing import Any

import numpy as np

from mpi_ata.arrays import Array, IntArray, State, entry
from mpi_ata.clusters.connections import Connections
from mpi_ata.clusters.evaluator import Evaluator
from mpi_ata.clusters.exchange.choice import Choice
from mpi_ata.clusters.exchange.fetching import fetched
from mpi_ata.clusters.exchange.gathering import Gathering
from mpi_ata.clusters.exchange.replica import Replica
from mpi_ata.clusters.exchange.route import Route
from mpi_ata.clusters.farm import Farming
from mpi_ata.clusters.health import FaultPolicy
from mpi_ata.clusters.identity import WorkerIdentity
from mpi_ata.clusters.interface import Arrival, Arrivals, Back, Lost
from mpi_ata.clusters.ledger import in_flight
from mpi_ata.clusters.mpi import MPI
from mpi_ata.clusters.notes import log_notes
from mpi_ata.clusters.pool import WorkerPool, may_batch
from mpi_ata.clusters.reception import Reception
from mpi_ata.clusters.setups import set_up_all
from mpi_ata.clusters.shutdown import Shutdown
from mpi_ata.clusters.values import template_of
from mpi_ata.errors import LossError
from mpi_ata.launch import host_name
from mpi_ata.launch.signals import GraceExpired
from mpi_ata.packing import EMPTY, Packed, pack
from mpi_ata.problems import AnyProblem, returns_values

LOOK = 0.5  # seconds between two checks for overdue workers


class MPICluster(Farming):
    """Real workers on the ranks of a communicator, whose manager constructs this.

    `grace_expired` says whether to give up waiting, `drawn` whether reported times are not measured.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        problem: AnyProblem,
        digest: bytes = b"",
        times: str = "",
        grace_expired: Callable[[], bool] = lambda: False,
        policy: FaultPolicy | None = None,
        drawn: bool = False,
        exchange: str = "star",
    ) -> None:
        self._problem, self._template = problem, template_of(problem)
        self._computes = returns_values(problem)  # packed values
        self._connections = Connections(comm, self._template, digest, exchange)
        self._pool = pool = WorkerPool(
            self._connections, problem, self._template, times, grace_expired, policy
        )
        self.n, self.ledger, self.available, self.draws = pool.n, pool.ledger, pool.available, pool.draws
        self._orders = pool.orders
        self._gathering = Gathering(pool, Choice(exchange, host_name(), self._template.nbytes))
        self._reception = Reception(pool, self._gathering, drawn)
        self._evaluator = Evaluator(pool, self._reception)
        self._shutdown = Shutdown(pool, self._reception)
        self._batches = may_batch(pool)
        self._replica: Replica | None = None  # the point, where workers have it
        self.replicates = False  # whether workers know the update of the method
        self._next_look = 0.0  # for overdue workers
        try:
            set_up_all(pool, self._reception)
        except BaseException:
            self.abort()
            raise

    @property
    def identities(self) -> tuple[WorkerIdentity, ...]:
        """Who the workers are, so that later runs recognise them."""
        return self._pool.identities

    @property
    def grace_expired(self) -> Callable[[], bool]:
        """Says whether to give up waiting."""
        return self._pool.grace_expired

    @grace_expired.setter
    def grace_expired(self, expired: Callable[[], bool]) -> None:
        self._pool.grace_expired = expired

    @property
    def ended_for_good(self) -> bool:
        """Whether no further run can follow on these ranks."""
        return self._shutdown.ended_for_good

    @property
    def sharing(self) -> set[int]:
        """The workers that share memory with the manager."""
        return self._orders.sharing

    def log_notes(self, sleeping: bool) -> None:
        """Log what the user should know about these ranks; `sleeping` if their tasks mostly sleep."""
        log_notes(self._pool, sleeping)

    def joules(self) -> float:
        """Return the energy that all nodes but the manager's have used so far; NaN where it is not known."""
        return self._connections.joules()

    def now(self) -> float:
        """Return the time on the manager's monotonic clock."""
        return time.perf_counter()

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
        if isinstance(x, Replica):
            self._start_replicated(workers, x, round, counts, together and summed)
            return
        if self._computes:
            x = pack(x, "x")
        elif x.shape != self._template.shape or x.dtype != self._template.dtype:
            raise ValueError(
                f"x is {x.dtype} of shape {x.shape}, but x0 {self._template.dtype} {self._template.shape}"
            )
        x.flags.writeable = False  # for the caller too: later orders may use a copy made now
        x = self._pool.points.rounded(x)
        route = self._gathering.route(workers.tolist()) if together and summed else None
        if together and route is None and self._start_batch(workers, x, round, counts):
            return
        self._order(workers, x, round, counts, together, route)
        if route is not None:
            self._gathering.begin(workers.tolist(), route, x)
        if round >= self._pool.health.next_trial:
            self._pool.try_again(x, round)

    def _start_batch(self, workers: IntArray, x: Array, round: int, counts: IntArray | int) -> bool:
        """Order tasks as one batch, if arrays are small and nothing else is under way; return whether so."""
        if not self._batches or round >= self._pool.health.next_trial:
            return False
        each = [counts] * len(workers) if isinstance(counts, int) else counts.tolist()
        return self._orders.start_batch(workers, x, round, each, self._reception.slack)

    def _start_replicated(
        self, workers: IntArray, replica: Replica, round: int, counts: IntArray | int, summed: bool
    ) -> None:
        """Order tasks at a point that workers have, if they can share the sum."""
        replica.fetch = self._fetch
        self._replica = replica
        budget = int(np.broadcast_to(counts, len(workers)).sum())
        route = self._gathering.replicated(workers.tolist(), replica, budget) if summed else None
        if route is None:
            self.start(workers, replica.value(), round, counts, together=True)
            return
        self._order(workers, EMPTY, round, counts, True, route)
        self._gathering.begin(workers.tolist(), route, replica)
        if round >= self._pool.health.next_trial:
            self._pool.try_again(replica.value(), round)

    def _fetch(self, replica: Replica) -> Packed:
        return fetched(self._connections, replica, self._pool.grace_expired)

    def _order(
        self,
        workers: IntArray,
        x: Array,
        round: int,
        counts: IntArray | int,
        together: bool,
        route: Route | None,
    ) -> None:
        """Send the orders of a round."""
        each = repeat(counts) if isinstance(counts, int) else counts.tolist()
        if self.draws is not None:
            self.draws.take(workers.tolist(), np.broadcast_to(counts, len(workers)).tolist())
        self._orders.start(workers.tolist(), x, round, each, together, route)

    def wait(self, timeout: float | None = None) -> Arrival | Lost | Back:
        """Return the next arrival, or the next worker that is lost or back."""
        until = math.inf if timeout is None else self.now() + timeout
        connections, pool = self._connections, self._pool
        while self._orders.running or pool.found or pool.arrived:
            if pool.arrived or pool.found:
                return pool.arrived.pop(0) if pool.arrived else pool.found.pop(0)
            message = connections.next_message(until, pool.grace_expired)
            found = None if message is None else self._reception.handle(message)
            if connections.drained and time.perf_counter() >= self._next_look:  # all answers are read
                self._next_look = self.now() + LOOK
                self._find_overdue()
            self._gathering.check()
            if found is not None:
                return found
            if message is None and self.now() >= until and not pool.found:
                raise TimeoutError(f"nothing arrived within {timeout} seconds")
        raise RuntimeError("nothing is running, so there is nothing to wait for")

    def _find_overdue(self) -> None:
        """Suspend workers that are overdue; those that wait for each other deliver by the star first."""
        late = self._pool.overdue(self.now())
        if waiting := [worker for worker, order, _ in late if order.route is not None]:
            self._gathering.dissolve(f"nothing came from the workers {waiting}")
            return
        for worker, order, silent in late:
            self._pool.suspect(worker, silent, order.round)

    def wait_all(self) -> Arrivals | None:
        """Return all results of a batch of orders, if they come soon and as expected; otherwise None."""
        batch, pool = self._orders.batch, self._pool
        if batch is None or pool.found or pool.arrived or pool.grace_expired():
            return None
        arrivals = self._reception.arrive_all(batch) if self._connections.all_arrive(batch) else None
        if arrivals is None:
            self._orders.split_batch()
        return arrivals

    def wait_some(self, tasks: int) -> list[Arrival | Lost | Back]:
        """Return all that has come, at least one thing, and of arrivals no more than this many tasks."""
        found = [] if self._pool.found or self._pool.arrived else self._reception.take(tasks)
        self._gathering.check()
        return found or [self.wait()]

    def evaluate(self, x: Array, parts: range) -> list[float]:
        """Return what problem.evaluate_part(x, part) returns for these parts, in order."""
        return self._evaluator.evaluate(x, parts)

    def stop(self, workers: IntArray) -> Array:
        """Stop what these workers have not delivered and return the seconds that each spent on it."""
        return self._orders.withdraw_all(workers)

    def overruns(self) -> dict[int, float]:
        """Return the seconds that workers spent on stopped tasks, after the stop, since the last call."""
        return self._orders.overruns(self._pool.hangs)

    def idle(self) -> IntArray:
        """Return the workers that hold no order."""
        running = self._orders.running
        return np.array([worker for worker in range(self.n) if worker not in running], np.int64)

    def state(self) -> State:
        """Return the accounts, and who has begun a task whose fate is not known: that cannot be saved."""
        stopping, running = np.zeros(self.n, np.int64), np.zeros(self.n, np.int64)
        orders = self._orders
        running[[*orders.running, *orders.probes]] = 1
        stopping[[worker for worker in orders.stopping if worker not in orders.running]] = 1
        draws = {} if self.draws is None else self.draws.state()
        return self.ledger.state() | {"stopping": stopping, "running": running} | draws

    def restore(self, state: State, workers: State | None = None) -> None:
        """Resume the accounts of an earlier run; all workers are idle, and tasks then in flight are lost."""
        none = np.zeros(self.n, np.int64)
        begun = {name: entry(state, name, none) for name in ("stopping", "running")}
        self.ledger.restore(state, workers)
        self.ledger.lose(np.arange(self.n), in_flight(begun))
        if self.draws is not None:
            self.draws.restore(state, idle=True)

    def take_over(self, workers: State, rows: list[tuple[int, int]]) -> None:
        """Start from what is saved of other workers: `rows` pairs a worker here with its row there."""
        self.ledger.take_over(workers, rows)

    def close(self) -> None:
        """Stop everyone, let the workers leave, and settle the accounts; late ones are not waited for."""
        if self._replica is not None and not self._shutdown.closed:
            with suppress(LossError, GraceExpired):  # what it saved before is still good
                self._replica.value()
        self._shutdown.close()

    def abort(self, code: int = 1) -> None:
        """End a run early; if a worker does not leave in time, all ranks are ended with this exit code."""
        self._shutdown.abort(code)
