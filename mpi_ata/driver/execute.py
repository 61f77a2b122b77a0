"""Runs a plan from start to end: on the virtual cluster, or on the ranks of this MPI world."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mpi_ata.arrays import Array
from mpi_ata.clusters import Cluster, VirtualCluster
from mpi_ata.driver.advice import ExchangeAdvice
from mpi_ata.driver.evaluation import evaluate
from mpi_ata.driver.loop import run
from mpi_ata.driver.observers import Observer, Observers
from mpi_ata.driver.plan import Plan
from mpi_ata.driver.recorder import RunRecorder
from mpi_ata.driver.restore import allocator_of, begin
from mpi_ata.driver.trace import Regret, Trace
from mpi_ata.errors import CONTINUE, LossError, RunError, TakenError, UsageError, in_users_code
from mpi_ata.job import Job, Parts
from mpi_ata.job.build import fault_policy
from mpi_ata.job.demand import check_simulation
from mpi_ata.job.schema import prefix_errors
from mpi_ata.launch import allocated_cores, rank
from mpi_ata.launch.signals import GraceExpired, StopRequest
from mpi_ata.layout import MANAGER, ranks_for
from mpi_ata.methods import Method
from mpi_ata.methods.base import WorkersLostError
from mpi_ata.runfile.hosts import HostReport

log = logging.getLogger("mpi_ata")


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    workers: int
    trace: Trace
    x: Array
    reason: str | None  # the limit that was reached; None where it was stopped early
    signal: str = ""  # that stopped it
    out: Path | None = None  # where it was saved
    resumable: bool = False  # from there
    flagged_hosts: Sequence[HostReport] = ()  # slow, flaky or lost
    saved: int = 0  # the round up to which it was saved

    def summary(self) -> dict[str, Any]:
        """Return the result in plain numbers; None where one is not known."""
        return self.trace.summary() | {
            "workers": self.workers,
            "finished": self.reason is not None,
            "out": self.out and str(self.out),
        }


def execute(plan: Plan, observers: Sequence[Observer] = ()) -> Outcome:
    """Run a plan on the virtual cluster; a signal ends it early, with what was reached."""
    trace = Trace()
    with StopRequest(plan.job.run.grace) as stop_request:
        _log_notes(plan)
        with _set_up_in_time(stop_request), stop_request.enforced():
            parts, cluster = _simulated(plan)
        return _Drive(plan, parts, cluster, trace, observers, stop_request).outcome()


def _simulated(plan: Plan) -> tuple[Parts, VirtualCluster]:
    """Return the parts of a run, and the virtual cluster on which they run."""
    parts = plan.parts()
    with prefix_errors(plan.job.path):
        if parts.times is None:
            raise UsageError("a virtual clock needs a table [times], which says how long tasks take")
        check_simulation(parts.method, parts.times.n)
        job = plan.job
        can_be_late = "faults" in job.tables or (job.times is not None and job.times.changes)
        policy = fault_policy(job, parts.method) if can_be_late else None
        return parts, VirtualCluster(parts.problem, parts.times, plan.job.run.seed, policy=policy)


def execute_on_ranks(plan: Plan, observers: Sequence[Observer] = ()) -> Outcome | None:
    """Run a plan on the ranks of this MPI world; on a worker's rank there is no outcome."""
    from mpi_ata.clusters.world import collective_check, mpi_cluster, workers_in_world

    job, trace = plan.job, Trace()
    with StopRequest(job.run.grace, on_ranks=True, is_worker=rank() != MANAGER) as stop_request:
        _log_notes(plan)
        with collective_check():
            parts = plan.parts(workers_in_world())
        drawn = job.times is not None and job.times.report == "drawn"
        expired, policy = stop_request.grace_expired, fault_policy(job, parts.method)
        with (
            _set_up_in_time(stop_request),
            mpi_cluster(
                parts.problem, parts.times, job.run.seed, drawn, job.digest, expired, policy
            ) as cluster,
        ):
            if cluster is None:
                return None
            _check_size(job, cluster.n)
            cluster.log_notes(sleeping=parts.times is not None)
            trace.cores = allocated_cores() or ranks_for(cluster.n)
            outcome = _Drive(plan, parts, cluster, trace, observers, stop_request).outcome()
            if outcome.reason is None:
                cluster.abort(CONTINUE if outcome.resumable else 1)
            return outcome


def _check_size(job: Job, n: int) -> None:
    if job.run.workers not in (None, n):
        log.warning("workers = %s was requested, but this MPI world has %s: using those", job.run.workers, n)


@contextmanager
def _set_up_in_time(stop_request: StopRequest) -> Iterator[None]:
    """Raise RunError if a signal comes during setup, and setup does not end within the grace period."""
    try:
        yield
    except GraceExpired:
        raise RunError(f"{stop_request.word} came before all workers were set up: nothing was done") from None


class _Drive:
    """One run being driven: from where it starts to its last save."""

    def __init__(
        self,
        plan: Plan,
        parts: Parts,
        cluster: Cluster,
        trace: Trace,
        observers: Sequence[Observer],
        stop_request: StopRequest,
    ) -> None:
        self._plan, self._cluster, self._stop_request, self._trace = plan, cluster, stop_request, trace
        self._problem, times, self._method = parts
        self._observers = Observers([*observers, ExchangeAdvice()])
        self._recorder: RunRecorder | None = None
        cluster.grace_expired = stop_request.grace_expired
        allocator = allocator_of(self._method)
        if times is not None and allocator is not None:
            trace.track_regret(Regret(times.means, allocator.budget))

    def outcome(self) -> Outcome:
        """Drive the run, and return how it ended."""
        reason = None
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # evaluate() says it better
                self._begin()
                self._run_rounds()
                reason = self._plan.job.stop.reached(self._trace)
                self._end(reason)
        except (GraceExpired, KeyboardInterrupt):  # in the middle of a round: the latest save is what is left
            reason = None
        except (RunError, UsageError):
            raise
        except Exception as error:  # in an allocator or a method of the user's own
            raise in_users_code(f"round {self._method.k + 1} failed", error) from None
        finally:
            self._observers.on_end(self._trace, reason)
        outcome = Outcome(self._cluster.n, self._trace, self._method.x, reason, self._stop_request.name)
        if (found := self._recorder) is None:
            return outcome
        hosts = found.flagged_hosts()
        return replace(
            outcome, out=found.path, resumable=found.resumable, flagged_hosts=hosts, saved=found.saved
        )

    def _begin(self) -> None:
        plan, method, cluster, trace = self._plan, self._method, self._cluster, self._trace
        if plan.file is not None:
            notes = begin(plan, method, cluster, trace)
            self._recorder = RunRecorder(plan, plan.file, method, cluster, trace)
            self._recorder.begin(notes)
        self._observers.on_start(method, cluster, trace)

    def _run_rounds(self) -> None:
        job, every = self._plan.job, self._plan.job.run.evaluate_every
        rounds = run(self._method, self._cluster, self._problem, job.stop, every, self._trace)
        with _saying_what_remains(self._method, self._recorder), self._saving_completed_rounds():
            for round in self._stop_request.enforced_on(rounds):
                self._boundary, self._x = self._cluster.ledger.mark(), self._method.x
                self._observers.on_round(round, self._trace)
                if self._recorder:
                    self._recorder.note(round)
                if self._stop_request:
                    break
                if self._recorder:
                    self._recorder.save_if_due(round)

    @contextmanager
    def _saving_completed_rounds(self) -> Iterator[None]:
        """Save a run that lacks workers, unless its x has moved since the latest completed round.

        What the others did in the round that failed is wasted.
        """
        ledger, trace = self._cluster.ledger, self._trace
        self._boundary, self._x = ledger.mark(), self._method.x
        unused = -int(ledger.stats.state()["tasks"].sum()) + trace.used
        try:
            yield
        except WorkersLostError as error:
            if self._method.x is not self._x:
                raise
            self._cluster.stop(np.arange(self._cluster.n))
            trace.settle(ledger, self._boundary)
            trace.wasted += unused + int(ledger.stats.state()["tasks"].sum()) - trace.used
            if self._recorder:
                self._recorder.save_completed(error.losses)
            raise

    def _end(self, reason: str | None) -> None:
        """Save for the last time; the cluster of a finished run is closed first."""
        recorder, before = self._recorder, self._cluster.ledger.mark()
        if reason is None:
            self._trace.end()
            if recorder:
                recorder.interrupt(self._stop_request.word)
            self._evaluate_last(recorder)
            return
        if recorder:
            recorder.finish(reason)
        self._cluster.close()
        self._trace.settle(self._cluster.ledger, before)
        self._trace.end()
        if recorder:
            recorder.save_summary()

    def _evaluate_last(self, recorder: RunRecorder | None) -> None:
        """Evaluate where a run was stopped; it is saved by now, so nothing is lost if that takes too long."""
        if self._trace.is_evaluated():
            return
        with _saying_what_remains(self._method, recorder), self._stop_request.enforced():
            self._trace.conclude(evaluate(self._problem, self._method))
        if recorder:
            recorder.save_summary()


@contextmanager
def _saying_what_remains(method: Method, recorder: RunRecorder | None) -> Iterator[None]:
    """Where rounds fail, say what is left of the run."""
    try:
        yield
    except (GraceExpired, UsageError, TakenError):
        raise
    except Exception as error:
        if not isinstance(error, RunError):  # in an allocator or a method of the user's own
            error = in_users_code(f"round {method.k + 1} failed", error)
        kind = LossError if isinstance(error, LossError) else RunError
        raise (kind(f"{error}\n{recorder.remains()}") if recorder else error) from None


def _log_notes(plan: Plan) -> None:
    for text in plan.notes:
        log.warning("%s", text)
