"""Doing the runs of an experiment on all cores."""

import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from mpi_ata import launch
from mpi_ata.driver.execute import execute
from mpi_ata.driver.observers import Observer
from mpi_ata.driver.trace import Row, Trace
from mpi_ata.errors import RunError, UsageError
from mpi_ata.job import resume_job
from mpi_ata.launch.signals import StopRequest
from mpi_ata.methods import Round
from mpi_ata.paper.experiments import Trial
from mpi_ata.paper.progress import Board, Watch
from mpi_ata.runfile.describe import describe
from mpi_ata.runfile.load import load_record
from mpi_ata.runfile.store import RunFile

T = TypeVar("T")
POLL = 0.1  # seconds between checks of the progress
GRACE = 30.0  # seconds in which a run saves itself once its parent was killed

ReportRounds = Callable[[int], None]  # called with the number of rounds done so far


@dataclass(frozen=True)
class Result:
    """The result of one run."""

    trial: Trial
    summary: dict[str, Any]
    rows: list[Row]


class RunsInterruptedError(RunError):
    """The user stopped the runs; those that are saved can be resumed."""

    def __init__(self, done: int, runs: int, resumable: bool) -> None:
        self.done, self.runs, self.resumable = done, runs, resumable
        hint = "; run the same command again to resume" if resumable else ""
        super().__init__(f"interrupted after {done} of {runs} runs{hint}")


def interrupted(done: int, trials: Sequence[Trial]) -> RunsInterruptedError:
    """Return the error for an interruption after this many of the runs."""
    return RunsInterruptedError(done, len(trials), resumable=any(trial.out for trial in trials))


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Reporting(Observer):
    """Reports the rounds of a run to where all runs are watched from."""

    def __init__(self, report: ReportRounds) -> None:
        self._report = report

    def on_round(self, round: Round, trace: Trace) -> None:
        """Report how far the run is; stop it if the user has stopped all."""
        try:
            self._report(trace.round)
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGTERM)  # on which a run saves itself at the end of the round


def execute_trial(trial: Trial, report: ReportRounds) -> Result:
    """Do one run, resuming it if it is saved, and return its result."""
    if (earlier := finished_result(trial)) is not None:
        report(earlier.summary["rounds"])
        return earlier
    outcome = execute(trial.plan(), [_Reporting(report)])
    if outcome.reason is None:
        raise KeyboardInterrupt
    return Result(trial, outcome.summary(), outcome.trace.rows)


def finished_result(trial: Trial) -> Result | None:
    """Return the saved result of a run; None if there is none, or it has to be resumed."""
    if trial.out is None or not RunFile(trial.out).exists():
        return None
    record, _ = load_record(RunFile(trial.out))
    trace = Trace()
    trace.restore(record.totals, record.trace, record.metrics)
    if trace.round > trial.rounds:
        rule = f"has {trace.round:,} rounds, but at most {trial.rounds:,} were asked for"
        raise UsageError(f"{trial.out}: {rule}; choose another folder")
    job, _ = resume_job(trial.file, record.job, trial.settings)
    return Result(trial, describe(record), trace.rows) if record.reason and job.stop.reached(trace) else None


def on_cores(
    do: Callable[[Trial, ReportRounds], T],
    trials: Sequence[Trial],
    processes: int,
    watch: Watch = lambda _: None,
) -> list[T]:
    """Call `do` for each trial in this many processes, and return the results in the order of the trials."""
    board = Board(len(trials), max(trial.rounds for trial in trials))
    if min(processes, len(trials)) == 1:
        return _in_sequence(do, trials, board, watch)
    return _in_pool(do, trials, min(processes, len(trials)), board, watch)


def _in_sequence(
    do: Callable[[Trial, ReportRounds], T], trials: Sequence[Trial], board: Board, watch: Watch
) -> list[T]:
    """Do the trials one after the other in this process."""
    checked = time.monotonic()
    results: list[T] = []

    def report(rounds: int) -> None:
        nonlocal checked
        board.report(len(results), rounds)
        if time.monotonic() - checked > POLL:
            checked = time.monotonic()
            watch(board.progress([number < len(results) for number in range(len(trials))]))

    try:
        for trial in trials:
            results.append(do(trial, report))  # noqa: PERF401  (report() needs their number)
    except KeyboardInterrupt:
        raise interrupted(len(results), trials) from None
    return results


def _in_pool(
    do: Callable[[Trial, ReportRounds], T],
    trials: Sequence[Trial],
    processes: int,
    board: Board,
    watch: Watch,
) -> list[T]:
    """Do the trials in a pool of processes."""
    launch.one_thread_per_rank(os.environ)  # of the processes, of which there is one per core already
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _init_process, (board,))
    with StopRequest(math.inf) as stop:
        try:
            futures = _submit(pool, do, trials)
            while not stop and _running(futures):
                watch(board.progress([future.done() for future in futures]))
        finally:
            board.stop()
            pool.shutdown(cancel_futures=True)
    if not stop:  # otherwise being stopped may have made them fail
        _raise_failure(filter(_failed, futures))
    ended = [future.result() for future in futures if not future.cancelled() and not _failed(future)]
    completed = [done.result for done in ended if done is not None]
    if len(completed) < len(trials):
        raise interrupted(len(completed), trials)
    return completed


def _submit(
    pool: ProcessPoolExecutor, do: Callable[[Trial, ReportRounds], T], trials: Sequence[Trial]
) -> "list[Future[_Completed | None]]":
    """Start the processes with Ctrl-C blocked, since the board is what stops them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return [pool.submit(_run_plan, do, trial, number) for number, trial in enumerate(trials)]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _running(futures: "Sequence[Future[Any]]") -> bool:
    """Return, after a short wait, whether some trials are still running and none has failed."""
    return bool(wait(futures, POLL, FIRST_EXCEPTION).not_done) and not any(map(_failed, futures))


def _failed(future: "Future[Any]") -> bool:
    return future.done() and not future.cancelled() and future.exception() is not None


def _raise_failure(failures: "Iterable[Future[Any]]") -> None:
    """Raise the error of the first failure."""
    try:
        for future in failures:
            future.result()
    except BrokenProcessPool:
        raise RunError("a process was killed, perhaps because memory ran out; try --cores 1") from None


_board: Board


def _init_process(board: Board) -> None:
    """Initialise a process of the pool, whose notes nobody should see."""
    global _board
    _board = board
    logging.getLogger("mpi_ata").setLevel(logging.ERROR)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Once the parent was killed, send SIGTERM to this process until it ends: a run saves itself first."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    _board.stop()
    killed = time.monotonic()
    while time.monotonic() - killed < GRACE:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(POLL)
    os._exit(1)


class _Completed(NamedTuple):
    """The result, which may be None, of a trial that was not interrupted."""

    result: Any


def _run_plan(do: Callable[[Trial, ReportRounds], T], trial: Trial, number: int) -> _Completed | None:
    with suppress(KeyboardInterrupt):
        _board.check()
        return _Completed(do(trial, lambda rounds: _board.report(number, rounds)))
    return None
