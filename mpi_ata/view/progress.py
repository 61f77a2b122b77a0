"""The progress of a run: one line on a terminal, some lines in a file."""

import io
import math
import shutil
import time
from typing import Protocol, TextIO

from mpi_ata.driver.observers import Observer
from mpi_ata.driver.trace import Trace
from mpi_ata.job.stop import Stop, Totals
from mpi_ata.methods import Round
from mpi_ata.view.text import duration, rate, significant

UP, ERASE = "\x1b[1A", "\r\x1b[K"  # terminal codes: move to the line above; erase this line
INTERVAL = 0.1  # seconds between updates on a terminal
FIRST, LONGEST, GROWTH = 10.0, 60.0, 1.5  # and between lines in a file: from, to, each by this factor


class Line:
    """A single terminal line that is rewritten in place; without a terminal, a new line every now and then.

    `terminal` says that the stream reaches a terminal through a launcher, which may forward whole lines only.
    """

    def __init__(self, stream: TextIO | None, terminal: bool = False) -> None:
        self._stream = stream or io.StringIO()  # a closed stderr is None
        self._live = terminal or self._stream.isatty()
        self._whole = terminal and not self._stream.isatty()
        self._interval = INTERVAL if self._live else FIRST
        self._next = time.monotonic() + (0.0 if self._live else FIRST)
        self._width = 0

    def due(self) -> bool:
        """Return whether it is time for an update, which the caller then shows."""
        now = time.monotonic()
        if now < self._next:
            return False
        if not self._live:
            self._interval = min(GROWTH * self._interval, LONGEST)
        self._next = now + self._interval
        return True

    def show(self, text: str) -> None:
        """Replace the line by this text, or write it as a line of its own."""
        if self._live:
            self._write(text[: shutil.get_terminal_size().columns - 1])
        else:
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def clear(self) -> None:
        """Remove the line."""
        if not self._width:
            return
        if self._whole:
            self._stream.write(f"{UP}{ERASE}{UP}\n")
        else:
            self._write("")
            self._stream.write("\r")
        self._stream.flush()
        self._width = 0

    def _write(self, text: str) -> None:
        width, self._width = self._width, max(self._width, len(text))  # first: Ctrl-C may come at any time
        if self._whole:
            self._stream.write(f"{UP + ERASE if width else ''}{text}\n")
        else:
            self._stream.write(f"\r{text:<{width}}")
        self._stream.flush()


class ProgressLine(Line, Observer):
    """Shows the progress of a run."""

    def __init__(self, stop: Stop, stream: TextIO | None, label: str = "", terminal: bool = False) -> None:
        super().__init__(stream, terminal)
        self._stop, self._label = stop, label

    def on_round(self, round: Round, trace: Trace) -> None:
        """Update the line if it is due."""
        if self.due():
            self.show(self._label + progress_text(trace, self._stop))


class TotalsSoFar(Totals, Protocol):
    """The totals of a run, from which the time left is estimated."""

    @property
    def setup_time(self) -> float: ...


def progress_text(totals: TotalsSoFar, stop: Stop) -> str:
    """Return the progress of a run in one line."""
    of = f" of {stop.rounds:,}" if stop.rounds else ""
    parts = [f"round {totals.round:,}{of}"]
    if (left := time_left(totals, stop)) < math.inf:
        parts.append(f"at most {duration(left)} to go")
    if not math.isnan(totals.gap):
        parts.append(f"gap {totals.gap:.2e}")
    elif not math.isnan(totals.loss):
        parts.append(f"loss {totals.loss:.5g}")
    parts += [rate(totals.round, after_setup(totals)), f"clock {significant(totals.clock, 4)} s"]
    return ", ".join(parts)


def time_left(totals: TotalsSoFar, stop: Stop) -> float:
    """Return the seconds until the first limit that a run reaches for sure; infinity if there is none."""
    growing = [(totals.round, stop.rounds), (totals.clock, stop.clock)]
    ratios = [max(limit / so_far - 1, 0.0) for so_far, limit in growing if limit and so_far]
    left = [after_setup(totals) * ratio for ratio in ratios]
    left += [max(stop.elapsed - totals.elapsed, 0.0)] if stop.elapsed else []
    return min(left, default=math.inf)


def after_setup(totals: TotalsSoFar) -> float:
    """Return the wall time since the first round began."""
    return max(totals.elapsed - totals.setup_time, 0.0)


def part_done(totals: Totals, stop: Stop) -> float:
    """Return how much of a run is done, by the limit that is closest: 0 to 1, 0 where there is none."""
    done = [
        (totals.round, stop.rounds),
        (totals.clock, stop.clock),
        (totals.elapsed, stop.elapsed),
    ]
    return max((min(so_far / limit, 1.0) for so_far, limit in done if limit), default=0.0)
