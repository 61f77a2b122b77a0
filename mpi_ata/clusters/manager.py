"""The manager's side of the MPI cluster; worker.py is its mirror."""

import logging
import math
import os
import time
from collections.abc import Callable
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np

from mpi_ata.arrays import Array, IntArray, State, entry
from mpi_ata.clusters.channel import (
    ARRIVAL,
    BAD_RESULT,
    END,
    FAILED,
    FINAL,
    GLOBAL_RANDOM,
    INLINE,
    LOST,
    REACHABLE,
    READY,
    SHARED,
    STOPPED,
    Message,
)
from mpi_ata.clusters.connections import Connections
from mpi_ata.clusters.draws import draws_for
from mpi_ata.clusters.evaluation import PartialEvaluation
from mpi_ata.clusters.farm import Farming
from mpi_ata.clusters.handshake import identities
from mpi_ata.clusters.health import FaultPolicy, Health
from mpi_ata.clusters.interface import (
    DRAWS_GLOBALLY,
    Arrival,
    Back,
    Lost,
    evaluated_part,
    named,
    received,
    set_up,
    surely_finite,
)
from mpi_ata.clusters.ledger import Ledger, in_flight
from mpi_ata.clusters.mpi import MPI
from mpi_ata.clusters.orders import Order, Orders
from mpi_ata.clusters.setups import SetUps
from mpi_ata.clusters.values import template_of
from mpi_ata.clusters.wire import point_wire, results_wire
from mpi_ata.errors import BadResultError, LossError, RunError
from mpi_ata.launch import host_name, slurm_tasks
from mpi_ata.launch.signals import GraceExpired
from mpi_ata.launch.verdict import note_lost_worker
from mpi_ata.layout import ranks_for, worker_of, workers_in
from mpi_ata.packing import pack
from mpi_ata.problems import AnyProblem, returns_values

log = logging.getLogger("mpi_ata")
FLOOR = 3.0  # seconds: on a busy machine, any rank may be silent for this long
LOOK = 0.5  # seconds between two checks for overdue workers
GRACE = 2.0  # seconds that workers get to leave when a run has failed
LEAVING = 10.0  # and when it has not, those that have nothing to do
SHORTEST = 1e-9  # seconds of a task, to compare speeds
STOPPING = 1.0  # seconds for which an evaluation waits for workers that are being stopped
SLACK = 1.0  # seconds by which clocks of two processes may differ
ENDED = "its process has ended: it was killed, crashed, exited or ran out of memory"


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
    ) -> None:
        self.n = n = workers_in(comm.Get_size())
        self.ledger = Ledger(n)
        self.grace_expired = grace_expired
        self._problem, self._template = problem, template_of(problem)
        self._computes = returns_values(problem)  # packed values
        self._connections = Connections(comm, self._template, digest)
        self.identities = identities(self._connections.ranks, times)
        self._health = Health(self.ledger.stats, policy, FLOOR, self._name)
        self.available = self._health.available
        self._worker_of = [worker_of(rank) for rank in range(ranks_for(n))]  # by rank: a call costs more
        self._slack = math.inf if drawn else SLACK
        self.draws = draws_for(problem)
        self._points, self._results = (wire(problem, self._template) for wire in (point_wire, results_wire))
        self._orders = Orders(self._connections, self.draws, self._points)
        self._setting_up = set(range(n))  # workers that are not ready yet
        self._unreachable: list[int] = []  # workers that hear no doorbell
        self._draws_globally = False  # whether tasks draw from random or np.random
        self._staying = set(range(n))  # workers that have not left
        self._found: list[Lost | Back] = []  # what wait() will return first
        self._next_look = 0.0  # for overdue workers
        self._part_seconds = 0.0  # the longest that a part of an evaluation has taken
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
        for ring in self._connections.ring:
            ring()
        times = SetUps(self._health.policy.deadline)
        set_up(self._problem, None, self.n)
        while waiting := sorted(self._setting_up & set(self.available.nonzero()[0].tolist())):
            message = self._connections.next_message(expired=self.grace_expired)
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
        if self._connections.unwatched:
            unwatched = self._connections.unwatched
            log.warning(f"workers {unwatched} cannot reach the manager over TCP: deaths are noticed late")
        if self._draws_globally:
            log.warning(DRAWS_GLOBALLY)
        if sleeping:
            log.info("tasks sleep as long as [times] says; without it, they run at their real speed")
        here = sum(rank.host == host_name() for rank in self._connections.ranks)
        if here > (cores := os.cpu_count() or here) and not sleeping:
            log.warning(f"{here} ranks share {cores} cores here: task times include waiting for a core")
        if shared is not None and shared.room() < 2 * (self.n + 2) * self._template.nbytes:
            log.warning("shared memory is too small for x and all results: what does not fit is sent by MPI")

    @property
    def sharing(self) -> set[int]:
        """The workers that share memory with the manager."""
        return self._orders.sharing

    def now(self) -> float:
        """Return the time on the manager's monotonic clock."""
        return time.perf_counter()

    def start(
        self, workers: IntArray, x: Any, round: int, counts: IntArray | int = 1, together: bool = False
    ) -> None:
        """Order tasks at the point x: counts[j] of them from workers[j]."""
        if self._computes:
            x = pack(x, "x")
        elif x.shape != self._template.shape or x.dtype != self._template.dtype:
            raise ValueError(
                f"x is {x.dtype} of shape {x.shape}, but x0 {self._template.dtype} {self._template.shape}"
            )
        x.flags.writeable = False  # for the caller too: later orders may use a copy made now
        x = self._points.rounded(x)
        each = repeat(counts) if isinstance(counts, int) else counts.tolist()
        if self.draws is not None:
            self.draws.take(workers.tolist(), np.broadcast_to(counts, len(workers)).tolist())
        for worker, count in zip(workers.tolist(), each, strict=False):
            self._orders.start(worker, x, round, count, together)
        if round >= self._health.next_trial:
            self._try_again(x, round)

    def _try_again(self, x: Array, round: int) -> None:
        """Give one task to each worker whose probation allows it; its result will be dropped."""
        for worker in self._health.due(round):
            if worker in self._setting_up or self._orders.is_busy(worker):
                self._health.unanswered(worker, round)
            else:
                self._orders.probe(worker, x, round)
                self._health.tried(worker, round)

    def wait(self, timeout: float | None = None) -> Arrival | Lost | Back:
        """Return the next arrival, or the next worker that is lost or back."""
        until, connections = math.inf if timeout is None else self.now() + timeout, self._connections
        while self._orders.running or self._found:
            if self._found:
                return self._found.pop(0)
            message = connections.next_message(until, self.grace_expired)
            found = None if message is None else self._handle(message)
            if connections.drained and time.perf_counter() >= self._next_look:  # all answers are read
                self._find_overdue(self.now())
            if found is not None:
                return found
            if message is None and self.now() >= until and not self._found:
                raise TimeoutError(f"nothing arrived within {timeout} seconds")
        raise RuntimeError("nothing is running, so there is nothing to wait for")

    def _handle(self, message: Message) -> Arrival | Lost | Back | None:
        """Process a message, and return what the method has to know, if anything."""
        worker = self._worker_of[message.sender]
        order = self._orders.running.get(worker)
        if message.kind == ARRIVAL and order is not None and order.number == message.order:
            return self._arrive(worker, order, message)
        if message.kind == LOST:
            return self._lose(worker)
        if message.order < 0:  # of an evaluation that is over
            return None
        if message.kind == READY:
            self._ready(worker, message.flags)
        elif worker not in self._staying:  # what it was doing is counted as lost
            return None
        elif worker in self._orders.probes:
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
        self._draws_globally |= bool(flags & GLOBAL_RANDOM)
        if flags & SHARED and self._connections.shared is not None:
            self._orders.sharing.add(worker)

    def _arrive(self, worker: int, order: Order, message: Message) -> Arrival | Lost | None:
        """Book the results of a running order."""
        now, reported = time.perf_counter(), message.seconds
        seconds = math.fsum(reported)
        turnaround, longest = now - order.latest, now - order.sent + self._slack
        result = self._result_of(order, message)
        if (
            not 0.0 <= seconds <= longest
            or min(reported) < 0.0
            or self._computes
            or (result.nbytes <= INLINE and not surely_finite(result))  # large ones are checked by workers
        ):
            try:
                result = received(worker, result, reported, order.x, f"round {order.round}", longest)
            except BadResultError as error:
                return self._reject(worker, order, message, error)
        order.latest, order.excused = now, self._connections.suspended
        order.left -= message.tasks
        if self.draws is not None:
            self.draws.deliver(worker, message.tasks)
        if not order.left:
            del self._orders.running[worker]
        overhead = max(turnaround - seconds, 0.0)
        self.ledger.deliver(worker, reported, seconds, overhead)
        return Arrival(worker, result, reported, overhead)

    def _result_of(self, order: Order, message: Message) -> Array:
        """Return the result of an order: from shared memory, or as it was sent."""
        if order.result is not None:
            return order.result
        if not self._results:
            return message.payload
        return self._results.unpack(message.payload, self._connections.channel.buffers.take())

    def _reject(self, worker: int, order: Order, message: Message, error: BadResultError) -> Lost | None:
        """Reject results that cannot be used."""
        order.left -= message.tasks
        self.ledger.stop(worker, message.tasks, min(_seconds(message), self.now() - order.sent))
        self._orders.withdraw(worker)
        return self._failed(worker, message.tasks, error, order.round)

    def _fail(self, worker: int, message: Message) -> Lost | None:
        """Handle a failed task or setup."""
        if worker in self._setting_up:
            return self._fail_set_up(worker, message)
        self.ledger.stop(worker, message.tasks, _seconds(message))
        order = self._orders.running.get(worker)
        if order is not None and order.number == message.order:
            del self._orders.running[worker]
            self._orders.give_back_draws(worker)
        lost = self._failure(worker, message, (order or self._orders.stopping[worker]).round)
        if lost is not None:
            self._orders.withdraw(worker)
        return lost

    def _fail_set_up(self, worker: int, message: Message) -> Lost:
        """End the run because of a failed setup, unless the run no longer waits for it."""
        why = message.payload.tobytes().decode()
        if self.available[worker]:
            raise RunError(self._placed(worker, why))
        return self._health.died(worker, 0, why)

    def _failure(self, worker: int, message: Message, round: int) -> Lost | None:
        error = BadResultError if message.flags & BAD_RESULT else RunError
        return self._failed(worker, message.tasks, error(message.payload.tobytes().decode()), round)

    def _failed(self, worker: int, tasks: int, error: RunError, round: int) -> Lost | None:
        """Suspend or exclude a worker that failed; if that ends the run, say where it failed."""
        judge = self._health.bad_result if isinstance(error, BadResultError) else self._health.failed
        try:
            return judge(worker, tasks, error, round)
        except RunError as fatal:
            raise RunError(self._placed(worker, str(fatal))) from None

    def _placed(self, worker: int, why: str) -> str:
        """Return what went wrong on a worker, with its host; a text about a task names the worker already."""
        named, who = f"task of worker {worker} ", self._name(worker)
        return why.replace(named, f"task of {who} ", 1) if named in why else f"{who}: {why}"

    def _account_stopped(self, worker: int, message: Message) -> None:
        """Book what a worker did for an order that was stopped."""
        seconds = _seconds(message)
        self.ledger.stop(worker, message.tasks, seconds)
        self._orders.account_unused(worker, seconds)
        if message.kind == STOPPED:
            self._orders.confirm_stop(worker)

    def _probed(self, worker: int, message: Message) -> Lost | Back | None:
        """Book the task that a worker on probation was tried with."""
        order, seconds = self._orders.probes.pop(worker), _seconds(message)
        self.ledger.stop(worker, message.tasks, seconds)
        if message.kind == FAILED:
            return self._failure(worker, message, order.round)
        try:
            result = self._result_of(order, message)
            received(worker, result, message.seconds, order.x, f"round {order.round}", math.inf)
        except BadResultError as error:
            return self._failed(worker, message.tasks, error, order.round)
        return self._health.answered(worker, seconds)

    def evaluate(self, x: Array, parts: range) -> list[float]:
        """Return what problem.evaluate_part(x, part) returns for these parts, in order.

        Free workers do it; the manager does what they are too late with, and everything if orders run.
        """
        here = partial(evaluated_part, self._problem, x)
        # Results that arrive while orders run belong to wait().
        free = [] if self._orders.running else sorted(self._wait_for_stops())
        if not free:
            return [value for part in parts for value in here(part)]
        work = PartialEvaluation(self._connections, self._orders.sharing, x, self._part_seconds)
        work.divide(parts, free, 1 / np.maximum(self.ledger.stats.pooled_means()[free], SHORTEST))
        while work.missing():
            self._account_for(self._connections.next_message(expired=self.grace_expired), work)
            self._check_anyone()
            work.redo(self._free())
            if work.overdue(self._health.deadlines.factor, FLOOR):
                work.do_missing(here)
        self._part_seconds = work.longest
        return work.results()

    def _check_anyone(self) -> None:
        if not self.available.any():
            raise LossError(f"all {self.n} workers are lost; resume the run on other workers")

    def _free(self) -> set[int]:
        able = set(np.flatnonzero(self.available).tolist()) - self._setting_up
        return {worker for worker in able if not self._orders.is_busy(worker)}

    def _wait_for_stops(self) -> set[int]:
        """Return the free workers, after all that were stopped have confirmed, or a second has passed.

        If all are still busy then, wait for the first one until it is overdue.
        """
        soon = self.now() + STOPPING
        last = max(soon, self.now() + self._longest_stop())
        while not (free := self._free()) or self._orders.stopping:
            self._check_anyone()
            if self.now() >= (until := soon if free else last):
                break
            self._account_for(self._connections.next_message(until, self.grace_expired))
        return free

    def _longest_stop(self) -> float:
        """Return the seconds after which no worker should be at a stopped task any more."""
        busy = [worker for worker in self._orders.stopping if self.available[worker]]
        return max((self._health.deadline(worker, 1) for worker in busy), default=0.0)

    def _account_for(self, message: Message | None, work: PartialEvaluation | None = None) -> None:
        """Process a message that comes between two rounds."""
        if message is None:
            return
        worker = self._worker_of[message.sender]
        if work is None or not work.take(worker, message, self._name(worker)):
            self._note(self._handle(message))

    def _lose(self, worker: int) -> Lost:
        """Remove a dead worker, with what it was doing."""
        note_lost_worker(self.identities[worker].host, f"{self._name(worker)} has died")
        tasks = int(self._orders.drop(worker))  # nobody knows whether it had begun the next
        self.ledger.lose(worker, tasks)
        self._staying.discard(worker)
        self._setting_up.discard(worker)
        return self._health.died(worker, tasks, ENDED)

    def _find_overdue(self, now: float) -> None:
        """Check now and then for overdue workers, and withdraw their orders."""
        self._next_look = now + LOOK
        deadlines, patience = self._health.deadlines, self._health.deadlines.patience()
        late = [(w, order, silent) for w, order, silent in self._orders.silent(now) if silent > patience[w]]
        workers = np.array([worker for worker, _, _ in late], np.int64)
        counts = np.array([order.left if order.together else 1 for _, order, _ in late], np.int64)
        allowed = deadlines.of(workers, counts) if late else ()
        for (worker, order, silent), longest in zip(late, allowed, strict=True):
            if silent > longest:
                self._suspect(worker, silent, order.round)

    def _suspect(self, worker: int, spent: float, round: int) -> None:
        """Suspend a worker that is overdue, unless the run has to wait for it."""
        lost = self._health.overdue(worker, 0, spent, round)
        if lost is not None:
            self._orders.withdraw(worker)
            self._connections.abandon(worker)
        self._note(lost)

    def _note(self, found: Arrival | Lost | Back | None) -> None:
        """Have wait() return a worker that was found lost or back."""
        if found is not None and not isinstance(found, Arrival):
            self._found.append(found)

    def stop(self, workers: IntArray) -> Array:
        """Stop what these workers have not delivered and return the seconds that each spent on it."""
        return np.array([self._orders.withdraw(worker) for worker in workers.tolist()], np.float64)

    def overruns(self) -> dict[int, float]:
        """Return the seconds that workers spent on stopped tasks, after the stop, since the last call."""
        return self._orders.overruns(self._hangs)

    def _hangs(self, worker: int, seconds: float) -> bool:
        """Return whether a task has taken so long that its worker is lost, or overdue."""
        if not self.available[worker]:
            return True
        return seconds > FLOOR and seconds > self._health.deadline(worker, 1)  # which costs more

    def idle(self) -> IntArray:
        """Return the workers that hold no order."""
        return np.array([worker for worker in range(self.n) if worker not in self._orders.running], np.int64)

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
        self.stop(np.arange(self.n))
        try:
            left = self._shutdown(self.now() + max(self._longest_stop(), LEAVING), final=False)
        except GraceExpired:
            left = False
        if not left:
            self._give_up_on_workers(0)

    def abort(self, code: int = 1) -> None:
        """End a run early; if a worker does not leave in time, all ranks are ended with this exit code."""
        self.grace_expired = lambda: False
        self.stop(np.arange(self.n))
        if not self._shutdown(self.now() + GRACE, final=True):
            self._give_up_on_workers(code)

    def _give_up_on_workers(self, code: int) -> None:
        """Stop waiting for workers: those still there are ended, and what they were doing is lost."""
        for worker in self._staying:
            self.ledger.lose(worker, int(self._orders.drop(worker)))
        self._connections.end_stragglers(self._staying, code)
        self._staying.clear()
        self.ended_for_good = self._closed = True

    def _shutdown(self, until: float, final: bool) -> bool:
        """Let the workers leave and return whether all did in time; `final` if no further run follows."""
        if self._closed:
            return True
        soon = min(until, self.now() + GRACE)
        for worker in self._staying:
            self._connections.send(worker, END, flags=FINAL if final else 0)
        while self._staying:
            message = self._connections.next_message(until, self.grace_expired)
            if message is None and self.now() >= (until if self._answers_expected() else soon):
                return False
            if message is not None and message.kind == END:
                self._staying.discard(self._worker_of[message.sender])
            elif message is not None and message.kind == FAILED:
                self.ledger.stop(self._worker_of[message.sender], message.tasks, _seconds(message))
            elif message is not None:
                self._handle(message)
        self._connections.close()
        self.ended_for_good, self._closed = final or bool(self._connections.dead), True
        return True

    def _answers_expected(self) -> bool:
        """Return whether some worker has not left and is not known to be overdue."""
        return any(self.available[worker] or not self._orders.is_busy(worker) for worker in self._staying)


def _seconds(message: Message) -> float:
    """Return the seconds in a message about unused tasks; times that cannot be true count as 0."""
    seconds = math.fsum(message.seconds)
    return seconds if 0.0 <= seconds < math.inf else 0.0
