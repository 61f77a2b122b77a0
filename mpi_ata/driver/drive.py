"""One run being driven: from where it starts to its last save."""

import logging
import math
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mpi_ata.clusters import Cluster
from mpi_ata.clusters.interface import ClusterAbilities
from mpi_ata.driver.evaluation import evaluate
from mpi_ata.driver.loggers import LOGGERS, Logger
from mpi_ata.driver.observers import Observer, Observers
from mpi_ata.driver.plan import RunStart
from mpi_ata.driver.recorder import RunRecorder
from mpi_ata.driver.restore import Note, begin
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import DivergedError, LossError, RunError, TakenError, UsageError, in_short, in_users_code
from mpi_ata.job.schema import Stop
from mpi_ata.launch.signals import GraceExpired, StopRequest
from mpi_ata.methods import Method, Round
from mpi_ata.methods.interface import MethodAbilities, decision_time
from mpi_ata.problems import AnyProblem
from mpi_ata.runfile.hosts import HostReport


def rounds(
    method: Method,
    cluster: Cluster,
    problem: AnyProblem | None,
    stop: Stop,
    evaluate_every: int,
    trace: Trace,
) -> Iterator[Round]:
    """Yield one round after another until a limit of `stop` is reached; without one, for as long as asked.

    Every `evaluate_every` rounds the loss of `problem`, and what its evaluate(x) returns, goes into `trace`,
    off the clock.
    """
    if not trace.rows:
        _evaluate(problem, method, stop, cluster, trace)
    done = stop.reached(trace)
    while not done:
        round = _step(method, cluster, trace)
        done = stop.reached(trace)
        if done or method.k % evaluate_every == 0:
            _evaluate(problem, method, stop, cluster, trace)
            done = done or stop.reached(trace)
        yield round


def _step(method: Method, cluster: Cluster, trace: Trace) -> Round:
    """Do one round, and take it in."""
    began, before = time.perf_counter(), decision_time(method)
    round = method.step(cluster)
    trace.add(round, cluster.ledger)
    decision = decision_time(method) - before
    trace.wall_time.add_round(time.perf_counter() - began, round.duration, decision)
    return round


def _evaluate(problem: AnyProblem | None, method: Method, stop: Stop, cluster: Cluster, trace: Trace) -> None:
    with trace.wall_time.timed("evaluation_time"):
        found = evaluate(problem, method, stop.needs_loss, cluster)
    trace.record(found)


class RoundBoundary:
    """The end of the latest completed round: the state as which a run that fails can be saved.

    Not where x has moved in the round that failed, nor in a simulation, which is to be repeated bit for bit:
    there the state that was taken last counts.
    """

    def __init__(self, method: Method, cluster: Cluster, trace: Trace) -> None:
        self._method, self._cluster, self._trace = method, cluster, trace
        self._unused = trace.used - self._finished_tasks()
        self.note()

    def _finished_tasks(self) -> int:
        return int(self._cluster.ledger.stats.state()["tasks"].sum())

    def note(self) -> None:
        """Take the present state as the end of a completed round."""
        self._mark, self._x, self._k = self._cluster.ledger.mark(), self._method.x, self._method.k

    def settle(self, error: Exception) -> bool:
        """Return whether the run can be saved as it is now; a round that broke off is booked as wasted."""
        method, trace = self._method, self._trace
        if trace.round == method.k > self._k:  # the round is complete: what failed is its evaluation
            return not isinstance(error, DivergedError)
        taken = ClusterAbilities.of(self._cluster).simulated or MethodAbilities.of(method).point_per_worker
        replayed = taken and not isinstance(error, LossError)
        if replayed or method.x is not self._x or method.k != self._k:
            return False
        self._cluster.stop(np.arange(self._cluster.n))
        trace.settle(self._cluster.ledger, self._mark)
        trace.wasted += self._unused + self._finished_tasks() - trace.used
        return True


@contextmanager
def saved_on_failure(boundary: RoundBoundary, method: Method, recorder: RunRecorder | None) -> Iterator[None]:
    """Where rounds fail, save the completed ones and the reason, and say what is left of the run."""
    try:
        yield
    except TakenError:  # the file belongs to another run now
        raise
    except Exception as error:
        if not isinstance(error, RunError | UsageError):  # in an allocator or a method of the user's own
            error = in_users_code(f"round {method.k + 1} failed", error)
        whole = boundary.settle(error)
        raise (_recorded(error, whole, recorder) if recorder else error) from None


def _recorded(error: Exception, whole: bool, recorder: RunRecorder) -> Exception:
    """Record a failure, and return the error with what is left of the run."""
    recorder.fail(error, whole)
    if isinstance(error, UsageError):
        return error
    kind = LossError if isinstance(error, LossError) else RunError
    return kind(f"{error}\n{recorder.remains()}")


log = logging.getLogger("mpi_ata")
ENOUGH = 300  # orders: the first ones may wait for code to be loaded


class ExchangeAdvice(Observer):
    """Logs at the end of a run that exchanging orders and results took longer than the tasks themselves."""

    def on_start(self, method: Method, cluster: Cluster, trace: Trace) -> None:
        """Remember whose accounts to look at."""
        self._stats = cluster.ledger.stats

    def on_end(self, trace: Trace, reason: str | None) -> None:
        """Look at the mean order of all workers."""
        sums = self._stats.state()
        orders = int(sums["arrivals"].sum())
        overhead, seconds = (math.fsum(sums[name]) / max(orders, 1) for name in ("overhead", "seconds"))
        if orders >= ENOUGH and overhead > seconds:
            log.warning(
                "exchanging an order took %.3g ms, but its tasks only %.3g ms: let each task do more, "
                "or use a larger budget",
                1e3 * overhead,
                1e3 * seconds,
            )


BY_CALLER = "leaving the loop"  # what ended a run that neither a limit nor a signal ended


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    workers: int
    trace: Trace
    x: Any
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


class Drive:
    """Drives one run.  With `closes` the cluster is this run's alone, and is closed when it is finished."""

    def __init__(
        self,
        start: RunStart,
        method: Method,
        problem: AnyProblem | None,
        cluster: Cluster,
        trace: Trace,
        observers: Sequence[Observer],
        stop_request: StopRequest,
        closes: bool = True,
    ) -> None:
        self._start, self._cluster, self._stop_request, self._trace = start, cluster, stop_request, trace
        self._problem, self._method, self._closes = problem, method, closes
        names = dict.fromkeys(start.job.run.log or ()) if start.file else ()  # they write beside it
        observers = [*observers, *(LOGGERS[name]() for name in names)]
        self._loggers = [observer for observer in observers if isinstance(observer, Logger)]
        self._observers = Observers([*observers, ExchangeAdvice()])
        self._recorder: RunRecorder | None = None
        self._notes: Sequence[Note] | None = None  # of what the run starts from, once it was restored
        self.reason: str | None = None  # the limit that was reached
        cluster.grace_expired = stop_request.grace_expired

    def outcome(self) -> Outcome:
        """Drive the run to its end, and return how it ended."""
        with np.errstate(over="ignore", invalid="ignore"):  # evaluate() says it better
            for _ in self.rounds():
                pass
        outcome = Outcome(self._cluster.n, self._trace, self._method.x, self.reason, self._stop_request.name)
        if (found := self._recorder) is None:
            return outcome
        hosts = found.flagged_hosts()
        return replace(
            outcome, out=found.path, resumable=found.resumable, flagged_hosts=hosts, saved=found.saved
        )

    @property
    def resumable(self) -> bool:
        """Return whether what was saved can be resumed."""
        return self._recorder is not None and self._recorder.resumable

    def rounds(self) -> Generator[Round, None, None]:
        """Yield one round after another; when they end, for whatever reason, the run is saved."""
        try:
            self._begin()
            yield from self._run_rounds()
            self._end()
        except GeneratorExit:  # the caller has left its loop, between two rounds
            self._end()
            raise
        except (GraceExpired, KeyboardInterrupt):  # in the middle of a round: the latest save is what is left
            if not self._closes and not self._stop_request:
                raise
        except (RunError, UsageError):
            raise
        except Exception as error:  # in an allocator or a method of the user's own
            raise in_users_code(f"round {self._method.k + 1} failed", error) from None
        finally:
            self._observers.on_end(self._trace, self.reason)

    def restore(self) -> Sequence[Note]:
        """Bring the run to where it starts from, unless that was done, and return what to record of that."""
        if self._notes is None:
            self._notes = begin(self._start, self._method, self._cluster, self._trace)
        return self._notes

    def _begin(self) -> None:
        start, method, cluster, trace = self._start, self._method, self._cluster, self._trace
        notes = self.restore()
        trace.end_setup()
        if start.file is not None:
            self._recorder = RunRecorder(start, start.file, method, cluster, trace)
            self._recorder.begin(notes)
            for logger in self._loggers:
                logger.place(self._recorder.path, self._recorder.run)
        self._observers.on_start(method, cluster, trace)

    def _run_rounds(self) -> Iterator[Round]:
        job, stop_request, recorder = self._start.job, self._stop_request, self._recorder
        loop = rounds(
            self._method, self._cluster, self._problem, job.stop, job.run.evaluate_every, self._trace
        )
        boundary = RoundBoundary(self._method, self._cluster, self._trace)
        with saved_on_failure(boundary, self._method, recorder):
            for round in stop_request.enforced_on(loop):
                self._observers.on_round(round, self._trace)
                if recorder:
                    recorder.note(round)
                yield round  # what the caller does with it belongs to the round: x and state may change
                boundary.note()
                if stop_request:
                    break
                if recorder:
                    recorder.save_if_due(round)

    def _end(self) -> None:
        """Save for the last time; a cluster that belongs to a finished run is closed first."""
        recorder, before = self._recorder, self._cluster.ledger.mark()
        self.reason = reason = self._start.job.stop.reached(self._trace)
        if reason is None:
            self._trace.end()
            if recorder:
                recorder.interrupt(self._stop_request.word if self._stop_request else BY_CALLER)
            self._evaluate_last(recorder)
            return
        if recorder:
            recorder.finish(reason)
        self._release()
        self._trace.settle(self._cluster.ledger, before)
        self._trace.end()
        if recorder:
            recorder.save_summary()

    def _evaluate_last(self, recorder: RunRecorder | None) -> None:
        """Evaluate where a run was stopped; it is saved by now, so nothing is lost if that takes too long."""
        if self._trace.is_evaluated():
            return
        try:
            with self._stop_request.enforced():
                self._trace.conclude(evaluate(self._problem, self._method))
        except GraceExpired:
            log.warning("the last round was not evaluated: that took longer than the grace period")
        except RunError as error:
            log.warning("the last round could not be evaluated: %s", in_short(error))
        else:
            if recorder:
                recorder.save_again()

    def _release(self) -> None:
        """Close the cluster, or leave it to the caller with no order under way."""
        if self._closes:
            self._cluster.close()
        else:
            self._cluster.stop(np.arange(self._cluster.n))
