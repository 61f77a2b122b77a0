"""How far the runs of an experiment are: where their processes write it, and how it is told."""

import time
from collections.abc import Callable, Sequence
from ctypes import c_int64
from dataclasses import dataclass
from multiprocessing.sharedctypes import RawArray
from statistics import fmean

from mpi_ata.view.text import duration

BAR = 20  # characters


@dataclass(frozen=True)
class Standing:
    """How far the runs are."""

    rounds: Sequence[int]  # done, of each run
    finished: Sequence[bool]
    most: int  # rounds of a run
    made: int  # rounds by now, those that earlier commands have kept left out,
    elapsed: float  # in so many seconds

    def text(self) -> str:
        """All of it in one line."""
        ended = [rounds for rounds, finished in zip(self.rounds, self.finished, strict=True) if finished]
        usual = fmean(ended) if any(ended) else self.most
        left = sum(
            max(usual - rounds, 0)
            for rounds, finished in zip(self.rounds, self.finished, strict=True)
            if not finished
        )
        done = sum(self.rounds)
        parts = [f"{len(ended)} of {len(self.rounds)} runs", f"{done:,} rounds"]
        if self.made:
            rate = self.made / self.elapsed
            about = "about" if ended else "at most"
            parts += [f"{rate:,.0f} rounds/s", f"{about} {duration(left / rate)} to go"]
        return f"{bar(done / max(done + left, 1))} {', '.join(parts)}"


def bar(share: float) -> str:
    """What is done and what is not, to be seen at a glance."""
    full = int(BAR * share)
    return f"[{'#' * full}{'.' * (BAR - full)}]"


Watch = Callable[[Standing], None]


class Board:
    """Where processes write how far their runs are, and read whether to stop."""

    def __init__(self, runs: int, most: int) -> None:
        self._first, self._latest = RawArray(c_int64, [-1] * runs), RawArray(c_int64, runs)
        self._stop = RawArray(c_int64, 1)
        self._most, self._began = most, time.monotonic()

    def standing(self, finished: Sequence[bool]) -> Standing:
        """How far the runs are, where it is known which have ended."""
        rounds = list(self._latest)
        made = sum(now - first for now, first in zip(rounds, self._first, strict=True) if first >= 0)
        return Standing(rounds, finished, self._most, made, time.monotonic() - self._began)

    def stop(self) -> None:
        """Let all runs end."""
        self._stop[0] = 1

    def check(self) -> None:
        """Interrupt whoever asks where all are to end."""
        if self._stop[0]:
            raise KeyboardInterrupt

    def note(self, number: int, rounds: int) -> None:
        """Tell how far a run is."""
        if self._first[number] < 0:
            self._first[number] = rounds
        self._latest[number] = rounds
        self.check()
