"""The ranks of an MPI world as a cluster, and what they must agree on first."""

import atexit
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from mpi_ata.clusters.bfloat16 import exchange_of
from mpi_ata.clusters.interface import ClusterSettings
from mpi_ata.clusters.mpi.handshake import (
    allgather_text,
    check_same,
    exchange_ranks,
    said_by,
    share_arrays,
)
from mpi_ata.clusters.mpi.library import (
    MPI,
    all_ranks_needed,
    end_all_ranks,
    finalize,
    note_loss,
    ranks_lost,
    survives_losses,
    world,
)
from mpi_ata.clusters.mpi.manager import MPICluster
from mpi_ata.clusters.mpi.queued import QueuedRanks
from mpi_ata.clusters.mpi.worker import Worker
from mpi_ata.errors import RunError, UsageError
from mpi_ata.launch import step_tasks
from mpi_ata.launch.exit_report import leaving
from mpi_ata.layout import MANAGER, workers_in
from mpi_ata.problems import AnyProblem
from mpi_ata.version import __version__

log = logging.getLogger("mpi_ata")
Opened = TypeVar("Opened", MPICluster, QueuedRanks)

SPEAKING_SECONDS = 1.0  # that one rank has to say what is wrong: launchers end all when the first one ends
ENDED = "ended"
ALL_THE_SAME = "every rank must make the same calls"
_parted = False  # whether ranks have gone different ways, so that nothing can be done together


def workers_in_world(start_four: str = "--workers 4") -> int:
    """Return how many workers this MPI world has; UsageError if there are none, with how to start four."""
    workers = workers_in(world().Get_size())
    if workers > 0:
        return workers
    if (tasks := step_tasks()) > 1:
        raise UsageError(
            f"srun started {tasks} tasks, but each is an MPI world of its own: this srun does not work "
            "with this MPI; use srun --mpi=pmi2 (MPICH) or --mpi=pmix (Open MPI), or mpirun"
        )
    raise UsageError(
        "a job needs at least 2 ranks (1 manager + 1 worker) but was started on 1; use mpirun -n 5, "
        f"or leave out mpirun and use {start_four}"
    )


def is_manager() -> bool:
    """Return whether this process is the manager of its MPI world."""
    return world().Get_rank() == MANAGER


def hosts_in_world() -> list[str]:
    """Return the node of each rank of this MPI world; RunError if versions differ."""
    ranks = exchange_ranks(world(), __version__.encode())
    check_same(ranks)
    return [rank.host for rank in ranks]


@contextmanager
def mpi_cluster(
    settings: ClusterSettings, grace_expired: Callable[[], bool] = lambda: False
) -> Iterator[MPICluster | None]:
    """Yield the ranks of this MPI world as a cluster; a worker's rank serves it first, then yields None."""
    asked, exchange = settings.exchange, exchange_of(settings.problem, settings.exchange)
    settings = replace(settings, exchange=exchange)
    if asked == "chain" != exchange and is_manager():
        log.warning("exchange='chain' is not used: it would round what travels as bfloat16 at every worker")
    manager = partial(MPICluster, settings=settings, grace_expired=grace_expired)
    with _opened(partial(Worker, settings=settings), manager, settings.problem) as cluster:
        yield cluster


@contextmanager
def queued_ranks(digest: bytes, build: Callable[[int], ClusterSettings]) -> Iterator[QueuedRanks | None]:
    """Yield the ranks of this MPI world for several jobs, of which `build` returns the settings by number.

    A worker's rank serves them first, then yields None.
    """
    worker = partial(Worker, settings=None, digest=digest, build=build)
    with _opened(worker, partial(QueuedRanks, digest=digest)) as ranks:
        yield ranks


@contextmanager
def _opened(
    worker: Callable[[MPI.Comm], Worker],
    cluster: Callable[[MPI.Comm], Opened],
    problem: AnyProblem | None = None,
) -> Iterator[Opened | None]:
    """Yield what the manager opens; a worker's rank serves it first, then yields None."""
    with all_ranks_needed():
        comm = world().Dup()
        if problem is not None:
            share_arrays(comm, problem)
    if comm.Get_rank() != MANAGER:
        if _served(worker(comm), comm):
            sys.exit(0)  # the manager prints why
        comm.Free()
        yield None
        return
    with all_ranks_needed():
        found = cluster(comm)
    try:
        yield found
        found.close()
    except BaseException:
        found.abort()
        raise
    if not found.ended_for_good:
        comm.Free()


def _served(worker: Worker, comm: MPI.Comm) -> bool:
    """Let a worker serve its manager, and return whether no further run follows."""
    try:
        final = worker.serve()
        if not worker.dismissed:
            note_loss()
        return final or not worker.dismissed
    except BaseException:
        if survives_losses:
            note_loss()
        else:
            atexit.register(end_all_ranks, comm)
        raise


def bcast_text(text: str) -> str:
    """Return the manager's text on every rank."""
    comm = world()
    size = np.array([len(text.encode())])
    with all_ranks_needed():
        comm.Bcast(size, MANAGER)
        data = np.frombuffer(bytearray(text.encode()[: size[0]].ljust(size[0])), np.uint8)
        comm.Bcast(data, MANAGER)
    return data.tobytes().decode()


class Call(NamedTuple):
    """What a rank says of a call that all ranks of a script must make together."""

    name: str  # of the function
    digest: str = ""  # of all that must be the same on all ranks
    note: str = ""  # what the manager has found out
    failure: str = ""  # why this rank cannot do it
    settings: str = ""  # what it is about, one setting per line; the last field, since it may be cut off


def join(call: Call) -> Call:
    """Return the manager's call, when all ranks have made the same one; otherwise all ranks leave.

    A rank that makes another call, or ends without one, is found before anybody waits for it.
    """
    global _parted
    atexit.unregister(leave)
    atexit.register(leave)  # it is called before MPI is left
    calls = [_parse(text) for text in allgather_text(world(), "\0".join(call))]
    wrong = _disagreement(calls)
    if not wrong:
        return calls[MANAGER]
    _parted = any(each.name == ENDED for each in calls)
    speaker = next(rank for rank, each in enumerate(calls) if each.name != ENDED)
    if world().Get_rank() != speaker:
        time.sleep(SPEAKING_SECONDS)
        sys.exit(2)
    raise UsageError(wrong)


def leave() -> None:
    """Let ranks that wait for this one know that it has ended."""
    global _parted
    if _parted or ranks_lost() or MPI.Is_finalized() or MPI.COMM_WORLD.Get_size() == 1:
        return
    _parted = True
    everyone = [world()] if world() == MPI.COMM_WORLD else [world(), MPI.COMM_WORLD]
    with suppress(RunError), leaving():  # another rank has died: nobody waits
        for comm in everyone:  # the ranks that take part, and those that wait for nobody
            allgather_text(comm, "\0".join(Call(ENDED)))


def leave_world() -> None:
    """Announce that this rank leaves, if that was not done before, and leave MPI."""
    leave()
    finalize()


def _disagreement(calls: list[Call]) -> str:
    """Return what is wrong with the calls of the ranks, in one sentence; empty if nothing is."""
    first = next(call for call in calls if call.name != ENDED)
    for rank, call in enumerate(calls):
        who = f"rank {calls.index(first)}"
        if call.name == ENDED:
            return f"rank {rank} has ended, but {who} calls {first.name}: {ALL_THE_SAME}"
        if call.failure:
            return said_by(rank, call.failure)
        if call.name != first.name:
            return f"rank {rank} calls {call.name}, but {who} {first.name}: {ALL_THE_SAME}"
        if call.digest != first.digest:
            what = _difference(call.settings, first.settings)
            return f"rank {rank} calls {first.name} with other arguments than {who}{what}: {ALL_THE_SAME}"
    return ""


def _difference(settings: str, others: str) -> str:
    """Return the first setting in which two calls differ, if it is known."""
    pairs = zip(settings.split("\n"), others.split("\n"), strict=False)
    return next((f" ({own} instead of {other})" for own, other in pairs if own != other), "")


def _parse(text: str) -> Call:
    return Call(*(text + "\0" * 4).split("\0")[:5])
