"""Signals that ask a run to stop while there is none: held on a starting rank, or left to the script."""

import atexit
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from mpi_ata.launch.verdict import forwarded_signals, note_exit

SIGNAL_VARIABLE = "MPI_ATA_SIGNAL"  # names a signal to use instead of USR1, if that has another meaning
SIGNALLED = 128  # is added to a signal for the exit code of a process that it has ended

_early: list[int] = []  # signals that came before there was a run to stop
_handlers: dict[int, Any] = {}  # what the script does on signals, while they are held


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask a run to stop, the one meant for that last."""
    chosen = os.environ.get(SIGNAL_VARIABLE, "USR1").upper().removeprefix("SIG")
    names = dict.fromkeys(["SIGINT", "SIGTERM", *_hangup(), f"SIG{chosen}"])
    return [signal.Signals[name] for name in names if name in signal.Signals.__members__]


def _hangup() -> list[str]:
    """Return the signal of a closed terminal, unless it is to be ignored, as under nohup."""
    return [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else ["SIGHUP"]


def in_main_thread() -> bool:
    """Return whether this thread may set handlers of signals."""
    return threading.current_thread() is threading.main_thread()


def hold_stop_signals() -> None:
    """Hold stop signals for the StopRequest to come, so that they do not kill a rank that is starting."""
    for number in stop_signals():
        before = signal.signal(number, hold)
        if before not in (hold, _pass_on):
            _handlers[number] = before or signal.SIG_DFL
    atexit.register(_ignore_stop_signals)


def hold(number: int, frame: FrameType | None) -> None:
    """Keep a signal for later."""
    _early.append(number)


def early_signals() -> Iterator[int]:
    """Yield the signals that were held, each once."""
    while _early:
        yield _early.pop(0)


def _ignore_stop_signals() -> None:
    """Survive late signals: Python removes its handlers while MPI_Finalize still waits for other ranks."""
    for number in stop_signals():
        signal.signal(number, signal.SIG_IGN)


def release_stop_signals() -> None:
    """Leave stop signals to the script again, those that were held included."""
    for number in stop_signals():
        signal.signal(number, _pass_on)
    for held in early_signals():
        _pass_on(held, None)


def _pass_on(number: int, frame: FrameType | None) -> None:
    """Do what the script does on the signal that the user has sent, which may have come as another one."""
    sent = forwarded_signals()
    number = signal.Signals[sent[-1]] if sent else number
    if signal.getsignal(number) is _pass_on:
        signal.signal(number, _handlers.get(number, signal.SIG_DFL))
    if signal.getsignal(number) is signal.SIG_DFL:  # which ends this process
        note_exit(SIGNALLED + number)
    signal.raise_signal(number)
