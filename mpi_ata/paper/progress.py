"""The progress of an experiment: a board that its processes write to, and one line of text."""

import time
from collections.abc import Callable, Sequence
from ctypes import c_int64
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from statistics import fmean

from mpi_ata.view.text import duration, rate

BAR = 20  # characters


@dataclass(frozen=True)
class RunsProgress:
    """The progress of several runs."""

    rounds: Sequence[int]  # done, of each run
    finished: Sequence[bool]
    max_rounds: int  # of a run
    new_rounds: int  # by this command, without those saved earlier,
    elapsed: float  # in this many seconds

    def text(self) -> str:
        """Return the progress in one line."""
        ended = [rounds for rounds, finished in zip(self.rounds, self.finished, strict=True) if finished]
        left, done = self._rounds_left(ended), sum(self.rounds)
        parts = [f"{len(ended)} of {len(self.rounds)} runs", f"{done:,} rounds"]
        if self.new_rounds:
            about, to_go = "about" if ended else "at most", left * self.elapsed / self.new_rounds
            parts += [rate(self.new_rounds, self.elapsed), f"{about} {duration(to_go)} to go"]
        return f"{bar(done / max(done + left, 1))} {', '.join(parts)}"

    def _rounds_left(self, ended: Sequence[int]) -> float:
        """Return how many rounds are left if all runs take as long as those that ended."""
        expected = fmean(ended) if any(ended) else self.max_rounds
        runs = zip(self.rounds, self.finished, strict=True)
        return sum(max(expected - rounds, 0) for rounds, finished in runs if not finished)


def bar(share: float) -> str:
    """Return a progress bar."""
    full = int(BAR * share)
    return f"[{'#' * full}{'.' * (BAR - full)}]"


Watch = Callable[[RunsProgress], None]


class Board:
    """Shared memory where processes write the progress of their runs, and read whether to stop."""

    def __init__(self, runs: int, max_rounds: int) -> None:
        self._first, self._latest = RawArray(c_int64, [-1] * runs), RawArray(c_int64, runs)
        self._stop = RawArray(c_int64, 1)
        self._max_rounds, self._began = max_rounds, time.monotonic()

    def progress(self, finished: Sequence[bool]) -> RunsProgress:
        """Return the progress of all runs, given which of them have ended."""
        rounds = list(self._latest)
        new = sum(now - first for now, first in zip(rounds, self._first, strict=True) if first >= 0)
        return RunsProgress(rounds, finished, self._max_rounds, new, time.monotonic() - self._began)

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
