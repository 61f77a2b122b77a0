"""The workers on ranks as the manager knows them: orders, accounts, health, and who is still there."""

from collections.abc import Callable

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters.connections import Connections
from mpi_ata.clusters.draws import draws_for
from mpi_ata.clusters.handshake import identities
from mpi_ata.clusters.health import FaultPolicy, Health
from mpi_ata.clusters.interface import Arrival, Back, Lost, named
from mpi_ata.clusters.ledger import Ledger
from mpi_ata.clusters.orders import Order, Orders
from mpi_ata.clusters.wire import point_wire, results_wire
from mpi_ata.errors import LossError
from mpi_ata.launch.verdict import note_lost_worker
from mpi_ata.layout import ranks_for, worker_of
from mpi_ata.problems import AnyProblem, returns_values

FLOOR = 3.0  # seconds: on a busy machine, any rank may be silent for this long
Overdue = tuple[int, Order, float]  # worker, its order, and the seconds for which nothing came
ENDED = "its process has ended: it was killed, crashed, exited or ran out of memory"


class WorkerPool:
    """All workers of a cluster; `template` is an array like x, `times` names the law of the task times."""

    def __init__(
        self,
        connections: Connections,
        problem: AnyProblem,
        template: Array,
        times: str = "",
        grace_expired: Callable[[], bool] = lambda: False,
        policy: FaultPolicy | None = None,
    ) -> None:
        self.n = n = connections.n
        self.problem, self.template, self.connections = problem, template, connections
        self.grace_expired = grace_expired
        self.ledger = Ledger(n)
        self.identities = identities(connections.ranks, times)
        self.health = Health(self.ledger.stats, policy, FLOOR, self.name)
        self.available = self.health.available
        self.draws = draws_for(problem)
        self.points = point_wire(problem, template)
        self.orders = Orders(connections, self.draws, self.points)
        self.worker_of = [worker_of(rank) for rank in range(ranks_for(n))]  # by rank: a call costs more
        self.setting_up = set(range(n))  # workers that are not ready yet
        self.staying = set(range(n))  # workers that have not left
        self.sharing_nodes: dict[int, str] = {}  # by rank: the hosts of those that share memory there
        self.unreachable: list[int] = []  # workers that hear no doorbell
        self.draws_globally = False  # whether tasks draw from random or np.random
        self.arrived: list[Arrival] = []  # what wait() will return first
        self.found: list[Lost | Back] = []  # and after that

    def name(self, worker: int) -> str:
        """Return a worker's name for messages."""
        return named(worker, self.identities[worker])

    def placed(self, worker: int, why: str) -> str:
        """Return what went wrong on a worker, with its host; a text about a task names the worker already."""
        named, who = f"task of worker {worker} ", self.name(worker)
        return why.replace(named, f"task of {who} ", 1) if named in why else f"{who}: {why}"

    def note(self, found: Arrival | Lost | Back | None) -> None:
        """Have wait() return a worker that was found lost or back."""
        if found is not None and not isinstance(found, Arrival):
            self.found.append(found)

    def check_anyone(self) -> None:
        """Raise LossError if no worker is left."""
        if not self.available.any():
            raise LossError(f"all {self.n} workers are lost; resume the run on other workers")

    def free(self) -> set[int]:
        """Return the workers that are ready, available, and have nothing to do."""
        able = set(np.flatnonzero(self.available).tolist()) - self.setting_up
        return {worker for worker in able if not self.orders.is_busy(worker)}

    def longest_stop(self) -> float:
        """Return the seconds after which no worker should be at a stopped task any more."""
        busy = [worker for worker in self.orders.stopping if self.available[worker]]
        return max((self.health.deadline(worker, 1) for worker in busy), default=0.0)

    def hangs(self, worker: int, seconds: float) -> bool:
        """Return whether a task has taken so long that its worker is lost, or overdue."""
        if not self.available[worker]:
            return True
        return seconds > FLOOR and seconds > self.health.deadline(worker, 1)  # which costs more

    def lose(self, worker: int) -> Lost:
        """Remove a dead worker, with what it was doing."""
        note_lost_worker(self.identities[worker].host, f"{self.name(worker)} has died")
        tasks = int(self.orders.drop(worker))  # nobody knows whether it had begun the next
        self.ledger.lose(worker, tasks)
        self.staying.discard(worker)
        self.setting_up.discard(worker)
        return self.health.died(worker, tasks, ENDED)

    def overdue(self, now: float) -> list[Overdue]:
        """Return the workers whose orders take too long."""
        deadlines, patience = self.health.deadlines, self.health.deadlines.patience()
        late = [(w, order, silent) for w, order, silent in self.orders.silent(now) if silent > patience[w]]
        workers = np.array([worker for worker, _, _ in late], np.int64)
        counts = np.array([order.left if order.together else 1 for _, order, _ in late], np.int64)
        allowed = deadlines.of(workers, counts) if late else ()
        return [each for each, longest in zip(late, allowed, strict=True) if each[2] > longest]

    def suspect(self, worker: int, spent: float, round: int) -> None:
        """Suspend a worker that is overdue, unless the run has to wait for it."""
        lost = self.health.overdue(worker, 0, spent, round)
        if lost is not None:
            self.orders.withdraw(worker)
            self.connections.abandon(worker)
        self.note(lost)

    def try_again(self, x: Array, round: int) -> None:
        """Give one task to each worker whose probation allows it; its result will be dropped."""
        for worker in self.health.due(round):
            if worker in self.setting_up or self.orders.is_busy(worker):
                self.health.unanswered(worker, round)
            else:
                self.orders.probe(worker, x, round)
                self.health.tried(worker, round)


def may_batch(pool: WorkerPool) -> bool:
    """Return whether the orders of a round can be one batch: x and results are small, plain arrays."""
    plain = not returns_values(pool.problem) and pool.draws is None
    wires = pool.points or results_wire(pool.problem, pool.template)
    return plain and not wires and pool.connections.shared is None
