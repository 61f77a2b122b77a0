"""Doing the runs of an experiment on all cores."""

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
from mpi_ata.driver.loop import execute
from mpi_ata.driver.recorder import load
from mpi_ata.driver.trace import Row, Trace
from mpi_ata.errors import RunError, UsageError
from mpi_ata.job.schema import load_again
from mpi_ata.launch.signals import StopRequest
from mpi_ata.paper.experiments import Plan
from mpi_ata.paper.progress import Board, Watch
from mpi_ata.runfile.record import describe
from mpi_ata.runfile.store import RunFile

T = TypeVar("T")
POLL = 0.1  # seconds between checks of the progress
GRACE = 30.0  # seconds in which a run saves itself once its parent was killed

ReportRounds = Callable[[int], None]  # called with the number of rounds done so far


@dataclass(frozen=True)
class Result:
    """The result of one run."""

    plan: Plan
    summary: dict[str, Any]
    rows: list[Row]


class RunsInterruptedError(RunError):
    """The user stopped the runs; those that are saved can be resumed."""

    def __init__(self, done: int, runs: int, resumable: bool) -> None:
        self.done, self.runs, self.resumable = done, runs, resumable
        hint = "; run the same command again to resume" if resumable else ""
        super().__init__(f"interrupted after {done} of {runs} runs{hint}")


def interrupted(done: int, plans: Sequence[Plan]) -> RunsInterruptedError:
    """Return the error for an interruption after this many of the runs."""
    return RunsInterruptedError(done, len(plans), resumable=any(plan.out for plan in plans))


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def execute_plan(plan: Plan, report: ReportRounds) -> Result:
    """Do one run, resuming it if it is saved, and return its result."""

    def progress(trace: Trace) -> None:
        try:
            report(trace.round)
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGTERM)  # on which a run saves itself at the end of the round

    if (earlier := finished_result(plan)) is not None:
        report(earlier.summary["rounds"])
        return earlier
    outcome = execute(plan.job(), progress, plan.output_options(), note=lambda text: None)
    if outcome.reason is None:
        raise KeyboardInterrupt
    return Result(plan, outcome.figures(), outcome.trace.rows)


def finished_result(plan: Plan) -> Result | None:
    """Return the saved result of a run; None if there is none, or it has to be resumed."""
    if plan.out is None or not RunFile(plan.out).exists():
        return None
    record, _ = load(RunFile(plan.out))
    trace = Trace()
    trace.restore(record.totals, record.trace, record.figures)
    if trace.round > plan.rounds:
        rule = f"has {trace.round:,} rounds, but at most {plan.rounds:,} were asked for"
        raise UsageError(f"{plan.out}: {rule}; choose another folder")
    job, _ = load_again(plan.file, record.job, plan.settings)
    return Result(plan, describe(record), trace.rows) if record.reason and job.stop.reached(trace) else None


def on_cores(
    do: Callable[[Plan, ReportRounds], T],
    plans: Sequence[Plan],
    processes: int,
    watch: Watch = lambda _: None,
) -> list[T]:
    """Call `do` for each plan in this many processes, and return the results in the order of the plans."""
    board = Board(len(plans), max(plan.rounds for plan in plans))
    if min(processes, len(plans)) == 1:
        return _in_sequence(do, plans, board, watch)
    return _in_pool(do, plans, min(processes, len(plans)), board, watch)


def _in_sequence(
    do: Callable[[Plan, ReportRounds], T], plans: Sequence[Plan], board: Board, watch: Watch
) -> list[T]:
    """Do the plans one after the other in this process."""
    checked = time.monotonic()
    results: list[T] = []

    def report(rounds: int) -> None:
        nonlocal checked
        board.report(len(results), rounds)
        if time.monotonic() - checked > POLL:
            checked = time.monotonic()
            watch(board.progress([number < len(results) for number in range(len(plans))]))

    try:
        for plan in plans:
            results.append(do(plan, report))  # noqa: PERF401  (report() needs their number)
    except KeyboardInterrupt:
        raise interrupted(len(results), plans) from None
    return results


def _in_pool(
    do: Callable[[Plan, ReportRounds], T], plans: Sequence[Plan], processes: int, board: Board, watch: Watch
) -> list[T]:
    """Do the plans in a pool of processes."""
    launch.one_thread_per_rank(os.environ)  # of the processes, of which there is one per core already
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _init_process, (board,))
    with StopRequest(math.inf) as stop:
        try:
            futures = _submit(pool, do, plans)
            while not stop and _running(futures):
                watch(board.progress([future.done() for future in futures]))
        finally:
            board.stop()
            pool.shutdown(cancel_futures=True)
    if not stop:  # otherwise being stopped may have made them fail
        _raise_failure(filter(_failed, futures))
    ended = [future.result() for future in futures if not future.cancelled() and not _failed(future)]
    completed = [done.result for done in ended if done is not None]
    if len(completed) < len(plans):
        raise interrupted(len(completed), plans)
    return completed


def _submit(
    pool: ProcessPoolExecutor, do: Callable[[Plan, ReportRounds], T], plans: Sequence[Plan]
) -> "list[Future[_Completed | None]]":
    """Start the processes with Ctrl-C blocked, since the board is what stops them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return [pool.submit(_run_plan, do, plan, number) for number, plan in enumerate(plans)]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _running(futures: "Sequence[Future[Any]]") -> bool:
    """Return, after a short wait, whether some plans are still running and none has failed."""
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
    """Initialise a process of the pool."""
    global _board
    _board = board
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
    """The result, which may be None, of a plan that was not interrupted."""

    result: Any


def _run_plan(do: Callable[[Plan, ReportRounds], T], plan: Plan, number: int) -> _Completed | None:
    with suppress(KeyboardInterrupt):
        _board.check()
        return _Completed(do(plan, lambda rounds: _board.report(number, rounds)))
    return None
