"""One job's view of the ranks that work for it: its points, results, accounts, and rules for workers."""

import logging
import math
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from mpi_ata.arrays import Array, IntArray, State, entry
from mpi_ata.clusters.accounts import Ledger, in_flight
from mpi_ata.clusters.bfloat16 import point_wire, results_wire
from mpi_ata.clusters.computations import (
    DRAWS_GLOBALLY,
    evaluated_part,
    received,
    set_up,
    surely_finite,
    template_of,
)
from mpi_ata.clusters.farm import Farming
from mpi_ata.clusters.health import Health
from mpi_ata.clusters.interface import Arrival, Back, ClusterSettings, Lost, named
from mpi_ata.clusters.mpi.chain import Choice, Gathering, Report
from mpi_ata.clusters.mpi.channel import (
    BAD_RESULT,
    EXCHANGED,
    FAILED,
    GLOBAL_RANDOM,
    INLINE,
    REACHABLE,
    SHARED,
    Message,
    Payload,
)
from mpi_ata.clusters.mpi.engine import JobView, Order, Ranks, Row, StoppedOrder
from mpi_ata.clusters.mpi.handshake import check_same, identities, pack_arrays
from mpi_ata.clusters.mpi.library import MPI
from mpi_ata.clusters.mpi.queued import QueuedRanks
from mpi_ata.clusters.sample_indices import sample_indices_for
from mpi_ata.clusters.sharing import Share
from mpi_ata.errors import BadResultError, LossError, RunError
from mpi_ata.launch import host_name, slurm_tasks
from mpi_ata.launch.exit_report import note_lost_worker
from mpi_ata.launch.signals import GraceExpired
from mpi_ata.layout import ranks_for
from mpi_ata.packing import pack
from mpi_ata.problems import returns_values
from mpi_ata.turns import outside_of_turns

log = logging.getLogger("mpi_ata")
OVERDUE_SECONDS = 0.5  # between two checks for overdue workers
SILENT_SECONDS = 3.0  # on a busy machine, any rank may be silent for this long
SETUP_SECONDS = 30.0  # the first worker may find data in a cache that others have to read
CLOCK_SECONDS = 1.0  # by which clocks of two processes may differ
STOPPING_SECONDS = 1.0  # for which an evaluation waits for workers that are being stopped
LEAVING_SECONDS = 10.0  # that idle workers get to leave
ABORT_SECONDS = 2.0  # and all of them, when a run has failed
ENDED = "its process has ended: it was killed, crashed, exited or ran out of memory"
SLOW = 3.0  # times as long as other answers took for what they cost: then another worker evaluates the same
SLOW_SECONDS = 1.0  # at least so much longer than that
SHORTEST_SECONDS = 1e-9  # of a task, to compare speeds
NO_BYTES = bytearray()
new = tuple.__new__  # a third less than Arrival(...)


class MPICluster(Farming):
    """Real workers on the ranks of a communicator, whose manager constructs this.

    `grace_expired` says whether to give up waiting.
    """

    number = 0  # of the job, where several share the ranks

    def __init__(
        self,
        comm: MPI.Comm,
        settings: ClusterSettings,
        grace_expired: Callable[[], bool] = lambda: False,
    ) -> None:
        problem, times, exchange = settings.problem, settings.times, settings.exchange
        drawn = settings.report_drawn and times is not None
        self._problem, self._template = problem, template_of(problem)
        self._computes = returns_values(problem)  # packed values
        self._points = point_wire(problem, self._template)
        self.pack_point: Callable[[Array], Payload] = self._points.packed_point
        self._results = results_wire(problem, self._template)
        # Of short results, which are all waited for at once.
        short = self._template.nbytes <= INLINE and not (self._computes or self._results)
        self.plain_bytes = self._template.nbytes if short else -1
        self._slack = math.inf if drawn else CLOCK_SECONDS  # by which reported times may be too long
        self.grace_expired = grace_expired
        self._ranks = ranks = self._opened_ranks(comm, settings)
        self.ready: dict[int, int] = {}
        self._failure: RunError | None = None  # that ends the run, when it is next waited for
        ranks.jobs[self.number] = self
        self.n = ranks.n
        self.ledger = Ledger(self.n)
        self.draws = sample_indices_for(problem)
        self.identities = identities(ranks.ranks, times.label if times else "")
        self._health = Health(self.ledger.stats, settings.policy, SILENT_SECONDS, self._name)
        self.available = self._health.available
        choice = Choice(exchange, host_name(), self._template.nbytes)
        self._gathering = Gathering(ranks, choice, lambda: self.grace_expired())
        self.break_exchange: Callable[[int], None] = self._gathering.broken
        self.wanted = 0
        self.arrived: list[Row] = []
        self._found: list[Arrival | Lost | Back] = []  # what nobody has asked for yet
        self._overruns: dict[int, float] = {}  # of confirmed stops, since overruns() was last called
        self._part_seconds = 0.0  # the longest that a part of an evaluation has taken
        self._next_look = 0.0  # for overdue workers
        self._closing = False
        try:
            self._set_up()
        except BaseException:
            self.abort()
            raise

    def _opened_ranks(self, comm: MPI.Comm, settings: ClusterSettings) -> Ranks:
        return Ranks(comm, settings.digest, self._template, settings.exchange)

    @property
    def ended_for_good(self) -> bool:
        """Whether no further run can follow on these ranks."""
        return self._ranks.ended_for_good

    @property
    def sharing(self) -> list[int]:
        """The workers that share memory with the manager."""
        return [worker for worker, flags in self.ready.items() if flags & SHARED]

    def now(self) -> float:
        """Return the time on the manager's monotonic clock."""
        return perf_counter()

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
        if self._computes:
            x = pack(x, "x")
        elif x.shape != self._template.shape or x.dtype != self._template.dtype:
            raise ValueError(
                f"x is {x.dtype} of shape {x.shape}, but x0 {self._template.dtype} {self._template.shape}"
            )
        x.flags.writeable = False  # for the caller too: later orders may use a copy made now
        x, whom = self._points.rounded(x), workers.tolist()
        each = [counts] * len(whom) if isinstance(counts, int) else counts.tolist()
        route = self._gathering.route(whom) if together and summed else None
        if self.draws is not None:
            self.draws.take(whom, each)
        order = self._ranks.start(self, whom, x, round, each, together, route)
        if route is not None:
            self._gathering.begin(whom, route, order)
        if round >= self._health.next_trial:
            self._try_again(x, round)

    def wait(self, timeout: float | None = None) -> Arrival | Lost | Back:
        """Return the next arrival, or the next worker that is lost or back."""
        if not self._found:
            self._receive(1, timeout)
        return self._found.pop(0)

    def wait_some(self, tasks: int) -> list[Arrival | Lost | Back]:
        """Return all that has come, at least one thing, and of arrivals no more than this many tasks.

        Where results are small, nothing is gained by using some before the others are in.
        """
        if not self._found:
            self._receive(tasks, all_wanted=self.plain_bytes >= 0)
        found, self._found = self._found, []
        return found

    def _receive(self, tasks: int, timeout: float | None = None, all_wanted: bool = False) -> None:
        """Wait until something is found: arrivals of at most this many tasks, or a loss or return."""
        until, ranks = math.inf if timeout is None else perf_counter() + timeout, self._ranks
        self.wanted = tasks
        while not self._found:
            if not ranks.has_orders(self):
                raise RuntimeError("nothing is running, so there is nothing to wait for")
            if self.grace_expired():
                raise GraceExpired
            came = ranks.receive(self, until, all_wanted)
            self._check_failure()
            if ranks.drained and perf_counter() >= self._next_look:
                self._next_look = perf_counter() + OVERDUE_SECONDS
                self._find_overdue()
            self._gathering.check()
            if not came and not self._found and perf_counter() >= until:
                raise TimeoutError(f"nothing arrived within {timeout} seconds")

    def _receive_any(self, until: float = math.inf) -> bool:
        """Handle what comes between rounds, and return whether anything came within a short time."""
        if self.grace_expired():
            raise GraceExpired
        self.wanted = 1
        came = self._ranks.receive(self, until)
        self._check_failure()
        return came

    def _check_failure(self) -> None:
        """Raise the error that ends the run; not where it is found, which may be in another job's turn."""
        if self._failure is not None and not self._closing:
            raise self._failure

    def _report(self, found: Lost | Back | None) -> None:
        """Have wait() return a worker that was found lost or back, before anything that comes later."""
        if found is not None:
            self._found.append(found)
            self.wanted = 0

    def _book(self) -> None:
        """Book short results, which are checked all at once."""
        arrived, self.arrived = self.arrived, []
        shape, data = (len(arrived), *self._template.shape), bytearray().join([row[3] for row in arrived])
        results: Array = np.ndarray(shape, self._template.dtype, data)
        self._accept(arrived, results, surely_finite(results))

    def _arrive(self, worker: int, order: Order, message: Message) -> None:
        """Book results of an order under way, or of a trial, that are not short, or no arrays like x."""
        left, seconds = self._ranks.left[worker], message.seconds
        if order.trial:
            self._finish_trial(worker, order, message)
        elif not 0 < len(seconds) == message.tasks <= left:
            wrong = f"round {order.round}: {message.tasks} results came, but {left} were ordered"
            self._reject(worker, order, seconds, BadResultError(wrong))
        elif message.flags & EXCHANGED:
            self._hold(worker, order, message)
        else:
            result = self._result_of(worker, message)
            checked = result.nbytes > INLINE or surely_finite(result)  # workers check large ones
            fine = not self._computes and result.shape == self._template.shape and checked
            self._deliver(worker, order, Report(message, perf_counter()), result, fine)

    def _deliver(self, worker: int, order: Order, report: Report, result: Any, fine: bool) -> None:
        """Book tasks of one order that have come back."""
        seconds = report.message.seconds
        row = worker, order, seconds, NO_BYTES, self._ranks.deliver(worker, len(seconds), report.came)
        self._accept([row], [result], fine)
        self._gathering.choice.delivered(math.fsum(seconds), last=not self._ranks.has_orders(self))

    def _accept(self, arrived: list[Row], results: Iterable[Any], fine: bool) -> None:
        """Book tasks that are delivered, and have wait() return them; `fine` if all results can be used."""
        rejected: list[tuple[int, Order, list[float], BadResultError]] = []  # and why
        worker_time, pending = self.ledger.columns()
        too_short, found, draws = -self._slack, self._found, self.draws
        for (worker, order, reported, _, turnaround), result in zip(arrived, results, strict=True):
            seconds = reported[0] if len(reported) == 1 else sum_of(reported)
            overhead = turnaround - seconds
            if not (fine and seconds >= 0.0 and overhead >= too_short):
                try:
                    longest, where = perf_counter() - order.given + self._slack, f"round {order.round}"
                    result = received(worker, result, reported, order.x, where, longest)
                except BadResultError as error:
                    rejected.append((worker, order, reported, error))
                    continue
            if overhead < 0.0:  # max() costs more
                overhead = 0.0
            worker_time[worker] += seconds  # as ledger.deliver() does, without a call for each
            pending.append((worker, reported, overhead))
            found.append(new(Arrival, (worker, result, reported, overhead)))
            if draws is not None:
                draws.deliver(worker, len(reported))
        for each in rejected:
            self._reject(*each)

    def _result_of(self, worker: int, message: Message) -> Array:
        """Return the result of an order: from shared memory, or as it was sent."""
        if (result := self._ranks.results.get(worker)) is not None:
            return result
        if not self._results:
            return message.payload
        return self._results.unpack(message.payload, self._ranks.channel.buffers[self.number].take())

    def _hold(self, worker: int, order: Order, message: Message) -> None:
        """Hold back an arrival until the sum is in; then book all, of which the last one has the sum."""
        if order.route is None:  # the exchange was given up, so its result will come by the star
            return
        report = Report(message, perf_counter())
        if not 0.0 <= math.fsum(message.seconds) <= report.came - self._ranks.latest[worker] + self._slack:
            self._deliver(worker, order, report, order.x, fine=False)  # rejects it
            return
        self._gathering.reports[worker] = report
        if (complete := self._gathering.complete()) is None:
            return
        total, reports = complete
        for each, report in reports.items():
            self._deliver(each, order, report, total if each == worker else None, fine=True)
        self.wanted = 0

    def _drop(self, worker: int, message: Message) -> float:
        """Book tasks that nobody wants any more, and return their seconds."""
        seconds = plausible_sum(message.seconds)
        self.ledger.stop(worker, message.tasks, seconds)
        return seconds

    def _confirm_stop(self, worker: int, stopped: StoppedOrder) -> None:
        """Correct the overrun of a stopped order by what its worker reports.

        The manager may have been busy when the confirmation came.
        """
        overrun = 0.0 if stopped.hung else max(stopped.unused - (stopped.since - stopped.latest), 0.0)
        self._overruns[worker] = self._overruns.get(worker, 0.0) + overrun - stopped.noted

    def _fail(self, worker: int, order: Order, message: Message) -> None:
        """Book an order that failed, and judge its worker."""
        self._drop(worker, message)
        if self._ranks.orders[worker] is order:
            self._ranks.end(worker)
            self._give_back_draws(worker)
        error = BadResultError if message.flags & BAD_RESULT else RunError
        self._judge(worker, message.tasks, error(message.payload.tobytes().decode()), order.round)

    def _fail_to_set_up(self, worker: int, message: Message) -> None:
        """End the run because of a failed setup, unless the run no longer waits for it."""
        why = message.payload.tobytes().decode()
        if self._closing:  # because of another worker, whose error is the one to show
            return
        if self.available[worker]:
            self._end_by(RunError(self._placed(worker, why)))
            return
        self._report(self._health.died(worker, 0, why))

    def _lose(self, worker: int, tasks: int) -> None:
        """Take note that a worker has died, with what it was doing."""
        note_lost_worker(self.identities[worker].host, f"{self._name(worker)} has died")
        self._give_back_draws(worker)
        self.ledger.lose(worker, tasks)
        self._report(self._health.died(worker, tasks, ENDED))

    def _reject(self, worker: int, order: Order, reported: list[float], error: BadResultError) -> None:
        """Book results that cannot be used as stopped, and judge their worker."""
        seconds = min(plausible_sum(reported), perf_counter() - order.given)
        self.ledger.stop(worker, len(reported), seconds)
        self._withdraw(worker)
        self._judge(worker, len(reported), error, order.round)

    def _judge(self, worker: int, tasks: int, error: RunError, round: int) -> None:
        """Suspend or exclude a worker that failed; if that ends the run, say where it failed."""
        if self._closing:
            return
        try:
            lost = self._health.failed(worker, tasks, error, round)
        except RunError as fatal:
            self._end_by(RunError(self._placed(worker, str(fatal))))
            return
        if lost is not None:
            self._withdraw(worker)
        self._report(lost)

    def _end_by(self, error: RunError) -> None:
        """End the run by an error."""
        self._failure, self.wanted = self._failure or error, 0

    def _finish_trial(self, worker: int, order: Order, message: Message) -> None:
        """Book the task that a worker on probation was tried with."""
        result, seconds = self._result_of(worker, message), self._drop(worker, message)
        self._ranks.end(worker)
        try:
            received(worker, result, message.seconds, order.x, f"round {order.round}", math.inf)
        except BadResultError as error:
            self._judge(worker, message.tasks, error, order.round)
        else:
            self._report(self._health.answered(worker, seconds))

    def _try_again(self, x: Array, round: int) -> None:
        """Give one task to each worker whose probation allows it; its result will be dropped."""
        for worker in self._health.due(round):
            if worker not in self.ready or self._ranks.is_busy(worker):
                self._health.unanswered(worker, round)
            else:
                self._ranks.try_out(self, worker, x, round)
                self._health.tried(worker, round)

    def _find_overdue(self) -> None:
        """Suspend workers that are overdue; those that wait for each other deliver by the star first."""
        late = self._overdue()
        if waiting := [worker for worker, order, _ in late if order.route is not None]:
            self._gathering.dissolve(f"nothing came from the workers {waiting}")
            return
        for worker, order, silent in [*late, *self._ranks.unserved(self)]:
            self._suspect(worker, silent, order.round)

    def _overdue(self) -> list[tuple[int, Order, float]]:
        """Return the workers whose orders take too long, with these and the seconds."""
        deadlines, patience = self._health.deadlines, self._health.deadlines.patience()
        late = [row for row in self._ranks.silent(self) if row[3] > patience[row[0]]]
        late = [row for row in late if row[0] not in self._gathering.reports]
        if not late:
            return []
        workers = np.array([worker for worker, *_ in late], np.int64)
        counts = np.array([left if order.together else 1 for _, order, left, _ in late], np.int64)
        rows = zip(late, deadlines.of(workers, counts).tolist(), strict=True)
        return [(worker, order, silent) for (worker, order, _, silent), most in rows if silent > most]

    def _suspect(self, worker: int, spent: float, round: int) -> None:
        """Suspend a worker that is overdue, unless the run has to wait for it."""
        if (lost := self._health.overdue(worker, 0, spent, round)) is not None:
            self._withdraw(worker)
            self._ranks.abandon(worker)
        self._report(lost)

    def stop(self, workers: IntArray) -> Array:
        """Stop what these workers have not delivered and return the seconds that each spent on it."""
        return np.array([self._withdraw(worker) for worker in workers.tolist()], np.float64)

    def _withdraw(self, worker: int) -> float:
        self._give_back_draws(worker)
        return self._ranks.withdraw(self, worker)

    def _give_back_draws(self, worker: int) -> None:
        """Let others have the sample indices of tasks that a worker will not deliver."""
        if self.draws is not None:
            self.draws.give_back(worker)

    def overruns(self) -> dict[int, float]:
        """Return the seconds that workers spent on stopped tasks, after the stop, since the last call.

        They are corrected, perhaps by a negative number, when the worker confirms that it has stopped, and
        when it is found to hang: that is no property of its tasks.
        """
        found, self._overruns, now = self._overruns, {}, perf_counter()
        for worker, stopped in self._stopping():
            spent = now - stopped.since
            stopped.hung = stopped.hung or self._hangs(worker, spent)
            spent = 0.0 if stopped.hung else spent
            found[worker] = found.get(worker, 0.0) + spent - stopped.noted
            stopped.noted = spent
        return found

    def _stopping(self) -> list[tuple[int, StoppedOrder]]:
        """Return who has not confirmed a stop, and of which order."""
        return [each for each in self._ranks.stopping.items() if each[1].order.job is self]

    def _hangs(self, worker: int, seconds: float) -> bool:
        """Return whether a task has taken so long that its worker is lost, or overdue."""
        if not self.available[worker]:
            return True
        return seconds > SILENT_SECONDS and seconds > self._health.deadline(worker, 1)  # which costs more

    def idle(self) -> IntArray:
        """Return the workers that hold no order."""
        idle = [i for i, order in enumerate(self._ranks.orders) if order is None or order.trial]
        return np.array(idle, np.int64)

    def evaluate(self, x: Array, parts: range) -> list[float]:
        """Return what problem.evaluate_part(x, part) returns for these parts, in order.

        Free workers do it; the manager does what they are too late with, and everything if orders run.
        """
        health = self._health

        def here(part: int) -> list[float]:
            with outside_of_turns():
                return evaluated_part(self._problem, x, part)

        # Results that arrive while orders run belong to wait().
        free = [] if self._ranks.has_orders(self) else sorted(self._free_after_stops())
        if not free:
            return [value for part in parts for value in here(part)]
        work = PartialEvaluation(self._ranks, self, x, self._part_seconds, self._name)
        work.divide(parts, free, self.ledger.stats.pooled_means()[free])
        while work.missing():
            self._receive_any()
            work.redo(self._free())
            if work.overdue(health.deadlines.factor, SILENT_SECONDS):
                work.do_missing(here)
        self._part_seconds = work.longest
        return work.results()

    def _free_after_stops(self) -> set[int]:
        """Return the free workers, after all that were stopped have confirmed, or a second has passed.

        If all are still busy then, wait for the first one until it is overdue.
        """
        soon = perf_counter() + STOPPING_SECONDS
        last = max(soon, perf_counter() + self._longest_stop())
        while not (free := self._free()) or self._ranks.stopping:
            if perf_counter() >= (until := soon if free else last):
                break
            self._receive_any(until)
        return free

    def _free(self) -> set[int]:
        """Return the workers that are ready, available, and have nothing to do; LossError if none is left."""
        if not self.available.any():
            raise LossError(f"all {self.n} workers are lost; resume the run on other workers")
        able = np.flatnonzero(self.available).tolist()
        return {worker for worker in able if worker in self.ready and self._ranks.can_be_asked(worker)}

    def _longest_stop(self) -> float:
        """Return the seconds after which no worker should be at a stopped task any more."""
        busy = [worker for worker, _ in self._stopping() if self.available[worker]]
        return max((self._health.deadline(worker, 1) for worker in busy), default=0.0)

    def state(self) -> State:
        """Return the accounts, and who has begun a task whose fate is not known: that cannot be saved."""
        orders, stopping = self._ranks.orders, np.zeros(self.n, np.int64)
        running = np.array([order is not None and order.job is self for order in orders], np.int64)
        stopping[[worker for worker, _ in self._stopping() if not running[worker]]] = 1
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

    def _set_up(self) -> None:
        """Set up manager and workers, before the clock starts; who is late is judged by the others."""
        check_same(self._ranks.ranks)
        for ring in self._ranks.ring:
            ring()
        began, longest, warned = perf_counter(), 0.0, False
        set_up(self._problem, None, self.n)
        while waiting := [i for i in np.flatnonzero(self.available).tolist() if i not in self.ready]:
            ready = len(self.ready)
            came, elapsed = self._receive_any(), perf_counter() - began
            if len(self.ready) > ready:
                longest = elapsed
            if came or elapsed <= SETUP_SECONDS:
                continue
            if not warned:
                log.warning("workers %s are not set up after %.0f s", waiting, SETUP_SECONDS)
                warned = True
            if longest and 0 < self._health.policy.deadline < elapsed / longest:
                for worker in waiting:
                    self._suspect(worker, elapsed, 0)
                break
        if not self.available.any():
            losses = [found.why for found in self._found if isinstance(found, Lost)]
            raise RunError(f"no worker is left: {losses[-1]}")

    def log_notes(self, sleeping: bool) -> None:
        """Log what the user should know about these ranks; `sleeping` if their tasks mostly sleep."""
        ranks = self._ranks
        if (given := slurm_tasks()) not in (None, started := ranks_for(self.n)):
            log.warning(f"Slurm has given {given} tasks to this job, but {started} ranks were started")
        if unreachable := sorted(i for i, flags in self.ready.items() if not flags & REACHABLE):
            log.warning(f"the doorbell of workers {unreachable} cannot be rung: they poll every 10 ms")
        if ranks.unwatched:
            log.warning(
                f"workers {ranks.unwatched} cannot reach the manager over TCP: deaths are noticed late"
            )
        if any(flags & GLOBAL_RANDOM for flags in self.ready.values()):
            log.warning(DRAWS_GLOBALLY)
        if sleeping:
            log.info("tasks sleep as long as [times] says; without it, they run at their real speed")
        here = sum(rank.host == host_name() for rank in ranks.ranks)
        if here > (cores := os.cpu_count() or here) and not sleeping:
            log.warning(f"{here} ranks share {cores} cores here: task times include waiting for a core")
        if ranks.shared is not None and ranks.shared.room() < 2 * (self.n + 2) * self._template.nbytes:
            log.warning("shared memory is too small for x and all results: what does not fit is sent by MPI")

    def close(self) -> None:
        """Stop everyone, let the workers leave, and settle the accounts; late ones are not waited for."""
        self._end(final=False, code=0)

    def abort(self, code: int = 1) -> None:
        """End a run early; if a worker does not leave in time, all ranks are ended with this exit code."""
        self.grace_expired = lambda: False
        self._end(final=True, code=code)

    def _end(self, final: bool, code: int) -> None:
        """Stop everyone, and let the workers leave; `final` if no further run follows."""
        ranks, self._closing = self._ranks, True
        if ranks.closed:
            return
        for worker, report in self._gathering.end().items():  # whose results nobody will use
            self._drop(worker, report.message)
        self.stop(np.arange(self.n))
        ranks.dismiss(final)
        seconds = ABORT_SECONDS if final else max(self._longest_stop(), LEAVING_SECONDS)
        with suppress(GraceExpired):
            if self._all_leave(perf_counter() + seconds):
                ranks.close(final)
                return
        for worker in ranks.staying:
            self.ledger.lose(worker, int(ranks.drop(worker) is self))
        ranks.end_stragglers(code)

    def _all_leave(self, until: float) -> bool:
        """Return whether all workers leave in time; those known to be overdue get less of it."""
        soon = min(until, perf_counter() + ABORT_SECONDS)
        while staying := self._ranks.staying:
            expected = any(self.available[i] or not self._ranks.is_busy(i) for i in staying)
            if not self._receive_any(until) and perf_counter() >= (until if expected else soon):
                return False
        return True

    def _name(self, worker: int) -> str:
        return named(worker, self.identities[worker])

    def _placed(self, worker: int, why: str) -> str:
        """Return what went wrong on a worker, with its host; a text about a task names the worker already."""
        task, who = f"task of worker {worker} ", self._name(worker)
        return why.replace(task, f"task of {who} ", 1) if task in why else f"{who}: {why}"


class SharedMPICluster(MPICluster):
    """The view of one of several jobs that share the ranks; `number` is that of the job among them."""

    def __init__(
        self,
        ranks: QueuedRanks,
        share: Share,
        number: int,
        settings: ClusterSettings,
        grace_expired: Callable[[], bool],
    ) -> None:
        self._shared, self.share, self.number = ranks, share, number
        self.missing = 0  # results that wait_some() waits for
        self._held: list[tuple[Row, Any, bool]] = []  # that have come, and may be more than a round needs
        super().__init__(ranks.comm, settings, grace_expired)

    def _opened_ranks(self, comm: MPI.Comm, settings: ClusterSettings) -> Ranks:
        return self._shared

    def _set_up(self) -> None:
        self._shared.join(self, self._template, pack_arrays(self._problem))
        super()._set_up()

    def divide(self, a: IntArray) -> IntArray:
        """Return the quotas of a round, given what other jobs have ordered."""
        self.share.learn(self.ledger)
        return self.share.divide(a, self.available, perf_counter())

    def wait_some(self, tasks: int) -> list[Arrival | Lost | Back]:
        """Return all that has come, at least one thing, and of arrivals no more than this many tasks."""
        self.missing = tasks
        self._book_held()
        try:
            return super().wait_some(tasks)
        finally:
            self.missing = 0

    def _accept(self, arrived: list[Row], results: Iterable[Any], fine: bool) -> None:
        """Book results; with spare tasks, only as many as the round needs: more may be on their way."""
        if not self.share.spares:
            super()._accept(arrived, results, fine)
            return
        self._held += [(row, result, fine) for row, result in zip(arrived, results, strict=True)]
        self._book_held()

    def _book_held(self) -> None:
        while self._held and self.missing > 0:
            row, result, fine = self._held.pop(0)
            self.missing -= len(row[2])
            super()._accept([row], [result], fine)

    def can_spare(self, worker: int) -> bool:
        """Return whether an idle worker can do a spare task for this job."""
        return worker in self.ready and bool(self.available[worker])

    def start_spare(self, worker: int) -> None:
        """Let an idle worker do one more task of the present round."""
        if self.draws is not None:
            self.draws.take([worker], [1])
        self._shared.start_spare(self, worker)

    def stop(self, workers: IntArray) -> Array:
        """Stop what these workers have not delivered, and all spare tasks: the round is over."""
        for (worker, _, seconds, *_), _, _ in self._held:
            self.ledger.stop(worker, len(seconds), plausible_sum(seconds))
            self._give_back_draws(worker)
        self._held.clear()
        return self._shared.in_main(self, partial(self._stop_all, workers))

    def _stop_all(self, workers: IntArray) -> Array:
        for worker in self._shared.spares_of(self):
            self._withdraw(worker)
        return super().stop(workers)

    def _end(self, final: bool, code: int) -> None:
        """Let the workers forget this job."""
        self._closing = True
        self.stop(np.arange(self.n))
        self._shared.leave(self)


class PartialEvaluation:
    """One evaluation at x, between rounds: which worker evaluates which parts, and what is in.

    `longest` are the seconds per part of the slowest answer so far, earlier evaluations included.
    """

    def __init__(
        self, ranks: Ranks, job: JobView, x: Array, longest: float, name: Callable[[int], str]
    ) -> None:
        self.longest = longest
        self._ranks, self._job, self._x, self._name = ranks, job, x, name
        self._all: set[range] = set()
        self._busy: dict[int, range] = {}  # by worker
        self._waiting: list[range] = []  # without a worker
        self._copied: set[range] = set()  # that a second worker was given
        self._costs: dict[range, float] = {}  # in seconds of tasks, by the speed of the first worker
        self._slowest = 0.0  # seconds of an answer, divided by what it cost
        self._found: dict[range, list[float]] = {}
        self._failure = ""
        self._began = perf_counter()

    def divide(self, parts: range, workers: Sequence[int], seconds: Array) -> None:
        """Give each worker a range of parts, in proportion to its speed; it takes this long for a task."""
        speeds = 1 / np.maximum(seconds, SHORTEST_SECONDS)
        ends = np.rint(np.cumsum(speeds) / speeds.sum() * len(parts)).astype(int).tolist()
        for worker, speed, begin, end in zip(workers, speeds, [0, *ends], ends, strict=False):
            if begin < end:
                self._costs[parts[begin:end]] = (end - begin) / speed
                self._ask(worker, parts[begin:end])

    def _ask(self, worker: int, parts: range) -> None:
        self._all.add(parts)
        self._busy[worker] = parts
        self._x = self._ranks.ask(self._job, worker, self._x, parts, partial(self._take, parts))

    def _take(self, parts: range, worker: int, message: Message) -> None:
        """Keep what a worker has sent."""
        if message.kind == FAILED:
            self._failure = f"{self._name(worker)}: {message.payload.tobytes().decode()}"
            return
        values = message.payload.reshape(-1).view(np.uint8).view(np.float64)
        self._found[parts], seconds = values.tolist(), perf_counter() - self._began
        self._busy.pop(worker, None)
        self._slowest = max(self._slowest, seconds / self._costs[parts])
        self.longest = max(self.longest, seconds / len(parts))

    def missing(self) -> set[range]:
        """Return the parts that are not in yet; RunError if some could not be evaluated."""
        if self._failure:
            raise RunError(self._failure)
        return self._all.difference(self._found)

    def redo(self, free: set[int]) -> None:
        """Give the parts of lost and of very slow workers to free ones."""
        for worker in set(self._busy) - free:
            self._waiting.append(self._busy.pop(worker))
        passed = perf_counter() - self._began - SLOW_SECONDS
        late = {each for each in self._busy.values() if passed > SLOW * self._slowest * self._costs[each]}
        if self._found:
            self._waiting += late - self._copied
            self._copied |= late
        self._waiting = [parts for parts in self._waiting if parts not in self._found]
        for worker in sorted(free - set(self._busy))[: len(self._waiting)]:
            self._ask(worker, self._waiting.pop())

    def overdue(self, factor: float, least: float) -> bool:
        """Return whether what is missing takes `factor` times as long as any part has taken."""
        most = max(map(len, self.missing()), default=0)
        longest = factor * self.longest * most if self.longest else math.inf
        return perf_counter() - self._began > max(longest, least)

    def do_missing(self, evaluated: Callable[[int], list[float]]) -> None:
        """Evaluate in this process what is missing."""
        for parts in self.missing():
            self._found[parts] = [value for part in parts for value in evaluated(part)]

    def results(self) -> list[float]:
        """Return what was computed, in the order of the parts."""
        return [value for parts in sorted(self._found, key=lambda r: r.start) for value in self._found[parts]]


def plausible_sum(seconds: list[float]) -> float:
    """Return the sum of the times of unused tasks; if it cannot be true, it counts as 0."""
    total = math.fsum(seconds)
    return total if 0.0 <= total < math.inf else 0.0


def sum_of(seconds: list[float]) -> float:
    """Return the sum of the times of tasks; NaN if one is negative."""
    return math.fsum(seconds) if min(seconds) >= 0.0 else math.nan
