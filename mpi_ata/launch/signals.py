"""Signals that ask a run to stop: a flag, on which the end of the round acts, or else a timer."""

import atexit
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from mpi_ata.errors import StopNow
from mpi_ata.launch.environment import OWNER, is_script_rank
from mpi_ata.launch.exit_report import REPORT_VARIABLE, note_exit, report_so_far

SIGNAL_VARIABLE = "MPI_ATA_SIGNAL"  # names a signal to use instead of USR1, if that has another meaning
SIGNALLED = 128  # is added to a signal for the exit code of a process that it has ended

EXTRA_GRACE_SECONDS = 120  # after the grace period, after which a worker without its manager ends
MAX_ALARM_SECONDS = 1e6  # well below the limit of alarm()
MIN_ALARM_SECONDS = 1e-3  # 0 would mean none
WAITING_SECONDS = 1.0  # that waiting for ranks has to end by itself, which leaves messages in order
AGAIN_SECONDS = 1.0  # between alarms: Python drops what is raised inside of a __del__ or a callback of gc
AGAIN = "; press again to stop now"

T = TypeVar("T")
log = logging.getLogger("mpi_ata")

_early: list[int] = []  # signals that came before there was a run to stop
_forked_by_main = True  # whether the main thread forks
_handlers: dict[int, Any] = {}  # what the script does on signals, while they are held


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask a run to stop, the one meant for that last."""
    chosen = os.environ.get(SIGNAL_VARIABLE, "USR1").upper().removeprefix("SIG")
    under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    names = dict.fromkeys(["SIGINT", "SIGTERM", *([] if under_nohup else ["SIGHUP"]), f"SIG{chosen}"])
    return [signal.Signals[name] for name in names if name in signal.Signals.__members__]


def in_main_thread() -> bool:
    """Return whether this thread may set handlers of signals."""
    return threading.current_thread() is threading.main_thread()


def hold_signals_of_starter(environment: Mapping[str, str]) -> None:
    """Hold stop signals for the run to come, if this package has started the ranks and forwards them.

    Children of a rank do not: a pool of processes, say, is ended by SIGTERM.
    """
    if REPORT_VARIABLE in environment and is_script_rank() and in_main_thread():
        hold_stop_signals()


def hold_stop_signals() -> None:
    """Hold stop signals for the StopRequest to come, so that they do not kill a rank that is starting."""
    if not _handlers:  # the first time
        atexit.register(_ignore_stop_signals)
    for number in stop_signals():
        before = signal.signal(number, hold)
        if before not in (hold, _pass_on):
            _handlers[number] = before or signal.SIG_DFL


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
    sent = report_so_far().signals
    number = signal.Signals[sent[-1]] if sent else number
    if signal.getsignal(number) is _pass_on:
        signal.signal(number, _handlers.get(number, signal.SIG_DFL))
    if signal.getsignal(number) is signal.SIG_DFL:  # which ends this process
        note_exit(SIGNALLED + number)
    signal.raise_signal(number)


_begun: list[bool] = []  # not empty once there was a request in this process


class StopRequest:
    """Catches the signals that ask a run to stop, and is true once one has arrived.

    Use it as a context manager around a run, and look at it at the end of each round: `name` is the signal
    that came first, and grace_expired() says whether the round takes longer than the user allows.  Where
    nobody looks, because a decision or a simulated round takes long, the timer of enforced() ends it.  A
    second Ctrl-C raises SecondCtrlC, a KeyboardInterrupt, at once.

    Set `on_ranks` in an MPI process: signals are then held before and after the run too, rather than left to
    kill a rank that others wait for.  Set `is_worker` on a worker's rank: launchers signal all ranks, but the
    manager decides when to stop, so a worker only makes sure that it ends should the manager be gone.
    `unit` names what is completed first.
    """

    def __init__(
        self, grace: float, on_ranks: bool = False, is_worker: bool = False, unit: str = "this round"
    ) -> None:
        self.grace = grace  # seconds that a round may still take
        self._unit = unit
        self.name = ""  # of the signal that came
        self._pressed = 0  # how often Ctrl-C was
        self.exit_code = 1  # of a script that it ends; CONTINUE once there is something to resume
        self._on_ranks, self._entered = on_ranks, False
        self._handler = self._await_manager if is_worker else self._request
        self._since = 0.0
        self._before: dict[signal.Signals, Any] = {}
        self._timer_before = 0.0, 0.0  # the user's, which continues afterwards
        self._enforced = False  # whether the timer may interrupt what runs now

    def __enter__(self) -> "StopRequest":
        if in_main_thread():
            if self._on_ranks:
                hold_stop_signals()
            self._before = {number: signal.signal(number, self._handler) for number in stop_signals()}
        for number in [*early_signals()] or self._missed():
            self._handler(number, None)
        self._entered = True
        return self

    def __exit__(self, *_: object) -> None:
        if signal.SIGALRM in self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before.pop(signal.SIGALRM) or signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, *self._timer_before)
        for number, handler in self._before.items():
            signal.signal(number, hold if self._on_ranks else handler)

    def _missed(self) -> list[signal.Signals]:
        """Return the signal that was passed on when there was no rank yet, if this is the first request."""
        sent = report_so_far().signals if self._on_ranks and not _begun else ()
        _begun.append(True)
        return stop_signals()[-1:] if sent else []

    def __bool__(self) -> bool:
        return bool(self.name)

    @property
    def word(self) -> str:
        """Return the signal that came as users know it."""
        return signal_word(self.name)

    def grace_expired(self) -> bool:
        """Return whether a signal came longer ago than the grace period."""
        return bool(self.name) and time.monotonic() - self._since > self.grace

    def _request(self, number: int, frame: FrameType | None) -> None:
        sent = report_so_far().signals if self._on_ranks else ()
        self._pressed += number == signal.SIGINT
        if not self.name:
            self._since = time.monotonic()
            self.name = sent[0] if sent else signal.Signals(number).name
            if self._before:
                self._start_timer()
            again = AGAIN if self.name == "SIGINT" else ""
            log.warning("%s: stopping after %s%s", self.word, self._unit, again)
        if self._entered and self.name == "SIGINT" and max(self._pressed, sent.count("SIGINT")) > 1:
            log.warning("Ctrl-C again: stopping now")
            raise SecondCtrlC

    def _start_timer(self) -> None:
        """Set alarms from the end of the grace period on; on ranks a little later: waiting ends by itself."""
        later = WAITING_SECONDS if self._on_ranks else MIN_ALARM_SECONDS
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._expire)
        seconds = min(self.grace, MAX_ALARM_SECONDS) + later
        self._timer_before = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)

    def _expire(self, number: int, frame: FrameType | None) -> None:
        if self._enforced:
            raise GraceExpired

    def _await_manager(self, number: int, frame: FrameType | None) -> None:
        seconds = min(self.grace, MAX_ALARM_SECONDS) + EXTRA_GRACE_SECONDS
        signal.alarm(math.ceil(seconds))  # ends this process if the manager is gone

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Let the end of the grace period raise GraceExpired in what runs meanwhile, wherever it is."""
        try:
            self._enforce()
            yield
        finally:
            self._enforced = False

    def enforced_on(self, rounds: Iterator[T]) -> Iterator[T]:
        """Yield the rounds, each enforced; what is done between them is not, since it may save the run."""
        try:
            self._enforce()
            for round in rounds:  # without a context manager, which would cost 1 us per round
                self._enforced = False
                yield round
                self._enforce()
        finally:
            self._enforced = False

    def _enforce(self) -> None:
        self._enforced = True
        if self.grace_expired():
            raise GraceExpired


class FollowedStopRequest(StopRequest):
    """The request for a job in a thread of its own: signals reach the main thread, and so does the timer."""

    def __init__(self, leader: StopRequest) -> None:
        self._leader, self.grace = leader, leader.grace

    @property
    def name(self) -> str:  # type: ignore[override]
        """Return the name of the signal that came."""
        return self._leader.name

    def grace_expired(self) -> bool:
        """Return whether a signal came longer ago than the grace period."""
        return self._leader.grace_expired()

    def _enforce(self) -> None:
        if self.grace_expired():
            raise GraceExpired


def terminate_with_parent() -> None:
    """Have Linux send this process SIGTERM when the thread that started it ends, or is killed."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def terminate_with_rank(environment: Mapping[str, str]) -> None:
    """Let this process end with its rank, if it is one that multiprocessing has spawned there."""
    if "multiprocessing.spawn" in sys.modules and environment.get(OWNER) == str(os.getppid()):
        terminate_with_parent()


def _note_thread() -> None:
    """Note who forks: to the system, the end of a thread is that of the parent."""
    global _forked_by_main
    _forked_by_main = in_main_thread()


def _release_child() -> None:
    """Let a forked child end by SIGTERM, as pools of processes expect, and with its worker.

    Other signals are sent to all processes of a rank, but meant for the rank.
    """
    handlers = {number: signal.getsignal(number) for number in stop_signals()}
    ours = {number for number, handler in handlers.items() if _is_ours(handler)}
    for number in ours:
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else _leave_to_rank)
    if ours and _forked_by_main and _is_workers(handlers[signal.SIGTERM]):
        terminate_with_parent()


def _leave_to_rank(number: int, frame: FrameType | None) -> None:
    """Do nothing; unlike a signal that is ignored, this is not passed on to other programs."""


def _is_ours(handler: Any) -> bool:
    return handler in (hold, _pass_on) or isinstance(getattr(handler, "__self__", None), StopRequest)


def _is_workers(handler: Any) -> bool:
    return getattr(handler, "__func__", None) is StopRequest._await_manager


os.register_at_fork(before=_note_thread, after_in_child=_release_child)


def signal_word(name: str) -> str:
    """Return what users call a signal; without one, they pressed Ctrl-C before anybody listened."""
    return "Ctrl-C" if name in ("", "SIGINT") else name


_open: list[StopRequest] = []  # for the runs of a script


@contextmanager
def open_stop_request(
    grace: float, on_ranks: bool = False, is_worker: bool = False, unit: str = "this round"
) -> Iterator[StopRequest]:
    """Catch signals for all runs of a script that are driven meanwhile.

    Afterwards signals are the script's again, unless one has come: then it ends.  Workers leave them to the
    manager.
    """
    request = StopRequest(grace, on_ranks, is_worker, unit)
    try:
        with request:
            _open.append(request)
            try:
                yield request
            finally:
                _open.remove(request)
    finally:
        if on_ranks and not is_worker and not request and in_main_thread():
            release_stop_signals()


def current_stop_request() -> StopRequest | None:
    """Return the request that is open for the runs of a script, if any."""
    return _open[-1] if _open else None


class GraceExpired(StopNow):
    """A round did not end within the grace period after a signal."""


class SecondCtrlC(StopNow, KeyboardInterrupt):
    """The user does not want to wait for the end of the round."""
