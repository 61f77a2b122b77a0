"""Signals that ask a run to stop: the handler only sets a flag, and the end of the round acts on it."""

import atexit
import math
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

SIGNAL_VARIABLE = "MPI_ATA_SIGNAL"  # names a signal to use instead of USR1, if that has another meaning
EXTRA_GRACE = 120  # seconds after the grace period, after which a worker without its manager ends
MAX_ALARM = 1e6  # seconds, well below the limit of alarm()

_early: list[int] = []  # signals that came before there was a run to stop


def hold_stop_signals() -> None:
    """Hold stop signals for the StopRequest to come, so that they do not kill a rank that is starting."""
    for number in stop_signals():
        signal.signal(number, _hold)
    atexit.register(_ignore_stop_signals)


def _hold(number: int, frame: FrameType | None) -> None:
    _early.append(number)


def _ignore_stop_signals() -> None:
    """Survive late signals: Python removes its handlers while MPI_Finalize still waits for other ranks."""
    for number in stop_signals():
        signal.signal(number, signal.SIG_IGN)


class StopRequest:
    """Catches the signals that ask a run to stop, and is true once one has arrived.

    Use it as a context manager around a run, and look at it at the end of each round: `name` is the signal
    that came first, and grace_expired() says whether the round takes longer than the user allows.  A second
    Ctrl-C raises KeyboardInterrupt at once.

    Set `on_ranks` in an MPI process: signals are then held before and after the run too, rather than left to
    kill a rank that others wait for.  Set `is_worker` on a worker's rank: launchers signal all ranks, but the
    manager decides when to stop, so a worker only makes sure that it ends should the manager be gone.
    """

    def __init__(self, grace: float, on_ranks: bool = False, is_worker: bool = False) -> None:
        self.grace = grace  # seconds that a round may still take
        self.name = ""  # of the signal that came
        self._on_ranks = on_ranks
        self._handler = self._await_manager if is_worker else self._request
        self._since = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            if self._on_ranks:
                hold_stop_signals()
            self._before = {number: signal.signal(number, self._handler) for number in stop_signals()}
        while _early:
            self._handler(_early.pop(0), None)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, _hold if self._on_ranks else handler)

    def __bool__(self) -> bool:
        return bool(self.name)

    def grace_expired(self) -> bool:
        """Return whether a signal came longer ago than the grace period."""
        return bool(self.name) and time.monotonic() - self._since > self.grace

    def _request(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.name == "SIGINT":
            raise KeyboardInterrupt
        if not self.name:
            self._since = time.monotonic()
            self.name = signal.Signals(number).name

    def _await_manager(self, number: int, frame: FrameType | None) -> None:
        seconds = min(self.grace, MAX_ALARM) + EXTRA_GRACE
        signal.alarm(math.ceil(seconds))  # ends this process if the manager is gone


class GraceExpired(Exception):  # noqa: N818  (it is not an error)
    """A round did not end within the grace period after a signal."""


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask a run to stop, the one meant for that last."""
    chosen = os.environ.get(SIGNAL_VARIABLE, "USR1").upper().removeprefix("SIG")
    names = dict.fromkeys(["SIGINT", "SIGTERM", *_hangup(), f"SIG{chosen}"])
    return [signal.Signals[name] for name in names if name in signal.Signals.__members__]


def _hangup() -> list[str]:
    """Return the signal of a closed terminal, unless it is to be ignored, as under nohup."""
    return [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else ["SIGHUP"]
