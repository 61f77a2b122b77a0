"""The terminal that a stream reaches, perhaps through a launcher, and its size."""

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import TextIO

TERMINAL = "MPI_ATA_TERMINAL"  # set if rank 0 may draw a progress line although it writes to a pipe
# Processes between a rank and the terminal: they forward what ranks print.
LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "prte", "mpiexec.hydra", "hydra_pmi_proxy")
STDERR = 2


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Return columns and lines, 0 if not known; COLUMNS and LINES say it where a launcher is in between."""
    columns, lines = shutil.get_terminal_size((0, 0))
    if not (columns and lines):
        with suppress(OSError, ValueError):
            columns, lines = os.get_terminal_size(stream.fileno())
    return columns, lines


def behind_terminal(stream: TextIO | None) -> bool:
    """Return whether a launcher forwards a stream to a terminal; COLUMNS and LINES then say its size."""
    if os.environ.get(TERMINAL):
        return True
    if stream is None or not _is_pipe(stream) or (terminal := launchers_terminal(os.getppid())) is None:
        return False
    with suppress(OSError):
        size = _size_of(terminal)
        os.environ.setdefault("COLUMNS", str(size.columns or 80))
        os.environ.setdefault("LINES", str(size.lines))
    return True


def launchers_terminal(process: int) -> Path | None:
    """Return the terminal to which a launcher writes errors; None if the process is none, or has none."""
    folder = Path(f"/proc/{process}")
    try:
        while (folder / "comm").read_text().strip() in LAUNCHERS:
            if _is_terminal(written := folder / "fd" / str(STDERR)):
                return written.readlink()
            folder = Path(f"/proc/{_parent(folder)}")
    except (OSError, ValueError):  # there is no /proc, or the process is another user's
        pass
    return None


def _parent(folder: Path) -> int:
    """Return the parent of a process; its name, in brackets, may contain spaces."""
    return int((folder / "stat").read_text().rpartition(")")[2].split()[1])


def _is_terminal(path: Path) -> bool:
    return stat.S_ISCHR(path.stat().st_mode) and str(path.readlink()).startswith(("/dev/pts/", "/dev/tty"))


def _is_pipe(stream: TextIO) -> bool:
    with suppress(OSError, ValueError):
        return stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    return False


def _size_of(terminal: Path) -> os.terminal_size:
    handle = os.open(terminal, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        return os.get_terminal_size(handle)
    finally:
        os.close(handle)
