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

VARIABLE = "MPI_ATA_VERDICT"  # names the file
EXIT, STARTED, LOST, SIGNAL = "exit ", "started", "lost ", "signal "


class Loss(NamedTuple):
    """A worker that died."""

    host: str
    text: str


class Verdict(NamedTuple):
    """What is known of ranks that have ended."""

    started: bool  # whether all ranks have met
    code: int | None  # the manager's exit code; None if it was killed
    losses: list[Loss]  # in the order in which they were noticed


def note_start() -> None:
    """Record that all ranks have met."""
    _append(STARTED)


def note_exit(code: int) -> None:
    """Record the exit code of this process, the manager."""
    _append(f"{EXIT}{code}")


def exit_code_of(end: SystemExit) -> int:
    """Return the exit code with which Python ends a process: 1 if it prints a text instead."""
    return end.code if isinstance(end.code, int) else int(end.code is not None)


def note_lost_worker(host: str, text: str) -> None:
    """Record a dead worker without delay: its MPI may end this process too."""
    _append(f"{LOST}{host} {text}")


def note_signal(name: str) -> None:
    """Record a signal before it is passed on to the ranks, which get it as another one."""
    _append(f"{SIGNAL}{name}")


def forwarded_signals() -> list[str]:
    """Return the signals that the process that started the ranks has got so far."""
    path = os.environ.get(VARIABLE)
    lines = _lines(Path(path)) if path else []
    return [line.removeprefix(SIGNAL) for line in lines if line.startswith(SIGNAL)]


def has_lost_workers() -> bool:
    """Return whether a dead worker was recorded so far."""
    path = os.environ.get(VARIABLE)
    return bool(path and read_verdict(Path(path)).losses)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _append(line: str) -> None:
    if path := os.environ.get(VARIABLE):
        with suppress(OSError), open(path, "a") as file:
            file.write(f"{line}\n")


@contextmanager
def verdict_file() -> Iterator[Path]:
    """Create a file for the verdict, and pass its path to ranks that are started meanwhile."""
    with tempfile.TemporaryDirectory(prefix="mpi_ata-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "verdict"
        os.environ[VARIABLE] = str(path)
        try:
            yield path
        finally:
            del os.environ[VARIABLE]


def read_verdict(path: Path) -> Verdict:
    """Return what the manager has recorded."""
    lines = _lines(path)
    codes = [int(line.removeprefix(EXIT)) for line in lines if line.startswith(EXIT)]
    lost = [line.removeprefix(LOST).partition(" ") for line in lines if line.startswith(LOST)]
    losses = [Loss(host, text) for host, _, text in lost]
    return Verdict(STARTED in lines, codes[-1] if codes else None, losses)
