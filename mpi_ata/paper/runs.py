"""Makes the runs of an experiment, on all cores."""

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
POLL = 0.1  # seconds between two looks at how far the runs are
GRACE = 30.0  # seconds in which a run saves itself when nobody waits for it any more


@dataclass(frozen=True)
class Result:
    """What came of one run."""

    plan: Plan
    figures: dict[str, Any]
    rows: list[Row]


class RunsInterruptedError(RunError):
    """Somebody asked for the end; what was kept can go on."""

    def __init__(self, done: int, runs: int, kept: bool) -> None:
        self.done, self.runs, self.kept = done, runs, kept
        goes_on = "; the same command goes on with them" if kept else ""
        super().__init__(f"interrupted after {done} of {runs} runs{goes_on}")


def interrupted(done: int, plans: Sequence[Plan]) -> RunsInterruptedError:
    """The error where so many of the runs were done."""
    return RunsInterruptedError(done, len(plans), kept=any(plan.out for plan in plans))


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


Note = Callable[[int], None]  # how many rounds are done


def execute_plan(plan: Plan, note: Note) -> Result:
    """Make one run, or take it as it was kept."""

    def progress(trace: Trace) -> None:
        try:
            note(trace.round)
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGTERM)  # which a run takes for a wish, not for an order

    if (earlier := kept(plan)) is not None:
        note(earlier.figures["rounds"])
        return earlier
    outcome = execute(plan.job(), progress, plan.keeping(), note=lambda text: None)
    if outcome.reason is None:
        raise KeyboardInterrupt
    return Result(plan, outcome.figures(), outcome.trace.rows)


def kept(plan: Plan) -> Result | None:
    """What came of a run that was made before; None where there is still something to do."""
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
    do: Callable[[Plan, Note], T], plans: Sequence[Plan], processes: int, watch: Watch = lambda _: None
) -> list[T]:
    """Do something with each plan, so many at a time; the results in the order of the plans."""
    board = Board(len(plans), max(plan.rounds for plan in plans))
    if min(processes, len(plans)) == 1:
        return _in_turn(do, plans, board, watch)
    return _in_pool(do, plans, min(processes, len(plans)), board, watch)


def _in_turn(do: Callable[[Plan, Note], T], plans: Sequence[Plan], board: Board, watch: Watch) -> list[T]:
    """One after the other, in this process."""
    looked = time.monotonic()
    results: list[T] = []

    def note(rounds: int) -> None:
        nonlocal looked
        board.note(len(results), rounds)
        if time.monotonic() - looked > POLL:
            looked = time.monotonic()
            watch(board.standing([number < len(results) for number in range(len(plans))]))

    try:
        for plan in plans:
            results.append(do(plan, note))  # noqa: PERF401  (their number is looked at meanwhile)
    except KeyboardInterrupt:
        raise interrupted(len(results), plans) from None
    return results


def _in_pool(
    do: Callable[[Plan, Note], T], plans: Sequence[Plan], processes: int, board: Board, watch: Watch
) -> list[T]:
    """In processes of their own."""
    launch.one_thread_per_rank(os.environ)  # of the processes, which are as many as the cores already
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _begin, (board,))
    with StopRequest(math.inf) as asked:
        try:
            futures = _submitted(pool, do, plans)
            while not asked and _under_way(futures):
                watch(board.standing([future.done() for future in futures]))
        finally:
            board.stop()
            pool.shutdown(cancel_futures=True)
    if not asked:  # who was asked to end may have failed for that
        _tell(filter(_failed, futures))
    ended = [future.result() for future in futures if not future.cancelled() and not _failed(future)]
    whole = [result.of for result in ended if result is not None]
    if len(whole) < len(plans):
        raise interrupted(len(whole), plans)
    return whole


def _submitted(
    pool: ProcessPoolExecutor, do: Callable[[Plan, Note], T], plans: Sequence[Plan]
) -> "list[Future[_Whole | None]]":
    """What is to come of the plans; Ctrl-C goes past the processes that start, which the board tells it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        return [pool.submit(_make, do, plan, number) for number, plan in enumerate(plans)]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _under_way(futures: "Sequence[Future[Any]]") -> bool:
    """Whether all is well, and there is something to wait for."""
    return bool(wait(futures, POLL, FIRST_EXCEPTION).not_done) and not any(map(_failed, futures))


def _failed(future: "Future[Any]") -> bool:
    return future.done() and not future.cancelled() and future.exception() is not None


def _tell(failures: "Iterable[Future[Any]]") -> None:
    """Raise what the first of them has failed with."""
    try:
        for future in failures:
            future.result()
    except BrokenProcessPool:
        raise RunError("a process was killed, perhaps for want of memory; try --cores 1") from None


_board: Board


def _begin(board: Board) -> None:
    """In a process of the pool, before anything else."""
    global _board
    _board = board
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Once the parent was killed, ask this process to end until it does: a run saves itself first."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    _board.stop()
    killed = time.monotonic()
    while time.monotonic() - killed < GRACE:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(POLL)
    os._exit(1)


class _Whole(NamedTuple):
    """A result, which may be None, of something that was not interrupted."""

    of: Any


def _make(do: Callable[[Plan, Note], T], plan: Plan, number: int) -> _Whole | None:
    with suppress(KeyboardInterrupt):
        _board.check()
        return _Whole(do(plan, lambda rounds: _board.note(number, rounds)))
    return None
