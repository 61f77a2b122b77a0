"""Loads MPI once, and leaves it cleanly even if a rank has died."""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import mpi4py

from mpi_ata.errors import RunError
from mpi_ata.launch import local_size, step_tasks, world_size
from mpi_ata.launch.environment import FAULT_TOLERANT, choose_world
from mpi_ata.launch.exit_report import leaving, report_so_far

LOST = "a rank has died, and a run needs all ranks; restart the job"
INIT_SECONDS = 600  # the ranks of a large job may be minutes apart
LOCAL_INIT_SECONDS = 60  # and on one machine, plus a second per rank

# MPI_Finalize may wait forever for a rank that has died, so it is called below; a script that has imported
# mpi4py.MPI before leaves it to mpi4py.
mpi4py.rc.finalize = False
survives_losses = os.environ.get(FAULT_TOLERANT) == "1"  # the launcher ends nobody because a rank has died


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """End this process if the block takes longer: no Python code can run in it, but an alarm ends a process.

    An alarm of the script's own is postponed to the end of the block.
    """
    began, (left, interval) = time.monotonic(), signal.setitimer(signal.ITIMER_REAL, seconds)
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            left = max(left - (time.monotonic() - began), 1e-6)
            signal.setitimer(signal.ITIMER_REAL, left, interval)


# Such a launcher lets the others wait for a rank that dies before MPI_Init; srun does the same.
_limit = LOCAL_INIT_SECONDS + world_size() if world_size() == local_size() else INIT_SECONDS
_watched = survives_losses or step_tasks() > 1
_watched &= threading.current_thread() is threading.main_thread()  # which alone may handle signals
with _ended_after(_limit) if _watched else nullcontext():
    from mpi4py import MPI as MPI

ENDED_SECONDS = 10.0  # in which a process that has said so ends all ranks
_chosen: list[MPI.Comm] = []  # the communicator of the script's own, if it has one
_ranks_lost: list[bool] = []  # not empty once a rank has died


def world() -> MPI.Comm:
    """Return the communicator of all ranks that take part."""
    return _chosen[0] if _chosen else MPI.COMM_WORLD


def use_world(comm: MPI.Comm) -> None:
    """Let only the ranks of a communicator take part, from now on."""
    _chosen[:] = [comm]
    choose_world(comm.Get_rank(), comm.Get_size())


def note_loss() -> None:
    """Take note that a rank has died: no run can begin on these ranks, and MPI_Finalize is skipped."""
    _ranks_lost.append(True)


def ranks_lost() -> bool:
    """Return whether a rank is known to have died."""
    return bool(_ranks_lost)


@atexit.register
def finalize() -> None:
    """Leave MPI, unless a rank has died."""
    if not _ranks_lost and MPI.Is_initialized() and not MPI.Is_finalized():
        with leaving():
            MPI.Finalize()


@contextmanager
def all_ranks_needed() -> Iterator[None]:
    """Do what needs every rank; RunError if one has died."""
    if _ranks_lost:
        raise RunError(LOST)
    try:
        yield
    except MPI.Exception as error:
        if not is_loss(error):
            raise
        note_loss()
        atexit.register(end_all_ranks, world())
        raise RunError(LOST) from None


def is_loss(error: Exception) -> bool:
    """Return whether this is MPI's error for a rank that has died."""
    if not isinstance(error, MPI.Exception):
        return False
    return error.Get_error_class() in (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)


def acknowledged_losses(comm: MPI.Comm) -> list[int]:
    """Return the ranks that MPI knows to have died, and let messages from the others through again."""
    failed, everyone = comm.Get_failed(), comm.Get_group()
    try:
        comm.Ack_failed(failed.Get_size())
        return list(failed.Translate_ranks(range(failed.Get_size()), everyone))
    finally:
        failed.Free()
        everyone.Free()


def end_without_manager() -> set[int]:
    """End this process, a worker's, since its manager has died: there is nobody to report to."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def end_all_ranks(comm: MPI.Comm, code: int = 1) -> None:
    """End all ranks, whatever they are doing."""
    sys.stdout.flush()
    sys.stderr.flush()
    if report_so_far().at_once:
        time.sleep(ENDED_SECONDS)  # who has passed on both Ctrl-C ends the ranks, without a message of MPI's
    comm.Abort(code or int(survives_losses))  # a launcher that survives losses ends nobody for code 0
