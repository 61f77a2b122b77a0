"""The ranks of an MPI world as a cluster, and what they must agree on first."""

import atexit
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import numpy as np

from mpi_ata.clusters.doorbell import Doorbell
from mpi_ata.clusters.handshake import check_same, handshake
from mpi_ata.clusters.health import FaultPolicy
from mpi_ata.clusters.manager import MPICluster
from mpi_ata.clusters.mpi import MPI, all_ranks_needed, end_all_ranks, note_loss, survives_losses
from mpi_ata.clusters.wire import exchange_of
from mpi_ata.clusters.worker import Worker
from mpi_ata.errors import UsageError, in_users_code
from mpi_ata.launch import step_tasks
from mpi_ata.layout import MANAGER, workers_in
from mpi_ata.problems import AnyProblem
from mpi_ata.times import DrawnTimes
from mpi_ata.updates import Update
from mpi_ata.version import __version__

log = logging.getLogger("mpi_ata")

LONGEST_ERROR = 4000  # bytes of a rank's error message that reach the manager


def workers_in_world() -> int:
    """Return how many workers this MPI world has; UsageError if there are none."""
    workers = workers_in(MPI.COMM_WORLD.Get_size())
    if workers > 0:
        return workers
    if (tasks := step_tasks()) > 1:
        raise UsageError(
            f"srun started {tasks} tasks, but each is an MPI world of its own: this srun does not work "
            "with this MPI; use srun --mpi=pmi2 (MPICH) or --mpi=pmix (Open MPI), or mpirun"
        )
    raise UsageError(
        "a job needs at least 2 ranks (1 manager + 1 worker) but was started on 1; use mpirun -n 5, "
        "or leave out mpirun and use --workers 4"
    )


def is_manager() -> bool:
    """Return whether this process is the manager of its MPI world."""
    return MPI.COMM_WORLD.Get_rank() == MANAGER


def hosts_in_world() -> list[str]:
    """Return the node of each rank of this MPI world; RunError if versions differ."""
    with closing(Doorbell()) as bell, all_ranks_needed():
        ranks = handshake(MPI.COMM_WORLD, bell, __version__.encode())
    check_same(ranks)
    return [rank.host for rank in ranks]


@contextmanager
def mpi_cluster(
    problem: AnyProblem,
    times: DrawnTimes | None,
    seed: int,
    report_drawn: bool,
    digest: bytes,
    grace_expired: Callable[[], bool] = lambda: False,
    policy: FaultPolicy | None = None,
    exchange: str = "star",
    update: Update | None = None,
) -> Iterator[MPICluster | None]:
    """Yield the ranks of this MPI world as a cluster; a worker's rank serves it first, then yields None."""
    asked, exchange = exchange, exchange_of(problem, exchange)
    if asked == "chain" != exchange and is_manager():
        log.warning("exchange='chain' is not used: it would round what travels as bfloat16 at every worker")
    with all_ranks_needed():
        comm = MPI.COMM_WORLD.Dup()
    if comm.Get_rank() != MANAGER:
        with all_ranks_needed():
            worker = Worker(comm, problem, times, seed, report_drawn, digest, exchange, update)
        if _served(worker, comm):
            sys.exit(0)  # the manager prints why
        comm.Free()
        yield None
        return
    with all_ranks_needed():
        label, drawn = times.label if times else "", report_drawn and times is not None
        cluster = MPICluster(comm, problem, digest, label, grace_expired, policy, drawn, exchange)
    cluster.replicates = update is not None
    try:
        yield cluster
        cluster.close()
    except BaseException:
        cluster.abort()
        raise
    if not cluster.ended_for_good:
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
    comm = MPI.COMM_WORLD
    size = np.array([len(text.encode())])
    with all_ranks_needed():
        comm.Bcast(size, MANAGER)
        data = np.frombuffer(bytearray(text.encode()[: size[0]].ljust(size[0])), np.uint8)
        comm.Bcast(data, MANAGER)
    return data.tobytes().decode()


@contextmanager
def collective_check() -> Iterator[None]:
    """Let all ranks do something that may fail; if one fails, the manager raises and all ranks leave."""
    failure = ""
    try:
        yield
    except UsageError as error:
        failure = str(error)
    except Exception as error:  # in a user's code, say: the other ranks wait for this one all the same
        failure = str(in_users_code("the job cannot be started", error))
    failures = _allgather_text(failure)
    if not any(failures):
        return
    if MPI.COMM_WORLD.Get_rank() != MANAGER:
        sys.exit(2)
    rank = next(rank for rank, text in enumerate(failures) if text)
    raise UsageError(failures[rank] if rank == MANAGER else f"rank {rank}: {failures[rank]}")


def _allgather_text(text: str) -> list[str]:
    """Return the texts of all ranks, each cut to a length that fits."""
    comm = MPI.COMM_WORLD
    own = np.frombuffer(text.encode()[:LONGEST_ERROR].ljust(LONGEST_ERROR), np.uint8)
    everyone = np.empty((comm.Get_size(), LONGEST_ERROR), np.uint8)
    with all_ranks_needed():
        comm.Allgather(own, everyone)
    return [row.tobytes().decode(errors="replace").strip() for row in everyone]
