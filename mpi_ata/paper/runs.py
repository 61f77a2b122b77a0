"""Makes the runs of an experiment, on all cores."""

import os
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from ctypes import c_int64
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.sharedctypes import RawArray
from typing import Any, NamedTuple, TypeVar

from mpi_ata import launch
from mpi_ata.console import duration
from mpi_ata.errors import RunError, UsageError
from mpi_ata.keeper import load
from mpi_ata.paper.experiments import Plan
from mpi_ata.run import execute
from mpi_ata.store import RunFile
from mpi_ata.trace import Row, Trace

T = TypeVar("T")
POLL = 0.1  # seconds between two looks at how far the runs are


@dataclass(frozen=True)
class Result:
    """What came of one run."""

    plan: Plan
    figures: dict[str, Any]
    rows: list[Row]


@dataclass(frozen=True)
class Standing:
    """How far the runs are."""

    rounds: list[int]  # done, of each run
    finished: list[bool]
    elapsed: float

    def text(self) -> str:
        """All of it in one line."""
        done = [rounds for rounds, finished in zip(self.rounds, self.finished, strict=True) if finished]
        rate = sum(self.rounds) / self.elapsed
        parts = [
            f"{len(done)} of {len(self.rounds)} runs",
            f"{sum(self.rounds):,} rounds",
            f"{rate:,.0f} rounds/s",
        ]
        if done and rate:
            expected = statistics.fmean(done) * len(self.rounds)
            parts.append(f"about {duration(max(expected - sum(self.rounds), 0) / rate)} to go")
        return ", ".join(parts)


class RunsInterruptedError(RunError):
    """Ctrl-C; what was kept can go on."""

    def __init__(self, done: int, plans: Sequence[Plan]) -> None:
        self.kept = any(plan.out for plan in plans)
        goes_on = "; the same command goes on with them" if self.kept else ""
        super().__init__(f"interrupted after {done} of {len(plans)} runs{goes_on}")


class Board:
    """Where processes write how far their runs are, and read whether to stop."""

    def __init__(self, runs: int) -> None:
        self._cells = RawArray(c_int64, runs + 1)
        self._parent = os.getpid()

    def rounds(self) -> list[int]:
        """The rounds done of each run."""
        return list(self._cells[:-1])

    def stop(self) -> None:
        """Let all runs end."""
        self._cells[-1] = 1

    def note(self, number: int, rounds: int) -> None:
        """Tell how far a run is; ends it where nobody waits for it any more."""
        self._cells[number] = rounds
        if self._cells[-1] or os.getppid() != self._parent:
            raise KeyboardInterrupt


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


Note = Callable[[int], None]  # how many rounds are done
Watch = Callable[[Standing], None]


def execute_plan(plan: Plan, note: Note) -> Result:
    """Make one run."""

    def progress(trace: Trace) -> None:
        try:
            note(trace.round)
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGTERM)  # which a run takes for a wish, not for an order

    _check_kept(plan)
    outcome = execute(plan.job(), progress, plan.keeping(), note=lambda text: None)
    if outcome.reason is None:
        raise KeyboardInterrupt
    return Result(plan, outcome.figures(), outcome.trace.rows)


def _check_kept(plan: Plan) -> None:
    """Refuse to take a longer run for a shorter one."""
    limit = plan.job().stop.rounds
    if plan.out is not None and limit is not None and RunFile(plan.out).exists():
        done = int(load(RunFile(plan.out))[0].method["k"])
        if done > limit:
            rule = f"has {done:,} rounds, but at most {limit:,} were asked for"
            raise UsageError(f"{plan.out}: {rule}; choose another folder")


def on_cores(
    do: Callable[[Plan, Note], T], plans: Sequence[Plan], processes: int, watch: Watch = lambda _: None
) -> list[T]:
    """Do something with each plan, so many at a time; the results in the order of the plans."""
    processes = min(processes, len(plans))
    return _in_turn(do, plans, watch) if processes == 1 else _in_pool(do, plans, processes, watch)


def _in_turn(do: Callable[[Plan, Note], T], plans: Sequence[Plan], watch: Watch) -> list[T]:
    """One after the other, in this process."""
    began = looked = time.monotonic()
    results: list[T] = []
    rounds = [0] * len(plans)

    def note(done: int) -> None:
        nonlocal looked
        rounds[len(results)] = done
        if time.monotonic() - looked > POLL:
            looked = time.monotonic()
            watch(Standing(rounds, [k < len(results) for k in range(len(plans))], looked - began))

    try:
        for plan in plans:
            results.append(do(plan, note))  # noqa: PERF401  (their number is looked at meanwhile)
    except KeyboardInterrupt:
        raise RunsInterruptedError(len(results), plans) from None
    return results


def _in_pool(do: Callable[[Plan, Note], T], plans: Sequence[Plan], processes: int, watch: Watch) -> list[T]:
    """In processes of their own."""
    board, began = Board(len(plans)), time.monotonic()
    launch.one_thread_a_rank(os.environ)  # of the processes, which are as many as the cores already
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _begin, (board,))
    futures = [pool.submit(_make, do, plan, number) for number, plan in enumerate(plans)]
    try:
        while wait(futures, POLL, FIRST_EXCEPTION).not_done and not any(map(_failed, futures)):
            standing = [future.done() for future in futures]
            watch(Standing(board.rounds(), standing, time.monotonic() - began))
    except KeyboardInterrupt:
        raise RunsInterruptedError(sum(future.done() for future in futures), plans) from None
    finally:
        board.stop()
        pool.shutdown(cancel_futures=True)
    try:
        for future in filter(_failed, futures):
            future.result()
        results = [future.result() for future in futures]
    except BrokenProcessPool:
        raise RunError("a process was killed, perhaps for want of memory; try --cores 1") from None
    whole = [result.of for result in results if result is not None]
    if len(whole) < len(plans):  # somebody sent a signal to a process
        raise RunsInterruptedError(len(whole), plans)
    return whole


def _failed(future: "Future[Any]") -> bool:
    return future.done() and not future.cancelled() and future.exception() is not None


_board: Board


def _begin(board: Board) -> None:
    """In a process of the pool: Ctrl-C is left to the parent, which tells it by the board."""
    global _board
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _board = board


class _Whole(NamedTuple):
    """A result, which may be None, of something that was not interrupted."""

    of: Any


def _make(do: Callable[[Plan, Note], T], plan: Plan, number: int) -> _Whole | None:
    with suppress(KeyboardInterrupt):
        return _Whole(do(plan, lambda rounds: _board.note(number, rounds)))
    return None
