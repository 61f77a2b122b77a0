"""A small file in which the manager and the process that started the ranks report to each other.

The exit code of a launcher says little once a rank has died: it may be 0, or that of the dead rank.  Nor do
ranks know which signal the user has sent: the launcher passes on another one.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from mpi_ata.launch.environment import rank
from mpi_ata.layout import MANAGER

REPORT_VARIABLE = "MPI_ATA_EXIT_REPORT"  # names the file
FAILURE_VARIABLE = "MPI_ATA_FAILURE"  # names another one for the reason why a run cannot be resumed
KINDS = EXIT, LEAVING, STARTED, LOST, SIGNAL = "exit", "leaving", "started", "lost", "signal"  # first words
BEGIN, END = "begin", "end"


class LostWorker(NamedTuple):
    """A worker that died."""

    host: str
    text: str


class ExitReport(NamedTuple):
    """What is known of ranks that have ended, or still run."""

    manager: int = 0  # its process, once all ranks have met
    code: int | None = None  # the manager's exit code; None if it was killed
    lost: tuple[LostWorker, ...] = ()  # in the order in which they were noticed
    signals: tuple[str, ...] = ()  # that the process that started the ranks has passed on
    leaving: bool = False  # whether the manager has nothing to do but to wait for others to leave

    @property
    def at_once(self) -> bool:
        """Return whether the user does not want to wait: Ctrl-C was pressed twice."""
        return self.signals.count("SIGINT") > 1


def read_report(path: Path) -> ExitReport:
    """Return what was reported so far; nothing if the file cannot be read."""
    try:
        lines = [line.partition(" ") for line in path.read_text().splitlines()]
    except OSError:
        lines = []
    notes = {kind: [text for word, _, text in lines if word == kind] for kind in KINDS}
    lost = (text.partition(" ") for text in notes[LOST])
    return ExitReport(
        manager=int(notes[STARTED][-1]) if notes[STARTED] else 0,
        code=int(notes[EXIT][0]) if notes[EXIT] else None,  # a signal while it leaves MPI changes nothing
        lost=tuple(LostWorker(host, text) for host, _, text in lost),
        signals=tuple(notes[SIGNAL]),
        leaving=notes[LEAVING][-1:] == [BEGIN],
    )


def report_so_far() -> ExitReport:
    """Return what was reported of the ranks to which this process belongs."""
    return read_report(Path(os.environ.get(REPORT_VARIABLE, "")))


def note_start() -> None:
    """Record that all ranks have met, and which process is the manager."""
    _append(f"{STARTED} {os.getpid()}")


def note_exit(code: int) -> None:
    """Record the exit code of this process, if it is the manager."""
    if rank() == MANAGER:
        _append(f"{EXIT} {code}")


@contextmanager
def leaving() -> Iterator[None]:
    """Record that the manager, if this is it, only waits for others to leave: one may hang at its exit."""
    if rank() != MANAGER:
        yield
        return
    _append(f"{LEAVING} {BEGIN}")
    yield
    _append(f"{LEAVING} {END}")


def note_lost_worker(host: str, text: str) -> None:
    """Record a dead worker without delay: its MPI may end this process too."""
    _append(f"{LOST} {host} {text}")


def note_signal(name: str) -> None:
    """Record a signal before it is passed on to the ranks, which get it as another one."""
    _append(f"{SIGNAL} {name}")


def _append(line: str) -> None:
    if path := os.environ.get(REPORT_VARIABLE):
        with suppress(OSError), open(path, "a") as file:
            file.write(f"{line}\n")


def note_failure(why: str) -> None:
    """Write why a run cannot be resumed to the file that the starter of the ranks named, if any."""
    if path := os.environ.get(FAILURE_VARIABLE):
        with suppress(OSError):
            Path(path).write_text(why)


def exit_code_of(end: SystemExit) -> int:
    """Return the exit code with which Python ends a process: 1 if it prints a text instead."""
    return end.code if isinstance(end.code, int) else int(end.code is not None)


@contextmanager
def report_file() -> Iterator[Path]:
    """Create a file for the report, and pass its path to ranks that are started meanwhile."""
    with tempfile.TemporaryDirectory(prefix="mpi_ata-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "report"
        os.environ[REPORT_VARIABLE] = str(path)
        try:
            yield path
        finally:
            del os.environ[REPORT_VARIABLE]
