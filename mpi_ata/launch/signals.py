"""Signals that ask a run to end: a handler only sets a flag, and the end of the round acts on it."""

import atexit
import math
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

CHOICE = "MPI_ATA_SIGNAL"  # names another signal than USR1, where that has a meaning already
LAST_RESORT = 120  # seconds after the time of grace in which a worker that was asked to end does so by itself
LONGEST = 1e6  # seconds that an alarm can be set to, with room

_early: list[int] = []  # signals that came before there was a run to end


def listen() -> None:
    """Remember from now on who asks for the end: a rank that is still starting shall not die of it."""
    for number in stop_signals():
        signal.signal(number, _remember)
    atexit.register(_ignore)


def _remember(number: int, frame: FrameType | None) -> None:
    _early.append(number)


def _ignore() -> None:
    """Do not die of what comes now: Python forgets all handlers, but MPI still waits for other ranks."""
    for number in stop_signals():
        signal.signal(number, signal.SIG_IGN)


class StopRequest:
    """Whether somebody asked for the end, and who; a second Ctrl-C ends at once.

    On ranks the signals are listened to from the start of a process to its end.  With `leave_it` this is a
    worker's: the signal comes to all ranks, the manager saves, and lets it go.
    """

    def __init__(self, grace: float, on_ranks: bool = False, leave_it: bool = False) -> None:
        self.grace = grace
        self._on_ranks = on_ranks
        self._handler = self._wait_for_the_manager if leave_it else self._ask
        self.name = ""  # of the signal that came
        self._since = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            if self._on_ranks:
                listen()
            self._before = {number: signal.signal(number, self._handler) for number in stop_signals()}
        while _early:
            self._handler(_early.pop(0), None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, _remember if self._on_ranks else handler)

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

    def _wait_for_the_manager(self, number: int, frame: FrameType | None) -> None:
        patience = min(self.grace, LONGEST) + LAST_RESORT
        signal.alarm(math.ceil(patience))  # which ends this process, should the manager be gone


class GraceExpired(Exception):  # noqa: N818  (it is no error)
    """A round that did not end within the time of grace after a signal."""


def stop_signals() -> list[signal.Signals]:
    """The signals that ask for the end."""
    chosen = os.environ.get(CHOICE, "USR1").upper().removeprefix("SIG")
    names = dict.fromkeys(["SIGINT", "SIGTERM", *_closing(), f"SIG{chosen}"])
    return [signal.Signals[name] for name in names if name in signal.Signals.__members__]


def _closing() -> list[str]:
    """What comes when a terminal is closed, unless somebody wants that to be ignored, as nohup does."""
    return [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else ["SIGHUP"]
