"""How the process of a rank begins and ends: signals may come early, and others may wait for it."""

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from mpi_ata.launch.environment import rank, step_tasks, under_launcher, world_size
from mpi_ata.launch.held_signals import hold_stop_signals
from mpi_ata.launch.verdict import VARIABLE
from mpi_ata.layout import MANAGER

OWNER = "MPI_ATA_RANK"  # the process that is the rank: its children inherit the launcher's variables
COMMANDS = "mpi_ata.cli"  # the command line, whose ranks all do the same

log = logging.getLogger("mpi_ata")
_warned: list[bool] = []


def leave_at_exit(leave: Callable[[], None]) -> None:
    """Call `leave` when the process of a rank ends, even if it has made no call that involves the others.

    Tasks of srun need not be ranks of an MPI, and those that are do not wait forever for one that has ended.
    """
    own = str(os.getpid())
    if world_size() > 1 and step_tasks() == 1 and os.environ.setdefault(OWNER, own) == own:
        atexit.register(_leave, leave)


def _leave(leave: Callable[[], None]) -> None:
    if COMMANDS not in sys.modules:
        with suppress(Exception):  # there may be no MPI
            leave()


def hold_signals_of_starter(environment: Mapping[str, str]) -> None:
    """Hold stop signals for the run to come, if this package has started the ranks and forwards them."""
    if VARIABLE in environment and threading.current_thread() is threading.main_thread():
        hold_stop_signals()


def note_simulation() -> None:
    """Warn once where every rank simulates the same workers."""
    if _warned or COMMANDS in sys.modules or not under_launcher() or world_size() == 1:
        return
    _warned.append(True)
    if rank() == MANAGER:
        log.warning(
            "each of the %s ranks simulates all workers for itself; leave out mpirun, or use the ranks as "
            "workers with mpi_ata.cluster(problem)",
            world_size(),
        )
