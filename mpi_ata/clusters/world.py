"""The ranks of an MPI world as a cluster, and what they must agree on before."""

import atexit
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import numpy as np
from mpi4py import MPI

from mpi_ata.clusters.doorbell import Doorbell
from mpi_ata.clusters.handshake import check_same, handshake
from mpi_ata.clusters.manager import MPICluster, end_all_ranks
from mpi_ata.clusters.worker import Worker
from mpi_ata.errors import UsageError, in_users_code
from mpi_ata.launch import step_tasks
from mpi_ata.problems import Problem
from mpi_ata.times import DrawnTimes
from mpi_ata.version import __version__

REFUSAL = 4000  # bytes of what a rank may say against a job


def workers_in_world() -> int:
    """How many workers this MPI world has beside the manager; refuses a world without any."""
    size = MPI.COMM_WORLD.Get_size()
    if size > 1:
        return size - 1
    if (tasks := step_tasks()) > 1:
        raise UsageError(
            f"srun started {tasks} tasks, but each is an MPI world of its own: srun and this MPI do not "
            "understand each other; use srun --mpi=pmi2 (MPICH) or --mpi=pmix (Open MPI), or mpirun"
        )
    raise UsageError(
        "a job needs at least 2 ranks (1 manager + 1 worker) but was started on 1; use mpirun -n 5, "
        "or leave out mpirun and say --workers 4"
    )


def hosts_in_world() -> list[str]:
    """The node of each rank of this MPI world, by its own words; refuses versions that differ."""
    with closing(Doorbell()) as bell:
        ranks = handshake(MPI.COMM_WORLD, bell, __version__.encode())
    check_same(ranks)
    return [rank.host for rank in ranks]


@contextmanager
def mpi_cluster(
    problem: Problem,
    times: DrawnTimes | None,
    seed: int,
    report_drawn: bool,
    digest: bytes,
    overdue: Callable[[], bool] = lambda: False,
) -> Iterator[MPICluster | None]:
    """Let the ranks of this MPI world be a cluster; a worker's rank serves it, and then gets None."""
    comm = MPI.COMM_WORLD.Dup()
    if comm.Get_rank() > 0:
        try:
            for_good = Worker(comm, problem, times, seed, report_drawn, digest).serve()
        except BaseException:
            atexit.register(end_all_ranks, comm)
            raise
        if for_good:
            sys.exit(0)  # the manager tells the user why
        comm.Free()
        yield None
        return
    cluster = MPICluster(comm, problem, digest, times.label if times else "", overdue)
    try:
        yield cluster
        cluster.close()
    except BaseException:
        cluster.abort()
        raise
    if not cluster.ended_for_good:
        comm.Free()


def bcast_text(text: str) -> str:
    """A text of rank 0's, for every rank."""
    comm = MPI.COMM_WORLD
    size = np.array([len(text.encode())])
    comm.Bcast(size)
    data = np.frombuffer(bytearray(text.encode()[: size[0]].ljust(size[0])), np.uint8)
    comm.Bcast(data)
    return data.tobytes().decode()


@contextmanager
def collective_check() -> Iterator[None]:
    """Let all ranks do something that may be refused; where one is, rank 0 says so and all ranks leave."""
    refusal = ""
    try:
        yield
    except UsageError as error:
        refusal = str(error)
    except Exception as error:  # in a user's code, say: the others wait for this rank all the same
        refusal = str(in_users_code("the job cannot be started", error))
    comm = MPI.COMM_WORLD
    own = np.frombuffer(refusal.encode()[:REFUSAL].ljust(REFUSAL), np.uint8)
    everyone = np.empty((comm.Get_size(), REFUSAL), np.uint8)
    comm.Allgather(own, everyone)
    refusals = [row.tobytes().decode(errors="replace").strip() for row in everyone]
    if not any(refusals):
        return
    if comm.Get_rank() > 0:
        sys.exit(2)
    number = next(number for number, text in enumerate(refusals) if text)
    raise UsageError(refusals[number] if number == 0 else f"rank {number}: {refusals[number]}")
