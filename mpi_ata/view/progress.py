"""The progress line of a run on a terminal."""

import io
import math
import shutil
import time
from typing import TextIO

from mpi_ata.driver.observers import Observer
from mpi_ata.driver.trace import Trace
from mpi_ata.job.stop import Stop
from mpi_ata.methods import Round
from mpi_ata.view.text import duration

UP, ERASE = "\x1b[1A", "\r\x1b[K"  # terminal codes: move to the line above; erase this line
INTERVAL = 0.1  # seconds between updates


class Line:
    """A single terminal line that is rewritten in place; silent if there is no terminal.

    `terminal` says that the stream reaches a terminal through a launcher, which may forward whole lines only.
    """

    def __init__(self, stream: TextIO | None, terminal: bool = False) -> None:
        self._stream = stream or io.StringIO()  # a closed stderr is None
        self._whole = terminal and not self._stream.isatty()
        self._next = time.monotonic() if terminal or self._stream.isatty() else math.inf
        self._width = 0

    def due(self) -> bool:
        """Return whether it is time for an update, which the caller then shows."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + INTERVAL
        return True

    def show(self, text: str) -> None:
        """Replace the line by this text."""
        self._write(text[: shutil.get_terminal_size().columns - 1])

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


def progress_text(trace: Trace, stop: Stop) -> str:
    """Return the progress of a run in one line."""
    of = f" of {stop.rounds:,}" if stop.rounds else ""
    parts, rate = [f"round {trace.round:,}{of}"], trace.round / max(trace.elapsed, 1e-9)
    if stop.rounds:
        parts.append(f"at most {duration((stop.rounds - trace.round) / max(rate, 1e-9))} to go")
    if not math.isnan(trace.gap):
        parts.append(f"gap {trace.gap:.2e}")
    elif not math.isnan(trace.loss):
        parts.append(f"loss {trace.loss:.5g}")
    return ", ".join([*parts, f"{rate:,.0f} rounds/s", f"clock {trace.clock:.4g} s"])
