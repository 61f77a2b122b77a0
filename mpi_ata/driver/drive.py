"""One run being driven: from where it starts to its last save."""

import logging
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpi_ata.clusters import Cluster
from mpi_ata.clusters.accounts import Ledger
from mpi_ata.clusters.interface import ClusterAbilities
from mpi_ata.driver.evaluation import evaluate
from mpi_ata.driver.observers import LOGGERS, Logger, Observer
from mpi_ata.driver.plan import RunStart
from mpi_ata.driver.recorder import RunRecorder
from mpi_ata.driver.restore import Note, begin
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import (
    DivergedError,
    LossError,
    RunError,
    TakenError,
    UsageError,
    in_short,
    in_users_code,
    one_line,
)
from mpi_ata.launch.signals import GraceExpired, StopRequest
from mpi_ata.methods import Method, Round
from mpi_ata.methods.interface import MethodAbilities, decision_time, has_idle_spares
from mpi_ata.problems import AnyProblem, TwoPoints
from mpi_ata.runfile.hosts import HostReport

log = logging.getLogger("mpi_ata")

BY_CALLER = "leaving the loop"  # what ended a run that neither a limit nor a signal ended
ENOUGH_ORDERS = 300  # to judge the exchange by: the first ones may wait for code to be loaded


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


def advise_on_exchange(ledger: Ledger, advice: str = "let each task do more, or use a larger budget") -> None:
    """Log where exchanging orders and results took longer than the tasks themselves, on average."""
    sums = ledger.stats.state()
    orders = int(sums["arrivals"].sum())
    overhead, seconds = (1e3 * math.fsum(sums[name]) / max(orders, 1) for name in ("overhead", "seconds"))
    if orders >= ENOUGH_ORDERS and overhead > seconds:
        text = "exchanging an order took %.3g ms, but its tasks only %.3g ms: %s"
        log.warning(text, overhead, seconds, advice)


def check_fit(method: Method, cluster: Cluster) -> None:
    """Reject a method that needs another problem, or workers that jobs share."""
    can, has = MethodAbilities.of(method), ClusterAbilities.of(cluster)
    if can.points_per_task == 2 and not isinstance(has.problem, TwoPoints | None):
        raise UsageError("this method needs two gradients per task; open the cluster with TwoPoints(problem)")
    if can.allocator is not None and has_idle_spares(can.allocator) and not has.divide:
        rule = "is for jobs that share workers, as in mpi-ata run A.toml B.toml or run_jobs()"
        raise UsageError(f"spares = 'idle' {rule}; for one job use spares = 'auto' or 'none'")


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
        self._stop, self._run = start.job.stop, start.job.run
        loggers = dict.fromkeys(self._run.log or ()) if start.file else ()  # they write beside it
        self._observers = [*observers, *(LOGGERS[name]() for name in loggers)]
        self._observed = False  # from on_start on
        self._recorder: RunRecorder | None = None
        self._notes: Sequence[Note] | None = None  # of what the run starts from, once it was restored
        self.reason: str | None = None  # the limit that was reached
        cluster.grace_expired = stop_request.grace_expired
        check_fit(method, cluster)

    def outcome(self) -> Outcome:
        """Drive the run to its end, and return how it ended."""
        with np.errstate(over="ignore", invalid="ignore"):  # evaluate() says it better
            for _ in self.rounds():
                pass
        ended = self._cluster.n, self._trace, self._method.x, self.reason, self._stop_request.name
        if (kept := self._recorder) is None:
            return Outcome(*ended)
        return Outcome(*ended, kept.path, kept.resumable, kept.flagged_hosts(), kept.saved)

    @property
    def resumable(self) -> bool:
        """Return whether what was saved can be resumed."""
        return self._recorder is not None and self._recorder.resumable

    def rounds(self) -> Generator[Round, None, None]:
        """Yield one round after another; when they end, for whatever reason, the run is saved."""
        try:
            self._begin()
            yield from self._saved_rounds()
            self._end()
        except GeneratorExit:  # the caller has left its loop, between two rounds
            self._end()
            raise
        except (GraceExpired, KeyboardInterrupt):  # in the middle of a round: the latest save is what is left
            if not self._closes and not self._stop_request:
                raise
        except Exception as error:
            raise self._explained(error) from None
        finally:
            if self._recorder is not None:
                self._recorder.close()
            if self._observed:
                self._observe(lambda observer: observer.on_end(self._trace, self.reason))
                advise_on_exchange(self._cluster.ledger)

    def restore(self) -> Sequence[Note]:
        """Bring the run to where it starts from, unless that was done, and return what to record of that."""
        if self._notes is None:
            self._notes = begin(self._start, self._method, self._cluster, self._trace)
        return self._notes

    def _begin(self) -> None:
        method, cluster, trace, file = self._method, self._cluster, self._trace, self._start.file
        notes = self.restore()
        trace.end_setup()
        if file is not None:
            self._recorder = recorder = RunRecorder(self._start, file, method, cluster, trace)
            recorder.begin(notes)
            for observer in self._observers:
                if isinstance(observer, Logger):
                    observer.place(recorder.path, recorder.run)
        self._observed = True
        self._observe(lambda observer: observer.on_start(method, cluster, trace))

    def _observe(self, hook: Callable[[Observer], None]) -> None:
        """Call a hook of all observers; one that fails is reported and left out, and the run continues."""
        for observer in tuple(self._observers):
            try:
                hook(observer)
            except Exception as error:
                self._observers.remove(observer)
                what = f"{type(error).__name__}: {one_line(error)}"
                log.warning("the observer %s failed and is left out: %s", type(observer).__name__, what)

    def _saved_rounds(self) -> Iterator[Round]:
        """Yield rounds, and save the run; where one fails, the completed ones and the reason are saved."""
        stop_request, recorder = self._stop_request, self._recorder
        boundary = RoundBoundary(self._method, self._cluster, self._trace)
        try:
            for round in stop_request.enforced_on(self._rounds()):
                self._note(round)
                yield round  # what the caller does with it belongs to the round: x and state may change
                boundary.note()
                if stop_request:
                    break
                if recorder:
                    recorder.save_if_due(round)
        except TakenError:  # the file belongs to another run now
            raise
        except Exception as error:
            raise self._recorded(self._explained(error), boundary) from None

    def _note(self, round: Round) -> None:
        self._observe(lambda observer: observer.on_round(round, self._trace))
        if self._recorder:
            self._recorder.note(round)

    def _explained(self, error: Exception) -> Exception:
        """Return the error for the user: one that is not ours is of an allocator or a method of their own."""
        if isinstance(error, RunError | UsageError):
            return error
        return in_users_code(f"round {self._method.k + 1} failed", error)

    def _recorded(self, error: Exception, boundary: RoundBoundary) -> Exception:
        """Record a failure, and return the error with what is left of the run."""
        whole = boundary.settle(error)
        if self._recorder is None:
            return error
        self._recorder.fail(error, whole)
        if isinstance(error, UsageError):
            return error
        kind = LossError if isinstance(error, LossError) else RunError
        return kind(f"{error}\n{self._recorder.remains()}")

    def _rounds(self) -> Iterator[Round]:
        """Yield one round after another until a limit is reached; losses are evaluated off the clock."""
        method, trace, reached = self._method, self._trace, self._stop.reached
        if not trace.rows:
            self._evaluate()
        done = reached(trace)
        while not done:
            round = self._step()
            done = reached(trace)
            if done or method.k % self._run.evaluate_every == 0:
                self._evaluate()
                done = done or reached(trace)
            yield round

    def _step(self) -> Round:
        """Do one round, and take it in."""
        method, cluster, trace = self._method, self._cluster, self._trace
        began, before = time.perf_counter(), decision_time(method)
        round = method.step(cluster)
        trace.add(round, cluster.ledger)
        decision = decision_time(method) - before
        trace.wall_time.add_round(time.perf_counter() - began, round.duration, decision)
        return round

    def _evaluate(self) -> None:
        with self._trace.wall_time.timed("evaluation_time"):
            found = evaluate(self._problem, self._method, self._stop.needs_loss, self._cluster)
        self._trace.record(found)

    def _end(self) -> None:
        """Save for the last time; a cluster that belongs to a finished run is closed first."""
        recorder, before = self._recorder, self._cluster.ledger.mark()
        self.reason = reason = self._stop.reached(self._trace)
        if reason is None:
            self._trace.end()
            if recorder:
                recorder.interrupt(self._stop_request.word if self._stop_request else BY_CALLER)
            self._evaluate_last(recorder)
            return
        if recorder:
            recorder.finish(reason)
        if self._closes:
            self._cluster.close()
        else:
            self._cluster.stop(np.arange(self._cluster.n))
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
