"""Signals that ask a run to stop: a flag, on which the end of the round acts, or else a timer."""

import logging
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from mpi_ata.launch.held_signals import (
    early_signals,
    hold,
    hold_stop_signals,
    in_main_thread,
    release_stop_signals,
    stop_signals,
)
from mpi_ata.launch.verdict import forwarded_signals

EXTRA_GRACE = 120  # seconds after the grace period, after which a worker without its manager ends
MAX_ALARM = 1e6  # seconds, well below the limit of alarm()
SHORTEST_ALARM = 1e-3  # seconds; 0 would mean none
AFTER_WAITING = 1.0  # seconds that waiting for ranks has to end by itself, which leaves messages in order

AGAIN = "; press again to stop now"

T = TypeVar("T")
log = logging.getLogger("mpi_ata")


class StopRequest:
    """Catches the signals that ask a run to stop, and is true once one has arrived.

    Use it as a context manager around a run, and look at it at the end of each round: `name` is the signal
    that came first, and grace_expired() says whether the round takes longer than the user allows.  Where
    nobody looks, because a decision or a simulated round takes long, the timer of enforced() ends it.  A
    second Ctrl-C raises KeyboardInterrupt at once.

    Set `on_ranks` in an MPI process: signals are then held before and after the run too, rather than left to
    kill a rank that others wait for.  Set `is_worker` on a worker's rank: launchers signal all ranks, but the
    manager decides when to stop, so a worker only makes sure that it ends should the manager be gone.
    """

    def __init__(self, grace: float, on_ranks: bool = False, is_worker: bool = False) -> None:
        self.grace = grace  # seconds that a round may still take
        self.name = ""  # of the signal that came
        self._pressed = 0  # how often Ctrl-C was
        self.exit_code = 1  # of a script that it ends; CONTINUE once there is something to resume
        self._on_ranks = on_ranks
        self._handler = self._await_manager if is_worker else self._request
        self._since = 0.0
        self._before: dict[signal.Signals, Any] = {}
        self._enforced = False  # whether the timer may interrupt what runs now

    def __enter__(self) -> "StopRequest":
        if in_main_thread():
            if self._on_ranks:
                hold_stop_signals()
            self._before = {number: signal.signal(number, self._handler) for number in stop_signals()}
        for number in early_signals():
            self._handler(number, None)
        return self

    def __exit__(self, *_: object) -> None:
        if signal.SIGALRM in self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before.pop(signal.SIGALRM) or signal.SIG_DFL)
        for number, handler in self._before.items():
            signal.signal(number, hold if self._on_ranks else handler)

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
        sent = forwarded_signals() if self._on_ranks else []
        self._pressed += number == signal.SIGINT
        if not self.name:
            self._since = time.monotonic()
            self.name = sent[0] if sent else signal.Signals(number).name
            if self._before:
                self._start_timer()
            log.warning("%s: stopping after this round%s", self.word, AGAIN if self.name == "SIGINT" else "")
        if self.name == "SIGINT" and max(self._pressed, sent.count("SIGINT")) > 1:
            raise KeyboardInterrupt

    def _start_timer(self) -> None:
        """Set an alarm for the end of the grace period; on ranks a little later: waiting ends by itself."""
        seconds = min(self.grace, MAX_ALARM) + (AFTER_WAITING if self._on_ranks else SHORTEST_ALARM)
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._expire)
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def _expire(self, number: int, frame: FrameType | None) -> None:
        if self._enforced:
            raise GraceExpired

    def _await_manager(self, number: int, frame: FrameType | None) -> None:
        seconds = min(self.grace, MAX_ALARM) + EXTRA_GRACE
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


def signal_word(name: str) -> str:
    """Return what users call a signal; without one, they pressed Ctrl-C before anybody listened."""
    return "Ctrl-C" if name in ("", "SIGINT") else name


_open: list[StopRequest] = []  # for the runs of a script


@contextmanager
def open_stop_request(grace: float, on_ranks: bool = False, is_worker: bool = False) -> Iterator[StopRequest]:
    """Catch signals for all runs of a script that are driven meanwhile.

    Afterwards signals are the script's again, unless one has come: then it ends.  Workers leave them to the
    manager.
    """
    request = StopRequest(grace, on_ranks, is_worker)
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


class GraceExpired(BaseException):  # it is not an error, and no `except Exception` of a user may stop it
    """A round did not end within the grace period after a signal."""
