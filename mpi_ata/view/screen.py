"""Several lines at the bottom of a terminal that are rewritten in place."""

import math
import os
import time
from typing import TextIO

from mpi_ata.launch.terminal import terminal_size
from mpi_ata.view.progress import Line

REDRAW = 0.25  # seconds between updates: more often would flicker
COLUMNS, LINES = 60, 20  # a smaller terminal has no room for a screen
TOP, BELOW = "\x1b[{}A\r", "\x1b[J"  # terminal codes: move up by so many lines; erase all from here on
BLOCKS = "▁▂▃▄▅▆▇█"
END_LINE = "\x1b[K\n"  # erase the rest of the line


class Screen(Line):
    """A text of several lines, of which each version takes the place of the one before.

    Lines are written as a whole, so that it does not matter whether a launcher forwards them.
    """

    def __init__(self, stream: TextIO | None, terminal: bool = False) -> None:
        super().__init__(stream, terminal)
        self._interval, self._next = REDRAW, time.monotonic() + REDRAW
        self._height = 0

    def wait(self, seconds: float) -> None:
        """Put off the next update by this time, where that is later than usual."""
        self._next = max(self._next, time.monotonic() + seconds)

    def show(self, text: str) -> None:
        """Replace the lines by these, as far as they fit."""
        columns, lines = terminal_size(self._stream)
        shown = [line[: columns - 1] for line in text.splitlines()[: lines - 1]]
        up, self._height = self._up(), len(shown)  # first: Ctrl-C may come at any time
        self._stream.write(up + END_LINE.join(shown) + f"{BELOW}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Remove the lines."""
        if not self._height:
            return
        up, self._height = self._up(), 0
        whole_line = "\x1b[1A\n" if self._whole else ""  # of no height
        self._stream.write(up + BELOW + whole_line)
        self._stream.flush()

    def _up(self) -> str:
        return TOP.format(self._height) if self._height else ""


def has_room(stream: TextIO | None, terminal: bool = False) -> bool:
    """Return whether a stream reaches a terminal that can show a screen; its size must be known."""
    if stream is None or not (terminal or stream.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        return False
    columns, lines = terminal_size(stream)
    readable = (getattr(stream, "encoding", None) or "").lower().startswith("utf")
    return readable and columns >= COLUMNS and lines >= LINES


def curve(values: list[float], width: int) -> str:
    """Return values as a row of blocks, the latest to the right; positive ones by their logarithm."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < 2:
        return ""
    scaled = [math.log(value) for value in finite] if min(finite) > 0 else finite
    count = min(width, len(scaled))
    chosen = [scaled[(len(scaled) - 1) * i // (count - 1)] for i in range(count)]
    low, high = min(chosen), max(chosen)
    step = (high - low) / (len(BLOCKS) - 1) or 1.0
    return "".join(BLOCKS[round((value - low) / step)] for value in chosen)
