"""Doing the runs of an experiment on all cores."""

import logging
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from ctypes import c_int64
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.sharedctypes import RawArray
from statistics import fmean
from threading import Thread
from typing import Any, TypeVar

from mpi_ata import launch
from mpi_ata.arrays import State
from mpi_ata.driver.execute import execute
from mpi_ata.driver.observers import Observer
from mpi_ata.driver.plan import Plan
from mpi_ata.driver.trace import Trace
from mpi_ata.errors import RunError, UsageError
from mpi_ata.launch.signals import StopRequest
from mpi_ata.methods import Round
from mpi_ata.paper.experiments import Trial
from mpi_ata.runfile.load import describe
from mpi_ata.view.text import duration, rate

BAR = 20  # characters


Watch = Callable[[str], object]  # called now and then with the progress of all runs in one line


def progress_text(
    rounds: Sequence[int], finished: Sequence[bool], max_rounds: int, new_rounds: int, elapsed: float
) -> str:
    """Return the progress of runs with at most `max_rounds`, of which `new_rounds` took `elapsed` seconds."""
    ended = [count for count, done in zip(rounds, finished, strict=True) if done]
    expected = fmean(ended) if any(ended) else max_rounds  # all take as long as those that ended
    left = sum(max(expected - count, 0) for count, done in zip(rounds, finished, strict=True) if not done)
    parts = [f"{len(ended)} of {len(rounds)} runs", f"{sum(rounds):,} rounds"]
    if new_rounds:
        about, to_go = "about" if ended else "at most", left * elapsed / new_rounds
        parts += [rate(new_rounds, elapsed), f"{about} {duration(to_go)} to go"]
    full = int(BAR * sum(rounds) / max(sum(rounds) + left, 1))
    return f"[{'#' * full}{'.' * (BAR - full)}] {', '.join(parts)}"


class Board:
    """Shared memory where processes write the progress of their runs, and read whether to stop."""

    def __init__(self, runs: int, max_rounds: int) -> None:
        self._first, self._latest = RawArray(c_int64, [-1] * runs), RawArray(c_int64, runs)
        self._stop = RawArray(c_int64, 1)
        self._max_rounds, self._began = max_rounds, time.monotonic()

    def progress(self, finished: Sequence[bool]) -> str:
        """Return the progress of all runs, given which of them have ended; earlier rounds are not new."""
        rounds = list(self._latest)
        new = sum(now - first for now, first in zip(rounds, self._first, strict=True) if first >= 0)
        return progress_text(rounds, finished, self._max_rounds, new, time.monotonic() - self._began)

    def stop(self) -> None:
        """Ask all runs to stop."""
        self._stop[0] = 1

    def check(self) -> None:
        """Raise KeyboardInterrupt if all runs are asked to stop."""
        if self._stop[0]:
            raise KeyboardInterrupt

    def report(self, number: int, rounds: int) -> None:
        """Write how many rounds a run has done, and check whether to stop."""
        if self._first[number] < 0:
            self._first[number] = rounds
        self._latest[number] = rounds
        self.check()


T = TypeVar("T")
POLL = 0.1  # seconds between checks of the progress
GRACE = 30.0  # seconds in which a run saves itself once its parent was killed

ReportRounds = Callable[[int], None]  # called with the number of rounds done so far
Do = Callable[[Trial, ReportRounds], T]


@dataclass(frozen=True)
class TrialResult:
    """The result of one run."""

    trial: Trial
    summary: dict[str, Any]
    history: State


class RunsInterruptedError(RunError):
    """The user stopped the runs; those that are saved can be resumed."""

    def __init__(self, done: int, runs: int, resumable: bool) -> None:
        self.done, self.runs, self.resumable = done, runs, resumable
        hint = "; run the same command again to resume" if resumable else ""
        super().__init__(f"interrupted after {done} of {runs} runs{hint}")


def interrupted(done: int, trials: Sequence[Trial]) -> RunsInterruptedError:
    """Return the error for an interruption after this many of the runs."""
    return RunsInterruptedError(done, len(trials), resumable=any(trial.out for trial in trials))


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


def execute_trial(trial: Trial, report: ReportRounds) -> TrialResult:
    """Do one run, resuming it if it is saved, and return its result."""
    plan = trial.plan()
    if (earlier := finished_result(trial, plan)) is not None:
        report(earlier.summary["rounds"])
        return earlier
    outcome = execute(plan, [_Reporting(report)])
    if outcome.reason is None:
        raise KeyboardInterrupt
    return TrialResult(trial, outcome.summary(), outcome.trace.history())


def finished_result(trial: Trial, plan: Plan) -> TrialResult | None:
    """Return the saved result of a run; None if there is none, or it has to be resumed."""
    record = plan.earlier
    if record is not None and (done := int(record.totals["round"])) > trial.rounds:
        rule = f"has {done:,} rounds, but at most {trial.rounds:,} were asked for"
        raise UsageError(f"{trial.out}: {rule}; choose another folder")
    return TrialResult(trial, describe(record), record.trace) if record and plan.finished else None


def on_cores(do: Do[T], trials: Sequence[Trial], processes: int, watch: Watch = id) -> list[T]:
    """Call `do` for each trial in this many processes, and return the results in the order of the trials."""
    board = Board(len(trials), max(trial.rounds for trial in trials))
    if (processes := min(processes, len(trials))) > 1:
        return _in_pool(do, trials, processes, board, watch)
    return _in_sequence(do, trials, board, watch)


def _in_sequence(do: Do[T], trials: Sequence[Trial], board: Board, watch: Watch) -> list[T]:
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


def _in_pool(do: Do[T], trials: Sequence[Trial], processes: int, board: Board, watch: Watch) -> list[T]:
    """Do the trials in a pool of processes."""
    launch.one_thread_per_rank(os.environ)  # of the processes, of which there is one per core already
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _init_process, (board,))
    with StopRequest(math.inf) as stop:
        try:
            futures = _submit(pool, do, trials)
            while (
                not stop and wait(futures, POLL, FIRST_EXCEPTION).not_done and not any(map(_failed, futures))
            ):
                watch(board.progress([future.done() for future in futures]))
        finally:
            board.stop()
            pool.shutdown(cancel_futures=True)
    failures = [future for future in futures if _failed(future)]
    if failures and not stop:  # otherwise being stopped may have made them fail
        try:
            failures[0].result()
        except BrokenProcessPool:
            raise RunError("a process was killed, perhaps because memory ran out; try --cores 1") from None
    ended = [future.result() for future in futures if not future.cancelled() and not _failed(future)]
    completed = [results[0] for results in ended if results]
    if len(completed) < len(trials):
        raise interrupted(len(completed), trials)
    return completed


def _submit(pool: ProcessPoolExecutor, do: Do[T], trials: Sequence[Trial]) -> "list[Future[list[T]]]":
    """Start the processes with Ctrl-C blocked, since the board is what stops them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return [pool.submit(_run_trial, do, trial, number) for number, trial in enumerate(trials)]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _failed(future: "Future[Any]") -> bool:
    return future.done() and not future.cancelled() and future.exception() is not None


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


def _run_trial(do: Do[T], trial: Trial, number: int) -> list[T]:
    """Return the result of a trial, which may be None, in a list; an empty one if it was interrupted."""
    with suppress(KeyboardInterrupt):
        _board.check()
        return [do(trial, lambda rounds: _board.report(number, rounds))]
    return []
