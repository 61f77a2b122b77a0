"""One run being driven: from where it starts to its last save."""

import logging
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mpi_ata.clusters import Cluster
from mpi_ata.driver.advice import ExchangeAdvice
from mpi_ata.driver.evaluation import evaluate
from mpi_ata.driver.failure import RoundBoundary, saved_on_failure
from mpi_ata.driver.loggers import LOGGERS, Logger
from mpi_ata.driver.loop import rounds
from mpi_ata.driver.observers import Observer, Observers
from mpi_ata.driver.plan import Start
from mpi_ata.driver.recorder import RunRecorder
from mpi_ata.driver.restore import Note, begin
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import LossError, RunError, UsageError, in_short, in_users_code
from mpi_ata.launch.signals import GraceExpired, StopRequest
from mpi_ata.methods import Method, Round
from mpi_ata.problems import AnyProblem
from mpi_ata.runfile.hosts import HostReport

log = logging.getLogger("mpi_ata")
BY_CALLER = "leaving the loop"  # what ended a run that neither a limit nor a signal ended


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    workers: int
    trace: Trace
    x: Any  # None where workers kept it when the grace period ended
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
        start: Start,
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
        outcome = Outcome(self._cluster.n, self._trace, self._point(), self.reason, self._stop_request.name)
        if (found := self._recorder) is None:
            return outcome
        hosts = found.flagged_hosts()
        return replace(
            outcome, out=found.path, resumable=found.resumable, flagged_hosts=hosts, saved=found.saved
        )

    def _point(self) -> Any:
        """Return the point; None if it is on workers, which have no time left to send it."""
        try:
            return self._method.x
        except (GraceExpired, LossError):
            return None

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
