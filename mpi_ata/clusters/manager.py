"""The manager's side of the MPI cluster; worker.py is its mirror."""

import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from mpi_ata.arrays import Array, IntArray, State, entry
from mpi_ata.clusters.buffers import NOWHERE
from mpi_ata.clusters.channel import (
    ARRIVAL,
    BAD_RESULT,
    EMPTY,
    END,
    FAILED,
    FINAL,
    LOST,
    ORDER,
    REACHABLE,
    READY,
    SHARED,
    STOP,
    STOPPED,
    TOGETHER,
    Message,
)
from mpi_ata.clusters.connections import Connections
from mpi_ata.clusters.handshake import identities
from mpi_ata.clusters.health import FaultPolicy, Health
from mpi_ata.clusters.interface import Arrival, Back, Lost, check_times, named, set_up
from mpi_ata.clusters.ledger import Ledger, in_flight
from mpi_ata.clusters.mpi import MPI
from mpi_ata.clusters.setups import SetUps
from mpi_ata.errors import BadResultError, RunError
from mpi_ata.launch import host_name, slurm_tasks
from mpi_ata.launch.signals import GraceExpired
from mpi_ata.launch.verdict import note_lost_worker
from mpi_ata.layout import ranks_for, worker_of, workers_in
from mpi_ata.problems import Problem

log = logging.getLogger("mpi_ata")
FLOOR = 3.0  # seconds: on a busy machine, any rank may be silent for so long
LOOK = 0.5  # seconds between two looks for workers that are overdue
GRACE = 2.0  # seconds that workers get to leave when a run has failed
LEAVING = 10.0  # and when it has not, those that have nothing to do
SLACK = 1.0  # seconds by which clocks of two processes may differ
ENDED = "its process has ended: it was killed, crashed, exited or ran out of memory"


@dataclass(slots=True)
class _Order:
    """What a worker was ordered to do, or will be as soon as it has stopped its previous order."""

    number: int
    x: Array
    round: int
    count: int
    together: bool
    left: int
    sent: float = math.inf
    latest: float = math.inf  # when it was sent, or its latest arrival came
    excused: float = 0.0  # seconds of suspension before that
    result: Array | None = None  # where the result will be, if in shared memory


class MPICluster:
    """Real workers on the ranks of a communicator, whose manager constructs this.

    `overdue` says whether to give up waiting, `drawn` whether workers report times that are not measured.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        problem: Problem,
        digest: bytes = b"",
        times: str = "",
        overdue: Callable[[], bool] = lambda: False,
        policy: FaultPolicy | None = None,
        drawn: bool = False,
    ) -> None:
        self.n = n = workers_in(comm.Get_size())
        self.ledger = Ledger(n)
        self.overdue = overdue
        self._problem, self._template = problem, problem.x0
        self._connections = Connections(comm, self._template, digest)
        self.identities = identities(self._connections.ranks, times)
        self._health = Health(self.ledger.stats, policy, FLOOR, self._name)
        self.available = self._health.available
        self.sharing: set[int] = set()  # workers that have opened the shared memory
        self._worker_of = [worker_of(rank) for rank in range(ranks_for(n))]  # by rank: a call costs more
        self._slack = math.inf if drawn else SLACK
        self._numbers = 0  # of orders
        self._orders: dict[int, _Order] = {}  # what is running, by worker
        self._stopping: dict[int, _Order] = {}  # orders whose stop is not yet confirmed
        self._probes: dict[int, _Order] = {}  # single tasks of workers on probation
        self._setting_up = set(range(n))  # workers that are not ready yet
        self._unreachable: list[int] = []  # workers that hear no doorbell
        self._staying = set(range(n))  # workers that have not left
        self._found: list[Lost | Back] = []  # what wait() will return first
        self._next_look = 0.0  # for overdue workers
        self.ended_for_good = self._closed = False
        try:
            self._prepare()
        except BaseException:
            self.abort()
            raise

    def _name(self, worker: int) -> str:
        return named(worker, self.identities[worker])

    def _prepare(self) -> None:
        """Wait until the workers are set up, before the clock starts; some may be late."""
        self._connections.check_same_job()
        self._connections.ring(range(self.n))
        set_up(self._problem, None, self.n)
        times = SetUps(self._health.policy.deadline)
        while waiting := sorted(self._setting_up & set(self.available.nonzero()[0].tolist())):
            message = self._connections.next_message(expired=self.overdue)
            if message is not None:
                self._note(self._handle(message))
                times.note(message.kind == READY)
            elif times.late(waiting):
                for worker in waiting:
                    self._suspect(worker, times.elapsed(), 0)
                break
        if not self.available.any():
            raise RunError(f"no worker is left: {self._found[-1].why}")

    def log_notes(self, sleeping: bool) -> None:
        """Log what the user should know about these ranks; `sleeping` if their tasks mostly sleep."""
        ranks, shared = ranks_for(self.n), self._connections.shared
        if (given := slurm_tasks()) not in (None, ranks):
            log.warning(f"Slurm has given {given} tasks to this job, but {ranks} ranks were started")
        if self._unreachable:
            unreachable = sorted(self._unreachable)
            log.warning(f"the doorbell of workers {unreachable} cannot be rung: they poll every 10 ms")
        here = sum(rank.host == host_name() for rank in self._connections.ranks)
        if here > (cores := os.cpu_count() or here) and not sleeping:
            log.warning(f"{here} ranks share {cores} cores here: task times include waiting for a core")
        if shared is not None and shared.room() < 2 * (self.n + 2) * self._template.nbytes:
            log.warning("shared memory is too small for x and all results: what does not fit is sent by MPI")

    def now(self) -> float:
        """Return the time on the manager's monotonic clock."""
        return time.perf_counter()

    def start(
        self, workers: IntArray, x: Array, round: int, counts: IntArray | int = 1, together: bool = False
    ) -> None:
        """Order tasks at the point x: counts[j] of them from workers[j]."""
        if x.shape != self._template.shape or x.dtype != self._template.dtype:
            raise ValueError(
                f"x is {x.dtype} of shape {x.shape}, but x0 {self._template.dtype} {self._template.shape}"
            )
        x.flags.writeable = False  # for the caller too: later orders may use a copy made now
        each = repeat(counts) if isinstance(counts, int) else counts.tolist()
        for worker, count in zip(workers.tolist(), each, strict=False):
            if worker in self._orders:
                raise RuntimeError("a worker holds one order at a time; stop it first")
            self._orders[worker] = order = self._new_order(x, round, count, together)
            if worker not in self._stopping:
                self._send(worker, order)
        if round >= self._health.next_trial:
            self._try_again(x, round)

    def _new_order(self, x: Array, round: int, count: int, together: bool) -> _Order:
        self._numbers += 1
        return _Order(self._numbers, x, round, count, together, count)

    def _try_again(self, x: Array, round: int) -> None:
        """Give one task to each worker whose probation allows it; its result will be dropped."""
        for worker in self._health.due(round):
            if worker in self._setting_up or worker in self._stopping or worker in self._probes:
                self._note(self._health.unanswered(worker, round))
                continue
            self._probes[worker] = order = self._new_order(x, round, 1, together=True)
            self._send(worker, order)
            self._health.tried(worker, round)

    def _send(self, worker: int, order: _Order) -> None:
        """Send an order; point and result go through shared memory where possible, otherwise by message."""
        x_slot = result_slot = NOWHERE
        shared = self._connections.shared
        if worker in self.sharing and shared is not None:
            order.x = shared.put(order.x)
            order.result = shared.free() if order.together or order.count == 1 else None
            x_slot, result_slot = shared.number_of(order.x), shared.number_of(order.result)
        payload = order.x if x_slot == NOWHERE else EMPTY
        flags = TOGETHER if order.together else 0
        self._connections.send(
            worker, ORDER, order.number, order.round, order.count, flags, (), payload, x_slot, result_slot
        )
        order.sent = order.latest = time.perf_counter()
        order.excused = self._connections.suspended

    def wait(self, timeout: float | None = None) -> Arrival | Lost | Back:
        """Return the next arrival, or the next worker that is lost or back."""
        until = math.inf if timeout is None else self.now() + timeout
        while self._orders or self._found:
            if self._found:
                return self._found.pop(0)
            message = self._connections.next_message(until, self.overdue)
            found = None if message is None else self._handle(message)
            if self._connections.drained:  # all who have answered are heard
                self._find_overdue(self.now())
            if found is not None:
                return found
            if message is None and self.now() >= until and not self._found:
                raise TimeoutError(f"nothing arrived within {timeout} seconds")
        raise RuntimeError("nothing is running, so there is nothing to wait for")

    def _handle(self, message: Message) -> Arrival | Lost | Back | None:
        """Take note of a message, and return what it means to a method, if anything."""
        worker = self._worker_of[message.sender]
        order = self._orders.get(worker)
        if message.kind == ARRIVAL and order is not None and order.number == message.order:
            return self._arrive(worker, order, message)
        if message.kind == LOST:
            return self._lose(worker)
        if message.kind == READY:
            self._ready(worker, message.flags)
        elif worker not in self._staying:  # what it was doing is counted as lost
            return None
        elif worker in self._probes:
            return self._probed(worker, message)
        elif message.kind == FAILED:
            return self._fail(worker, message)
        else:
            self._account_stopped(worker, message)
        return None

    def _ready(self, worker: int, flags: int) -> None:
        self._setting_up.discard(worker)
        if not flags & REACHABLE:
            self._unreachable.append(worker)
        if flags & SHARED and self._connections.shared is not None:
            self.sharing.add(worker)

    def _arrive(self, worker: int, order: _Order, message: Message) -> Arrival | Lost | None:
        """Book the results of a running order."""
        now, reported = time.perf_counter(), message.seconds
        seconds = math.fsum(reported)
        turnaround = now - order.latest
        if not 0.0 <= seconds <= turnaround + self._slack or min(reported) < 0.0:
            return self._reject(worker, order, message, turnaround)
        order.latest, order.excused = now, self._connections.suspended
        order.left -= message.tasks
        if not order.left:
            del self._orders[worker]
        result = message.payload if order.result is None else order.result
        overhead = max(turnaround - seconds, 0.0)
        self.ledger.deliver(worker, reported, seconds, overhead)
        return Arrival(worker, result, reported, overhead)

    def _reject(self, worker: int, order: _Order, message: Message, turnaround: float) -> Lost | None:
        """Refuse results whose times cannot be true."""
        order.left -= message.tasks
        self.ledger.stop(worker, message.tasks, 0.0)
        self._withdraw(worker)
        try:
            check_times(message.seconds, order.round, turnaround + self._slack)
        except BadResultError as error:
            return self._health.bad_result(worker, message.tasks, error, order.round)
        return None

    def _fail(self, worker: int, message: Message) -> Lost | None:
        """Handle a failed task or setup."""
        if worker in self._setting_up:
            return self._fail_set_up(worker, message)
        self.ledger.stop(worker, message.tasks, math.fsum(message.seconds))
        order = self._orders.get(worker)
        if order is not None and order.number == message.order:
            del self._orders[worker]
        lost = self._failure(worker, message, (order or self._stopping[worker]).round)
        if lost is not None:
            self._withdraw(worker)
        return lost

    def _fail_set_up(self, worker: int, message: Message) -> Lost:
        """End the run because of a failed setup, unless it was not waited for any more."""
        why = message.payload.tobytes().decode()
        if self.available[worker]:
            raise RunError(f"{self._name(worker)}: {why}")
        return self._health.died(worker, 0, why)

    def _failure(self, worker: int, message: Message, round: int) -> Lost | None:
        text = message.payload.tobytes().decode()
        if message.flags & BAD_RESULT:
            return self._health.bad_result(worker, message.tasks, BadResultError(text), round)
        return self._health.failed(worker, message.tasks, RunError(text), round)

    def _account_stopped(self, worker: int, message: Message) -> None:
        """Book what a worker did for an order that was stopped."""
        self.ledger.stop(worker, message.tasks, math.fsum(message.seconds))
        if message.kind == STOPPED:
            self._stopping.pop(worker, None)
            if (order := self._orders.get(worker)) is not None:
                self._send(worker, order)

    def _probed(self, worker: int, message: Message) -> Lost | Back | None:
        """Book the task that a worker on probation was tried with."""
        order, seconds = self._probes.pop(worker), math.fsum(message.seconds)
        self.ledger.stop(worker, message.tasks, max(seconds, 0.0))
        if message.kind == FAILED:
            return self._failure(worker, message, order.round)
        return self._health.answered(worker, seconds)

    def _lose(self, worker: int) -> Lost:
        """Strike off a dead worker, with what it was doing."""
        note_lost_worker(f"{self._name(worker)} has died")
        held = [orders.pop(worker, None) for orders in (self._orders, self._stopping, self._probes)]
        tasks = int(any(order is not None for order in held))  # nobody knows whether it had begun the next
        self.ledger.lose(worker, tasks)
        self._staying.discard(worker)
        self._setting_up.discard(worker)
        return self._health.died(worker, tasks, ENDED)

    def _find_overdue(self, now: float) -> None:
        """Now and then, take their orders from workers that should have answered long ago."""
        if now < self._next_look or not self._orders:
            return
        self._next_look = now + LOOK
        patience = self._health.deadlines.patience()
        for worker, queued in list(self._orders.items()):
            order = self._stopping.get(worker, queued)
            count = order.left if order.together else 1
            spent = now - order.latest - (self._connections.suspended - order.excused)
            if spent > patience[worker] * count and spent > self._health.deadline(worker, count):
                self._suspect(worker, spent, queued.round)

    def _suspect(self, worker: int, spent: float, round: int) -> None:
        """Suspend a worker that is overdue, unless it has to be waited for."""
        lost = self._health.overdue(worker, 0, spent, round)
        if lost is not None:
            self._withdraw(worker)
            self._connections.abandon(worker)
        self._note(lost)

    def _withdraw(self, worker: int) -> None:
        """Take its order from a worker; what it still delivers of it is dropped."""
        order = self._orders.pop(worker, None)
        if order is not None and order.left and order.sent < math.inf:
            self._connections.send(worker, STOP, order.number)
            self._stopping[worker] = order

    def _note(self, found: Arrival | Lost | Back | None) -> None:
        """Have wait() return a worker that was found lost or back."""
        if found is not None and not isinstance(found, Arrival):
            self._found.append(found)

    def stop(self, workers: IntArray) -> Array:
        """Stop what these workers have not delivered and return the seconds that each spent on it."""
        now, spent = self.now(), np.zeros(len(workers))
        for j, worker in enumerate(workers.tolist()):
            order = self._orders.get(worker)
            if order is not None:
                spent[j] = now - order.latest if order.sent < math.inf else 0.0
                self._withdraw(worker)
        return spent

    def idle(self) -> IntArray:
        """Return the workers that hold no order."""
        return np.array([worker for worker in range(self.n) if worker not in self._orders], np.int64)

    def state(self) -> State:
        """Return the accounts, and who has begun a task whose fate is not known: that cannot be saved."""
        stopping, running = np.zeros(self.n, np.int64), np.zeros(self.n, np.int64)
        running[[*self._orders, *self._probes]] = 1
        stopping[[worker for worker in self._stopping if worker not in self._orders]] = 1
        return self.ledger.state() | {"stopping": stopping, "running": running}

    def restore(self, state: State, workers: State | None = None) -> None:
        """Resume the accounts of an earlier run; all workers are idle, and tasks then in flight are lost."""
        none = np.zeros(self.n, np.int64)
        begun = {name: entry(state, name, none) for name in ("stopping", "running")}
        self.ledger.restore(state, workers)
        self.ledger.lose(np.arange(self.n), in_flight(begun))

    def take_over(self, workers: State, rows: list[tuple[int, int]]) -> None:
        """Start from what is saved of other workers: `rows` pairs a worker here with its row there."""
        self.ledger.take_over(workers, rows)

    def close(self) -> None:
        """Stop everyone, let the workers leave, and settle the accounts; late ones are not waited for."""
        self.stop(np.arange(self.n))
        busy = [worker for worker in (*self._stopping, *self._probes) if self.available[worker]]
        longest = max((self._health.deadline(worker, 1) for worker in busy), default=0.0)
        try:
            left = self._shutdown(self.now() + max(longest, LEAVING), final=False)
        except GraceExpired:
            left = False
        if not left:
            self._give_up_on_workers(0)

    def abort(self, code: int = 1) -> None:
        """End a run early; if a worker does not leave in time, all ranks are ended with this exit code."""
        self.overdue = lambda: False
        self.stop(np.arange(self.n))
        if not self._shutdown(self.now() + GRACE, final=True):
            self._give_up_on_workers(code)

    def _give_up_on_workers(self, code: int) -> None:
        """Stop waiting for workers: those still there are ended, and what they were doing is lost."""
        for worker in self._staying & {*self._stopping, *self._probes}:
            self.ledger.lose(worker, 1)
        self._connections.end_stragglers(self._staying, code)
        self._staying.clear()
        self.ended_for_good = self._closed = True

    def _shutdown(self, until: float, final: bool) -> bool:
        """Let the workers leave and return whether all did in time; `final` if no further run follows."""
        if self._closed:
            return True
        for worker in self._staying:
            self._connections.send(worker, END, flags=FINAL if final else 0)
        while self._staying:
            message = self._connections.next_message(until, self.overdue)
            if message is None and self.now() >= until:
                return False
            if message is not None and message.kind == END:
                self._staying.discard(self._worker_of[message.sender])
            elif message is not None and message.kind != FAILED:
                self._handle(message)
        self._connections.close()
        self.ended_for_good, self._closed = final or bool(self._connections.dead), True
        return True
