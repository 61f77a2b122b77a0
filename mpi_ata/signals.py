"""Signals that ask a run to end: a handler only sets a flag, and the end of the round acts on it."""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

CHOICE = "MPI_ATA_SIGNAL"  # names another signal than USR1, where that has a meaning already
LAST_RESORT = 120  # seconds after which a worker that was asked to end does so by itself


class Interruption:
    """Whether somebody asked for the end, and who; a second Ctrl-C ends at once.

    With `leave_it` this is a worker's: the signal comes to all ranks, the manager saves, and lets it go.
    """

    def __init__(self, grace: float, leave_it: bool = False) -> None:
        self.grace = grace
        self._handler = _wait_for_the_manager if leave_it else self._ask
        self.name = ""  # of the signal that came
        self._since = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handler) for number in asking()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __bool__(self) -> bool:
        return bool(self.name)

    def overdue(self) -> bool:
        """Whether the end of the round did not come in time."""
        return bool(self.name) and time.monotonic() - self._since > self.grace

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.name == "SIGINT":
            raise KeyboardInterrupt
        if not self.name:
            self._since = time.monotonic()
            self.name = signal.Signals(number).name


class Overdue(Exception):  # noqa: N818  (it is no error)
    """A round that did not end within the time of grace after a signal."""


def asking() -> list[signal.Signals]:
    """The signals that ask for the end."""
    chosen = os.environ.get(CHOICE, "USR1").upper().removeprefix("SIG")
    names = dict.fromkeys(["SIGINT", "SIGTERM", f"SIG{chosen}"])
    return [signal.Signals[name] for name in names if name in signal.Signals.__members__]


def _wait_for_the_manager(number: int, frame: FrameType | None) -> None:
    signal.alarm(LAST_RESORT)  # which ends this process, should the manager be gone
