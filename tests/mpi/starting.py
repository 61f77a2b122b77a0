"""Starts commands on real ranks, with the MPI of this environment."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from mpi_ata import launch

ROOT = Path(__file__).parent.parent.parent
COMMAND = Path(sys.executable).with_name("mpi-ata")


def environment() -> dict[str, str]:
    """Return the environment of a rank in a test."""
    variables = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    launch.set_mpi_defaults(variables)
    return variables


def mpirun(ranks: int, *command: str | Path, seconds: float = 60) -> "subprocess.CompletedProcess[str]":
    """Run a command on this many ranks, started by mpirun as a user would."""
    return finished([launch.find_mpirun(), "-n", str(ranks), *map(str, command)], seconds)


def finished(command: list[str], seconds: float = 60) -> "subprocess.CompletedProcess[str]":
    """Run a command; it and all that it started are killed if it takes too long."""
    with started(command) as process:
        out, err = process.communicate(timeout=seconds)
        return subprocess.CompletedProcess(command, process.returncode, out, err)


@contextmanager
def started(
    command: list[str],
    folder: Path | None = None,
    out: IO[str] | int = subprocess.PIPE,
    err: IO[str] | int = subprocess.PIPE,
) -> "Iterator[subprocess.Popen[str]]":
    """Start a command in its own session, of which nothing is left in the end."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as session,
        subprocess.Popen(
            command,
            stdout=out,
            stderr=err,
            text=True,
            env=_variables(command, session),
            cwd=folder,
            start_new_session=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def _variables(command: list[str], session: str) -> dict[str, str]:
    """Return the environment of a command, in which a killed mpirun leaves no files to later ones."""
    variables = environment()
    if command[0] == launch.find_mpirun():
        variables["PRTE_MCA_prte_tmpdir_base"] = session
    return variables


def ranks_of(marker: str) -> list[int]:
    """Return the processes that have this word on their command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        if any(marker.encode() in word for word in words):
            found.append(int(folder.name))
    return found


def rank_pids(marker: str) -> dict[int, int]:
    """Return the processes that have this word on their command line, by rank."""
    ranks = {}
    for pid in ranks_of(marker):
        with suppress(OSError):
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            words = dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)
            rank = words.get(b"OMPI_COMM_WORLD_RANK") or words.get(b"PMI_RANK")
            if rank is not None:
                ranks[int(rank)] = pid
    return ranks
